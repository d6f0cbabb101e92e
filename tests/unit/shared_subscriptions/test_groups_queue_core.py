"""The leader of a queue and the narrowing of suspects, without I/O."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shared_subscriptions.core import messages as m
from shared_subscriptions.core import redelivery
from shared_subscriptions.core.declaration import Declaration
from shared_subscriptions.core.leading.leader import Leader
from shared_subscriptions.core.leading.partitions import Lease, PartitionInfo
from shared_subscriptions.core.leading.queue import STEAL_S, QueueLeader
from shared_subscriptions.core.progress import AcknowledgedOffsets, GroupProgress
from shared_subscriptions.core.settings import LeaderSettings, LeaseSettings

LEASE = LeaseSettings(member_lease_s=10.0, claim_time_s=20.0)
SETTINGS = LeaderSettings(lease=LEASE, rebalance_delay_s=0.0)


def queue(end: int, *members: str, portions: int = 2) -> QueueLeader:
    """A leader of a queue with one shard, whose members have what they get at once."""
    made = QueueLeader(7, SETTINGS, Declaration("g", "#", "queue", 1, (0,)), {}, now=0.0, renewed_at=lambda: 1e9)
    for member in members:
        made.on_message(m.Connect(borrower=member, seq=1, name=member, portions=portions), 0.0)
    made.on_partitions({0: PartitionInfo(0, end)}, 0.0)
    made.poll(0.0)
    store(made, 0.0)
    return made


def store(made: Leader, now: float) -> None:
    made.stored(*made.store.changes(), now)


def held(made: QueueLeader) -> dict[str, list[tuple[int, int]]]:
    found: dict[str, list[tuple[int, int]]] = {member: [] for member in made.members}
    for portion in made.portions.values():
        found[portion.owner].append((portion.start, portion.until))
    return {member: sorted(portions) for member, portions in found.items()}


def finish(made: QueueLeader, start: int, now: float, **fields: object) -> None:
    """The owner of a portion reports that it is done, or what else ``fields`` say, and has forgotten it."""
    (portion,) = [portion for portion in made.portions.values() if portion.start == start]
    owner, known = portion.owner, made.members[portion.owner]
    progress = GroupProgress(**{"generation": 1, "low": portion.until} | fields)  # type: ignore[arg-type]
    seq = known.seen.get(portion.number, 0) + 1
    made.on_message(
        m.UpdateProgress(
            borrower=owner, seq=seq, partition=portion.number, grant=portion.grant, progress=progress, finished=True
        ),
        now,
    )  # fmt: skip
    made.on_message(
        m.RevokeFinished(borrower=owner, seq=seq + 1, partition=portion.number, grant=portion.grant), now
    )  # fmt: skip
    made.poll(now)


def begin_all(made: QueueLeader, owner: str, now: float) -> None:
    """A member says that it has its portions, and has done nothing of them."""
    for portion in made.portions.values():
        report = m.UpdateProgress(
            borrower=owner, seq=1, partition=portion.number, grant=portion.grant,
            progress=GroupProgress(1, portion.start),
        )  # fmt: skip
        made.on_message(report, now)


def test_a_burst_is_spread_event_by_event_over_all_members() -> None:
    assert held(queue(8, "a", "b", "c", "d")) == {
        "a": [(0, 1), (4, 5)], "b": [(1, 2), (5, 6)], "c": [(2, 3), (6, 7)], "d": [(3, 4), (7, 8)],
    }  # fmt: skip


def test_nobody_is_told_of_a_portion_before_its_lease_is_stored() -> None:
    made = QueueLeader(7, SETTINGS, Declaration("g", "#", "queue", 1, (0,)), {}, now=0.0, renewed_at=lambda: 1e9)
    made.on_message(m.Connect(borrower="a", seq=1, name="a"), 0.0)
    made.on_partitions({0: PartitionInfo(0, 1)}, 0.0)
    made.poll(0.0)
    assert made.wants_to_store
    assert not [message for message in made.messages if isinstance(message, m.Grant)]
    store(made, 0.0)
    assert [message.partition for message in made.messages if isinstance(message, m.Grant)] == list(made.portions)
    assert not made.wants_to_store


def test_a_fast_member_gets_larger_portions() -> None:
    made = queue(100_000, "a")
    now = 0.0
    for _ in range(20):
        now += 0.002
        finish(made, min(portion.start for portion in made.portions.values()), now)
    sizes = [portion.until - portion.start for portion in made.portions.values()]
    assert min(sizes) > 100


def test_what_failed_is_handed_out_when_it_is_due_and_nothing_waits_for_it() -> None:
    made = queue(4, "a", "b")
    finish(made, 0, 1.0, low=0, attempts={0: 1}, delays={0: 5.0})
    assert not any(portion.start == 0 for portion in made.portions.values())
    assert made.next_deadline() <= 6.0
    made.poll(6.0)
    (again,) = [portion for portion in made.portions.values() if portion.start == 0]
    assert again.attempts == {0: 1}


def test_what_a_busy_member_has_goes_to_an_idle_one() -> None:
    made = queue(4, "a", "b")
    for start, _ in held(made)["b"]:
        finish(made, start, 1.0)
    begin_all(made, "a", 1.0)
    made.messages.clear()
    made.poll(1.0)
    made.poll(1.0 + STEAL_S)
    (asked,) = [message for message in made.messages if isinstance(message, m.Revoke)]
    (doomed,) = [portion for portion in made.portions.values() if portion.number == asked.partition]
    finish(made, doomed.start, 1.1, low=doomed.start)
    assert held(made)["b"] == [(doomed.start, doomed.until)]


def test_a_member_that_takes_long_for_a_portion_is_not_expelled() -> None:
    made = queue(4, "a", "b")
    for start, _ in held(made)["b"]:
        finish(made, start, 1.0)
    begin_all(made, "a", 1.0)
    made.poll(1.0 + STEAL_S)
    assert [message for message in made.messages if isinstance(message, m.Revoke)]
    now = 1.0
    while now < 2 * SETTINGS.revoke_timeout_s:
        now += 1.0
        for member in ("a", "b"):
            made.on_message(m.Ping(borrower=member, seq=10 + int(now)), now)
        made.poll(now)
    assert not made.members["a"].is_expelled, "what is left of a portion keeps no member waiting"


def test_members_that_have_time_bring_the_news() -> None:
    made = queue(0, "a")
    made.on_message(m.Ping(borrower="a", seq=2, ends={0: 3, 1: 5}), 1.0)
    assert made.is_outdated, "of the second shard it has not been told yet"
    made.poll(1.0)
    assert held(made)["a"] == [(0, 1), (1, 2)]


def test_owners_of_partitions_hear_that_the_log_has_grown() -> None:
    made = Leader(7, SETTINGS, Declaration("g", "#", "shared", 1, (0, 0)), {}, now=0.0, renewed_at=lambda: 1e9)
    for member in ("a", "b"):
        made.on_message(m.Connect(borrower=member, seq=1, name=member), 0.0)
    made.on_partitions({0: PartitionInfo(0, 1), 1: PartitionInfo(0, 1)}, 0.0)
    made.poll(0.0)
    made.messages.clear()
    made.on_log_grown({1: 5}, 1.0)
    assert [(message.borrower, type(message)) for message in made.messages] == [
        (made.partitions[1].owner, m.PingResponse)
    ]  # fmt: skip


# -- suspects


def test_crashes_narrow_the_suspicion_to_one_event_that_is_then_counted() -> None:
    """A partition whose event 700 kills everybody who gets it."""
    record, deaths, poison = None, 0, 700
    while True:
        stored = {} if record is None else {0: record}
        made = Leader(
            deaths + 1, SETTINGS, Declaration("g", "#", "shared", 1, (0,)), stored, now=0.0, renewed_at=lambda: 1e9
        )
        made.on_message(m.Connect(borrower=f"b{deaths}", seq=1, name="b"), 0.0)
        made.on_partitions({0: PartitionInfo(0, 1000)}, 0.0)
        seq = 1
        while True:
            made.poll(1.0)
            (record,) = made.store.changes()[0].values()
            store(made, 1.0)
            partition = made.partitions[0]
            if partition.attempts.get(partition.done.low, 0) >= SETTINGS.attempts_max:
                assert (partition.done.low, deaths) == (poison, SETTINGS.attempts_max)
                return
            if partition.until < 0 or partition.until > poison:
                deaths += 1
                break
            seq += 2
            progress = GroupProgress(1, partition.until)
            said = {"borrower": f"b{deaths}", "partition": 0, "grant": partition.grant}
            made.on_message(m.UpdateProgress(seq=seq, progress=progress, finished=True, **said), 1.0)  # type: ignore[arg-type]
            made.on_message(m.RevokeFinished(seq=seq + 1, **said), 1.0)  # type: ignore[arg-type]


def test_a_member_that_comes_back_under_another_life_is_not_taken_for_dead() -> None:
    before = Leader(1, SETTINGS, Declaration("g", "#", "shared", 1, (0,)), {}, now=0.0, renewed_at=lambda: 1e9)
    before.on_message(m.Connect(borrower="b1", seq=1, name="b"), 0.0)
    before.on_partitions({0: PartitionInfo(0, 1000)}, 0.0)
    before.poll(1.0)
    (record,) = before.store.changes()[0].values()
    assert record.leases == (Lease("b1", 0, -1),)
    for former, until in (("b1", -1), ("", redelivery.PIECES[0])):
        after = Leader(
            2, SETTINGS, Declaration("g", "#", "shared", 1, (0,)), {0: record}, now=0.0, renewed_at=lambda: 1e9
        )
        after.on_message(m.Connect(borrower="b2", seq=1, name="b", former=former), 0.0)
        after.on_partitions({0: PartitionInfo(0, 1000)}, 0.0)
        after.poll(1.0)
        assert after.partitions[0].until == until


RANGES = st.lists(st.tuples(st.integers(0, 30), st.integers(1, 10)).map(lambda pair: (pair[0], sum(pair))), max_size=6)


@given(RANGES, RANGES)
def test_suspects_are_counted_offset_by_offset(accused: list[tuple[int, int]], done: list[tuple[int, int]]) -> None:
    suspects: redelivery.Suspects = ()
    counts = dict.fromkeys(range(50), 0)
    for start, end in accused:
        suspects = redelivery.accuse(suspects, start, end, 3)
        for offset in range(start, end):
            counts[offset] = max(counts[offset], min(counts[offset] + 1, 3))
    found = {offset: count for start, end, count in suspects for offset in range(start, end)}
    assert found == {offset: count for offset, count in counts.items() if count}
    known = AcknowledgedOffsets(0, done)
    left = redelivery.acquit(suspects, known)
    assert all(known.missing(start, end) for start, end, _ in left)
    assert all(start < end for start, end in redelivery.undone(known, 0, 40))
    free = {offset for start, end in redelivery.undone(known, 0, 40) for offset in range(start, end)}
    assert free == {offset for offset in range(40) if offset not in known}
