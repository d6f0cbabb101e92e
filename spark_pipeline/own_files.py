"""Where this package keeps files that can be made again: a Java launcher, a Spark home."""

from __future__ import annotations

import os
import pathlib
import tempfile


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
