"""One group at a process that may lead it: which process leads, and what is stored of it while this process does.

Every member has one of these for each of its groups, and so has `heliograph group serve`.  While another process
leads, it looks at the leader's record now and then and tells its owner where to find the leader.  When it leads itself,
it lets the core decide, and stores progress together with its registration, all or nothing.

It has no thread and no socket: `LeaderThread` calls it, carries out what `step` wants to have written, together with
what other groups want, and delivers the messages of the core.
"""

from __future__ import annotations

import dataclasses
import logging
import time
import uuid
from collections import Counter
from collections.abc import Callable, Sequence

import msgspec
from oslo_config import cfg

from durable_log.log_api import LogApi, ShardState
from pubsub_api.runtime.backoff import Backoff
from shared_subscriptions import config
from shared_subscriptions.core import messages as m
from shared_subscriptions.core.declaration import Declaration
from shared_subscriptions.core.leading.candidate import Candidate, CandidateRole, Claim, LeaderRecord, SeenRecord
from shared_subscriptions.core.leading.leader import Leader
from shared_subscriptions.core.leading.partitions import PartitionInfo, PartitionRecord
from shared_subscriptions.core.leading.process_lease import ProcessLease
from shared_subscriptions.core.leading.queue import QueueLeader
from shared_subscriptions.core.settings import LeaseSettings
from shared_subscriptions.leading.listener import LeadershipListener
from shared_subscriptions.leading.records import GroupStatus
from shared_subscriptions.leading.standby import GroupStandby
from shared_subscriptions.leading.status import describe, without_times
from shared_subscriptions.leading.storing import GroupRecords, Write
from shared_subscriptions.sockets import MessageConnection

LOG = logging.getLogger(__name__)

_GONE_S = 60.0
"""Between looks at a log that another one has replaced: this does not pass, but a store may be put back."""
_IDLE_S = 0.5
_SILENT_S = 0.05
"""Between looks at a group that cannot be led before the process has given a sign of life again."""
_ASK_S = 0.05
_ASK_S_MAX = 5.0
"""Between two looks whether what is published is heard yet; the pauses double."""


@dataclasses.dataclass(frozen=True)
class LeadingProcess:
    """What the groups of a process have in common."""

    listen: Callable[[], str]
    """Returns where members reach the process.  Raises OSError."""
    lease: Callable[[LeaseSettings], ProcessLease]
    """The lease under which a group can be led.  Raises LogError."""
    version_of: Callable[[str], int]
    """The version of the lease of that name, 0 when it is gone.  Raises LogError."""
    send: Callable[[Leading], None]
    """Sends what a group has to say to its members."""
    counters: Counter[str]


@dataclasses.dataclass(eq=False)
class Commit:
    """What a group wants to have written, all or nothing; its registration comes first."""

    group: Leading
    writes: list[Write]
    overthrows: tuple[str, int] | None = None
    """The lease of a process that is dead, to be deleted with it."""
    records: dict[int, PartitionRecord] = dataclasses.field(default_factory=dict)
    deleted: set[int] = dataclasses.field(default_factory=set)
    said: GroupStatus | None = None

    def written(self, version: int) -> None:
        self.group.written(self, version)


class Leading:
    """Owned by the leader's thread, but for `is_leading` and `look_now`."""

    def __init__(
        self,
        log: LogApi,
        declaration: Declaration,
        conf: cfg.ConfigOpts,
        owner: LeadershipListener,
        *,
        key: bytes,
        process: LeadingProcess,
    ) -> None:
        self.name = declaration.name
        self.counters: Counter[str] = Counter()
        self.leader: Leader | None = None
        self.homes: dict[str, MessageConnection] = {}
        """Borrower -> the connection on which it was heard of last."""
        self.look_at = 0.0
        self.scheduled = float("inf")
        """When `step` is to be called next, as far as `LeaderThread` knows."""
        self._owner = owner
        self._process = process
        self._incarnation = declaration.incarnation
        self._records = GroupRecords(log, declaration, self.counters)
        self._standby = GroupStandby(declaration.name, owner, self._records.declaration)
        self._commit_interval_s = config.COMMIT_INTERVAL_S
        self.lease = declaration.lease
        self._settings = dataclasses.replace(config.leader_settings(conf), lease=self.lease)
        self.candidate = Candidate(
            LeaderRecord(id=uuid.uuid4().hex, key=key, incarnation=self._incarnation), self.lease
        )  # fmt: skip
        self._last_words: list[m.ToBorrower] = []
        self._ask_at = float("inf")
        """When to look whether what is published is heard."""
        self._ask_pauses = Backoff(_ASK_S, _ASK_S_MAX)
        self._told: LeaderRecord | None = None
        self._version = 0
        """Of the leader's record, as it was read or written last."""
        self._commit_at = self._commit_early_at = 0.0
        self._is_urgent = self._is_touched = False
        self._said: GroupStatus | None = None
        """What is stored of the group, without times."""

    @property
    def is_leading(self) -> bool:
        return self.leader is not None

    # -- what the thread asks

    def next_due(self) -> float:
        """When `step` should be called."""
        if self.leader is None:
            return self.look_at
        if self.candidate.role is CandidateRole.UNCERTAIN:
            return self.look_at
        if self.leader.is_silent(now := time.monotonic()):
            return now + _SILENT_S
        return min(self.leader.next_deadline(), self._next_commit(), self._ask_at)

    def step(self, now: float, *, may_claim: bool) -> Commit | None:
        """Time has passed, or something has happened.  Returns what is to be written.  Raises LogError."""
        if self.leader is not None and self.candidate.is_overthrown:
            self.refused()
        if self.leader is None or self.candidate.role is CandidateRole.UNCERTAIN:
            self._watch(now)
            if self.leader is None:
                wants = may_claim and self.candidate.wants_to_claim(time.monotonic())
                return self._claim() if wants else None
        return self._lead(self.leader, time.monotonic()) if self.leader is not None else None

    def take_messages(self) -> list[m.ToBorrower]:
        """What members are to be told."""
        said, self._last_words = self._last_words, []
        if self.leader is not None:
            said += self.leader.take_messages()
        return said

    # -- which process leads

    def _watch(self, now: float) -> None:
        if now < self.look_at:
            return
        self.look_at = now + self.lease.watch_s
        found = self._records.leader()
        seen = None
        if found is not None:
            leader, version = found
            self._note_version(version)
            if leader.incarnation != self._incarnation:
                self._is_gone()  # and declared anew: the process that leads that leads another group
                return
            seen = SeenRecord(leader, version, self._process.version_of(leader.lease) if leader.lease else 0)
        self.candidate.observed(seen, time.monotonic())
        self._after_change()

    def _note_version(self, version: int) -> None:
        """Versions only rise, but in a log that went back."""
        if version < self._version:
            self.counters["log_went_back"] += 1
            LOG.error(
                "Group %s: its log went back to an older state, to version %d of its leader's record from %d: what "
                "members have acknowledged since then is delivered again.", self.name, version, self._version,
            )  # fmt: skip
        self._version = version

    def _claim(self) -> Commit | None:
        group = self._records.declared()
        if group is None:
            self._is_gone()
            return None
        lease = self.candidate.sign_of_life = self._process.lease(self.lease)
        self.candidate.me = msgspec.structs.replace(
            self.candidate.me, endpoint=self._process.listen(), lease=lease.name, renewed_ns=time.time_ns(),
            is_recording=False,
        )  # fmt: skip
        # The declaration is written again, as it is: a group that was destroyed a moment ago must not get a leader.
        claim = self.candidate.claim(time.monotonic())
        writes = [self._records.registration(claim), (group.name, group.value, group.version)]
        return Commit(self, writes, claim.overthrows)

    def _is_gone(self) -> None:
        self._owner.on_destroyed()
        self.look_at = time.monotonic() + _IDLE_S

    def _after_change(self) -> None:
        """The candidate has learnt something: take or leave the office, and tell the owner."""
        role = self.candidate.role
        if role is CandidateRole.LEADING and self.leader is None:
            self._begin()
        elif role in (CandidateRole.WATCHING, CandidateRole.RETIRED) and self.leader is not None:
            if role is CandidateRole.WATCHING:
                LOG.warning("Group %s: another process leads now.", self.name)
            self.end()
        is_watching = role is CandidateRole.WATCHING
        self._standby.update(self.candidate.leader if is_watching else None, is_watching=is_watching)
        found = self.candidate.leader
        is_same = self._told is not None and found is not None and self._told.id == found.id
        if found != self._told and not is_same:
            self._told = found
            self._owner.on_leader(found)

    def _name_standby(self, leader: Leader) -> None:
        """Name in the leader's record the standby: the member of another process that is here longest."""
        me = self.candidate.me
        standing = leader.members.get(me.standby)
        if standing is not None and not standing.is_expelled:
            return
        others = [one for one in leader.members.values() if not one.is_expelled and not self._owner.is_own(one.id)]
        chosen = min(others, key=lambda one: one.joined, default=None)
        standby = chosen.id if chosen is not None else ""
        if standby != me.standby:
            self.candidate.me = msgspec.structs.replace(me, standby=standby)

    def _begin(self) -> None:
        declaration = self._records.declaration()
        if declaration is None:
            self._owner.on_destroyed()
            return
        predecessor = self.candidate.predecessor
        self.leader = (QueueLeader if declaration.mode == "queue" else Leader)(
            self.candidate.epoch, self._settings, declaration, self._records.partitions(), now=time.monotonic(),
            renewed_at=lambda: self.candidate.renewed_at,
            waits_for=predecessor.leases if predecessor else (),
        )  # fmt: skip
        self.leader.is_outdated = True
        self.counters["terms"] += 1
        self._commit_at = 0.0
        self._is_touched = True
        self._said = None
        LOG.info("Group %s: this process leads, in epoch %d.", self.name, self.candidate.epoch)
        self._owner.on_rule(self.name, declaration)
        self._ask_pauses.reset()
        self._ask_at = float("inf") if self._owner.is_recording is None else 0.0

    def end(self) -> None:
        """Lead no more."""
        if self.leader is not None:
            self.leader = None
            self._ask_at = float("inf")
            self._owner.on_rule(self.name, None)

    def close(self) -> None:
        self.end()
        self._standby.end()

    def resign(self, leader: Leader, now: float) -> Commit:
        """What to write in order to leave the place to others; members are told."""
        self._note_time()
        claim = self.candidate.resignation(tuple(leader.holders()), now)
        leader.fall_silent("the leader resigned", is_final=False)
        return self._commit(leader, claim)

    # -- leading

    def _lead(self, leader: Leader, now: float) -> Commit | None:
        counted = leader.counters.total()
        leader.poll(now)
        if now >= self._ask_at:
            self._note_recording(now)
        self._is_touched |= leader.counters.total() != counted
        if now < self._next_commit() or self.candidate.role is not CandidateRole.LEADING:
            return None
        if self._is_touched:
            self._name_standby(leader)
        self._note_time()
        return self._commit(leader, self.candidate.renewal(now))

    def _note_recording(self, now: float) -> None:
        """Say in the leader's record, as soon as it is so, that this process records: then a standby may go."""
        if self._owner.is_recording is not None and self._owner.is_recording(self.name):
            self.candidate.me = msgspec.structs.replace(self.candidate.me, is_recording=True)
            self._is_touched, self._ask_at = True, float("inf")
            return
        self._ask_at = now + self._ask_pauses.next_s()

    def hear(self, leader: Leader, message: m.ToLeader, now: float) -> None:
        leader.on_message(message, now)
        self._is_touched |= not isinstance(message, m.Ping)
        self._is_urgent |= isinstance(message, m.Disconnect) or getattr(message, "finished", False)

    def _next_commit(self) -> float:
        if self.leader is not None and self.leader.wants_to_store:
            return 0.0
        if self._is_urgent:
            return self._commit_early_at
        is_changed = self._is_touched or (self.leader is not None and self.leader.store.has_changes)
        return self._commit_at if is_changed else float("inf")

    def _note_time(self) -> None:
        self.candidate.me = msgspec.structs.replace(self.candidate.me, renewed_ns=time.time_ns())

    def renew(
        self, leader: Leader, states: Sequence[ShardState], now: float, *, has_moved: bool, reads_declaration: bool
    ) -> bool:
        """Look what there is to hand out, when shards have moved or it does not know, and with ``reads_declaration``
        what operators want; False when nothing is new.  Raises LogError."""
        declaration, ends = leader.declaration, {state.shard: state.end for state in states}
        if reads_declaration or leader.is_outdated:
            found = self._records.declaration()
            if found is None:
                self._end_group(leader)
                return True
            declaration = found
        if not has_moved and not leader.is_outdated and declaration == leader.declaration:
            return False
        if any(one.info.end > ends.get(number // declaration.lanes, 0) for number, one in leader.partitions.items()):
            LOG.error("Group %s: its log went back to an older state; the leader begins anew with it.", self.name)
            self.counters["log_went_back"] += 1
            self.refused()
            return True
        infos = {
            state.shard * declaration.lanes + lane: PartitionInfo(state.start, state.end, state.after)
            for state in states
            for lane in range(declaration.lanes)
            if state.end > 0
        }
        self._is_touched |= infos.keys() != leader.partitions.keys() or declaration != leader.declaration
        leader.on_declaration(declaration, now)
        leader.on_partitions(infos, now)
        return True

    def _end_group(self, leader: Leader) -> None:
        LOG.warning("Group %s was destroyed.", self.name)
        leader.fall_silent("the group was destroyed", is_final=True)
        self._last_words = leader.take_messages()
        self.candidate.refused()
        self.end()
        self._process.send(self)  # members are told first
        self._owner.on_destroyed()

    # -- storing

    def _commit(self, leader: Leader, claim: Claim) -> Commit:
        now = time.monotonic()
        self._commit_at = now + min(self.lease.beat_s, self._commit_interval_s)
        self._commit_early_at = now + self._commit_interval_s / 10
        is_touched, self._is_urgent, self._is_touched = self._is_touched, False, False
        changes, deleted = leader.store.changes()
        records, writes = self._records.progress(changes, deleted)
        commit = Commit(
            self, [self._records.registration(claim), *writes], records=records, deleted=deleted, said=self._said
        )  # fmt: skip
        if is_touched or changes or self._said is None:
            status = describe(leader, self.counters + self._process.counters, self.candidate.me.endpoint, now)
            said = without_times(status)
            write = self._records.status(status) if said != self._said else None
            if write is not None:
                commit.said = said
                commit.writes.append(write)
        return commit

    def written(self, commit: Commit, version: int) -> None:
        """A commit succeeded.  Raises LogError."""
        self._version = version
        self.candidate.written(version)
        leader = self.leader
        if leader is not None:
            self._said = commit.said
            leader.stored(commit.records, commit.deleted, time.monotonic())
        self._after_change()

    def refused(self) -> None:
        """Another process has written the registration first, or the group is gone.  Raises LogError."""
        self.candidate.refused()
        try:
            if self.leader is not None and self._records.declaration() is None:
                self._end_group(self.leader)
        finally:
            self._after_change()

    def unknown(self) -> None:
        """What became of a commit is not known: see, as soon as the log can be read."""
        self.candidate.unknown()
        self.failed()

    def failed(self) -> None:
        """The log cannot be used now."""
        self.counters["log_errors"] += 1
        self._is_touched = True
        self.look_at = time.monotonic() + self.lease.watch_s

    def cannot_listen(self) -> None:
        self.counters["socket_errors"] += 1
        self.look_at = time.monotonic() + _IDLE_S

    def give_up(self) -> None:
        """Something is wrong with the group, or with this program: lead it no more."""
        self.candidate.role = CandidateRole.RETIRED
        self.end()
        self.look_at = float("inf")

    def replaced(self) -> None:
        """Another log is in the place of the one that has the group."""
        self.counters["log_errors"] += 1
        self.end()
        self._owner.on_destroyed()
        self.look_at = time.monotonic() + _GONE_S
