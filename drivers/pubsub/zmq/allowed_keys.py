"""Which CURVE keys a publisher lets in: the public keys in a directory, as they are now.

Theory of operation.  The directory is looked at every `LOOK_INTERVAL_S`, and when somebody asks to be let in.  A look
compares what the system says of every ``*.key`` file (`os.stat`), so a file that is overwritten in place is noticed as
one that is added or removed; only files that changed are read.

What cannot be read allows nobody.  A broken file stands for no key, whatever it held before, and a directory that
cannot be listed for none at all: a key is valid because it can be read there now, not because it once could.
"""

from __future__ import annotations

import logging
import os
import pathlib
import time
from typing import NamedTuple

import zmq.auth
from zmq.utils import z85

from pubsub_api.counting import Tally
from pubsub_api.errors import InvalidConfig

LOG = logging.getLogger(__name__)

LOOK_INTERVAL_S = 1.0
"""A key that is taken away is noticed within this time."""
_LOOKS_APART_S = 0.05
"""Strangers who knock make us look no more often than this, however many they are."""
_UNSETTLED_NS = 1_000_000_000
"""A file this young is read again at the next look: file systems tell times in steps, and two changes may be in one."""
_KEY_LENGTH = 40


class _File(NamedTuple):
    mark: tuple[int, ...]
    """What the system says of it."""
    is_settled: bool
    key: bytes | None
    """None when it cannot be read as a key."""


class AllowedKeys:
    """For one thread.  Raises InvalidConfig at the start when the directory, or a file in it, cannot be read."""

    def __init__(self, directory: pathlib.Path) -> None:
        self._directory = directory
        self._files: dict[str, _File] = {}
        self._keys: frozenset[bytes] = frozenset()
        self._looked = 0.0
        self._error: str | None = None
        self.is_one_revoked = False
        """A key was allowed and is no more.  To be reset by who has acted on it."""
        self.look(Tally("keys_unreadable"))
        broken = [name for name, file in self._files.items() if file.key is None]
        if self._error is not None or broken:
            what = self._error or f"{broken[0]} in it is no CURVE certificate"
            raise InvalidConfig(f"[zmq] curve_allowed_keys_dir {directory}: {what}")

    def may_enter(self, public: bytes, tally: Tally) -> bool:
        """Whether the key is allowed now."""
        if time.monotonic() - self._looked >= _LOOKS_APART_S:
            self.look(tally)
        return public in self._keys

    def look(self, tally: Tally) -> None:
        """Read what has changed."""
        self._looked = time.monotonic()
        try:
            found = self._read(tally)
        except OSError as error:
            found = {}
            if self._error is None:
                tally.add("keys_unreadable")
                LOG.error("The directory of allowed CURVE keys cannot be read; nobody is let in: %s", error)
            self._error = str(error)
        else:
            self._error = None
        former, self._files = self._keys, found
        self._keys = frozenset(file.key for file in found.values() if file.key is not None)
        self.is_one_revoked |= bool(former - self._keys)

    def _read(self, tally: Tally) -> dict[str, _File]:
        found: dict[str, _File] = {}
        with os.scandir(self._directory) as entries:
            names = sorted(entry.name for entry in entries if entry.name.endswith(".key"))
        for name in names:
            known = self._files.get(name)
            try:
                mark, is_settled = _mark(self._directory / name)
            except FileNotFoundError:
                continue  # gone since it was listed
            except OSError:
                mark, is_settled = (), False
            if known is not None and known.mark == mark and known.is_settled:
                found[name] = known
                continue
            key = _read_key(self._directory / name)
            if key is None and (known is None or known.key is not None or known.mark != mark):
                tally.add("keys_unreadable")
                LOG.error("%s is no CURVE certificate: whoever has its key is not let in", self._directory / name)
            found[name] = _File(mark, is_settled, key)
        return found


def _mark(path: pathlib.Path) -> tuple[tuple[int, ...], bool]:
    stat = path.stat()
    mark = (stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)
    return mark, abs(time.time_ns() - max(stat.st_mtime_ns, stat.st_ctime_ns)) > _UNSETTLED_NS


def _read_key(path: pathlib.Path) -> bytes | None:
    try:
        public, _secret = zmq.auth.load_certificate(path)
        z85.decode(public)
    except (OSError, ValueError, IndexError, KeyError):
        return None
    return public if len(public) == _KEY_LENGTH else None
