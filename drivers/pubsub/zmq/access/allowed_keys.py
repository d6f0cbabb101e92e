"""Which CURVE keys a publisher lets in: the public keys in a directory, as they are now.

Theory of operation.  The directory is looked at every `LOOK_INTERVAL_S`, and when a peer asks to be let in.  A look
compares what the system says of every ``*.key`` file (`os.stat`), so a file that is overwritten in place is noticed as
one that is added or removed; only files that changed are read.

What cannot be read allows nobody.  A broken file stands for no key, whatever it held before, and a directory that
cannot be listed for none at all: a key is valid because it can be read there now, not because it once could.

A file that is being written (``cp`` empties it first) is broken for a moment, too.  Its key lets nobody in from the
first look that finds it so, but it is told and counted, and its key is taken from who is connected, only when it is
still broken after `_WRITING_S`.
"""

from __future__ import annotations

import logging
import os
import pathlib
import time
from typing import NamedTuple

import zmq.auth
from zmq.utils import z85

from pubsub_api.driver_kit import Tally
from pubsub_api.errors import InvalidConfig

LOG = logging.getLogger(__name__)

LOOK_INTERVAL_S = 1.0
"""A key that is taken away is noticed within this time."""
_LOOKS_APART_S = 0.05
"""Unknown peers make us look no more often than this, however many they are."""
_UNSETTLED_NS = 1_000_000_000
"""A file this young is read again at the next look: file systems tell times in steps, and two changes may be in one."""
_WRITING_S = LOOK_INTERVAL_S / 2
"""Writing a key file takes less.  The look after the one that finds it broken comes later."""
_KEY_LENGTH = 40


class _File(NamedTuple):
    mark: tuple[int, ...]
    """What the system says of it."""
    is_settled: bool
    key: bytes | None
    """None when it cannot be read as a key."""
    former: bytes | None = None
    """What it held before, while it may be that it is being written."""
    broken_since: float | None = None
    """Monotonic time of the look that found it broken; None when it is whole, or has been told."""


class AllowedKeys:
    """For one thread.  Raises InvalidConfig at the start when the directory, or a file in it, cannot be read."""

    def __init__(self, directory: pathlib.Path) -> None:
        self._directory = directory
        self._files: dict[str, _File] = {}
        self._keys: frozenset[bytes] = frozenset()
        self._held: frozenset[bytes | None] = frozenset()
        """Those that are allowed, and those whose files may be being written."""
        self._looked = 0.0
        self._error: str | None = None
        self.is_one_revoked = False
        """A key was allowed and is no more.  To be reset by the caller that has acted on it."""
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
        former, self._files = self._held, found
        self._keys = frozenset(file.key for file in found.values() if file.key is not None)
        self._held = self._keys | {file.former for file in found.values()}
        self.is_one_revoked |= bool(former - self._held - {None})

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
            if known is not None and known.mark == mark and known.is_settled and known.broken_since is None:
                found[name] = known
                continue
            file = _File(mark, is_settled, _read_key(self._directory / name))
            found[name] = file if file.key is not None else self._judge(name, file, known, tally)
        return found

    def _judge(self, name: str, broken: _File, known: _File | None, tally: Tally) -> _File:
        if known is None or known.key is not None:
            return broken._replace(former=known and known.key, broken_since=self._looked)
        if known.broken_since is None:  # told before
            return broken if known.mark == broken.mark else broken._replace(broken_since=self._looked)
        if self._looked - known.broken_since < _WRITING_S:
            return broken._replace(former=known.former, broken_since=known.broken_since)
        tally.add("keys_unreadable")
        LOG.error("%s is no CURVE certificate: whoever has its key is not let in", self._directory / name)
        return broken


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
