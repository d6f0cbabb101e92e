"""Requests to an object store, through obstore: bounded in time, with the errors of a log.

What a URL says of the store stands in its query, by the names that obstore gives them, as in
``s3://bucket/prefix?endpoint=https://host&region=eu-1``; what it does not say is taken from the usual environment
(``AWS_ACCESS_KEY_ID``, ``GOOGLE_APPLICATION_CREDENTIALS``, ``AZURE_STORAGE_ACCOUNT_NAME``, ...).  No message shows the
query.

obstore works with threads of its own, of which a forked child has none: a child of a process that has made requests is
refused, and does not hang.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import re
import secrets
import urllib.parse
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, NamedTuple, TypeVar

from durable_log.errors import LogError, LogUnavailable
from pubsub_api.errors import DriverDependencyMissing, Forked, InvalidConfig

T = TypeVar("T")

UPLOAD_TIMEOUT_S = 600.0
"""How long the upload of one segment may take."""
READ_BYTES = 8 << 20
"""What one request asks for at most."""
_RETRIES = 5
_BACKOFF_S = 0.1
_BACKOFF_MAX_S = 2.0
_URL = re.compile(r"[a-z0-9]+://[A-Za-z0-9._-]+(/[A-Za-z0-9._=+-]+)*/?")
_CLIENT_OPTIONS = frozenset({
    "allow_http", "allow_invalid_certificates", "http1_only", "http2_only", "proxy_url", "proxy_ca_certificate",
    "proxy_excludes", "root_certificate", "user_agent",
})  # fmt: skip
_NOT_OPTIONS = frozenset({
    "connect_timeout", "default_content_type", "default_headers", "http2_keep_alive_interval",
    "http2_keep_alive_timeout", "http2_keep_alive_while_idle", "pool_idle_timeout", "pool_max_idle_per_host",
    "randomize_addresses", "read_timeout", "timeout",
})  # fmt: skip
"""What obstore's client has beside these.  Taken for options of a store they would end the process."""
_TEXT_MAX = 400

_threads_of_pid = 0
"""Process in which obstore has started its threads; 0 when it has not."""


class KeyTaken(Exception):
    """There is an object already under the key that was to be made."""


class ObjectChanged(Exception):
    """The object has another version than the caller expected."""


class ObjectVersion(NamedTuple):
    e_tag: str | None
    version: str | None


class StoredObject(NamedTuple):
    key: str
    modified_s: float
    """When it was written, by the server's clock."""


class ObjectClient:
    """The objects under one prefix.  For any thread; every call blocks, for a bounded time.

    All calls raise LogUnavailable when the server cannot be reached or does not answer in time, LogError when it
    refuses, and Forked.
    """

    def __init__(self, url: str, *, timeout_s: float) -> None:
        """Makes no request.  Raises InvalidConfig, DriverDependencyMissing."""
        self._place, _, query = url.partition("?")
        self._timeout_s = timeout_s
        if not _URL.fullmatch(self._place):
            shown = re.match(r"[\w:/.=+-]*(?=[^@]*$)", self._place)  # the rest may be a secret
            raise InvalidConfig(
                f"[log] segment_directory = {shown[0] if shown else ''}...: write scheme://bucket/prefix, of letters, "
                "digits and ._=+-, and options behind a ?"
            )
        try:
            pairs = urllib.parse.parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))
        except ValueError:
            raise InvalidConfig(f"{self._place}: its query must be name=value pairs") from None
        self.options = dict(pairs)
        if refused := sorted(self.options.keys() & _NOT_OPTIONS):
            raise InvalidConfig(f"{self._place}: {refused[0]} cannot be set; times follow from [log] operation_timeout")
        self._store = self._open(timeout_s)
        self._uploads = self._open(UPLOAD_TIMEOUT_S)

    def _open(self, timeout_s: float) -> Any:
        try:
            from obstore.store import from_url  # noqa: PLC0415
        except ImportError as error:
            raise DriverDependencyMissing(
                f"segments at {self._place} need the Python library {error.name!r}: pip install 'heliograph[objects]'"
            ) from error
        client = {name: _option(value) for name, value in self.options.items() if name in _CLIENT_OPTIONS}
        config = {name: value for name, value in self.options.items() if name not in _CLIENT_OPTIONS}
        connect_s = min(timeout_s, self._timeout_s)
        opening: Any = from_url  # the types of the library name every setting of every store
        try:
            return opening(
                self._place,
                config=config,
                client_options={**client, "timeout": _seconds(timeout_s), "connect_timeout": _seconds(connect_s)},
                retry_config={
                    "max_retries": _RETRIES, "retry_timeout": _seconds(self._timeout_s),
                    "backoff": {
                        "init_backoff": _seconds(_BACKOFF_S), "max_backoff": _seconds(_BACKOFF_MAX_S), "base": 2,
                    },
                },
            )  # fmt: skip
        except Exception as error:
            raise InvalidConfig(f"{self._place} cannot be used: {_text(error)}") from error

    # -- reading

    def get(self, key: str) -> tuple[bytes, ObjectVersion] | None:
        """A small object as a whole; None when there is none."""

        def call() -> tuple[bytes, ObjectVersion]:
            found = self._store.get(key)
            return bytes(found.bytes()), _version(found.meta)

        with contextlib.suppress(FileNotFoundError):
            return self._call("read", key, call)
        return None

    def size(self, key: str) -> int | None:
        """None when there is no such object."""
        with contextlib.suppress(FileNotFoundError):
            return int(self._call("look at", key, lambda: self._store.head(key))["size"])
        return None

    def fetch(self, key: str, size: int, file: BinaryIO) -> None:
        """Write an object of this size into a file.  Raises FileNotFoundError, OSError."""
        for start in range(0, size, READ_BYTES):
            end = min(size, start + READ_BYTES)
            file.write(self._call("read", key, lambda: self._store.get_range(key, start=start, end=end)))  # noqa: B023

    def list(self) -> list[StoredObject]:
        """All, in order of their keys."""

        def call() -> list[StoredObject]:
            found = (one for portion in self._store.list() for one in portion)
            return sorted(StoredObject(one["path"], one["last_modified"].timestamp()) for one in found)

        return self._call("list", "", call)

    # -- writing

    def create(self, key: str, content: bytes) -> ObjectVersion:
        """Make an object that must not exist.  Raises KeyTaken, which may be due to a write of our own whose answer
        was lost."""
        return self._put(self._uploads, key, content, "create")

    def replace(self, key: str, content: bytes, former: ObjectVersion) -> ObjectVersion:
        """Raises ObjectChanged when the object has another version than ``former``."""
        return self._put(
            self._store, key, content, {name: said for name, said in former._asdict().items() if said is not None}
        )

    def _put(self, store: Any, key: str, content: bytes, mode: object) -> ObjectVersion:
        try:
            return _version(self._call("write", key, lambda: store.put(key, content, mode=mode, use_multipart=False)))
        except FileNotFoundError as error:
            if mode == "create":
                raise InvalidConfig(f"{self._place}: there is no such bucket") from error
            raise ObjectChanged(key) from error

    def delete(self, key: str) -> None:
        """Nothing happens when there is no such object."""
        with contextlib.suppress(FileNotFoundError):
            self._call("remove", key, lambda: self._store.delete(key))

    def check_conditions(self) -> None:
        """Write one object several times.  Raises InvalidConfig when the store does not refuse what it has to."""
        key = f".probe-{secrets.token_hex(8)}"
        version = self.create(key, b"1")
        try:
            with self._refusing(KeyTaken, "overwrites an object that was to be made only if there is none"):
                self.create(key, b"2")
            self.replace(key, b"3", version)
            with self._refusing(ObjectChanged, "replaces an object that has another version than was named"):
                self.replace(key, b"4", version)
        finally:
            self.delete(key)

    @contextlib.contextmanager
    def _refusing(self, kind: type[Exception], fault: str) -> Iterator[None]:
        try:
            yield
        except kind:
            return
        raise InvalidConfig(
            f"{self._place} cannot be used for segments: this object store {fault}, so two processes could destroy "
            "what the other has written. Use one that knows conditional writes (If-None-Match, If-Match)"
        )

    def _call(self, verb: str, key: str, call: Callable[[], T]) -> T:
        """Raises FileNotFoundError, KeyTaken and ObjectChanged, too."""
        from obstore import exceptions  # noqa: PLC0415

        _check_not_forked(self._place)
        what = f"cannot {verb} {self._place}{'/' if key else ''}{key}"
        try:
            return call()
        except FileNotFoundError:
            raise
        except exceptions.AlreadyExistsError as error:
            raise KeyTaken(key) from error
        except exceptions.PreconditionError as error:
            raise ObjectChanged(key) from error
        except (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError, PermissionError) as error:
            raise LogError(f"{what}: the server refuses this user: {_text(error)}") from error
        except (exceptions.BaseError, OSError) as error:
            raise LogUnavailable(f"{what}: {_text(error)}") from error


def _check_not_forked(place: str) -> None:
    global _threads_of_pid  # noqa: PLW0603  # obstore, too, has its threads once per process
    if _threads_of_pid not in (0, os.getpid()):
        raise Forked(
            f"{place}: this process was forked from one that has used object storage, whose threads it lacks. Use the "
            "segments in one of the two only, or start the process with 'spawn'"
        )
    _threads_of_pid = os.getpid()


def _version(said: Any) -> ObjectVersion:
    return ObjectVersion(said["e_tag"], said["version"])


def _option(value: str) -> str | bool:
    return {"true": True, "false": False}.get(value.lower(), value)


def _seconds(seconds: float) -> datetime.timedelta:
    return datetime.timedelta(seconds=seconds)


def _text(error: Exception) -> str:
    """What obstore says, without its internal state and what an address of a server has before its host."""
    said = " ".join(re.sub(r"//[^/\s]*@", "//***@", str(error).partition("Debug source")[0]).split())
    return said if len(said) <= _TEXT_MAX else f"{said[:_TEXT_MAX]}..."
