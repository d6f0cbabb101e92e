"""One stream of a subscriber: its states, and its arithmetic of holes compared with plain sets of numbers."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pubsub_api.core import frame as frames
from pubsub_api.core.frame import Header, Kind
from pubsub_api.core.receiving import instream
from pubsub_api.core.receiving.instream import TRANSITIONS, InStream, InStreamState, StreamCause

GUID = b"g" * 16


def stream(next_number: int = 1) -> InStream:
    return InStream(GUID, "a", next_number, is_anchored=True)


def frame(first: int, last: int, after: int | None = None) -> tuple[bytes, Header]:
    packed = frames.pack(
        Kind.DATA, GUID, "a", b"\x90", first=first, after=first - 1 if after is None else after, count=last - first + 1
    )
    return packed, frames.unpack(packed, bytes_max=1000)


@pytest.mark.parametrize(("state", "cause"), list(itertools.product(InStreamState, StreamCause)))
def test_every_pair_of_state_and_cause(state: InStreamState, cause: StreamCause) -> None:
    one = stream()
    one.state = state
    if (state, cause) in TRANSITIONS:
        one.move(cause)
        assert one.state is TRANSITIONS[state, cause]
    else:
        with pytest.raises(KeyError):
            one.move(cause)
        assert one.state is state


def test_every_state_can_be_reached_and_left() -> None:
    reached = {InStreamState.LIVE}
    for _ in InStreamState:
        reached |= {target for (source, _), target in TRANSITIONS.items() if source in reached}
    assert reached == set(InStreamState)
    assert {source for source, _ in TRANSITIONS} == set(InStreamState)


def test_the_table_in_the_documentation_is_the_table_in_the_code() -> None:
    written = set()
    for line in (instream.__doc__ or "").splitlines():
        words = line.split()
        if len(words) > 3 and words[0] in InStreamState.__members__ and words[2] in InStreamState.__members__:
            written.add((InStreamState[words[0]], StreamCause[words[1]], InStreamState[words[2]]))
    assert written == {(source, cause, target) for (source, cause), target in TRANSITIONS.items()}


def test_one_missing_number_is_a_hole() -> None:
    one = stream(5)
    one.park(*frame(6, 6))
    assert one.has_hole
    assert one.missing() == [(5, 5)]


def test_numbers_that_were_skipped_on_purpose_are_no_hole() -> None:
    one = stream(5)
    one.park(*frame(9, 9, after=6))
    assert one.missing() == [(5, 6)]
    assert one.advance(*frame(5, 6)) is not None
    assert [delivery[1].first for delivery, _ in one.ready() if delivery] == [9]
    assert one.missing() == []
    assert one.next == 10


def test_a_head_without_frames_is_a_hole_at_the_tail() -> None:
    one = stream(5)
    one.park(*frame(7, 8))
    one.head = 12
    assert one.missing() == [(5, 6), (9, 12)]


def test_parking_returns_by_how_much_it_grew() -> None:
    one = stream()
    small, large = frame(5, 5), frame(5, 9)
    assert one.park(*small) == len(small[0])
    assert one.park(*small) == 0
    assert one.park(*large) == len(large[0]) - len(small[0])
    assert one.park(*small) == 0
    assert one.parked[5] == large
    assert one.drop_parked() == (len(large[0]), large[1].count)
    assert (one.parked, one.order) == ({}, [])


def test_a_frame_that_was_partly_delivered_says_how_many_to_skip() -> None:
    one = stream(3)
    delivery = one.advance(*frame(1, 5))
    assert delivery is not None
    assert delivery[2] == 2
    assert one.advance(*frame(1, 5)) is None
    assert one.next == 6


@st.composite
def arrivals(draw: st.DrawFn) -> list[tuple[int, int, int]]:
    """Frames as (after, first, last) in any order, some lost, some twice; some numbers were never used."""
    made: list[tuple[int, int, int]] = []
    last = 0
    for size, skipped in draw(st.lists(st.tuples(st.integers(1, 4), st.sampled_from((0, 0, 0, 2))), max_size=15)):
        after, first = last, last + 1 + skipped
        last = first + size - 1
        made.append((after, first, last))
    came = draw(st.lists(st.sampled_from(made), max_size=25)) if made else []
    return draw(st.permutations(came))


class Model:
    """The stream as sets: which numbers are accounted for, which were delivered."""

    def __init__(self) -> None:
        self.accounted: set[int] = set()
        self.used: set[int] = set()
        self.delivered: list[int] = []

    def arrive(self, after: int, first: int, last: int) -> None:
        self.accounted.update(range(after + 1, last + 1))
        self.used.update(range(first, last + 1))

    @property
    def head(self) -> int:
        return max(self.used, default=0)

    def missing(self) -> set[int]:
        return set(range(1, self.head + 1)) - self.accounted

    def in_order(self) -> list[int]:
        """What can be delivered so far: everything before the first number missing."""
        end = min(self.missing(), default=self.head + 1)
        return [number for number in sorted(self.used) if number < end]


@given(arrivals())
def test_holes_and_deliveries_are_those_of_the_model(came: list[tuple[int, int, int]]) -> None:
    one, model = stream(), Model()
    parked_bytes = 0

    def deliver(delivery: tuple[bytes, Header, int] | None) -> None:
        if delivery is not None:
            _, header, already = delivery
            model.delivered += range(header.first + already, header.last + 1)

    for after, first, last in came:
        packed, header = frame(first, last, after)
        model.arrive(after, first, last)
        if last < one.next:
            pass
        elif after >= one.next:
            parked_bytes += one.park(packed, header)
        else:
            deliver(one.advance(packed, header))
            for delivery, size in one.ready():
                parked_bytes -= size
                deliver(delivery)
        ranges = one.missing()
        assert {number for start, end in ranges for number in range(start, end + 1)} == model.missing()
        assert ranges == sorted(ranges)
        assert all(end + 1 < start for (_, end), (start, _) in itertools.pairwise(ranges))
        assert one.has_hole is bool(model.missing())
        assert model.delivered == model.in_order()
        assert parked_bytes == sum(len(kept) for kept, _ in one.parked.values())
    for delivery, size in one.skip_holes():
        parked_bytes -= size
        deliver(delivery)
    assert model.delivered == sorted(model.used)
    assert (one.next, one.missing(), one.parked, parked_bytes) == (model.head + 1, [], {}, 0)
