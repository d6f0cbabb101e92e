"""What stands between a driver and its receiver: the guard that never raises, and the bounded queue."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator, Sequence

import pytest

from pubsub_api.driver import Connected, LinkReport
from pubsub_api.driver_kit.guarding import GuardedReceiver
from pubsub_api.driver_kit.inbox import ITEM_BYTES, Inbox
from pubsub_api.testing.receivers import RecordingReceiver
from tests.helpers.waiting import wait_until

WAIT_S = 20.0
SIZE = 100
COST = SIZE + ITEM_BYTES


def frame(number: int) -> bytes:
    return number.to_bytes(SIZE, "big")


class SlowReceiver(RecordingReceiver):
    """Stays in each call with frames until it is let go.  Notes how many came in each."""

    def __init__(self) -> None:
        super().__init__()
        self.runs: list[int] = []
        self.is_inside = threading.Event()
        self.may_leave = threading.Event()

    def on_frames(self, frames: Sequence[bytes]) -> None:
        self.runs.append(len(frames))
        self.is_inside.set()
        assert self.may_leave.wait(WAIT_S)
        super().on_frames(frames)


class LentReceiver(SlowReceiver):
    """Uses the thread that is lent.  ``relieve`` is what came with it."""

    relieve: Callable[[], None] | None = None

    def on_frames_lent(self, frames: Sequence[bytes], relieve: Callable[[], None]) -> bool:
        self.relieve = relieve
        self.on_frames(frames)
        return False


class RaisingReceiver:
    def on_frames(self, frames: Sequence[bytes]) -> None:
        raise ValueError(f"{len(frames)} frames")

    def on_foreign(self, topic: str, payload: bytes | None) -> None:
        raise ValueError(f"{topic}: {payload!r}")

    def on_link(self, report: LinkReport) -> None:
        raise ValueError(f"{report}")


class RaisingLender(RaisingReceiver):
    def __init__(self, *, has_relieved: bool) -> None:
        self._has_relieved = has_relieved

    def on_frames_lent(self, frames: Sequence[bytes], relieve: Callable[[], None]) -> bool:
        if self._has_relieved:
            relieve()
        raise ValueError(f"{len(frames)} frames")


@contextlib.contextmanager
def running(
    receiver: RecordingReceiver, bytes_max: int = 100 * COST, on_room: Callable[[], None] | None = None
) -> Iterator[Inbox]:
    inbox = Inbox(bytes_max, name="inbox under test", on_room=on_room)
    inbox.start(GuardedReceiver(receiver))
    try:
        yield inbox
    finally:
        inbox.close()
        if isinstance(receiver, SlowReceiver):
            receiver.may_leave.set()
        inbox.join()
        assert not inbox.is_running


# -- the guard


def test_every_call_that_raises_is_counted_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    guarded = GuardedReceiver(RaisingReceiver())
    guarded.on_frames([b"1"])
    guarded.on_foreign("t", b"1")
    guarded.on_link(Connected("here"))
    assert guarded.on_frames_lent([b"1"], lambda: None) is False
    assert (guarded.errors, guarded.can_borrow) == (4, False)
    assert [record.levelno for record in caplog.records] == [logging.ERROR] * 4
    assert all(record.exc_info for record in caplog.records)


@pytest.mark.parametrize("has_relieved", [False, True])
def test_a_lender_that_raises_tells_whether_it_had_the_thread_replaced(has_relieved: bool) -> None:
    relieved: list[bool] = []
    guarded = GuardedReceiver(RaisingLender(has_relieved=has_relieved))
    assert guarded.on_frames_lent([b"1"], lambda: relieved.append(True)) is has_relieved
    assert (guarded.errors, guarded.can_borrow, relieved) == (1, True, [True] * has_relieved)


def test_what_must_end_the_program_is_not_held_back() -> None:
    class Leaving(RaisingReceiver):
        def on_frames(self, frames: Sequence[bytes]) -> None:
            raise SystemExit(len(frames))

    with pytest.raises(SystemExit):
        GuardedReceiver(Leaving()).on_frames([b"1"])


# -- the queue


def test_everything_comes_in_order_and_what_waited_in_one_call() -> None:
    receiver = SlowReceiver()
    with running(receiver) as inbox:
        inbox.put_frames([frame(1)])
        assert receiver.is_inside.wait(WAIT_S)
        inbox.put_frames([frame(2), frame(3)])
        inbox.put_frames([])
        inbox.put_frames([frame(4)])
        inbox.put_report(Connected("here"))
        inbox.put_foreign("t", b"foreign")
        inbox.put_frames([frame(5)])
        receiver.may_leave.set()
        assert receiver.wait_frames(5) == [frame(number) for number in range(1, 6)]
        assert receiver.runs == [1, 3, 1]
        assert (receiver.links, receiver.foreign) == ([Connected("here")], [("t", b"foreign")])


def test_what_finds_no_room_is_dropped_and_told_and_reports_are_not(caplog: pytest.LogCaptureFixture) -> None:
    receiver = SlowReceiver()
    with (
        running(receiver, bytes_max=3 * COST) as inbox,
        caplog.at_level(logging.WARNING, logger="pubsub_api.driver_kit.inbox"),
    ):
        inbox.put_frames([frame(1)])
        assert receiver.is_inside.wait(WAIT_S)
        for number in range(2, 8):
            inbox.put_frames([frame(number)])
        inbox.put_report(Connected("here"))
        receiver.may_leave.set()
        receiver.wait_connected("here")
        assert receiver.frames == [frame(1), frame(2), frame(3)]
        wait_until(lambda: "4 frames of 656 bytes were dropped" in caplog.text, WAIT_S, "the end of the drought")
        assert caplog.text.count("the receiver is too slow") == 1
        inbox.put_frames([frame(8)])
        receiver.wait_frame(frame(8))
        assert inbox.dropped == 4


def test_one_run_is_taken_however_large() -> None:
    receiver = RecordingReceiver()
    with running(receiver, bytes_max=COST) as inbox:
        inbox.put_frames([frame(number) for number in range(10)])
        assert len(receiver.wait_frames(10)) == 10


def test_who_can_wait_is_told_of_room_and_loses_nothing() -> None:
    receiver = SlowReceiver()
    rooms: list[bool] = []
    with running(receiver, bytes_max=2 * COST, on_room=lambda: rooms.append(inbox.has_room)) as inbox:
        inbox.put_frames([frame(1)])
        assert receiver.is_inside.wait(WAIT_S)
        rooms.append(inbox.has_room)
        inbox.put_frames([frame(2), frame(3), frame(4)])
        rooms.append(inbox.has_room)
        receiver.may_leave.set()
        assert len(receiver.wait_frames(4)) == 4
        wait_until(lambda: rooms == [True, False, True], WAIT_S, "the news that there is room")


def test_a_lone_frame_is_passed_by_the_thread_that_brings_it() -> None:
    receiver = LentReceiver()
    receiver.may_leave.set()
    with running(receiver) as inbox:
        assert inbox.pass_frames([frame(1)], lambda: None) is False
        assert receiver.frames == [frame(1)], "when the call returns, the receiver has it"


def test_what_comes_while_a_thread_is_lent_waits_until_it_is_back_or_replaced() -> None:
    receiver = LentReceiver()
    relieved = threading.Event()
    outcome: list[bool] = []
    with running(receiver) as inbox:
        lent = threading.Thread(target=lambda: outcome.append(inbox.pass_frames([frame(1)], relieved.set)))
        lent.start()
        assert receiver.is_inside.wait(WAIT_S)
        assert inbox.pass_frames([frame(2)], lambda: None) is False
        assert receiver.runs == [1], "one call at a time"
        assert receiver.relieve is not None
        receiver.relieve()
        assert relieved.is_set()
        wait_until(lambda: receiver.runs == [1, 1], WAIT_S, "the frame that waited")
        receiver.may_leave.set()
        lent.join(WAIT_S)
        assert outcome == [True]
        assert len(receiver.wait_frames(2)) == 2


def test_the_thread_of_the_queue_lends_itself_for_what_comes_alone_and_is_replaced() -> None:
    receiver = LentReceiver()
    with running(receiver) as inbox:
        inbox.put_frames([frame(1)])
        assert receiver.is_inside.wait(WAIT_S)
        inbox.put_frames([frame(2)])
        assert receiver.runs == [1], "one call at a time"
        assert receiver.relieve is not None
        receiver.relieve()
        wait_until(lambda: receiver.runs == [1, 1], WAIT_S, "the frame that waited, on another thread")
        inbox.put_frames([frame(3), frame(4)])
        receiver.may_leave.set()
        receiver.wait_frames(4)
        inbox.put_frames([frame(5)])
        assert receiver.wait_frames(5)[-1] == frame(5), "the thread that came back has ended, its successor goes on"


def test_a_replaced_thread_makes_room(caplog: pytest.LogCaptureFixture) -> None:
    receiver = LentReceiver()
    rooms: list[bool] = []
    with running(receiver, bytes_max=COST - 1, on_room=lambda: rooms.append(inbox.has_room)) as inbox:
        inbox.put_frames([frame(1)])
        assert receiver.is_inside.wait(WAIT_S)
        assert not inbox.has_room
        assert receiver.relieve is not None
        receiver.relieve()
        assert rooms == [True], "what the receiver has taken over is its own to count"
    assert caplog.text == ""


def test_it_may_be_closed_on_the_thread_that_it_lends() -> None:
    closed = threading.Event()

    class Closer(RecordingReceiver):
        def on_frames_lent(self, frames: Sequence[bytes], relieve: Callable[[], None]) -> bool:
            inbox.close()
            inbox.join()
            closed.set()
            return False

    with running(Closer()) as inbox:
        inbox.put_frames([frame(1)])
        assert closed.wait(WAIT_S)


def test_no_call_begins_after_it_was_closed() -> None:
    receiver = SlowReceiver()
    with running(receiver) as inbox:
        inbox.put_frames([frame(1)])
        assert receiver.is_inside.wait(WAIT_S)
        inbox.put_frames([frame(2)])
        inbox.close()
        inbox.put_frames([frame(3)])
        receiver.may_leave.set()
        inbox.join()
        assert receiver.frames == [frame(1)]
        assert inbox.pass_frames([frame(4)], lambda: None) is False
    assert receiver.frames == [frame(1)]
