"""Starting threads where the system may have no room for another.  Drivers may use it, too."""

from __future__ import annotations

import threading

from pubsub_api.errors import LimitReached


def start_thread(thread: threading.Thread) -> None:
    """Raises LimitReached when the system has no room for another thread; then the caller closes what it has opened."""
    try:
        thread.start()
    except RuntimeError as error:
        raise LimitReached(f"the thread {thread.name} cannot be started: {error}") from error
