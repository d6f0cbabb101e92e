"""The name of a publisher to which none was given."""

from __future__ import annotations

import os
import socket
import sys


def default_name() -> str:
    """Host and program: the same again after a restart."""
    path = sys.argv[0] if sys.argv else ""
    if os.path.basename(path) == "__main__.py":  # python -m: the package has the name
        path = os.path.dirname(path)
    program = os.path.basename(path) or "python"
    return f"{socket.gethostname()}/{program}"
