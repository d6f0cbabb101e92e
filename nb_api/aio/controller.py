"""AsyncController: a `Controller` whose function is a coroutine function, run by the event loop of the program."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import inspect
import logging
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Generic

from nb_api.aio.cache import AsyncLocalCache
from nb_api.aio.election import AsyncElection
from nb_api.aio.key_shards import AsyncKeyShards
from nb_api.cache.view import CacheView
from nb_api.controller.base import ControllerBase
from nb_api.controller.clock import Clock
from nb_api.controller.controller import (
    CLOSE_TIMEOUT_S,
    INTERVAL_MIN_S,
    check_arguments,
    owner_map_of,
    queue_settings,
)
from nb_api.controller.core.keys import Key, RequeueAfter, RetryPauses
from nb_api.controller.core.owners import OwnersOf
from nb_api.controller.core.work_queue import Taken
from nb_api.controller.following import CacheFollower
from nb_api.controller.permits import permits_of
from nb_api.controller.request import Request, RequestBase, T
from nb_api.controller.work import Work
from nb_api.core.changes import V_co
from pubsub_api import tracing
from pubsub_api.errors import UsageError
from pubsub_api.runtime import forking
from pubsub_api.runtime.closing import AsyncCloseable

LOG = logging.getLogger(__name__)

_CANCEL_S = 1.0
"""How long a run may take to notice that it was cancelled."""
_LOOK_S = 0.01
"""How often `AsyncController.close` looks whether the thread has ended, which takes a fifth of a second at most."""
_RUN: contextvars.ContextVar[asyncio.Task[None] | None] = contextvars.ContextVar("heliograph_run", default=None)
"""The run within which code runs, also in tasks that the run has made."""


class AsyncRequest(RequestBase[V_co], Generic[V_co], frozen=True):
    """What `AsyncController` gives to its coroutine function: a key to bring into order, as the copy has it now."""

    cache: AsyncLocalCache


AsyncReconcile = Callable[[AsyncRequest[T]], Awaitable[RequeueAfter | None]]


class AsyncController(ControllerBase, AsyncCloseable):
    """As `nb_api.Controller`, with ``workers`` runs at a time on the loop that runs now.

    ``cache`` may be one of its tables as instances of a class: `AsyncLocalCache.table`.
    A run that takes longer than ``timeout_s`` is cancelled, and counts as failed.  `enqueue`, `running` and
    `statistics` may be called from any thread, the coroutines on the loop.  ``async with`` closes it at the end.
    """

    def __init__(
        self,
        cache: AsyncLocalCache | CacheView[T],
        reconcile: AsyncReconcile[T],
        *,
        workers: int = 4,
        tables: Sequence[str] | None = None,
        owners: Mapping[str, OwnersOf] | None = None,
        name: str = "controller",
        retries: RetryPauses | None = None,
        interval_min_s: float = INTERVAL_MIN_S,
        runs_per_s_max: float | None = None,
        election: AsyncElection | None = None,
        shards: AsyncKeyShards | None = None,
        timeout_s: float | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Begins at once and returns at once.  Raises UsageError, also when no loop is running, and what
        `Controller` raises."""
        check_arguments(reconcile, workers, tables)
        if _is_plain(reconcile):
            raise UsageError("reconcile is no coroutine function: use nb_api.Controller")
        if timeout_s is not None and not timeout_s > 0:
            raise UsageError(f"a run takes time: timeout_s is more than 0, not {timeout_s!r}")
        view = cache.blocking if isinstance(cache, AsyncLocalCache) else cache
        owner_map = owner_map_of(view, tables, owners)
        try:
            self._loop = asyncio.get_running_loop()
        except RuntimeError as error:
            raise UsageError("make an AsyncController in a coroutine: it runs on the loop of that") from error
        self._cache = cache if isinstance(cache, AsyncLocalCache) else AsyncLocalCache.over(view.cache)
        traces = tracing.active
        self._reconcile: AsyncReconcile[Any] = (
            reconcile if traces is None else traces.reconcile_coroutine(reconcile, name, owner_map)
        )
        self._workers = workers
        self._name = name
        self._timeout_s = timeout_s
        self._tasks: set[asyncio.Task[None]] = set()
        self._unbegun: set[Key] = set()
        """Of tasks that have not made their first step."""
        self._timer: asyncio.TimerHandle | None = None
        self._is_waking = False
        """The loop was told that there is something to do.  Guarded by the lock of the work."""
        settings = queue_settings(retries, interval_min_s, runs_per_s_max)
        self._work = Work(
            view, settings, name=name, wake=self._wake, has_ends=owner_map.is_own, clock=clock,
            permits=permits_of(
                None if election is None else election.blocking, None if shards is None else shards.blocking
            ),
        )  # fmt: skip
        self._follower = CacheFollower(view.cache, owner_map, self._work, name=name)
        forking.register(self)
        self._follower.start()

    # -- what the program calls

    async def wait_idle(self, *, timeout_s: float) -> None:
        """Return when nothing is to be done about what was heard; see `Controller.wait_idle`.  Raises WaitTimeout."""
        self._work.check_usable()
        loop, told = asyncio.get_running_loop(), asyncio.Event()
        deadline = loop.time() + timeout_s

        def tell() -> None:
            with contextlib.suppress(RuntimeError):  # the loop was closed
                loop.call_soon_threadsafe(told.set)

        with self._work.telling_idle(tell):
            while not self._work.is_settled:
                try:
                    await asyncio.wait_for(told.wait(), max(deadline - loop.time(), 0.0))
                except asyncio.TimeoutError:
                    raise self._work.not_idle(timeout_s) from None
                told.clear()
        self._work.check_usable()

    async def close(self, *, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Begin nothing any more, and wait until the runs have ended; after ``timeout_s`` they are cancelled.

        Awaited by a run it does not wait.  Idempotent.
        """
        if self._work.is_inherited:
            return
        self._work.stop()
        if self._timer is not None:
            self._timer.cancel()
        if _RUN.get() in self._tasks:
            return
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout_s)
        if self._tasks:
            for key, age_s in self._work.running():
                LOG.error("Controller %s: reconcile of %s is cancelled after %.0f s.", self._name, key, age_s)
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(self._tasks, timeout=_CANCEL_S)
        while self._follower.thread.is_alive():  # the executor of the loop may be busy with something else
            await asyncio.sleep(_LOOK_S)

    def after_fork_in_child(self) -> None:
        forking.set_aside((self._work.lock, self._follower, self._loop, self._tasks))
        self._work.inherit()

    # -- the loop

    def _wake(self, _count: int) -> None:
        """Called with the lock, from any thread."""
        if not self._is_waking:
            self._is_waking = True
            try:
                self._loop.call_soon_threadsafe(self._woken)
            except RuntimeError:  # the loop was closed, and with it all that could be done
                self._work.stop(by_itself=True)

    def _woken(self) -> None:
        self._is_waking = False
        self._begin_runs()

    def _begin_runs(self) -> None:
        """As many as may run; then at the time at which there is more to do."""
        while len(self._tasks) < self._workers and (taken := self._work.pick()) is not None:
            task = self._loop.create_task(self._run(taken))
            self._tasks.add(task)
            self._unbegun.add(taken.key)
            task.add_done_callback(functools.partial(self._ended, taken))
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        wait_s = self._work.next_run_in_s() if len(self._tasks) < self._workers else math.inf
        if wait_s < math.inf:
            self._timer = self._loop.call_later(max(wait_s, 0.0), self._begin_runs)

    def _ended(self, taken: Taken, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if taken.key in self._unbegun:  # cancelled before its first step, so that nothing of it could tell its end
            self._unbegun.discard(taken.key)
            self._work.fail(taken, asyncio.CancelledError("cancelled before it began"), None)
        if not self._work.is_stopping:
            self._begin_runs()

    async def _run(self, taken: Taken) -> None:
        self._unbegun.discard(taken.key)
        _RUN.set(asyncio.current_task())
        request = None
        try:
            request = self._work.request(taken)
            if request is None:
                return
            run = self._reconcile(self._for_coroutines(request))
            if not inspect.isawaitable(run):
                raise UsageError(f"reconcile returns an awaitable, not a {type(run).__name__}")
            result = await (run if self._timeout_s is None else asyncio.wait_for(run, self._timeout_s))
        except asyncio.TimeoutError as error:
            self._work.fail(taken, self._too_late(error), request)
        except Exception as error:  # noqa: BLE001  counted and logged
            self._work.fail(taken, error, request)
        except BaseException as error:  # cancelled, or the end of the program, which is not for us to stop
            self._work.fail(taken, error, request)
            raise
        else:
            self._work.succeed(taken, request, result)

    def _for_coroutines(self, request: Request[Any]) -> AsyncRequest[Any]:
        return AsyncRequest(
            request.table, request.key, request.object, request.deleted, request.ending, request.attempt,
            request.token, request.asks_to_stop, request.still_holds, self._cache,
        )  # fmt: skip

    def _too_late(self, error: asyncio.TimeoutError) -> BaseException:
        return error if str(error) else TimeoutError(f"not done within {self._timeout_s} s")


def _is_plain(reconcile: object) -> bool:
    """A function or a method that is no coroutine function.  What other objects return is seen when they are called."""
    while isinstance(reconcile, functools.partial):
        reconcile = reconcile.func
    return inspect.isroutine(reconcile) and not inspect.iscoroutinefunction(inspect.unwrap(reconcile))
