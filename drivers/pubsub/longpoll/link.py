"""One link of a subscriber to one publisher: does in the event loop what `core.subscriber.LinkCore` decides."""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
import time
from collections.abc import Callable, Coroutine
from typing import Any

from heliograph_drivers.pubsub.longpoll import config
from heliograph_drivers.pubsub.longpoll.channels import open_channel
from heliograph_drivers.pubsub.longpoll.config import LongpollSettings
from heliograph_drivers.pubsub.longpoll.core import actions, wire
from heliograph_drivers.pubsub.longpoll.core.subscriber import LinkCore
from heliograph_drivers.pubsub.longpoll.core.wire import SESSION_BYTES, Applied, FrameBatch, Mail
from heliograph_drivers.pubsub.longpoll.library import aio, grpc
from pubsub_api.driver import Connected, Disconnected, Subscribed
from pubsub_api.driver_kit import Inbox, Tally
from pubsub_api.errors import MalformedFrame

LOG = logging.getLogger(__name__)


class LongpollLink:
    """Call its methods in the loop; `is_up` and `counters` may be read from any thread."""

    def __init__(
        self, settings: LongpollSettings, address: str, filters: list[str], inbox: Inbox, tally: Tally
    ) -> None:
        self.address = address
        self._settings = settings
        self._inbox = inbox
        self._tally = tally
        self._core = LinkCore(
            settings.link,
            filters,
            new_session=lambda: secrets.token_bytes(SESSION_BYTES),
            jitter=random.random,
            now=time.monotonic(),
        )
        self._loop = asyncio.get_running_loop()
        self._channel = open_channel(settings, address)
        self._command: Any = self._channel.unary_unary(wire.COMMAND)
        self._poll: Any = self._channel.stream_stream(wire.POLL)
        self._leave: Any = self._channel.unary_unary(wire.LEAVE)
        self._ask: Any = self._channel.unary_stream(wire.ASK)
        self._polls: Any = None
        """The call that carried the last poll and its answer; the next poll uses it, too."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._queries = 0
        self._timer: asyncio.TimerHandle | None = None
        self._held: actions.SendPoll | None = None
        """A poll that is sent when the inbox has room again."""
        self._has_warned = False
        self._room = asyncio.Event()
        """Set when the inbox has room again, for answers to queries that wait for it."""

    @property
    def is_up(self) -> bool:
        return self._core.is_up

    @property
    def counters(self) -> actions.LinkCounters:
        return self._core.counters

    def start(self) -> None:
        self._tick()

    def subscribe(self, topic_filter: str) -> None:
        self._core.subscribe(topic_filter)
        self._act()

    def unsubscribe(self, topic_filter: str) -> None:
        self._core.unsubscribe(topic_filter)
        self._act()

    def on_room(self) -> None:
        """Go on: the inbox has room again."""
        self._room.set()
        held, self._held = self._held, None
        if held is not None:
            self._do(held)

    def query(self, frame: bytes, tell: Callable[[int], None]) -> bool:
        """Ask the publisher.  ``tell`` is called with 1 if the publisher serves queries, else with 0.  Returns False
        when it cannot be asked now."""
        if not self.is_up:
            return False
        if self._queries >= config.QUERIES_MAX:
            self._tally.add("queries_dropped")
            return False
        self._queries += 1
        self._spawn(self._send_query(frame, tell))
        return True

    async def close(self) -> None:
        """Try for `config.LINGER_S` to tell the publisher, then release the connection."""
        is_known = self._core.is_known
        self._core.close()
        self._held = None
        if self._timer is not None:
            self._timer.cancel()
        for task in list(self._tasks):
            task.cancel()
        for action in self._core.take():
            if isinstance(action, actions.SendLeave) and is_known:
                await self._send_leave(action)
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._channel.close()

    # -- actions of the core

    def _tick(self) -> None:
        self._timer = None
        self._core.tick(time.monotonic())
        self._act()

    def _act(self) -> None:
        for action in self._core.take():
            self._do(action)
        due = self._core.next_deadline()
        if due is None:
            return
        when = self._loop.time() + due - time.monotonic()
        if self._timer is None or when < self._timer.when():
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._loop.call_at(when, self._tick)

    def _do(self, action: actions.Action) -> None:
        if isinstance(action, actions.Deliver):
            self._inbox.put_frames(action.frames)
        elif isinstance(action, actions.SendPoll):
            if self._inbox.has_room:
                self._spawn(self._send_poll(action))
            else:
                self._held = action
                self._keep_polls(None)  # the publisher waits only for a short time for the next poll of a call
        elif isinstance(action, actions.SendBatch):
            self._spawn(self._send_batch(action))
        elif isinstance(action, actions.SendLeave):
            self._spawn(self._send_leave(action))
        elif isinstance(action, actions.Up):
            self._has_warned = False
            self._inbox.put_report(Connected(self.address))
        elif isinstance(action, actions.Down):
            self._inbox.put_report(Disconnected(self.address, action.reason))
        else:
            self._inbox.put_report(Subscribed(self.address, action.topic_filter))

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # -- calls

    async def _send_poll(self, action: actions.SendPoll) -> None:
        poll = action.poll
        try:
            mail = wire.decode(Mail, await self._exchange(wire.encode(poll), action.timeout_s))
        except (aio.AioRpcError, MalformedFrame, TimeoutError) as error:
            self._core.poll_failed(poll, self._explain(error), time.monotonic())
        else:
            self._core.poll_answered(poll, mail, time.monotonic())
        self._act()

    async def _exchange(self, poll: bytes, timeout_s: float) -> bytes:
        """Send a poll and return its answer: in the call of the poll before, or in a new one if that has ended.

        Raises AioRpcError, TimeoutError, and MalformedFrame when the publisher ends a new call without an answer.
        """
        # Only one poll uses a call: a poll of an earlier session may still wait in its own.
        call, self._polls = self._polls, None
        is_new = call is None
        if is_new:
            call = self._poll()
        is_late = False

        def give_up() -> None:
            nonlocal is_late
            is_late = True
            call.cancel()

        timer = self._loop.call_later(timeout_s, give_up)
        try:
            await call.write(poll)
            answer = await call.read()
        except asyncio.CancelledError:
            call.cancel()
            if is_late:
                raise TimeoutError(f"no answer to a poll within {timeout_s:g} s") from None
            raise
        except (aio.AioRpcError, asyncio.InvalidStateError) as error:
            # In these ways gRPC says that the other side had ended the call before the poll was written.
            if is_new or (isinstance(error, aio.AioRpcError) and error.code() is not grpc.StatusCode.INTERNAL):
                raise
            answer = aio.EOF
        finally:
            timer.cancel()
        if answer is not aio.EOF:
            self._keep_polls(call)
            return bytes(answer)
        if is_new:
            raise MalformedFrame("the publisher ended a call without an answer to the poll")
        return await self._exchange(poll, timeout_s)

    def _keep_polls(self, call: Any) -> None:
        """Keep a call for the next poll, or None for a new one; end the call that was kept before."""
        if self._polls is not None:
            self._polls.cancel()
        self._polls = call

    async def _send_batch(self, action: actions.SendBatch) -> None:
        batch: FrameBatch = action.batch
        try:
            applied = wire.decode(Applied, await self._command(wire.encode(batch), timeout=action.timeout_s))
        except (aio.AioRpcError, MalformedFrame) as error:
            self._core.batch_failed(batch, self._explain(error), time.monotonic())
        else:
            self._core.batch_answered(batch, applied, time.monotonic())
        self._act()

    async def _send_leave(self, action: actions.SendLeave) -> None:
        try:
            await self._leave(wire.encode(action.leave), timeout=config.LINGER_S)
        except aio.AioRpcError as error:
            LOG.debug("%s: the publisher was not told that this subscriber leaves: %s", self.address, error.details())

    async def _send_query(self, frame: bytes, tell: Callable[[int], None]) -> None:
        try:
            call = self._ask(frame, timeout=config.QUERY_TIMEOUT_S)
            is_first = True
            async for part in call:
                if is_first:
                    is_first = False
                    tell(int(part == wire.SERVED))
                else:
                    self._inbox.put_frames([part])
                    await self._wait_for_room()
        except aio.AioRpcError as error:
            self._tally.add("queries_failed")
            LOG.debug("%s: a query was not answered: %s", self.address, error.details())
        finally:
            self._queries -= 1

    async def _wait_for_room(self) -> None:
        """Leave the rest of an answer in the connection while the inbox is full."""
        while not self._inbox.has_room:
            self._room.clear()
            await self._room.wait()

    def _explain(self, error: aio.AioRpcError | MalformedFrame | TimeoutError) -> str:
        """The reason of a failure, in words.  The first one since the link was up is logged."""
        if isinstance(error, MalformedFrame):
            return str(error)
        is_ours = isinstance(error, aio.AioRpcError) and error.code() is grpc.StatusCode.CANCELLED
        reason = f"{error.code().name}: {error.details()}" if isinstance(error, aio.AioRpcError) else str(error)
        if not is_ours and not self._has_warned:
            self._has_warned = True
            LOG.warning("%s: no link to the publisher: %s", self.address, reason)
        return reason
