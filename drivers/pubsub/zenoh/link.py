"""The link of a subscriber to one address: its filters, the channel for frames, and the reports of the link.

Zenoh gives every declared subscriber its own channel.  With one subscriber per filter, frames of several filters would
lose their order, a frame that two filters match would come twice, and each filter would cost a thread.  So filters and
channel are separate:

* for each filter a Zenoh subscriber is declared whose channel is never read: it tells publishers what to send here; for
  many filters broader ones are declared (`heliograph_drivers.pubsub.zenoh.interests`);
* one Zenoh subscriber for *everything* has the channel.  Every frame passes it once, in order.  Its declaration does
  not leave the session, because an access rule of the session forbids it: publishers never see it.  The rule covers
  all key expressions inside ``heliograph$*/**``; filters are written so that they are not inside
  (`heliograph_drivers.pubsub.zenoh.config.ZenohKeys`).

A link is reported as connected when a question that was sent after the filters was answered: publishers answer an empty
query at once, and Zenoh delivers declarations and queries in order.  A router ends the question by itself when there
is no publisher.  A plain Zenoh peer does not answer; it counts as ready after a grace time.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

import zenoh

from heliograph_drivers.pubsub.zenoh import config
from heliograph_drivers.pubsub.zenoh.config import (
    QUERIES_MAX,
    SYNC_GRACE_S,
    SYNC_RETRY_MAX_S,
    SYNC_RETRY_S,
    SYNC_TIMEOUT_S,
    ZenohKeys,
    ZenohSettings,
)
from heliograph_drivers.pubsub.zenoh.connection import ZenohConnection
from heliograph_drivers.pubsub.zenoh.interests import InterestChange, Interests
from heliograph_drivers.pubsub.zenoh.session import ZenohSession
from pubsub_api.core.frame import GUID_AT, is_frame, name_of
from pubsub_api.driver import Connected, Disconnected, Subscribed
from pubsub_api.driver_kit import Backoff, Inbox, ReplaceableThread, Tally

CHANNEL_FRAMES = 1024
"""Frames between Zenoh's thread and the thread of the channel.  A small number is enough, because the thread of the
channel never waits for the receiver."""
BATCH_BYTES = 256 * 1024

if TYPE_CHECKING:
    Channel = zenoh.Subscriber[zenoh.handlers.Handler[zenoh.Sample]]


class ZenohLink(ZenohConnection):
    """The link to one address."""

    def __init__(
        self, settings: ZenohSettings, address: str, filters: Iterable[str], inbox: Inbox, tally: Tally
    ) -> None:
        access = {"access_control": _rule_against_declaring(settings.keys.everything)}
        super().__init__(settings, (address,), access, tally)
        self._keys = settings.keys
        self._inbox = inbox
        self._filters = dict.fromkeys(filters)
        self._interests = Interests()
        self._declared: dict[str, Channel] = {}
        """Declared filter -> its Zenoh subscriber."""
        self._unconfirmed: dict[str, object] = {}
        """Filter that publishers have not confirmed yet -> a mark of its declaration."""
        self._pump: ReplaceableThread | None = None
        """The thread of the channel."""
        self._is_up = False
        self._up_since = 0.0
        self._sync_number = 0
        self._is_syncing = False
        self._sync_backoff = Backoff(SYNC_RETRY_S, SYNC_RETRY_MAX_S)
        self.is_connected = False

    def add(self, topic_filter: str) -> None:
        self._post(functools.partial(self._add, topic_filter))

    def remove(self, topic_filter: str) -> None:
        self._post(functools.partial(self._remove, topic_filter))

    def query(self, frame: bytes, on_reached: Callable[[int], None]) -> bool:
        """Have the query sent.  Does not block.  Returns False when it cannot be sent.

        A thread of Zenoh calls ``on_reached`` with the number of publishers that have answered, after the last answer.
        """
        if not self.is_connected:
            return False
        if self._commands.qsize() >= QUERIES_MAX:
            self._tally.add("queries_dropped")
            return False
        self._post(functools.partial(self._query, frame, on_reached))
        return True

    def _on_opened(self, session: ZenohSession) -> None:
        channel = session.keep(
            session.zenoh.declare_subscriber(self._keys.everything, zenoh.handlers.FifoChannel(CHANNEL_FRAMES))
        )
        thread = ReplaceableThread(
            f"zenoh channel {self.address}",
            lambda: pump(channel, self._inbox, self._keys, self._tally, thread.replace),
        )
        thread.start()  # may raise: `_pump` has only threads that have begun and can be joined
        self._pump = thread
        self._interests = Interests()
        self._declared.clear()
        self._declare(session, self._filters)

    def _declare(self, session: ZenohSession, filters: Iterable[str]) -> None:
        mark = object()
        self._unconfirmed.update(dict.fromkeys(filters, mark))
        self._change(session, self._interests.add(filters))

    def _change(self, session: ZenohSession, change: InterestChange) -> None:
        for name in change.declare:
            # A ring of one entry that is never read: Zenoh overwrites its samples, and they never reach Python.
            ring: zenoh.handlers.RingChannel[zenoh.Sample] = zenoh.handlers.RingChannel(1)
            interest = session.zenoh.declare_subscriber(self._keys.interest(name), ring)
            self._declared[name] = session.keep(interest)
        for name in change.undeclare:
            session.undeclare(self._declared.pop(name))

    def _add(self, topic_filter: str) -> None:
        self._filters[topic_filter] = None
        if self._session is not None:
            self._declare(self._session, [topic_filter])
            self._sync_soon()

    def _remove(self, topic_filter: str) -> None:
        del self._filters[topic_filter]
        self._unconfirmed.pop(topic_filter, None)
        if self._session is not None:
            self._change(self._session, self._interests.remove(topic_filter))

    def _query(self, frame: bytes, on_reached: Callable[[int], None]) -> None:
        if self._session is None:
            self._tally.add("queries_dropped")
            return
        key = self._keys.ask(name_of(frame).decode())
        responders: set[bytes] = set()
        failures: list[zenoh.Reply] = []

        def on_reply(reply: zenoh.Reply) -> None:
            """Called by Zenoh's receiving thread."""
            if reply.ok is None:
                failures.append(reply)
                return
            answer = reply.ok.payload.to_bytes()
            if not (str(reply.ok.key_expr) == key and self._keys.is_asked_in_place(key, answer)):
                self._tally.add("frames_misplaced")
                return
            responders.add(answer[GUID_AT])
            self._inbox.put_frames([answer])

        def on_end() -> None:
            if failures:
                self._tally.add("queries_failed")
            else:
                on_reached(len(responders))

        callback = zenoh.handlers.Callback(on_reply, on_end, indirect=False)
        _get(self._session, key, config.QUERY_TIMEOUT_S, callback, frame)

    def _on_link_up(self) -> None:
        self._is_up = True
        self._up_since = time.monotonic()
        self._sync_number += 1  # answers to earlier questions do not count
        self._is_syncing = False
        self._sync_soon()

    def _on_link_down(self, reason: str) -> None:
        self._is_up = False
        if self.is_connected:
            self.is_connected = False
            self._inbox.put_report(Disconnected(self.address, reason))

    def _sync_soon(self) -> None:
        if self._is_up and not self._is_syncing:
            self._is_syncing = True
            self._sync_backoff.reset()
            self._sync()

    def _sync(self) -> None:
        """Ask the publishers whether the filters declared so far are in effect."""
        if self._session is None or not self._is_up:
            return
        self._sync_number += 1
        answers: list[bool] = []

        def on_reply(reply: zenoh.Reply) -> None:
            answers.append(reply.ok is not None)

        synced = functools.partial(self._synced, self._sync_number, answers, dict(self._unconfirmed))
        callback = zenoh.handlers.Callback(on_reply, functools.partial(self._post, synced), indirect=False)
        _get(self._session, self._keys.sync, SYNC_TIMEOUT_S, callback, b"")

    def _synced(self, number: int, answers: list[bool], asked: Mapping[str, object]) -> None:
        """Handle the end of a question.  ``answers`` has True for each answer, and False after a time-out."""
        if number != self._sync_number or not self._is_up:
            return
        if not (any(answers) or self._is_ended(has_timed_out=bool(answers))):
            self._tally.add("barriers_repeated")
            self._after(self._sync_backoff.next_s(), self._sync)
            return
        self._is_syncing = False
        confirmed = [name for name, mark in asked.items() if self._unconfirmed.get(name) is mark]
        for name in confirmed:
            del self._unconfirmed[name]
            if self.is_connected:
                self._inbox.put_report(Subscribed(self.address, name))
        if self._unconfirmed:
            self._sync_soon()
        elif not self.is_connected:
            self.is_connected = True
            self._inbox.put_report(Connected(self.address))

    def _is_ended(self, *, has_timed_out: bool) -> bool:
        """Whether a question without an answer still confirms the filters.

        After a time-out the router may not have received the question, so it is repeated until the grace time is over.
        """
        if has_timed_out:
            return self._is_grace_over() and self._is_ended_by_router()
        return self._is_grace_over() or self._is_ended_by_router()

    def _is_ended_by_router(self) -> bool:
        """Whether the router has ended the query: that of a client ends at its router, unless the link was lost."""
        return self._is_client and self._session is not None and bool(self._session.zenoh.info.links())

    def _is_grace_over(self) -> bool:
        return time.monotonic() - self._up_since > SYNC_GRACE_S

    def _on_closing(self) -> None:
        self.is_connected = False

    def _on_closed(self) -> None:
        self._declared.clear()
        if self._pump is not None:
            self._pump.join()

    def join(self) -> None:
        """Like `ZenohConnection.join`, but from within a callback of the user it does not wait."""
        if self._pump is None or not self._pump.is_current:
            super().join()


def _get(
    session: ZenohSession, key: str, timeout_s: float, callback: zenoh.handlers.Callback[zenoh.Reply], payload: bytes
) -> None:
    session.zenoh.get(
        key,
        callback,
        target=zenoh.QueryTarget.ALL,
        consolidation=zenoh.ConsolidationMode.NONE,  # else Zenoh keeps one reply per key
        timeout=timeout_s,
        # Answers get the priority of the query.  With a lower one live frames would starve a repair; with the same one
        # an answer that waits for a slow link would delay the frames for all links.
        priority=zenoh.Priority.DATA_HIGH,
        payload=payload,
    )


def pump(channel: Channel, inbox: Inbox, keys: ZenohKeys, tally: Tally, relieve: Callable[[], None]) -> None:
    """Move samples from the channel to the inbox, as many at a time as there are, until the session is closed.

    A frame under the key of another topic is dropped and counted.

    The first frame is handed over before the channel is asked for more.  If the receiver keeps this thread, ``relieve``
    starts another pump for the channel, and this one returns.
    """
    sample: zenoh.Sample | None
    while True:
        try:
            sample = channel.recv()
        except zenoh.ZError:
            return
        payload = sample.payload.to_bytes()
        if is_frame(payload) and keys.is_in_place(str(sample.key_expr), payload):
            if inbox.pass_frames([payload], relieve):
                return
            sample = _try_recv(channel)
        frames: list[bytes] = []
        size = 0
        while sample is not None:
            payload = sample.payload.to_bytes()
            key = str(sample.key_expr)
            if is_frame(payload) and keys.is_in_place(key, payload):
                frames.append(payload)
                size += len(payload)
            elif is_frame(payload):
                tally.add("frames_misplaced")
            elif topic := keys.topic(key):
                inbox.put_frames(frames)
                frames = []
                inbox.put_foreign(topic, None if sample.kind == zenoh.SampleKind.DELETE else payload)
            sample = None if size > BATCH_BYTES else _try_recv(channel)
        inbox.put_frames(frames)


def _try_recv(channel: Channel) -> zenoh.Sample | None:
    try:
        return channel.try_recv()
    except zenoh.ZError:  # closed and empty: recv() will raise again
        return None


def _rule_against_declaring(key_expression: str) -> dict[str, object]:
    """Access control that keeps the declaration of this subscriber inside the session, and allows everything else."""
    rule = {
        "id": "one-channel",
        "messages": ["declare_subscriber"],
        "flows": ["egress"],
        "permission": "deny",
        "key_exprs": [key_expression],
    }
    return {
        "enabled": True,
        "default_permission": "allow",
        "rules": [rule],
        "subjects": [{"id": "all"}],
        "policies": [{"rules": [rule["id"]], "subjects": ["all"]}],
    }
