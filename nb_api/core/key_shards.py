"""One process among those that share keys: which shards it holds, and what to ask of the database next.  No I/O.

Theory of operation
-------------------
Keys are in ``count`` shards by a hash.  Each process has one record, its *sign of life*, whose version rises with every
renewal, and each shard that is held has a *claim*: a record that names a sign of life by its mark.  All is decided by
compare-and-set.

- A process counts its lease on its own clock, from before the last renewal that was carried out, and begins a run only
  while nine tenths of it last (`pubsub_api.core.leases`).
- A process whose sign of life was the same for a whole lease, as another observes it, is *ended*: the other deletes
  that very version.  If this succeeds, no renewal was carried out meanwhile and none ever will be.  A process that
  finds its sign of life gone begins another life, with another mark and without shards.  The sign of life tells the
  lease, so that processes whose leases differ judge each other by the longer one.
- A claim is written by the process that it names, and by another one only when the sign of life that it names is gone.

So while a lease lasts, no other process can have taken a claim that goes with it.  A lease that was over and is renewed
after all, because no process had ended it, has lost nothing.

A process holds its share of the shards: all processes that see the same records compute the same shares.  One that has
more begins no run in some of them, and gives up the claim of each when its last run there has ended.

A process with another ``count`` puts keys into other shards.  So it takes no shard while there is a process with
another count whose sign of life was created before its own.  It looks for such ones after it has created its own, and
of two the later one always finds the earlier one.

The *token* of a shard is the version with which its claim was written, higher than that of every holder before.  A
database that was put back to a backup would show claims with lower ones: a process that finds its sign of life as it
was in the past begins another life, and the former one is ended like that of any process that is gone.
"""

from __future__ import annotations

import dataclasses
import math
import zlib
from collections import Counter, deque
from collections.abc import Collection, Mapping
from typing import Any, Literal, NamedTuple

from nb_api.core.election import HOLDER_PART, RENEWALS_PER_LEASE, DatabaseCall
from pubsub_api.core.leases import LeaseProgress, LeaseWrites, longer_lease_s

_LOOKS_PER_LEASE = 10
"""Of a process that wants shards which it cannot have yet."""
_ATTEMPTS_MAX = 16
_MEMBER = "member"


def shard_of(table: str, key: str, count: int) -> int:
    """The same in every process and every release."""
    return zlib.crc32(f"{table}\0{key}".encode()) % count


class ShardRecord(NamedTuple):
    version: int
    value: Any


class ShardRun(NamedTuple):
    """A run that has begun."""

    shard: int
    token: int
    lapses: int


@dataclasses.dataclass
class ShardCounters:
    gains: int = 0
    """Shards that became ours."""
    releases: int = 0
    """Shards given up for another process, or at the end."""
    losses: int = 0
    """Shards that were lost, because the lease was over and another process has ended ours."""
    lapses: int = 0
    """How often the lease was over while shards were held."""
    ended: int = 0
    """Other processes that showed no progress, and were ended."""
    conflicts: int = 0
    """Writes that came too late, because another process was faster."""


@dataclasses.dataclass
class _Holding:
    token: int
    is_ending: bool = False


class _Member(NamedTuple):
    version: int
    shards: int | None
    """Into how many it divides the keys."""
    since: int
    """The version with which the sign of life was created."""
    is_leaving: bool
    lease: object
    """As its record states it."""


class KeyShardsCore:
    """``mark`` is a name that no other process has.  One call to the database is under way at a time."""

    def __init__(self, holder: str, mark: str, count: int, lease_s: float) -> None:
        self.count = count
        self._holder = holder
        self._base_mark = mark
        self._lease_s = lease_s
        self._progress = LeaseProgress(gap_max_s=2 * self._interval_s)
        self._held: dict[int, _Holding] = {}
        self._runs: Counter[int] = Counter()
        self._asked: DatabaseCall | None = None
        self._plan: deque[DatabaseCall] = deque()
        self._must_look = False
        self._look_at = -math.inf
        self._is_leaving = self._is_leaving_told = False
        self._is_lapsed = False
        self._life = 0
        self.counters = ShardCounters()
        self.moves = 0
        """How often another set of shards became the one in which runs may begin while the lease lasts."""
        self.members = 0
        """Processes that share the keys, at the last look."""
        self.share = 0
        """How many shards this process should hold, as of the last look."""
        self.is_deferring = False
        """A process that began earlier has another count."""
        self.is_gone = False
        self._begin_life()

    def _begin_life(self) -> None:
        self._life += 1
        self._mark = f"{self._base_mark}-{self._life}"
        self._writes = LeaseWrites(remembered_max=_ATTEMPTS_MAX)
        self._attempt = 0
        self._since = 0

    # -- what the process knows

    @property
    def lease_ends(self) -> float:
        return self._writes.renewed_at + HOLDER_PART * self._lease_s

    def is_lasting(self, now: float) -> bool:
        """Whether the lease lasts.  What is held is of no use when it does not."""
        is_over = now >= self.lease_ends
        if is_over and not self._is_lapsed and self._held:
            self.counters.lapses += 1
        self._is_lapsed = is_over and (self._is_lapsed or bool(self._held))
        return not is_over

    def is_foreign(self, shard: int) -> bool:
        """No run may begin there, also when the lease lasts: another process has it, or shall have it."""
        holding = self._held.get(shard)
        return holding is None or holding.is_ending

    def tokens(self) -> dict[int, int]:
        """The shards in which runs may begin while the lease lasts, each with its token."""
        return {shard: holding.token for shard, holding in self._held.items() if not holding.is_ending}

    @property
    def held(self) -> int:
        """Shards that are held, those included that are to be given up."""
        return len(self._held)

    @property
    def has_runs(self) -> bool:
        return bool(self._runs)

    # -- runs

    def begin_run(self, shard: int, now: float) -> ShardRun | None:
        """None when no run may begin there now.  The caller calls `end_run` after it."""
        if not self.is_lasting(now) or self.is_foreign(shard):
            return None
        self._runs[shard] += 1
        return ShardRun(shard, self._held[shard].token, self.counters.lapses)

    def is_held(self, run: ShardRun, now: float) -> bool:
        """No other process can have begun a run there, nor can it before the lease is over."""
        holding = self._held.get(run.shard)
        return self.is_lasting(now) and holding is not None and holding.token == run.token

    def end_run(self, run: ShardRun, now: float) -> bool:
        """Whether the shard was held from its begin to its end, without a moment in which the lease was over."""
        self._runs[run.shard] -= 1
        if not self._runs[run.shard]:
            del self._runs[run.shard]
        return self.is_held(run, now) and run.lapses == self.counters.lapses

    # -- what it does

    def leave(self) -> None:
        """Begin no run any more, give up every shard when its runs have ended, and be gone then."""
        self._is_leaving = True
        self._plan.clear()
        self.moves += 1
        for holding in self._held.values():
            holding.is_ending = True

    def due(self, now: float) -> float:
        """When `next_call` has something to do, if nothing else is called before."""
        if self._must_look:
            return self._look_at
        if self._can_go or not self._writes.version or self._must_tell or self._plan or self._endable() is not None:
            return now
        return min(self._renew_at, self._look_at)

    def next_call(self, now: float) -> DatabaseCall | None:
        """What to ask of the database now; None when nothing is due, or the last call is not answered yet."""
        self.is_lasting(now)  # before the lease is renewed, so that it is noticed that it was over
        if self._asked is not None or self.is_gone or now < self.due(now):
            return None
        call = self._choose(now)
        if call.key == self._member_key and call.kind != "delete":
            self._attempt += 1
            self._writes.begin(self._attempt, now)
        self._asked = call
        return call

    def _choose(self, now: float) -> DatabaseCall:
        if self._must_look:
            return DatabaseCall("look")
        if self._can_go:
            return DatabaseCall("delete", self._member_key, expected_version=self._writes.version)
        if not self._writes.version:
            return DatabaseCall("create", self._member_key, self._sign_of_life())
        if now >= self._renew_at or self._must_tell:
            return DatabaseCall("set", self._member_key, self._sign_of_life(), self._writes.version)
        if (shard := self._endable()) is not None:
            return DatabaseCall("delete", self._claim_key(shard), expected_version=self._held[shard].token)
        return self._plan.popleft() if self._plan else DatabaseCall("look")

    @property
    def _interval_s(self) -> float:
        return self._lease_s / RENEWALS_PER_LEASE

    @property
    def _renew_at(self) -> float:
        return self._writes.renewed_at + self._interval_s

    @property
    def _can_go(self) -> bool:
        return self._is_leaving and not self._held

    @property
    def _must_tell(self) -> bool:
        """Others take what is given up already while runs go on elsewhere."""
        return self._is_leaving and not self._is_leaving_told

    def _endable(self) -> int | None:
        return next((one for one, held in self._held.items() if held.is_ending and not self._runs[one]), None)

    def _sign_of_life(self) -> dict[str, Any]:
        return {
            "holder": self._holder,
            "attempt": self._attempt + 1,
            "count": self.count,
            "lease": self._lease_s,
            "since": self._since,
            "leaving": self._is_leaving,
        }

    @property
    def _member_key(self) -> str:
        return f"{_MEMBER}/{self._mark}"

    def _claim_key(self, shard: int) -> str:
        return f"{self.count}/{shard}"

    # -- answers

    def found(self, records: Mapping[str, ShardRecord], now: float) -> None:
        """The answer to a look: all records as of one moment before ``now``, which is when they were known."""
        self._asked, self._must_look = None, False
        self._plan.clear()
        self._look_at = now + self._interval_s
        members = {key.partition("/")[2]: _member(found) for key, found in records.items() if _is_member(key)}
        own = records.get(self._member_key)
        if own is not None and own.version < self._writes.version:
            own = None  # a backup was put back: the claims in it are of the past, and so are their tokens
        fields = {} if own is None else _fields(own.value)
        self._writes.settle(fields.get("attempt"), 0 if own is None else own.version)
        if own is None:
            if self._writes.version:
                self._end_life()
            self.is_gone = self._is_leaving
            return
        self._writes.version = own.version  # also when the attempt that wrote it is not remembered any more
        self._since = self._since or members[self._mark].since
        self._is_leaving_told = members[self._mark].is_leaving
        self._take_over_claims(records)
        others = {mark: one for mark, one in members.items() if mark != self._mark}
        self._progress.observe({mark: one.version for mark, one in others.items()}, now)
        if not self._is_leaving:
            self._make_plan(records, members, now)

    def _take_over_claims(self, records: Mapping[str, ShardRecord]) -> None:
        """What the database says we hold counts: the answer to a write may have been lost."""
        named = {shard: found.version for shard, found in self._claims(records).items() if _mark(found) == self._mark}
        for shard, holding in list(self._held.items()):
            if named.get(shard) != holding.token:
                self._drop(shard)
        for shard, version in named.items():
            self._hold(shard, version)

    def _make_plan(self, records: Mapping[str, ShardRecord], members: Mapping[str, _Member], now: float) -> None:
        silent = [mark for mark, one in members.items() if mark != self._mark and self._is_silent(mark, one)]
        for mark in silent:
            self._plan.append(DatabaseCall("delete", f"{_MEMBER}/{mark}", expected_version=members[mark].version))
        sharing = [mark for mark, one in members.items() if _shares(one, self.count, members.values())]
        self.is_deferring = self._mark not in sharing
        self.members = len(sharing)
        claims = self._claims(records)
        counts = Counter(_mark(found) for found in claims.values())
        counts[self._mark] = len(self._held)
        self.share = share_of(self._mark, {mark: counts[mark] for mark in sharing}, self.count)
        self._end_surplus()
        orphans = {key: found for key, found in records.items() if not _is_member(key) and _mark(found) not in members}
        free = [shard for shard in range(self.count) if shard not in claims or self._claim_key(shard) in orphans]
        wanted = max(0, self.share - len(self._held))
        before = sum(mark < self._mark for mark in sharing)
        first = before * len(free) // max(len(sharing), 1)  # so that few want the same
        for shard in (free[first:] + free[:first])[:wanted]:
            self._plan.append(self._claim(shard, claims.get(shard)))
        if not self.is_deferring:
            self._plan.extend(self._clean(orphans))
        if silent:
            self._look_at = now
        elif wanted:
            self._look_at = now + self._lease_s / _LOOKS_PER_LEASE

    def _is_silent(self, mark: str, one: _Member) -> bool:
        """By the longer lease of the two, when they differ: it counts on its own."""
        return self._progress.idle_s(mark) >= longer_lease_s(self._lease_s, one.lease)

    def _end_surplus(self) -> None:
        """Those first in which least is running."""
        kept = sorted(self.tokens(), key=lambda shard: (self._runs[shard], shard))
        for shard in kept[: max(0, len(kept) - self.share)]:
            self._held[shard].is_ending = True
            self.moves += 1

    def _claim(self, shard: int, found: ShardRecord | None) -> DatabaseCall:
        kind: Literal["create", "set"] = "create" if found is None else "set"
        return DatabaseCall(kind, self._claim_key(shard), {"mark": self._mark}, found and found.version)

    def _clean(self, orphans: Mapping[str, ShardRecord]) -> list[DatabaseCall]:
        """What processes with another count have left."""
        return [
            DatabaseCall("delete", key, expected_version=found.version)
            for key, found in orphans.items()
            if not key.startswith(f"{self.count}/")
        ]

    def _claims(self, records: Mapping[str, ShardRecord]) -> dict[int, ShardRecord]:
        keys = {shard: self._claim_key(shard) for shard in range(self.count)}
        return {shard: records[key] for shard, key in keys.items() if key in records}

    def written(self, version: int, now: float) -> None:
        """The answer to a create, set or delete that was carried out."""
        asked, self._asked = self._asked, None
        assert asked is not None
        if asked.key == self._member_key:
            self._renewed(asked, version)
        elif _is_member(asked.key):
            self.counters.ended += 1
        elif asked.key.startswith(f"{self.count}/"):
            shard = int(asked.key.partition("/")[2])
            if asked.kind == "delete":
                self._drop(shard)
            else:
                self._hold(shard, version)
        self.is_lasting(now)

    def _renewed(self, asked: DatabaseCall, version: int) -> None:
        if asked.kind == "delete":
            self.is_gone = True
            return
        self._writes.done(version)
        self._is_leaving_told = asked.value["leaving"]
        if asked.kind == "create":
            self._since, self._look_at = version, -math.inf

    def refused(self, now: float) -> None:
        """The answer to a create, set or delete that came too late."""
        self._asked = None
        self.counters.conflicts += 1
        self._must_look, self._look_at = True, now

    def failed(self, now: float) -> None:
        """No answer.  What was asked may have been done or not, or will be; only a look can tell."""
        asked, self._asked = self._asked, None
        if asked is not None and asked.key == self._member_key:
            self._writes.unknown()
        self._must_look, self._look_at = True, now + self._interval_s / 4

    def _hold(self, shard: int, version: int) -> None:
        if shard not in self._held:
            self._held[shard] = _Holding(version, is_ending=self._is_leaving)
            self.counters.gains += 1
            self.moves += 1

    def _drop(self, shard: int) -> None:
        self.moves += 1
        if self._held.pop(shard).is_ending:
            self.counters.releases += 1
        else:
            self.counters.losses += 1

    def _end_life(self) -> None:
        """Another process has ended this one, and may have taken every shard; or the database has lost what it knew."""
        self.counters.losses += len(self._held)
        self._held.clear()
        self.moves += 1
        self._begin_life()


def share_of(mark: str, held: Mapping[str, int], count: int) -> int:
    """How many of ``count`` shards a process should hold: those that hold most have one more, so that few move."""
    ranked = sorted(held, key=lambda one: (-held[one], one))
    if mark not in ranked:
        return 0
    return count // len(ranked) + (ranked.index(mark) < count % len(ranked))


def _shares(one: _Member, count: int, members: Collection[_Member]) -> bool:
    """Whether a process holds shards, or is to get some."""
    is_late = any(other.shards != one.shards and other.since < one.since for other in members)
    return one.shards == count and not one.is_leaving and not is_late


def _is_member(key: str) -> bool:
    return key.startswith(f"{_MEMBER}/")


def _fields(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _mark(claim: ShardRecord) -> str | None:
    mark = _fields(claim.value).get("mark")
    return mark if isinstance(mark, str) else None


def _member(found: ShardRecord) -> _Member:
    fields = _fields(found.value)
    since = fields.get("since")
    return _Member(
        found.version,
        fields.get("count"),
        since if isinstance(since, int) and since else found.version,
        fields.get("leaving") is True,
        fields.get("lease"),
    )
