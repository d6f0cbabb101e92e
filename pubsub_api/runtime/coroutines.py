"""What coroutines need of code that runs in threads: to wait for its conditions, and to have it make blocking calls.

Nothing here belongs to one event loop: a waiting coroutine is notified on the loop that runs it, and nothing happens if
that loop was closed meanwhile.  A task that is cancelled stops waiting at once; its call in a thread goes on.

Programs without coroutines import this module, too.  asyncio takes a tenth of the time that `nb_api` takes to import,
so it is imported only inside of coroutines, where it is loaded already.
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

WaitSteps = Generator[tuple[Callable[[], bool], float | None], None, T]
"""A wait that is written once for threads and coroutines.  It yields conditions, each with the seconds to wait for it.

It runs, and calls the conditions, with the lock held.  It is resumed when the condition is true or the time is over,
and has to check which of both happened.
"""


class AwaitableCondition(threading.Condition):
    """A condition that coroutines can wait for as well as threads.  Its lock must never be held for long."""

    def __init__(self) -> None:
        super().__init__()
        self._notify_coroutines: list[Callable[[], None]] = []
        """One function for each coroutine that waits.  Each is called once.  Guarded by the lock."""

    def notify_all(self) -> None:
        super().notify_all()
        if self._notify_coroutines:
            notifications, self._notify_coroutines = self._notify_coroutines, []
            for notify in notifications:
                notify()

    async def wait_for_in_loop(self, predicate: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """As `wait_for`, for a coroutine.  Takes the lock itself, and calls ``predicate`` with it held."""
        import asyncio  # noqa: PLC0415

        loop = asyncio.get_running_loop()
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            notified = loop.create_future()
            notify = functools.partial(_settle_in_loop, loop, notified)
            with self:
                if predicate():
                    return True
                rest_s = None if deadline is None else deadline - time.monotonic()
                if rest_s is not None and rest_s <= 0:
                    return False
                self._notify_coroutines.append(notify)
            try:
                await asyncio.wait((notified,), timeout=rest_s)
            finally:
                with self, contextlib.suppress(ValueError):  # notify_all has removed it
                    self._notify_coroutines.remove(notify)

    def wait_for_steps(self, steps: WaitSteps[T]) -> T:
        """Block for one condition after the other.  Raises what ``steps`` and the conditions raise."""
        with self, contextlib.closing(steps):
            try:
                while True:
                    self.wait_for(*next(steps))
            except StopIteration as end:
                value: T = end.value
                return value

    async def wait_for_steps_in_loop(self, steps: WaitSteps[T]) -> T:
        """As `wait_for_steps`, for a coroutine."""
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


class BlockingCalls:
    """A few threads that make blocking calls for coroutines.  In a forked child it starts threads of its own."""

    def __init__(self, threads_max: int, name: str) -> None:
        self._make_executor = functools.partial(
            concurrent.futures.ThreadPoolExecutor, threads_max, thread_name_prefix=name
        )  # fmt: skip
        self._executor = self._make_executor()
        forking.register(self)

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call the function in one of the threads, once one is free.  Raises Closed, and what the function raises.

        If the task is cancelled before the call has begun, the call is not made; later, its result is dropped.
        """
        return await result_of(self.begin(function, *args, **kwargs))

    def begin(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> concurrent.futures.Future[T]:
        """As `run`, without waiting.  The function sees the context variables of the caller.  Raises Closed."""
        try:
            return self._executor.submit(functools.partial(contextvars.copy_context().run, function, *args, **kwargs))
        except RuntimeError as error:  # also at the end of the interpreter
            raise Closed("it is closed") from error

    def close(self) -> None:
        """Accept no more calls, and block until all accepted calls have ended.  Idempotent."""
        self._executor.shutdown()

    def after_fork_in_child(self) -> None:
        forking.set_aside(self._executor)
        self._executor = self._make_executor()


def call_in_new_thread(function: Callable[[], T], name: str) -> concurrent.futures.Future[T]:
    """Call the function in a thread of its own: for calls that are rare, may take long, and must not wait for others.

    Raises LimitReached.
    """
    call: concurrent.futures.Future[T] = concurrent.futures.Future()
    call.set_running_or_notify_cancel()  # it cannot be cancelled

    def run() -> None:
        try:
            call.set_result(function())
        except BaseException as error:  # noqa: BLE001  it is raised where it is awaited
            call.set_exception(error)

    start_thread(threading.Thread(target=run, name=name, daemon=True))
    return call


async def run_in_new_thread(function: Callable[[], T], name: str, *, undo: Callable[[T], None] | None = None) -> T:
    """`call_in_new_thread`, and `result_of` the call."""
    return await result_of(call_in_new_thread(function, name), undo=undo)


async def result_of(call: concurrent.futures.Future[T], *, undo: Callable[[T], None] | None = None) -> T:
    """Wait for a call in a thread and return its result, or raise its exception.

    When the task is cancelled, a call that has not begun is cancelled.  A call that has begun goes on, and a new thread
    calls ``undo`` with its result.
    """
    import asyncio  # noqa: PLC0415

    try:
        await wait_until_done(call, None)
    except asyncio.CancelledError:
        if not call.cancel() and undo is not None:
            call_in_new_thread(functools.partial(_undo, call, undo), "heliograph-aio-undo")
        raise
    return call.result()


def _undo(call: concurrent.futures.Future[T], undo: Callable[[T], None]) -> None:
    if call.exception() is None:
        undo(call.result())


async def wait_until_done(call: concurrent.futures.Future[T], timeout_s: float | None) -> bool:
    """Wait for the end of a call in a thread; False when the time is over.  Cancelling does not end the call."""
    import asyncio  # noqa: PLC0415

    loop = asyncio.get_running_loop()
    done = loop.create_future()
    call.add_done_callback(lambda _: _settle_in_loop(loop, done))
    await asyncio.wait((done,), timeout=timeout_s)
    return call.done()


def _settle_in_loop(loop: asyncio.AbstractEventLoop, future: asyncio.Future[None]) -> None:
    """Complete a future of the loop.  From any thread."""
    with contextlib.suppress(RuntimeError):  # the loop was closed, so no task waits
        loop.call_soon_threadsafe(_settle, future)


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
