"""The CURVE keys that a publisher accepts: the public keys that are in a directory now.

The directory is checked every `LOOK_INTERVAL_S`, and when a peer connects.  A check compares the file status
(`os.stat`) of every ``*.key`` file, so that a file overwritten in place is noticed like one that is added or removed;
it reads only files that have changed.

A key is valid only while its file can be read.  A broken file has no key, whatever it held before, and a directory that
cannot be listed has no keys at all.

A file is also broken while it is being written (``cp`` empties it first).  From the first check that finds it broken,
its key admits no new connection.  Only if it is still broken after `_WRITING_S` is it logged and counted, and are
connections with its key cut.
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
"""A key that is removed is noticed within this time."""
_LOOKS_APART_S = 0.05
"""Least time between two checks that connecting peers cause."""
_UNSETTLED_NS = 1_000_000_000
"""A file that changed less than this ago is read again at the next check: times of file systems have steps, and two
changes may have the same time."""
_WRITING_S = LOOK_INTERVAL_S / 2
"""Longer than writing a key file takes, and shorter than the time between two regular checks."""
_KEY_LENGTH = 40


class _File(NamedTuple):
    mark: tuple[int, ...]
    """Its file status, to notice changes."""
    is_settled: bool
    key: bytes | None
    """None when it cannot be read as a key."""
    former: bytes | None = None
    """The key that it had before, as long as it may be in the middle of a write."""
    broken_since: float | None = None
    """Monotonic time of the check that found it broken; None when it is readable, or was logged as broken."""


class AllowedKeys:
    """See the module's description.  Use it from one thread.  Making one raises InvalidConfig when the directory, or a
    file in it, cannot be read."""

    def __init__(self, directory: pathlib.Path) -> None:
        self._directory = directory
        self._files: dict[str, _File] = {}
        self._keys: frozenset[bytes] = frozenset()
        self._held: frozenset[bytes | None] = frozenset()
        """The allowed keys, and those whose files may be in the middle of a write."""
        self._looked = 0.0
        self._error: str | None = None
        self.is_one_revoked = False
        """Set when a key is no longer allowed.  The caller resets it after cutting connections."""
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
                LOG.error("The directory of allowed CURVE keys cannot be read; all connections are refused: %s", error)
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
            found[name] = file if file.key is not None else self._broken(name, file, known, tally)
        return found

    def _broken(self, name: str, broken: _File, known: _File | None, tally: Tally) -> _File:
        """Note since when a file is broken; log and count it when it stays so."""
        if known is None or known.key is not None:
            return broken._replace(former=known and known.key, broken_since=self._looked)
        if known.broken_since is None:  # logged before
            return broken if known.mark == broken.mark else broken._replace(broken_since=self._looked)
        if self._looked - known.broken_since < _WRITING_S:
            return broken._replace(former=known.former, broken_since=known.broken_since)
        tally.add("keys_unreadable")
        LOG.error("%s is no CURVE certificate: subscribers with its key are refused", self._directory / name)
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
