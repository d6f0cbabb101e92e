"""A snapshot in Redis, which has none: objects are read in portions, and what is overwritten meanwhile is read after.

A snapshot says when it begins; from then on the script that writes puts every record it is about to overwrite into a
log, the *undo*, with the revision that overwrites it.  The reader walks through the names in order.  Of each portion it
takes the objects whose version is not newer than the snapshot, and remembers as of which revision the portion was.  In
the end it reads the undo.  A record there is part of the snapshot when it is not newer than it; it was taken already
when it was overwritten after its portion was read, and is missing when it was overwritten before.

All open snapshots share one undo, so a write costs the same however many there are.  A reader that does not come back
for ``SNAPSHOT_IDLE_TIMEOUT_S`` is forgotten by the next write, and the undo goes with the last reader.

A server that takes no writes, because it is out of memory or of disk or is a replica, cannot be told that a snapshot
begins.  What is read there is one moment as long as nothing is written, which every portion tells.
"""

from __future__ import annotations

import bisect
import contextlib
import os
from collections.abc import Iterator
from typing import Any

import redis

from heliograph_drivers.db.redis import scripts
from heliograph_drivers.db.redis.config import RedisDbSettings
from heliograph_drivers.db.redis.keys import RedisKeys, read_record, revision_of, split_name
from heliograph_drivers.db.redis.link import Links, RedisDbLink, Script, takes_no_writes
from nb_api.core import checks
from nb_api.db_api import DbObject, Snapshot
from nb_api.errors import DbUnavailable
from pubsub_api.errors import Closed, HeliographError

_BEFORE_ALL, _AFTER_ALL = b"", b"\xff"
"""No name is as low or as high: names are UTF-8."""


class RedisSnapshot(Snapshot):
    """Belongs to one process of the server: one that was started again may not know what this one said."""

    def __init__(
        self, links: Links, keys: RedisKeys, settings: RedisDbSettings, selection: checks.TopicSelection
    ) -> None:
        self._links = links
        self._keys = keys
        self._selection = selection
        self._lease_s = settings.snapshot_idle_timeout_s
        self._portion = settings.snapshot_portion
        self._is_closed = False
        self._bounds: list[bytes] = []
        self._as_of: list[int] = []
        """The names up to ``_bounds[i]``, and above those of the portion before, were read as of ``_as_of[i]``."""
        with links.link() as link:
            self._run = link.run
            self._revision, self._member = self._begin(link)

    def _begin(self, link: RedisDbLink) -> tuple[int, bytes]:
        """The revision, and the name under which the server knows the snapshot, empty when it takes no writes."""
        keys = self._keys
        try:
            revision, member = link.run_script(
                scripts.BEGIN_SNAPSHOT, (keys.state, keys.snapshots, keys.undo), (os.urandom(8).hex(), self._lease_s)
            )
        except redis.ResponseError as error:
            if not takes_no_writes(error):
                raise
            revision, member = link.call("HGET", keys.state, "revision") or 0, b""
        return int(revision), member

    @property
    def revision(self) -> int:
        return self._revision

    def __iter__(self) -> Iterator[DbObject]:
        if self._is_closed:
            raise Closed("the snapshot was read to its end or closed; take another one")
        for low, high in self._ranges():
            yield from self._read(low, high)
        yield from self._read_undo()
        self.close()

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        if not self._member:
            return
        with contextlib.suppress(HeliographError):  # it is forgotten in any case, only later
            self._links.run_script(scripts.END_SNAPSHOT, (self._keys.snapshots, self._keys.undo), self._member)

    def _ranges(self) -> list[tuple[bytes, bytes]]:
        """The names of each table lie between two names that do not exist, and rise with the tables."""
        if self._selection.tables is None:
            return [(_BEFORE_ALL, _AFTER_ALL)]
        return [(table + b"\0", table + b"\1") for table in sorted(name.encode() for name in self._selection.tables)]

    def _read(self, low: bytes, high: bytes) -> Iterator[DbObject]:
        keys = self._keys
        while low < high:
            answer = self._ask(
                scripts.READ_SNAPSHOT, (keys.state, keys.snapshots, keys.objects, keys.names),
                self._member, self._lease_s, b"(" + low, b"(" + high, self._portion,
            )  # fmt: skip
            if not self._member and int(answer[0]) != self._revision:
                raise DbUnavailable("objects were written while they were read without an undo; take another snapshot")
            names, records = answer[1::2], answer[2::2]
            low = names[-1] if len(names) == self._portion else high
            self._bounds.append(low)
            self._as_of.append(int(answer[0]))
            for name, record in zip(names, records, strict=True):
                yield from self._select(name, record)

    def _read_undo(self) -> Iterator[DbObject]:
        keys, after = self._keys, self._revision
        last = self._as_of[-1] if self._as_of else 0
        while after < last:
            lease, entries = self._ask_at_once(
                ("ZSCORE", keys.snapshots, self._member),
                ("XRANGE", keys.undo, after + 1, last, "COUNT", self._portion),
            )
            self._check(lease)
            for identity, (_, name, _, record) in entries:
                after = revision_of(identity)
                if self._was_missed(name, after):
                    yield from self._select(name, record)
            if len(entries) < self._portion:
                return

    def _was_missed(self, name: bytes, overwritten: int) -> bool:
        position = bisect.bisect_left(self._bounds, name)
        return position < len(self._bounds) and overwritten <= self._as_of[position]

    def _select(self, name: bytes, record: bytes) -> Iterator[DbObject]:
        version, topic, value = read_record(record)
        table, key = split_name(name)
        if (
            version <= self._revision
            and self._selection.is_in_bucket(version)
            and self._selection.selects(table, topic)
        ):
            yield DbObject(table, key, topic, checks.decode_value(value), version)

    def _ask(self, script: Script, keys: tuple[bytes, ...], *arguments: bytes | float) -> Any:
        with self._link() as link:
            answer = link.run_script(script, keys, arguments)
        self._check(answer)
        return answer

    def _ask_at_once(self, *commands: tuple[bytes | str | int, ...]) -> Any:
        with self._link() as link:
            return link.transaction(commands)

    @contextlib.contextmanager
    def _link(self) -> Iterator[RedisDbLink]:
        if self._is_closed:
            raise Closed("the snapshot was closed; take another one")
        with self._links.link() as link:
            if link.run != self._run:
                raise DbUnavailable("the server was started again while the snapshot was read; take another one")
            yield link

    def _check(self, lease: object) -> None:
        if lease is None:
            raise DbUnavailable(f"the snapshot stood still for more than {self._lease_s:g} s between two portions")
