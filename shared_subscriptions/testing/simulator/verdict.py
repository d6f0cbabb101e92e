"""The checks at the end of a run, when all has been quiet for long enough: L10 to L15."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from pubsub_api.testing.simulator.world import Violation
from shared_subscriptions.core.leading.leader import Leader
from shared_subscriptions.core.leading.partitions import GrantStatus
from shared_subscriptions.core.progress import AcknowledgedOffsets
from shared_subscriptions.leading.records import decode_partition
from shared_subscriptions.testing.simulator.profiles import BORROWER, DELIVERY, LEADER, LEASE
from shared_subscriptions.testing.simulator.store import NAMES

if TYPE_CHECKING:
    from shared_subscriptions.testing.simulator.scenario import Scenario

RECOVERY_S = 2 * LEASE.claim_time_s + LEASE.member_lease_s + BORROWER.find_leader_s + LEADER.revoke_timeout_s
"""L15: a new leader, expired leases, reassignment; twice the claim time, because the first claimer may be a loser."""
RETRIES_S = DELIVERY.attempts_max * DELIVERY.retry_delay_max_s
SETTLING_S = RECOVERY_S + RETRIES_S + 3.0
JOB_S = 0.2
POISON_S = DELIVERY.attempts_max * (RECOVERY_S + 3.0)
"""What an event that kills its consumers costs beyond that."""
STABLE_S = 1.5


def check_settled(scenario: Scenario) -> None:
    """Everything was delivered and acknowledged, stored, and every partition has an owner."""
    leader = _leader(scenario)
    _check_joined(scenario, leader)
    _check_granted(scenario, leader)
    if not scenario.profile.is_queue:
        _check_balanced(leader)
    _check_everything_acknowledged(scenario)
    _check_records(scenario)


def _leader(scenario: Scenario) -> Leader:
    leaders = [
        host.leader for host in scenario.living if host.leader is not None and not host.leader.is_silent(host.now)
    ]
    if len(leaders) != 1:
        raise Violation(f"L15: {len(leaders)} leaders after the quiet time")
    if len([host for host in scenario.living if host.leader is not None]) > 1:
        raise Violation("L15: a leader that was deposed takes itself for the leader after the quiet time")
    return leaders[0]


def _check_joined(scenario: Scenario, leader: Leader) -> None:
    for host in scenario.living:
        for subscription in host.subscriptions:
            borrower = host.handler.agent.borrower(subscription)
            if borrower is None or borrower.id not in leader.members:
                raise Violation(f"L12: {host.name} subscribes and is no member")


def _check_granted(scenario: Scenario, leader: Leader) -> None:
    declaration = scenario.oracle.declaration
    there = {
        shard * declaration.lanes + lane
        for shard in range(declaration.shards)
        for lane in range(declaration.lanes)
        if shard not in scenario.store.hidden
    }
    if set(leader.partitions) != there:
        raise Violation(f"L14: the leader has partitions {sorted(leader.partitions)}, there are {sorted(there)}")
    if scenario.profile.is_queue:
        if leader.loans:
            raise Violation(f"L12: portions {sorted(leader.loans)} are still with members")
        return
    for partition in leader.partitions.values():
        if partition.status is not GrantStatus.GRANTED:
            raise Violation(f"L12: partition {partition.number} is still {partition.status.value}")


def _check_balanced(leader: Leader) -> None:
    slots = {member.slot for member in leader.members.values()}
    if not slots:
        raise Violation("L12: the group has no member")
    counts = Counter(dict.fromkeys(sorted(slots), 0))
    counts.update(leader.members[partition.owner].slot for partition in leader.partitions.values())
    if max(counts.values()) - min(counts.values()) > 1:
        raise Violation(f"L12: partitions are not balanced: {dict(counts)}")


def _check_everything_acknowledged(scenario: Scenario) -> None:
    declaration, oracle, store = scenario.oracle.declaration, scenario.oracle, scenario.store
    for shard, keys in enumerate(store.shards):
        if shard in store.hidden:
            continue
        for offset in range(max(store.starts[shard], declaration.positions[shard]), len(keys)):
            if (declaration.generation, shard, offset) not in oracle.acked:
                raise Violation(f"L10: {offset} of shard {shard} was not acknowledged")


def _check_records(scenario: Scenario) -> None:
    """What is stored is what there is: complete, and nothing of partitions that are gone."""
    store, declaration = scenario.store, scenario.oracle.declaration
    for name, record in store.records.items():
        if not NAMES.is_partition(name):
            continue
        number = NAMES.partition_number(name)
        shard = number // declaration.lanes
        if shard in store.hidden:
            raise Violation(f"L14: partition {number} is gone and its record is not")
        progress = decode_partition(record.value).progress
        end = len(store.shards[shard])
        if AcknowledgedOffsets(progress.low, progress.ranges).low < end:
            raise Violation(f"L10: the stored progress of partition {number} is {progress}, the shard ends at {end}")


def check_stable(scenario: Scenario, grants_before: int) -> None:
    """L12: once balanced, nothing moves any more."""
    if scenario.oracle.grants != grants_before:
        raise Violation(f"L12: {scenario.oracle.grants - grants_before} grants while nothing happened")


def check_poison(scenario: Scenario) -> None:
    """L18: an event that kills its consumers is delivered as often as it may be and parked."""
    oracle, poison = scenario.oracle, scenario.store.poison
    for shard, offset in poison:
        count = oracle.deliveries[1, shard, offset]
        if count > DELIVERY.attempts_max or (shard, offset) not in oracle.letters:
            raise Violation(f"L18: {offset} of shard {shard} killed {count} processes")
    if oracle.letters - poison and len(oracle.crashed_at) < DELIVERY.attempts_max:
        raise Violation(f"L18: parked without having killed a process: {sorted(oracle.letters - poison)}")


def check_no_duplicates(scenario: Scenario) -> None:
    """L11: without faults nothing is delivered twice, whichever member joins, leaves or resubscribes."""
    twice = [event for event, count in scenario.oracle.deliveries.items() if count > 1]
    if twice:
        raise Violation(f"L11: delivered more than once without any fault: {twice[:5]}")
