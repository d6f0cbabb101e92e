"""The parts of a group without I/O: progress, delivery, assignment, and every pair of state and message."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pubsub_api.core.events import GroupEvent
from pubsub_api.errors import InvalidTopic, UndecodableBody, UsageError
from shared_subscriptions.core import declaration as declarations
from shared_subscriptions.core import messages as m
from shared_subscriptions.core.consuming.borrower import (
    LOAN_REACTIONS,
    REACTIONS,
    Borrower,
    BorrowerState,
    Loan,
    Lost,
    Reset,
    Stopped,
)
from shared_subscriptions.core.consuming.partitions import DeliveryCounters, PartitionDelivery
from shared_subscriptions.core.declaration import Declaration, Wish
from shared_subscriptions.core.events import PartitionPlace
from shared_subscriptions.core.leading import candidate as candidates
from shared_subscriptions.core.leading.assignment import assign
from shared_subscriptions.core.leading.leader import MEMBERS_ONLY, Leader
from shared_subscriptions.core.leading.partitions import TRANSITIONS, GrantCause, GrantStatus, PartitionInfo
from shared_subscriptions.core.progress import AcknowledgedOffsets, GroupProgress, covers
from shared_subscriptions.core.settings import BorrowerSettings, DeliverySettings, LeaderSettings, LeaseSettings

RANGES = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 10)).map(lambda pair: (pair[0], sum(pair))))


# -- progress


@given(RANGES)
def test_acknowledged_is_a_set_of_offsets(ranges: list[tuple[int, int]]) -> None:
    done, model = AcknowledgedOffsets(), set[int]()
    for start, end in ranges:
        new = set(range(start, end)) - model
        assert done.add(start, end) == len(new)
        model |= new
    assert {offset for offset in range(80) if offset in done} == model
    assert done.low == next(offset for offset in itertools.count() if offset not in model)
    assert done.missing(0, 80) == 80 - len(model)
    found = list(done.ranges())
    assert all(start < end for start, end in found)
    assert all(left[1] < right[0] for left, right in itertools.pairwise(found))


@given(RANGES, RANGES)
def test_what_covers_what(left: list[tuple[int, int]], right: list[tuple[int, int]]) -> None:
    one, other = AcknowledgedOffsets(0, left), AcknowledgedOffsets(0, right)
    is_covered = all(offset in one for offset in range(80) if offset in other)
    assert (
        covers(GroupProgress(1, one.low, tuple(one.ranges())), GroupProgress(1, other.low, tuple(other.ranges())))
        == is_covered
    )


def test_a_seek_begins_a_new_count() -> None:
    assert covers(GroupProgress(2, 0), GroupProgress(1, 100))
    assert not covers(GroupProgress(1, 100), GroupProgress(2, 0))


# -- assignment

SLOTS = st.sets(st.sampled_from([f"m{number}" for number in range(12)]))


def spread(partitions: range, slots: set[str]) -> dict[int, str]:
    return assign(partitions, slots, {}, {})


@given(st.integers(0, 40), SLOTS, SLOTS)
def test_assignment_is_balanced_and_moves_as_little_as_it_can(count: int, before: set[str], after: set[str]) -> None:
    partitions = range(count)
    held = spread(partitions, before)
    plan = assign(partitions, after, held, {})
    if not after:
        assert plan == {}
        return
    assert set(plan) == set(partitions)
    counts = Counter(dict.fromkeys(after, 0))
    counts.update(plan.values())
    assert max(counts.values()) - min(counts.values()) <= 1
    moved = [
        partition for partition in partitions if held.get(partition) in after and plan[partition] != held[partition]
    ]
    if after <= before:
        assert not moved  # who leaves takes nothing from those who stay
    if before and before < after and len(after) == len(before) + 1:
        assert len(moved) <= math.ceil(count / len(after))
    assert assign(partitions, after, plan, {}) == plan


@given(st.integers(1, 40), st.integers(2, 8))
def test_a_name_that_comes_back_gets_its_partitions_back(count: int, members: int) -> None:
    partitions, slots = range(count), {f"m{number}" for number in range(members)}
    before = spread(partitions, slots)
    former = {partition: slot for partition, slot in before.items() if slot == "m0"}
    without = assign(partitions, slots - {"m0"}, before, former)
    again = assign(partitions, slots, without, former)
    assert {partition for partition, slot in again.items() if slot == "m0"} <= set(former) or len(
        former
    ) < count // members


# -- a partition at a member


def event(offset: int, key: str = "k") -> GroupEvent:
    return GroupEvent(topic="t", table="", key=key, action="set", offset=offset)


def delivery(*keys: str, is_ordered: bool = True, **settings: int | float) -> PartitionDelivery:
    made = PartitionDelivery(
        GroupProgress(1, 0), DeliverySettings(**settings), DeliveryCounters(), is_ordered=is_ordered
    )  # type: ignore[arg-type]
    made.offer([event(offset, key) for offset, key in enumerate(keys)])
    return made


def taken(partition: PartitionDelivery, now: float = 0.0, limit: int = 100, *, is_exclusive: bool = True) -> list[int]:
    return [event.offset for event in partition.take(now, limit, is_exclusive=is_exclusive)]


def test_one_event_of_an_object_at_a_time() -> None:
    partition = delivery("a", "b", "a", "c")
    assert taken(partition) == [0, 1, 3]
    assert partition.ack(event(1, "b"))
    assert taken(partition) == []
    assert partition.ack(event(0, "a"))
    assert taken(partition) == [2]
    assert not partition.ack(event(0, "a"))
    assert partition.progress().low == 2
    assert partition.progress().attempts == {2: 1, 3: 1}


def test_a_queue_keeps_no_order() -> None:
    assert taken(delivery("a", "a", "a", is_ordered=False)) == [0, 1, 2]


def test_a_failed_event_holds_up_its_object_and_nothing_else() -> None:
    partition = delivery("a", "b", "a", "b", retry_delay_s=10)
    batch = partition.take(0.0, 2, is_exclusive=True)
    assert partition.fail(batch[0], 0.0)
    assert partition.ack(batch[1])
    assert taken(partition) == [3]
    assert partition.next_retry() == 10
    assert taken(partition, 9.0) == []
    (retry,) = partition.take(10.0, 9, is_exclusive=True)
    assert (retry.offset, retry.attempt) == (0, 2)
    assert partition.ack(retry)
    assert taken(partition, 10.0) == [2]


def test_attempts_end_and_the_object_goes_on() -> None:
    partition = delivery("a", "a", attempts_max=2, retry_delay_s=0)
    (first,) = partition.take(0.0, 1, is_exclusive=True)
    assert partition.fail(first, 0.0)
    (again,) = partition.take(0.0, 1, is_exclusive=True)
    assert not partition.fail(again, 0.0)
    assert taken(partition) == []
    partition.parked(again)
    assert taken(partition) == [1]
    assert partition.progress() == GroupProgress(1, 1, (), {1: 1})


def test_the_nack_of_a_user_may_state_the_delay() -> None:
    partition = delivery("a", retry_delay_s=10)
    (first,) = partition.take(0.0, 1, is_exclusive=True)
    partition.fail(first, 0.0, delay_s=3.0)
    assert partition.next_retry() == 3.0


def test_a_batch_that_failed_comes_again_by_object_one_at_a_time() -> None:
    partition = delivery("a", "a", "b")
    batch = partition.take(0.0, 10, is_exclusive=False)
    assert [one.offset for one in batch] == [0, 1, 2]
    partition.fail_batch(batch, 0.0)
    one = partition.take(0.0, 10, is_exclusive=False)
    assert [(item.offset, item.attempt) for item in one] == [(0, 2)]
    partition.settle(one)
    two = partition.take(0.0, 10, is_exclusive=False)
    assert [item.offset for item in two] == [2]
    partition.settle(two)
    assert taken(partition, is_exclusive=False) == [1]


def test_what_was_not_delivered_goes_back_in_order() -> None:
    partition = delivery("a", "b", "a", "b", retry_delay_s=5)
    batch = partition.take(0.0, 10, is_exclusive=False)
    partition.break_up(batch)
    partition.fail(batch[0], 0.0)
    partition.put_back(batch[1:])
    assert taken(partition, is_exclusive=False) == [1, 3]


def test_a_stopped_partition_gives_nothing_and_settles_what_is_out() -> None:
    partition = delivery("a", "b")
    (out,) = partition.take(0.0, 1, is_exclusive=True)
    partition.stop()
    assert taken(partition) == []
    assert not partition.is_settled
    assert partition.ack(out)
    assert partition.is_settled
    assert partition.load == 0
    assert partition.progress().low == 1


def test_progress_of_the_last_owner_is_not_delivered_again() -> None:
    partition = PartitionDelivery(
        GroupProgress(1, 2, ((4, 6),), {3: 2}), DeliverySettings(), DeliveryCounters(), is_ordered=True
    )
    assert partition.next_offset == 2
    partition.offer([event(offset, f"k{offset}") for offset in range(2, 8)])
    found = partition.take(0.0, 10, is_exclusive=True)
    assert [(one.offset, one.attempt) for one in found] == [(2, 1), (3, 3), (6, 1), (7, 1)]


def test_what_retention_dropped_is_counted_and_passed_over() -> None:
    counters = DeliveryCounters()
    partition = PartitionDelivery(GroupProgress(1, 2, ((4, 6),)), DeliverySettings(), counters, is_ordered=True)
    partition.expire(2, 8)
    partition.skip(8)
    assert counters.expired == 4
    assert partition.progress() == GroupProgress(1, 8, expired=4)


@given(st.lists(st.sampled_from("abc"), max_size=30), st.randoms(use_true_random=False), st.booleans())
def test_a_partition_delivers_everything_in_the_order_of_each_key(
    keys: list[str], chance: object, is_exclusive: bool
) -> None:
    random = chance
    partition = delivery(*keys, retry_delay_s=0.1, attempts_max=3, window=1000)
    seen: list[GroupEvent] = []
    now = 0.0
    while partition.progress().low < len(keys):
        now += 1.0
        batch = partition.take(now, random.randint(1, 5), is_exclusive=is_exclusive)  # type: ignore[attr-defined]
        if not is_exclusive and batch:
            partition.break_up(batch)
        for place, one in enumerate(batch):
            if random.random() < 0.3:  # type: ignore[attr-defined]
                if not partition.fail(one, now):
                    partition.parked(one)
                    seen.append(one)
                partition.put_back(batch[place + 1 :])  # as a member does: what follows a failure is not tried
                break
            partition.ack(one)
            seen.append(one)
    assert sorted(one.offset for one in seen) == list(range(len(keys)))
    for key in "abc":
        offsets = [one.offset for one in seen if one.key == key]
        assert offsets == sorted(offsets)


# -- partitions of a shard


def test_each_event_belongs_to_exactly_one_lane_of_its_shard() -> None:
    places = [PartitionPlace.of(partition, 3) for partition in range(3, 6)]
    assert {place.shard for place in places} == {1}
    for offset in range(100):
        assert len([place for place in places if place.owns(event(offset, f"k{offset % 17}"))]) == 1


@pytest.mark.parametrize(
    ("text", "parsed"),
    [("$shared/g/a/#", ("shared", "g", "a/#")), ("$queue/g/+", ("queue", "g", "+"))],
)
def test_filters_of_groups(text: str, parsed: tuple[str, str, str]) -> None:
    assert declarations.parse(text) == parsed


@pytest.mark.parametrize("text", ["$shared", "$shared/g", "$shared//a", "$other/g/a", "$shared/g/a#", "shared/g/a"])
def test_filters_that_are_none(text: str) -> None:
    with pytest.raises(InvalidTopic):
        declarations.parse(text)


@pytest.mark.parametrize("name", ["", "a b", "a#", "x" * 200, "a\n"])
def test_names_that_are_none(name: str) -> None:
    with pytest.raises(UsageError):
        declarations.check_name(name)


def test_on_the_wire_a_partition_is_called_as_by_older_releases() -> None:
    said = m.UpdateProgress(borrower="b", seq=1, partition=3, grant=5, progress=GroupProgress(1, 0))
    sent = msgspec.msgpack.decode(m.encode(("g", said)))[1]
    assert (sent["type"], sent["stream"], sent["grant"]) == ("update_progress", 3, 5)
    assert "partition" not in sent
    received = m.decode_to_borrower(
        msgspec.msgpack.encode({"type": "revoke", "borrower": "b", "stream": 4, "grant": 5})
    )
    assert received == m.Revoke(borrower="b", partition=4, grant=5)


# -- every state and every message

LEASE = LeaseSettings(member_lease_s=10.0, claim_time_s=20.0)
TO_BORROWER: dict[type[m.ToBorrower], m.ToBorrower] = {
    m.ConnectResponse: m.ConnectResponse(borrower="b", seq=100, epoch=7, answers=1, lease_s=8.0),
    m.PingResponse: m.PingResponse(borrower="b", seq=100, epoch=7, answers=2),
    m.Grant: m.Grant(borrower="b", seq=100, epoch=7, partition=1, grant=5, progress=GroupProgress(1, 3)),
    m.Revoke: m.Revoke(borrower="b", seq=100, epoch=7, partition=1, grant=5),
    m.Revoked: m.Revoked(borrower="b", seq=100, epoch=7, partition=1, grant=5),
    m.Invalidate: m.Invalidate(borrower="b", seq=100, epoch=7, reason="test"),
}


def borrower(state: BorrowerState, loan: Loan | None = None) -> Borrower:
    made = Borrower("b", BorrowerSettings(), now=0.0)
    made.poll(0.0)
    if state is BorrowerState.CONNECTING:
        return made
    made.on_message(m.ConnectResponse(borrower="b", seq=1, epoch=7, answers=1, lease_s=8.0), 0.0)
    if loan is not None:
        made.on_message(m.Grant(borrower="b", seq=2, epoch=7, partition=1, grant=5, progress=GroupProgress(1, 3)), 0.0)
    if loan is Loan.REVOKING:
        made.on_message(m.Revoke(borrower="b", seq=3, epoch=7, partition=1, grant=5), 0.0)
    if state is BorrowerState.UNSUBSCRIBING:
        made.on_unsubscribe(0.0)
    elif state is BorrowerState.GONE:
        made.on_disconnect()
    made.messages.clear()
    made.events.clear()
    return made


def test_the_tables_name_every_pair() -> None:
    assert set(REACTIONS) == set(itertools.product(BorrowerState, m.TO_BORROWER))
    assert set(LOAN_REACTIONS) == set(itertools.product([None, *Loan], [m.Grant, m.Revoke, m.Revoked]))


@pytest.mark.parametrize(
    ("state", "kind", "loan"), list(itertools.product(BorrowerState, m.TO_BORROWER, [None, *Loan])), ids=str
)
def test_a_borrower_survives_every_message_in_every_state(
    state: BorrowerState, kind: type[m.ToBorrower], loan: Loan | None
) -> None:
    made = borrower(state, loan if state is not BorrowerState.CONNECTING else None)
    before = made.state
    made.on_message(TO_BORROWER[kind], 1.0)
    if REACTIONS[before, kind] == "_ignore":
        assert made.state is before
        assert made.ignored == 1
        assert not made.events
    if kind is m.Invalidate and before is not BorrowerState.GONE:
        assert made.state is BorrowerState.GONE
        assert isinstance(made.events[-1], Stopped if before is BorrowerState.UNSUBSCRIBING else Reset)
    if before is BorrowerState.CONNECTED and kind in (m.Grant, m.Revoke, m.Revoked):
        assert made.partitions.get(1) == LOAN_REACTIONS[loan, kind]
        assert made.messages, "a leader that waits for an answer gets one"
    made.poll(2.0)
    made.poll(1000.0)
    made.on_unsubscribe(1000.0)
    made.on_disconnect()


@pytest.mark.parametrize("loan", list(Loan))
def test_a_lease_that_ends_takes_the_partitions_with_it(loan: Loan) -> None:
    made = borrower(BorrowerState.CONNECTED, loan)
    assert made.may_deliver(1, 7.9) == (loan is Loan.GRANTED)
    assert not made.may_deliver(1, 8.0)
    made.poll(8.0)
    assert made.events[0] == Lost(1)
    assert isinstance(made.events[-1], Reset)


def test_a_lease_counts_from_the_question_not_from_the_answer() -> None:
    made = borrower(BorrowerState.CONNECTED)
    made.poll(5.0)
    (ping,) = [message for message in made.messages if isinstance(message, m.Ping)]
    made.on_message(m.PingResponse(borrower="b", seq=50, epoch=7, answers=ping.seq), 7.5)
    assert made.lease_end == 13.0


def test_late_and_repeated_messages_change_nothing() -> None:
    made = borrower(BorrowerState.CONNECTED, Loan.REVOKING)
    made.on_message(m.Grant(borrower="b", seq=2, epoch=7, partition=1, grant=5, progress=GroupProgress(1, 3)), 0.0)
    made.on_message(m.Revoked(borrower="b", seq=9, epoch=6, partition=1, grant=5), 0.0)
    assert made.partitions == {1: Loan.REVOKING}
    assert made.ignored == 2


def leader(
    status: GrantStatus = GrantStatus.ABSENT, *, now: float = 0.0, renewed_at: Callable[[], float] = lambda: 1e9
) -> Leader:
    """A leader with one member ``b`` and one partition 0 that is in this status with it."""
    made = Leader(
        7,
        LeaderSettings(lease=LEASE),
        Declaration("g", "#", "shared", 1, (0,) * 12),
        {},
        now=now,
        renewed_at=renewed_at,
    )
    made.on_message(m.Connect(borrower="b", seq=1, name="name"), now)
    made.on_partitions({0: PartitionInfo(0, 10)}, now)
    if status is not GrantStatus.ABSENT:
        made.poll(now + 1.0)
        grant = made.partitions[0].grant
        if status is not GrantStatus.GRANTING:
            made.on_message(
                m.UpdateProgress(borrower="b", seq=2, partition=0, grant=grant, progress=GroupProgress(1, 1)), now
            )
        if status in (GrantStatus.REVOKING, GrantStatus.REVOKED):
            made.on_declaration(Declaration("g", "#", "shared", 1, (0,) * 12, wish=Wish.PAUSED), now + 1.0)
            made.poll(now + 2.0)
        if status is GrantStatus.REVOKED:
            final = m.UpdateProgress(
                borrower="b", seq=3, partition=0, grant=grant, progress=GroupProgress(1, 2), finished=True
            )
            made.on_message(final, now)
    assert made.partitions[0].status is status
    made.messages.clear()
    return made


def to_leader(kind: type[m.ToLeader], made: Leader, who: str, *, finished: bool = False) -> m.ToLeader:
    grant = made.partitions[0].grant
    return {
        m.Connect: m.Connect(borrower=who, seq=50, name="name"),
        m.Ping: m.Ping(borrower=who, seq=50),
        m.UpdateProgress: m.UpdateProgress(
            borrower=who, seq=50, partition=0, grant=grant, progress=GroupProgress(1, 4), finished=finished
        ),
        m.RevokeFinished: m.RevokeFinished(borrower=who, seq=50, partition=0, grant=grant),
        m.Disconnect: m.Disconnect(borrower=who, seq=50, progresses=((0, grant, GroupProgress(1, 4)),)),
    }[kind]  # fmt: skip


EXPECTED = {
    **{(status, m.Connect, False): status for status in GrantStatus},
    **{(status, m.Ping, False): status for status in GrantStatus},
    **{(status, m.Disconnect, False): GrantStatus.ABSENT for status in GrantStatus},
    **{
        (status, m.RevokeFinished, False): TRANSITIONS.get((status, GrantCause.FINISHED), status)
        for status in GrantStatus
    },
    **{
        (status, m.UpdateProgress, False): TRANSITIONS.get((status, GrantCause.PROGRESS), status)
        for status in GrantStatus
    },
    **{(status, m.UpdateProgress, True): TRANSITIONS.get((status, GrantCause.FINAL), status) for status in GrantStatus},
}


@pytest.mark.parametrize(("status", "kind", "finished"), list(EXPECTED), ids=str)
def test_a_leader_reacts_to_every_message_in_every_status(
    status: GrantStatus, kind: type[m.ToLeader], finished: bool
) -> None:
    made = leader(status)
    made.on_message(to_leader(kind, made, "b", finished=finished), 2.0)
    assert made.partitions[0].status is EXPECTED[status, kind, finished]
    made.poll(3.0)
    made.poll(1e6)


@pytest.mark.parametrize(("status", "kind"), list(itertools.product(GrantStatus, MEMBERS_ONLY)), ids=str)
def test_a_stranger_is_told_to_begin_anew(status: GrantStatus, kind: type[m.ToLeader]) -> None:
    made = leader(status)
    before = made.partitions[0].record()
    made.on_message(to_leader(kind, made, "stranger"), 2.0)
    assert [type(message) for message in made.messages] == [m.Invalidate]
    assert made.partitions[0].status is status
    assert made.partitions[0].record() == before


def test_partitions_walk_in_circles_only_through_absence() -> None:
    order = [GrantStatus.GRANTING, GrantStatus.GRANTED, GrantStatus.REVOKING, GrantStatus.REVOKED]
    for (before, _), after in TRANSITIONS.items():
        assert after is GrantStatus.ABSENT or before is GrantStatus.ABSENT or order.index(after) >= order.index(before)


def test_progress_under_an_old_grant_is_fenced() -> None:
    made = leader(GrantStatus.GRANTED)
    old = m.UpdateProgress(
        borrower="b", seq=60, partition=0, grant=made.partitions[0].grant - 1, progress=GroupProgress(1, 9)
    )
    made.on_message(old, 2.0)
    assert made.partitions[0].done.low == 1
    assert made.counters["fenced"] == 1


def test_a_silent_leader_hears_and_says_nothing() -> None:
    made = leader(GrantStatus.GRANTED)
    made.fall_silent("test", is_final=False)
    made.messages.clear()
    made.on_message(m.Ping(borrower="b", seq=99), 2.0)
    made.poll(1e6)
    assert made.messages == []
    assert made.counters["unheard"] == 1


def test_who_was_not_heard_is_not_renewed_with_the_others_until_it_has_said_it_again() -> None:
    renewed_at = 2.0 - LEASE.leader_hold_s
    made = leader(GrantStatus.GRANTED, renewed_at=lambda: renewed_at)
    made.on_message(to_leader(m.UpdateProgress, made, "b"), 3.0)
    renewed_at = 3.0
    assert not made.hear_of("b", 3.1)
    made.on_message(m.Ping(borrower="b", seq=97, ends={0: 10}), 3.2)  # which no reports follow
    assert not made.hear_of("b", 3.2)
    made.on_message(m.Ping(borrower="b", seq=98), 3.3)
    assert made.hear_of("b", 3.4)


def test_unanswered_messages_are_repeated_and_who_never_answers_is_expelled() -> None:
    made = leader(GrantStatus.REVOKING)
    made.poll(2.5)
    assert made.messages == []
    made.poll(3.5)
    assert [type(message) for message in made.messages] == [m.Revoke]
    made.on_message(m.Ping(borrower="b", seq=99), 8.0)
    made.poll(17.5)
    assert isinstance(made.messages[-1], m.Invalidate)
    assert made.partitions[0].owner == "b"  # until its lease has ended
    made.poll(18.0)
    assert made.partitions[0].status is GrantStatus.ABSENT


def test_members_that_come_in_a_pack_cause_one_assignment() -> None:
    made = leader()
    for number in range(5):
        made.on_message(m.Connect(borrower=f"c{number}", seq=1, name=f"c{number}"), 0.01 * number)
    made.on_partitions({number: PartitionInfo(0, 10) for number in range(12)}, 0.05)
    made.poll(0.06)
    assert made.counters["grants"] == 0
    made.poll(0.2)
    assert made.counters["grants"] == 12
    assert made.counters["revokes"] == 0


@pytest.mark.parametrize("decode", [candidates.decode, declarations.decode, m.decode_to_leader, m.decode_to_borrower])
@pytest.mark.parametrize("garbage", [b"", b"\xc1", b"\x80", b"\x93\x01\x02\x03", b"\x81\xa4type\xa4ping"])
def test_garbage_gives_one_typed_error(decode: object, garbage: bytes) -> None:
    with pytest.raises(UndecodableBody):
        decode(garbage)  # type: ignore[operator]
