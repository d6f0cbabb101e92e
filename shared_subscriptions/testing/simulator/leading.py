"""What a process of the simulation does in order to lead: it watches, claims, gives signs of life, leads and stores.

As `shared_subscriptions.leading` does it, with the same cores.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from shared_subscriptions.core.leading import candidate as candidates
from shared_subscriptions.core.leading.candidate import CandidateRole, Claim, LeaderRecord, SeenRecord
from shared_subscriptions.core.leading.leader import Leader
from shared_subscriptions.core.leading.partitions import PartitionInfo
from shared_subscriptions.core.leading.process_lease import ProcessLease
from shared_subscriptions.leading.records import decode_partition, encode_partition
from shared_subscriptions.testing.simulator import profiles
from shared_subscriptions.testing.simulator.store import NAMES, Outcome, SimStore, Stored, Write

if TYPE_CHECKING:
    from shared_subscriptions.testing.simulator.hosts import SimHost
    from shared_subscriptions.testing.simulator.oracle import Oracle
    from shared_subscriptions.testing.simulator.scenario import Cores

_RECORD_BYTES_MAX = 1 << 20


class SimLeading:
    """The candidate of a host, and the leader when it is its turn."""

    def __init__(self, host: SimHost, store: SimStore, oracle: Oracle, cores: Cores) -> None:
        self.candidate = cores.candidate(LeaderRecord(id=host.name), profiles.LEASE)
        self.leader: Leader | None = None
        self.is_writing = False
        self._host, self._world = host, host.world
        self._store, self._oracle, self._cores = store, oracle, cores
        self._lease: ProcessLease | None = None
        self._leases = 0
        self._is_beating = False
        self._beat_at = self._commit_at = self._look_at = self._renew_at = 0.0

    # -- which process leads

    def watch(self, now: float) -> None:
        if self.is_writing or now < self._look_at or self._host.is_leaving:
            return
        if self.leader is not None and self.candidate.role is CandidateRole.LEADING:
            return  # it learns from its writes which process leads
        self._look_at = now + profiles.LEASE.watch_s
        before = self.candidate.leader
        stored = self._store.records.get(NAMES.leader)
        self.candidate.observed(self._see(stored) if stored else None, now)
        self._step_down_if_deposed()
        if self.candidate.leader is not None and self.candidate.leader != before:
            for subscription in self._host.handler.agent.subscriptions:
                self._host.handler.agent.on_leader_changed(subscription, now)
        if self.candidate.wants_to_claim(now) and (self._host.subscriptions or self._host.is_server):
            if self._lease is None or self._lease.is_lost or not self._lease.version:
                self._look_at = now
                self._beat(now)
                return
            self.candidate.me = LeaderRecord(id=self._host.name, lease=self._lease.name)
            self.candidate.sign_of_life = self._lease
            self.write(self.candidate.claim(now), self._claimed, with_partitions=False)

    def _see(self, stored: Stored) -> SeenRecord:
        record = candidates.decode(stored.value)
        lease = self._store.records.get(record.lease)
        return SeenRecord(record, stored.version, lease.version if lease else 0)

    def _step_down_if_deposed(self) -> None:
        if self.leader is not None and self.candidate.role in (CandidateRole.WATCHING, CandidateRole.RETIRED):
            self._world.note(self._host.name, "steps down")
            self.leader = None

    def _claimed(self, outcome: Outcome) -> None:
        self._settle(outcome)
        self._look_at = self._host.now
        if self.candidate.role is CandidateRole.LEADING:
            self._take_office()

    def _take_office(self) -> None:
        now = self._host.now
        epoch, predecessor = self.candidate.epoch, self.candidate.predecessor
        self._world.note(self._host.name, "leads in epoch", epoch)
        names = {name: record for name, record in self._store.records.items() if NAMES.is_partition(name)}
        declaration = self._store.declaration()
        make = self._cores.queue_leader if declaration.mode == "queue" else self._cores.leader
        self.leader = make(
            epoch, profiles.LEADER, declaration,
            {NAMES.partition_number(name): decode_partition(record.value) for name, record in names.items()},
            now=now, renewed_at=lambda: self.candidate.renewed_at,
            waits_for=predecessor.leases if predecessor else (),
        )  # fmt: skip
        self._oracle.took_office(self.leader, predecessor.leases if predecessor else ())
        self._host.homes.clear()

    def lead(self, now: float) -> None:
        if (
            self.candidate.role is CandidateRole.LEADING
            and self.leader is None
            and not (self.is_writing or self._host.is_cut_off)
        ):
            self._take_office()
        leader = self.leader
        if leader is None:
            return
        if (now >= self._renew_at or leader.is_outdated) and not self._host.is_cut_off:
            self._renew_at = now + 0.1
            self._renew_partitions(leader, now)
        leader.poll(now)
        if now >= self._beat_at:
            self._beat(now)
        if (
            ((now >= self._commit_at and leader.store.has_changes) or leader.wants_to_store)
            and not self.is_writing
            and self.candidate.role is CandidateRole.LEADING
        ):
            self._commit_at = now + profiles.LEASE.beat_s
            self.write(self.candidate.renewal(now), self._settle, with_partitions=True)

    def _renew_partitions(self, leader: Leader, now: float) -> None:
        declaration = self._store.declaration()
        infos = {
            shard * declaration.lanes + lane: PartitionInfo(self._store.starts[shard], len(self._store.shards[shard]))
            for shard in range(declaration.shards)
            for lane in range(declaration.lanes)
            if shard not in self._store.hidden
        }
        leader.on_declaration(declaration, now)
        leader.on_partitions(infos, now)

    # -- signs of life

    def _beat(self, now: float) -> None:
        """Renew the lease of this process, or make a new one."""
        if self._is_beating:
            return
        if self._lease is not None and self._lease.is_lost and self.leader is not None:
            self._after_lease(self._lease)
            return
        if self._lease is None or self._lease.is_lost:
            self._leases += 1
            self._lease = self._cores.process_lease(f"groups/lease/{self._host.name}.{self._leases}")
        lease = self._lease
        if lease.is_uncertain and self._host.is_cut_off:
            return
        if lease.is_uncertain:
            stored = self._store.records.get(lease.name)
            lease.observed(*((stored.value, stored.version) if stored else (None, 0)))
        if not lease.is_lost:
            self._is_beating = True
            self._beat_at = now + profiles.LEASE.beat_s
            self._put([lease.renewal(now)], functools.partial(self._after_beat, lease))
        self._after_lease(lease)

    def _after_beat(self, lease: ProcessLease, outcome: Outcome) -> None:
        self._is_beating = False
        if outcome.is_unknown:
            lease.unknown()
            self._beat_at = self._host.now
        elif outcome.versions is None:
            lease.refused()
        else:
            lease.written(outcome.versions[0])
        if self._host.is_alive:
            self._after_lease(lease)

    def _after_lease(self, lease: ProcessLease) -> None:
        if lease.is_lost and self.leader is not None and not self.is_writing:
            self.candidate.refused()
            self._step_down_if_deposed()

    # -- writing

    def write(self, claim: Claim, done: Callable[[Outcome], None], *, with_partitions: bool) -> None:
        self.is_writing = True
        writes: list[Write] = [(NAMES.leader, candidates.encode(claim.record), claim.expected)]
        if claim.overthrows is not None:
            writes.append((claim.overthrows[0], None, claim.overthrows[1]))
        leader = self.leader
        records, deleted = leader.store.changes() if leader is not None and with_partitions else ({}, set())
        writes += [
            (NAMES.partition(number), encode_partition(record, bytes_max=_RECORD_BYTES_MAX)[0], None)
            for number, record in records.items()
        ]
        writes += [(NAMES.partition(number), None, None) for number in deleted]

        def finish(outcome: Outcome) -> None:
            self.is_writing = False
            if self._host.is_alive:
                if outcome.versions is not None and not outcome.is_unknown and leader is not None:
                    leader.stored(records, deleted, self._host.now)
                done(outcome)

        self._put(writes, finish)

    def _put(self, writes: Sequence[Write], done: Callable[[Outcome], None]) -> None:
        if self._host.is_cut_off:
            self._world.after(self._world.between(0.01, 0.1), done, Outcome(None, is_unknown=True))
        else:
            self._store.put(writes, done)

    def _settle(self, outcome: Outcome) -> None:
        if outcome.is_unknown:
            self.candidate.unknown()
            self._look_at = self._host.now
        elif outcome.versions is None:
            self.candidate.refused()
        else:
            self.candidate.written(outcome.versions[0])
        self._step_down_if_deposed()
