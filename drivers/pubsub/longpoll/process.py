"""The event loop of a process, on which all gRPC calls run, and the protection against ``fork()``.

Every end of the driver, publisher or subscriber, uses the loop while it is open; its thread ends with the last of them.
There is one loop, because gRPC's asyncio interface has one queue per process, for which several loops would compete.

After a fork the child lacks gRPC's threads, and calls would hang.  So a child of a process that has ever opened an end
refuses to work, and never closes what it inherited.  Ends that are still open at the end of the program are closed
then.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import gc
import logging
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

from heliograph_drivers.pubsub.longpoll.library import MAY_CRASH_CHILDREN
from pubsub_api.errors import Forked, LimitReached
from pubsub_api.runtime import forking
from pubsub_api.runtime.threads import start_thread

LOG = logging.getLogger(__name__)

_Result = TypeVar("_Result")


class _Closable(Protocol):
    def close(self) -> None: ...


class LongpollProcess:
    """The open ends of this process, and whether it may open more.  Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ends: dict[_Closable, None] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._has_opened = False
        self._is_forked = False
        self._has_warned = False
        os.register_at_fork(before=self._before_fork)
        forking.register(self)
        atexit.register(self._on_exit)

    @property
    def is_child(self) -> bool:
        return self._is_forked

    def check(self) -> None:
        """Raise Forked in a child of a process that had opened an end."""
        if self._is_forked:
            raise Forked(
                "longpoll cannot be used in this process: it was forked from one that had used gRPC. Start workers "
                "with multiprocessing's 'spawn' method, or let forked workers publish through the publisher service "
                "of their host (pub_sub_use_multiproc)"
            )

    def enter(self, end: _Closable) -> asyncio.AbstractEventLoop:
        """The loop, for an end that opens; it runs at least until that end has called `leave`.  Raises Forked,
        LimitReached."""
        self.check()
        with self._lock:
            self._has_opened = True
            if self._loop is None:
                self._loop, self._thread = _start_loop()
            self._ends[end] = None
            return self._loop

    def leave(self, end: _Closable) -> None:
        """Note that an end has closed.  With the last one the loop ends; then blocks until its thread has ended."""
        with self._lock:
            if end not in self._ends:
                return
            del self._ends[end]
            if self._ends or self._loop is None or self._thread is None:
                return
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
        loop.call_soon_threadsafe(loop.stop)
        if thread is not threading.current_thread():
            thread.join()
        # A thread of gRPC ends when gRPC's last object is freed, and some releases of it have cycles of objects.
        gc.collect()

    def _before_fork(self) -> None:
        if MAY_CRASH_CHILDREN and self._ends and not self._has_warned:
            self._has_warned = True
            LOG.warning(
                "gRPC was imported before the longpoll driver, with its own handlers for fork(): a forked child may "
                "crash. Set GRPC_ENABLE_FORK_SUPPORT=0 in the environment"
            )

    def after_fork_in_child(self) -> None:
        self._is_forked = self._is_forked or self._has_opened
        forking.set_aside((self._loop, dict(self._ends)))
        if self._has_opened:
            gc.freeze()  # gRPC's objects must not be freed in the child, not even those that are garbage already
        self._lock = threading.Lock()

    def _on_exit(self) -> None:
        if not self._is_forked:
            for end in reversed(list(self._ends)):
                end.close()


def _start_loop() -> tuple[asyncio.AbstractEventLoop, threading.Thread]:
    try:
        loop = asyncio.new_event_loop()
    except OSError as error:
        raise LimitReached(f"an event loop cannot be made: {error}") from error
    thread = threading.Thread(target=_run, args=(loop,), name="longpoll", daemon=True)
    try:
        start_thread(thread)
    except LimitReached:
        loop.close()
        raise
    return loop, thread


def _run(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


PROCESS = LongpollProcess()


def in_loop(loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, _Result], timeout_s: float) -> _Result:
    """Run a coroutine in the loop and wait for its result, from any other thread.  Raises TimeoutError."""
    future = asyncio.run_coroutine_threadsafe(coroutine, loop)
    try:
        return future.result(timeout_s)
    except concurrent.futures.TimeoutError as error:
        future.cancel()
        raise TimeoutError(f"the event loop did not answer within {timeout_s} s") from error


def post(loop: asyncio.AbstractEventLoop, call: Callable[..., object], *arguments: object) -> bool:
    """Have the loop call a function soon.  Returns False when the loop has ended.  Call it from any thread."""
    try:
        loop.call_soon_threadsafe(call, *arguments)
    except RuntimeError:
        return False
    return True
