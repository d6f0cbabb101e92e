"""Where files are: of this package, which can be made again, and of users, whose paths may name no place on a disk."""

from __future__ import annotations

import os
import pathlib
import tempfile

from pubsub_api.errors import UsageError
from pubsub_api.runtime.plugins import without_password
from spark_pipeline.objects import is_url


def local_path(given: str | os.PathLike[str], what: str) -> pathlib.Path:
    """A path that a user gave.  Raises UsageError for a URL: as a path, it would be a folder of that name."""
    text = os.fspath(given)
    if is_url(text):
        raise UsageError(
            f"{what} must be a directory that this host and all workers have mounted, not {without_password(text)}: "
            "object stores and HDFS are not supported"
        )
    return pathlib.Path(text)


def cache_directory() -> pathlib.Path | None:
    """A directory of the user, or else one below the temporary directory, private either way.  Made when it is missing;
    None when neither can be written."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    temporary = pathlib.Path(tempfile.gettempdir()) / f"heliograph-{os.getuid()}"
    for directory in (pathlib.Path(base) / "heliograph", temporary):
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(directory, os.W_OK | os.X_OK) and directory.stat().st_uid == os.getuid():
            return directory
    return None
