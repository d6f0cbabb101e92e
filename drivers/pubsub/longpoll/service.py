"""The gRPC server of a publisher: handles calls in the event loop as `core.publisher.LongpollPublisherCore` decides.

Threads that send share the core with it, under a lock that no thread holds for long.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from heliograph_drivers.pubsub.longpoll.channels import open_server
from heliograph_drivers.pubsub.longpoll.config import QUERIES_MAX, LongpollSettings
from heliograph_drivers.pubsub.longpoll.core import wire
from heliograph_drivers.pubsub.longpoll.core.publisher import LongpollPublisherCore
from heliograph_drivers.pubsub.longpoll.core.session import PollAnswer
from heliograph_drivers.pubsub.longpoll.core.wire import Applied, FrameBatch, Leave, Mail, Message, Poll, SessionStatus
from heliograph_drivers.pubsub.longpoll.library import grpc
from heliograph_drivers.pubsub.longpoll.process import post
from pubsub_api.core.frame import is_frame
from pubsub_api.driver_kit import GuardedHandler, Tally
from pubsub_api.errors import MalformedFrame

if TYPE_CHECKING:
    from grpc import aio

    Context = aio.ServicerContext[bytes, bytes]
    Requests = AsyncIterator[bytes]

LOG = logging.getLogger(__name__)

_STOP_GRACE_S = 0.2
_TOO_SLOW = "too slow"
_READING_MAX = 128
"""Requests that are read at the same time.  They are in memory before they are checked: a quarter of a gigabyte if all
have the largest size (`channels.REQUEST_BYTES_MAX`).  Further requests wait; a usual one is read in a moment."""


class Service(grpc.GenericRpcHandler):
    """The server.  Its coroutines run in the loop; the core is used under the lock."""

    def __init__(
        self,
        settings: LongpollSettings,
        core: LongpollPublisherCore,
        lock: threading.Condition,
        loop: asyncio.AbstractEventLoop,
        tally: Tally,
    ) -> None:
        self.loop = loop
        self.handler: GuardedHandler | None = None
        self._tally = tally
        self._settings = settings
        self._core = core
        self._lock = lock
        self._server: aio.Server | None = None
        self._parked: dict[tuple[bytes, int], asyncio.Future[Mail]] = {}
        self._is_flush_posted = False
        self._timer: asyncio.TimerHandle | None = None
        self._queries = 0
        # The handler makes answers in another thread, because it may take long and the loop must not wait for it.
        self._answerer = ThreadPoolExecutor(1, "longpoll answers")
        # Registered as streams, also those with one request, so that gRPC reads requests only when `_read` asks for it.
        unary, stream = grpc.stream_unary_rpc_method_handler, grpc.stream_stream_rpc_method_handler
        self._methods: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
            wire.COMMAND: unary(self._on_command),
            wire.POLL: stream(self._on_polls),
            wire.LEAVE: unary(self._on_leave),
            wire.ASK: stream(self._on_ask),
        }
        self._reading = asyncio.Semaphore(_READING_MAX)

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes] | None:
        return self._methods.get(handler_call_details.method)

    async def start(self) -> str:
        """Bind the address and return it.  Raises AddressInUse, InvalidConfig, LimitReached."""
        self._server, address = open_server(self._settings, self)
        await self._server.start()
        return address

    async def stop(self) -> None:
        """Tell waiting subscribers that the publisher ends, then stop the server."""
        if self._timer is not None:
            self._timer.cancel()
        with self._lock:
            answers = self._core.close(time.monotonic())
        self._resolve(answers)
        if self._server is not None:
            await self._server.stop(_STOP_GRACE_S)
            self._server = None

    def release(self) -> None:
        self._answerer.shutdown()
        self._methods.clear()

    def post_flush(self) -> None:
        """Have the loop answer the polls for which there is mail.  Call it from any thread, with the lock held."""
        if not self._is_flush_posted:
            self._is_flush_posted = post(self.loop, self._flush)

    def _flush(self) -> None:
        with self._lock:
            self._is_flush_posted = False
            answers = self._core.flush(time.monotonic())
            self._lock.notify_all()
        self._resolve(answers)

    def _resolve(self, answers: Iterable[PollAnswer]) -> None:
        for session, poll, mail in answers:
            waiting = self._parked.pop((session, poll), None)
            if waiting is not None and not waiting.done():
                waiting.set_result(mail)

    def _schedule(self) -> None:
        """Set the timer for the core's next deadline.  The caller holds the lock."""
        due = self._core.next_deadline()
        if due is None or self._server is None:
            return
        when = self.loop.time() + due - time.monotonic()
        if self._timer is None or self._timer.cancelled() or when < self._timer.when():
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self.loop.call_at(when, self._tick)

    def _tick(self) -> None:
        self._timer = None
        with self._lock:
            answers = self._core.tick(time.monotonic())
            self._lock.notify_all()
            self._schedule()
        self._resolve(answers)

    # -- calls

    async def _on_command(self, _requests: Requests, context: Context) -> bytes:
        batch = await self._read_message(FrameBatch, context)
        with self._lock:
            applied = self._core.command(batch, time.monotonic(), context.peer())
            self._lock.notify_all()
            self._schedule()
        return wire.encode(applied)

    async def _on_polls(self, _requests: Requests, context: Context) -> None:
        """Handle polls of a session in one call, each read after the last one was answered: a call for each would cost
        twice as much.

        Either side may end the call after any answer; the next poll then comes in another call.
        """
        poll = await self._read_message(Poll, context)
        while True:
            mail = await self._answer(poll)
            await context.write(wire.encode(mail))
            if mail.status != SessionStatus.OK or self._reading.locked():
                return
            request = await self._read_in_time(context)
            if not request:
                return
            poll = await self._decode(Poll, request, context)

    async def _answer(self, poll: Poll) -> Mail:
        name = (poll.session, poll.number)
        if name in self._parked:
            return Mail(SessionStatus.SUPERSEDED, self._core.publisher)
        waiting: asyncio.Future[Mail] = self.loop.create_future()
        self._parked[name] = waiting
        with self._lock:
            answers = self._core.poll(poll, time.monotonic())
            self._lock.notify_all()
            self._schedule()
        self._resolve(answers)
        try:
            return await waiting
        except asyncio.CancelledError:
            with self._lock:
                self._core.hang_up(poll.session, poll.number, time.monotonic())
                self._schedule()
            raise
        finally:
            if self._parked.get(name) is waiting:
                del self._parked[name]

    async def _on_leave(self, _requests: Requests, context: Context) -> bytes:
        leave = await self._read_message(Leave, context)
        with self._lock:
            answers = self._core.leave(leave, time.monotonic())
            self._lock.notify_all()
        self._resolve(answers)
        return wire.encode(Applied(SessionStatus.OK, self._core.publisher))

    async def _on_ask(self, _requests: Requests, context: Context) -> AsyncIterator[bytes]:
        query = await self._read(context)
        handler = self.handler
        if handler is None or not is_frame(query):
            yield wire.NOT_SERVED
            return
        if self._queries >= QUERIES_MAX:
            self._tally.add("queries_refused")
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"the publisher answers {QUERIES_MAX} queries now")
        yield wire.SERVED
        self._queries += 1
        try:
            parts = handler(query)
            while (part := await self.loop.run_in_executor(self._answerer, next, parts, None)) is not None:
                yield part
        except RuntimeError as error:  # the thread that answers has ended
            LOG.debug("the publisher closes, and an answer is incomplete: %s", error)
        finally:
            self._queries -= 1

    async def _read_message(self, kind: type[Message], context: Context) -> Message:
        return await self._decode(kind, await self._read(context), context)

    async def _decode(self, kind: type[Message], request: bytes, context: Context) -> Message:
        try:
            return wire.decode(kind, request)
        except MalformedFrame as error:
            self._tally.add("requests_malformed")
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
            raise

    async def _read(self, context: Context) -> bytes:
        """The first request of a call.  Aborts the call when the request comes too slowly or not at all."""
        request = await self._read_in_time(context)
        if request is None:
            self._tally.add("requests_abandoned")
            await context.abort(
                grpc.StatusCode.DEADLINE_EXCEEDED, f"no request within {self._settings.connect_timeout_s} s"
            )
        return request or b""

    async def _read_in_time(self, context: Context) -> bytes | None:
        """The next request of a call.  Waits for its turn to be read; empty when there is none, None when it comes too
        slowly."""
        task = asyncio.current_task()
        assert task is not None
        async with self._reading:
            timer = self.loop.call_later(self._settings.connect_timeout_s, task.cancel, _TOO_SLOW)
            try:
                request = await context.read()
            except asyncio.CancelledError as cancelled:
                if cancelled.args != (_TOO_SLOW,):
                    raise
                return None
            finally:
                timer.cancel()
        return request if isinstance(request, bytes) else b""  # an empty request is refused as malformed
