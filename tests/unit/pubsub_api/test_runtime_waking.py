"""Back-off, waking and what a forked child may do: the small parts of the runtime package."""

from __future__ import annotations

import os
import random
import select
import signal
import threading
from collections.abc import Callable, Iterator

import pytest

from pubsub_api.errors import Forked
from pubsub_api.runtime.backoff import Backoff
from pubsub_api.runtime.forking import ForkGuard
from pubsub_api.runtime.sockets.waking import Waker
from tests.helpers.waiting import WAIT_S


@pytest.fixture
def waker() -> Iterator[Waker]:
    waker = Waker()
    yield waker
    waker.close()


def in_child(is_right: Callable[[], bool]) -> None:
    """Fork; the child ends with whether ``is_right()`` was true there."""
    child = os.fork()
    if child == 0:
        code = 2
        try:
            code = 0 if is_right() else 1
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def is_awake(waker: Waker) -> bool:
    return bool(select.select([waker], [], [], 0)[0])


def test_pauses_double_up_to_the_limit_and_begin_again_after_success() -> None:
    backoff = Backoff(0.5, 3.0)
    assert [backoff.next_s() for _ in range(5)] == [0.5, 1.0, 2.0, 3.0, 3.0]
    backoff.reset()
    assert [backoff.next_s() for _ in range(2)] == [0.5, 1.0]


def test_a_first_pause_above_the_limit_is_kept() -> None:
    backoff = Backoff(5.0, 3.0)
    assert [backoff.next_s() for _ in range(3)] == [5.0, 5.0, 5.0]


def test_jitter_takes_up_to_half_of_a_pause_and_is_decided_by_its_source() -> None:
    numbers = iter([0.0, 0.5, 1.0])
    backoff = Backoff(1.0, 8.0, jitter=lambda: next(numbers))
    assert [backoff.next_s() for _ in range(3)] == [0.5, 1.5, 4.0]
    one, other = (Backoff(1.0, 8.0, jitter=random.Random(7).random) for _ in range(2))
    assert [one.next_s() for _ in range(9)] == [other.next_s() for _ in range(9)]


def test_a_thread_in_a_poll_is_woken_by_another(waker: Waker) -> None:
    woken: list[bool] = []
    thread = threading.Thread(target=lambda: woken.append(waker.wait(WAIT_S)))
    thread.start()
    waker.wake()
    thread.join()
    assert woken == [True]
    assert not is_awake(waker)


def test_many_calls_wake_once_and_none_is_lost_before_the_wait(waker: Waker) -> None:
    for _ in range(10_000):
        waker.wake()
    assert is_awake(waker)
    assert waker.wait(0.0)
    assert not waker.wait(0.0)
    waker.clear()


def test_a_late_call_after_the_close_touches_nothing() -> None:
    waker = Waker()
    waker.close()
    waker.close()
    made = os.eventfd(0, os.EFD_NONBLOCK)
    other = os.dup2(made, waker.fd)  # the number is free again, and another file has it now
    waker.wake()
    with pytest.raises(BlockingIOError):
        os.eventfd_read(other)
    for fd in {made, other}:
        os.close(fd)


def test_handlers_of_signals_may_wake_within_each_other() -> None:
    waker = Waker()
    before = [signal.signal(number, lambda *_: waker.wake()) for number in (signal.SIGUSR1, signal.SIGUSR2)]
    for _ in range(100):
        os.kill(os.getpid(), signal.SIGUSR1)
        os.kill(os.getpid(), signal.SIGUSR2)
    assert waker.wait(WAIT_S)
    for number, handler in zip((signal.SIGUSR1, signal.SIGUSR2), before, strict=True):
        signal.signal(number, handler)
    waker.close()


def test_a_forked_child_does_not_wake_its_parent(waker: Waker) -> None:
    def wake() -> bool:
        waker.wake()
        waker.close()
        return True

    in_child(wake)
    assert not is_awake(waker)
    waker.wake()
    assert is_awake(waker)


def test_what_belongs_to_another_process_says_so() -> None:
    guard = ForkGuard("publisher")
    guard.check()
    assert not guard.is_child

    def is_refused() -> bool:
        try:
            guard.check()
        except Forked as error:
            return guard.is_child and "open a new publisher in the child" in str(error)
        return False

    in_child(is_refused)
