"""Objects as this process saw them last, so that a write need not read what was just read or written.

A guess, and treated as one: the transaction that is built on it has etcd compare the number and the whole value of the
key.  The number alone would not do: an etcd that was restored from a backup gives its numbers again, to other changes.
"""

from __future__ import annotations

import threading

from heliograph_drivers.db.etcd.wire.messages import KeyValue
from pubsub_api.runtime import forking

_BYTES_MAX = 16 * 1024 * 1024
_OBJECT_BYTES_MAX = 4096
"""The value is sent to be compared, so that of a large one it is cheaper to read it."""
_ENTRY_BYTES = 300
"""What an entry takes beyond key and value."""


class KnownObjects:
    """Bounded; what was not seen for longest is forgotten.  Every method may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._objects: dict[bytes, KeyValue] = {}
        self._bytes = 0
        forking.register(self)

    def after_fork_in_child(self) -> None:
        self._lock = threading.Lock()
        self._objects, self._bytes = {}, 0

    def get(self, name: bytes) -> KeyValue | None:
        """None when nothing is known of it."""
        return self._objects.get(name)

    def saw(self, name: bytes, found: KeyValue | None) -> None:
        """This is what the key was just now; None: there was none."""
        with self._lock:
            self._forget(name)
            if found is None or len(found.value) > _OBJECT_BYTES_MAX:
                return
            self._objects[name] = found
            self._bytes += _size(found)
            while self._bytes > _BYTES_MAX:
                self._forget(next(iter(self._objects)))

    def _forget(self, name: bytes) -> None:
        known = self._objects.pop(name, None)
        if known is not None:
            self._bytes -= _size(known)


def _size(found: KeyValue) -> int:
    return 2 * len(found.key) + len(found.value) + _ENTRY_BYTES
