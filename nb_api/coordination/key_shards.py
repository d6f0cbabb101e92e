"""Keys that several processes share: each works on those of the shards that it holds, and no two on the same.

`nb_api.core.key_shards` decides; this asks the database, in one thread.  `nb_api.Controller` works by it.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable

from nb_api.coordination.leases import CLOSE_TIMEOUT_S, LeaseParticipant, checked_lease, lease_clock
from nb_api.core.checks import NAME_CHARACTERS_MAX, check_name
from nb_api.core.election import DatabaseCall
from nb_api.core.key_shards import KeyShardsCore, ShardRecord, ShardRun, shard_of
from nb_api.core.own_tables import OWN_PREFIX
from nb_api.db_api import DbApi
from pubsub_api.errors import UsageError
from pubsub_api.runtime.rate_limited_log import RateLimitedLog

LOG = logging.getLogger(__name__)

TABLE = f"{OWN_PREFIX}key-shards"
COUNT_MAX = 1024
"""Each shard is a record, which every process reads a few times per lease."""
_KEY_CHARACTERS = 55
"""What is added to the name for the key of a record."""


@dataclasses.dataclass(frozen=True)
class KeyShardsStatistics:
    """Counters since it was made."""

    count: int
    """Shards that there are."""
    held: int
    """Shards that this process holds, those included that it is about to give up."""
    share: int
    """Shards that it should hold, as of its last look."""
    members: int
    """Processes that share the keys, as of its last look."""
    is_lasting: bool
    """The lease of this process lasts.  When it does not, no run begins."""
    is_deferring: bool
    """A process that began earlier divides the keys into another number of shards: this one waits for its end."""
    gains: int
    """Shards that this process got."""
    releases: int
    """Shards that it gave up for another process."""
    losses: int
    """Shards that it lost, because it showed no progress for a whole lease."""
    lapses: int
    """How often its lease was over while it held shards: it stood still, or the database did not answer."""
    ended: int
    """Other processes that showed no progress for a whole lease, and that this one has ended."""
    conflicts: int
    """Writes that came too late, because another process was faster."""
    failures: int
    """Calls that the database did not answer."""


class KeyShards(LeaseParticipant[KeyShardsCore]):
    """A process that shares keys with all others of the same ``name``.  Every method may be called from any thread.

    Keys are in ``count`` shards, the same number in every process; four to ten for each process are a good number.  It
    takes part from ``start`` to ``close``, and holds its share of the shards.  ``holder`` is what is shown of it in the
    database.

    A lease ends, on the clock of its holder, before another process can take its shards.  A process that stood still
    for longer begins no run before it has renewed its lease, and has lost its shards when another has taken them.  A
    shard is given up when its last run has ended.  One inherited by a forked child holds nothing there.  The database
    object is used from a thread of its own and stays the caller's.

    After `close` no run begins.  A shard in which a run goes on is given up when it has ended, and its lease is renewed
    until then, as long as the database is open.
    """

    _table = TABLE

    def __init__(
        self,
        db: DbApi,
        name: str,
        *,
        count: int,
        holder: str,
        lease_s: float | None = None,
    ) -> None:
        """``lease_s`` is ``[election] lease`` when it is not given.  Raises UsageError, InvalidObject for the name."""
        check_name(name, "name of key shards")
        if len(name) > NAME_CHARACTERS_MAX - _KEY_CHARACTERS:
            raise UsageError(f"a name of key shards has {NAME_CHARACTERS_MAX - _KEY_CHARACTERS} characters at most")
        if not isinstance(count, int) or not 1 <= count <= COUNT_MAX:
            raise UsageError(f"keys are divided into 1 to {COUNT_MAX} shards, not {count!r}")
        self._lease_s = lease_s = checked_lease(db, lease_s)
        self._count = count
        super().__init__(
            db, name, f"key-shards-{name}", lambda holder, mark: KeyShardsCore(holder, mark, count, lease_s),
            holder=holder, trouble=f"The key shards {name!r}: the database does not answer",
        )  # fmt: skip
        self._logged = (0, 0)
        """Lapses, and how many shards were held."""
        self._log_deferring = RateLimitedLog(LOG)

    # -- what is held

    def shard_of(self, table: str, key: str) -> int:
        """The shard of a key: the same in every process."""
        return shard_of(table, key, self._count)

    def tokens(self) -> dict[int, int]:
        """The shards in which this process may begin runs while its lease lasts, each with its fencing token."""
        with self._changed:
            return self._core.tokens()

    @property
    def moves(self) -> int:
        """How often `tokens` has changed."""
        return self._core.moves

    def token(self, table: str, key: str) -> int | None:
        """The fencing token of a key's shard, higher than that of every holder before; None when this process may not
        begin to work on the key now."""
        shard = self.shard_of(table, key)
        with self._changed:
            return self._core.tokens().get(shard) if self._core.is_lasting(lease_clock()) else None

    def is_lasting(self) -> bool:
        """Whether the lease of this process lasts."""
        with self._changed:
            return self._core.is_lasting(lease_clock())

    def is_foreign(self, table: str, key: str) -> bool:
        """Another process holds the shard of this key, or shall have it, or no process holds it yet."""
        shard = self.shard_of(table, key)
        with self._changed:
            return self._core.is_foreign(shard)

    # -- runs

    def begin_run(self, table: str, key: str) -> ShardRun | None:
        """None when no run may begin now.  The shard is not given up before `end_run` was called with the result."""
        shard = self.shard_of(table, key)
        with self._changed:
            return self._core.begin_run(shard, lease_clock())

    def is_held(self, run: ShardRun) -> bool:
        """No other process can work on the key of this run, nor can it before the lease is over."""
        with self._changed:
            return self._core.is_held(run, lease_clock())

    def is_ending(self, run: ShardRun) -> bool:
        """The run should come to an end: its shard is lost, or another process waits for it."""
        with self._changed:
            return self._core.is_foreign(run.shard) or not self._core.is_held(run, lease_clock())

    def end_run(self, run: ShardRun) -> bool:
        """Whether the shard was held all the time since the run began."""
        with self._changed:
            now = lease_clock()
            was_held = self._core.end_run(run, now)
            if self._deadline is not None:
                self._deadline = max(self._deadline, now + CLOSE_TIMEOUT_S)
            if self._core.is_foreign(run.shard):
                self._changed.notify_all()
            return was_held

    def statistics(self) -> KeyShardsStatistics:
        with self._changed:
            core = self._core
            is_lasting = core.is_lasting(lease_clock())
            return KeyShardsStatistics(
                self._count, core.held, core.share, core.members, is_lasting, core.is_deferring,
                failures=self._failures.count, **dataclasses.asdict(core.counters),
            )  # fmt: skip

    # -- the lease

    def _leave(self) -> None:
        self._core.leave()

    def _may_end(self) -> bool:
        return not self._core.has_runs

    def _key_of(self, call: DatabaseCall) -> str:
        return f"{self._name}/{call.key}"

    def _look(self) -> Callable[[float], None]:
        prefix = f"{self._name}/"
        with self._db.snapshot([TABLE]) as snapshot:
            found = {one.key: ShardRecord(one.version, one.value) for one in snapshot}
        # A name may begin with another one and a slash; the rest of a key has one slash.
        rests = {key.removeprefix(prefix): one for key, one in found.items() if key.startswith(prefix)}
        records = {rest: one for rest, one in rests.items() if rest.count("/") == 1}
        return lambda now: self._core.found(records, now)

    def _told(self) -> None:
        with self._changed:
            lapses, held = self._core.counters.lapses, self._core.held
        if self._core.is_deferring:
            self._log_deferring(
                "The key shards %r: another process has divided the keys into another number of shards than %d, and "
                "began earlier. This one takes none until that one has ended.", self._name, self._count,
            )  # fmt: skip
        lapses_before, held_before = self._logged
        if lapses > lapses_before:
            LOG.warning(
                "The key shards %r: the lease of %g s was over, because this process stood still or the database did "
                "not answer. No run begins before it is renewed.", self._name, self._lease_s,
            )  # fmt: skip
        if held != held_before:
            LOG.info("The key shards %r: %d of %d are held", self._name, held, self._count)
        self._logged = (lapses, held)
