"""What coroutines need of code that runs in threads: to wait for its conditions, and to have it make blocking calls.

Nothing here belongs to an event loop: a waiting coroutine is told on the loop that runs it, and a loop that was closed
meanwhile is told nothing.  A task that is cancelled stops waiting at once; what a thread has begun for it goes on.

Programs without coroutines import this too, so asyncio, which takes as long as a tenth of `nb_api`, is imported where a
coroutine runs, which has imported it already.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import contextvars
import functools
import threading
import time
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from pubsub_api.errors import Closed
from pubsub_api.runtime import forking
from pubsub_api.runtime.threads import start_thread

if TYPE_CHECKING:
    import asyncio

P = ParamSpec("P")
T = TypeVar("T")

Steps = Generator[tuple[Callable[[], bool], float | None], None, T]
"""A wait, written once for threads and coroutines: conditions one after the other, each with how long to wait for it.

It runs, and the conditions are looked at, with the lock held.  It goes on when the condition holds or the time is over;
which of both, it has to look itself.
"""


class ToldCondition(threading.Condition):
    """A condition that coroutines can wait for as well as threads.  Its lock must never be held for long."""

    def __init__(self) -> None:
        super().__init__()
        self._tellers: list[Callable[[], None]] = []
        """Of coroutines that wait.  Each is called once.  Guarded by the lock."""

    def notify_all(self) -> None:
        super().notify_all()
        if self._tellers:
            tellers, self._tellers = self._tellers, []
            for tell in tellers:
                tell()

    async def wait_for_in_loop(self, predicate: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """As `wait_for`, without the lock held by the caller, for a coroutine.  Looks under the lock."""
        import asyncio  # noqa: PLC0415

        loop = asyncio.get_running_loop()
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            told = loop.create_future()
            tell = functools.partial(_tell, loop, told)
            with self:
                if predicate():
                    return True
                rest_s = None if deadline is None else deadline - time.monotonic()
                if rest_s is not None and rest_s <= 0:
                    return False
                self._tellers.append(tell)
            try:
                await asyncio.wait((told,), timeout=rest_s)
            finally:
                with self, contextlib.suppress(ValueError):  # it was called
                    self._tellers.remove(tell)

    def wait_through(self, steps: Steps[T]) -> T:
        """Wait for one condition after the other, in this thread.  Raises what ``steps`` and the conditions raise."""
        with self, contextlib.closing(steps):
            try:
                while True:
                    self.wait_for(*next(steps))
            except StopIteration as end:
                value: T = end.value
                return value

    async def wait_through_in_loop(self, steps: Steps[T]) -> T:
        """As `wait_through`, for a coroutine."""
        try:
            while True:
                with self:
                    step = next(steps)
                await self.wait_for_in_loop(*step)
        except StopIteration as end:
            value: T = end.value
            return value
        finally:
            with self:
                steps.close()


class LoopCalls:
    """A few threads that make blocking calls for coroutines.  Fork-safe: a child starts threads of its own."""

    def __init__(self, threads_max: int, name: str) -> None:
        self._make = functools.partial(
            concurrent.futures.ThreadPoolExecutor, threads_max, thread_name_prefix=name
        )  # fmt: skip
        self._executor = self._make()
        forking.register(self)

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call it in one of the threads, when one is free.  Raises Closed, and what the function raises.

        When the task is cancelled before the call has begun, the call is not made; later, it goes on unheard.
        """
        return await outcome(self.begin(function, *args, **kwargs))

    def begin(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> concurrent.futures.Future[T]:
        """The same, without waiting for it.  The function sees the context variables of the caller.  Raises Closed."""
        try:
            return self._executor.submit(functools.partial(contextvars.copy_context().run, function, *args, **kwargs))
        except RuntimeError as error:  # also at the end of the interpreter
            raise Closed("it is closed") from error

    def close(self) -> None:
        """Take no more calls; block until those that were taken have ended.  Idempotent."""
        self._executor.shutdown()

    def after_fork_in_child(self) -> None:
        forking.set_aside(self._executor)
        self._executor = self._make()


def in_own_thread(function: Callable[[], T], name: str) -> concurrent.futures.Future[T]:
    """Call it in a thread of its own: for what is rare, may take long, and must not wait for other calls.

    Raises LimitReached.
    """
    made: concurrent.futures.Future[T] = concurrent.futures.Future()
    made.set_running_or_notify_cancel()  # it cannot be cancelled

    def call() -> None:
        try:
            made.set_result(function())
        except BaseException as error:  # noqa: BLE001  it is raised where it is awaited
            made.set_exception(error)

    start_thread(threading.Thread(target=call, name=name, daemon=True))
    return made


async def outcome(made: concurrent.futures.Future[T], *, undo: Callable[[T], None] | None = None) -> T:
    """What a thread made.  Being cancelled cancels the call if it has not begun; else what it makes is undone, if that
    is wanted, by a thread of its own."""
    import asyncio  # noqa: PLC0415

    try:
        await is_done_within(made, None)
    except asyncio.CancelledError:
        if not made.cancel() and undo is not None:
            in_own_thread(functools.partial(_undo, made, undo), "heliograph-aio-undo")
        raise
    return made.result()


def _undo(made: concurrent.futures.Future[T], undo: Callable[[T], None]) -> None:
    if made.exception() is None:
        undo(made.result())


async def is_done_within(made: concurrent.futures.Future[T], timeout_s: float | None) -> bool:
    """Wait until a thread has made it; False when the time is over.  Being cancelled changes nothing of it."""
    import asyncio  # noqa: PLC0415

    loop = asyncio.get_running_loop()
    told = loop.create_future()
    made.add_done_callback(lambda _: _tell(loop, told))
    await asyncio.wait((told,), timeout=timeout_s)
    return made.done()


def _tell(loop: asyncio.AbstractEventLoop, told: asyncio.Future[None]) -> None:
    """From any thread."""
    with contextlib.suppress(RuntimeError):  # the loop was closed, and nobody waits
        loop.call_soon_threadsafe(_settle, told)


def _settle(told: asyncio.Future[None]) -> None:
    if not told.done():
        told.set_result(None)
