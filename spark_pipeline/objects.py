"""Directories in an object store, ``s3://``, ``gs://`` and ``abfss://``, for tables, snapshots and checkpoints.

The environment of each process has what the store asks of its users, as for all programs of these stores:
``AWS_ACCESS_KEY_ID``, ``AWS_ENDPOINT_URL``, ``AZURE_STORAGE_ACCOUNT_NAME``, ``GOOGLE_APPLICATION_CREDENTIALS``, ...;
the ``deltalake`` library reads the same ones.  An object appears whole, and one that must not exist yet is refused by
the store itself.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import re
from collections.abc import Iterable, Iterator
from typing import Any

from pubsub_api.errors import UsageError
from pubsub_api.runtime.plugins import without_password
from spark_pipeline.errors import PipelineError, SparkMissing

RETRIES, RETRY_S = 5, 60
"""How often a request is tried again, and for how long, when a store is away; each waits 30 seconds for an answer."""
_SCHEMES = ("s3", "s3a", "gs", "abfs", "abfss", "az")
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/")


def is_url(given: str | os.PathLike[str]) -> bool:
    """Whether this names something else than a path.  Windows is not supported, so no path begins with a letter and a
    colon."""
    return _URL.match(os.fspath(given)) is not None


class ObjectDirectory:
    """What is below a URL of an object store.  Travels to the workers of Spark.  Every call blocks, and raises
    PipelineError when the store cannot be reached or refuses."""

    def __init__(self, url: str | os.PathLike[str], what: str) -> None:
        """Makes no request.  Raises UsageError for a URL of another kind, SparkMissing without obstore."""
        self.url = os.fspath(url).rstrip("/")
        found = _URL.match(self.url)
        if found is None or found[1] not in _SCHEMES:
            raise UsageError(
                f"{what} must be a directory that this host and all workers have mounted, or be in an object store "
                f"({', '.join(_SCHEMES)}), not {self}: other places are not supported"
            )
        self._store: Any = None
        self._opened()

    def __str__(self) -> str:
        return without_password(self.url)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_store": None}  # it has threads, and is opened anew in each process

    def read(self, name: str) -> bytes | None:
        """An object as a whole; None when there is none."""
        with contextlib.suppress(FileNotFoundError), self._errors("read", name):
            return bytes(self._opened().get(name).bytes())
        return None

    def create(self, name: str, content: bytes) -> None:
        """Raises UsageError when there is such an object already."""
        from obstore.exceptions import AlreadyExistsError  # noqa: PLC0415

        try:
            with self._errors("write", name):
                self._opened().put(name, content, mode="create")
        except AlreadyExistsError as error:
            if self.read(name) != content:  # else it is our own, and the answer to a first attempt was lost
                raise UsageError(f"{self}/{name} exists already: name another place") from error

    def put(self, name: str, content: bytes | os.PathLike[str]) -> None:
        """Write an object, from memory or from a file, in the place of what was there."""
        with self._errors("write", name):
            self._opened().put(name, content)

    def remove(self, names: Iterable[str]) -> None:
        """Those that are gone already are fine."""
        for name in names:
            with contextlib.suppress(FileNotFoundError), self._errors("remove", name):
                self._opened().delete(name)

    def names(self, prefix: str = "") -> list[str]:
        """Of all objects below a directory of this one, in order."""
        with self._errors("list", prefix):
            return sorted(one["path"] for portion in self._opened().list(prefix or None) for one in portion)

    def children(self) -> list[str]:
        """Of objects and directories in this one itself, in order."""
        with self._errors("list", ""):
            found = self._opened().list_with_delimiter()
        names = [one["path"] for one in found["objects"]]
        return sorted({name.rstrip("/").rpartition("/")[2] for name in (*names, *found["common_prefixes"])})

    def _opened(self) -> Any:
        if self._store is None:
            try:
                from obstore.store import from_url  # noqa: PLC0415
            except ImportError as error:
                raise SparkMissing(f"{self} needs obstore ({error}): pip install 'heliograph[spark]'") from error
            with self._errors("use", ""):
                self._store = from_url(
                    self.url,
                    retry_config={
                        "max_retries": RETRIES, "retry_timeout": datetime.timedelta(seconds=RETRY_S),
                    },
                )  # fmt: skip
        return self._store

    @contextlib.contextmanager
    def _errors(self, verb: str, name: str) -> Iterator[None]:
        """FileNotFoundError and AlreadyExistsError pass."""
        from obstore import exceptions  # noqa: PLC0415

        try:
            yield
        except (FileNotFoundError, exceptions.AlreadyExistsError):
            raise
        except (exceptions.BaseError, OSError, ValueError) as error:
            # What follows is the internal state of the client.
            said = " ".join(str(error).partition("Debug source")[0].split())
            raise PipelineError(f"cannot {verb} {self}{'/' if name else ''}{name}: {said}") from error
