"""The link of a subscriber to one address: filters, the channel that frames come through, and when it is up.

Theory of operation.  Zenoh gives every declared subscriber a channel of its own, so with one subscriber per filter the
frames of several filters would lose their order, a frame that two filters match would come twice, and each filter would
cost a thread.  So filters and channel are kept apart:

* for each filter something is declared that is never read: it tells publishers what to send here; for many filters
  something broader (`heliograph_drivers.pubsub.zenoh.interests`);
* one subscriber for *everything* holds the channel.  Whatever arrives passes it once, in order.  No other subscriber
  hears of
  it, because an access rule of the session itself keeps that one declaration from leaving.  The rule covers all that is
  contained in ``heliograph$*/**``; filters are written so that they are not
  (`heliograph_drivers.pubsub.zenoh.config.ZenohKeys`).

A link is reported as connected when a question that was sent after the filters was answered: publishers answer an
empty query at once, and Zenoh delivers declarations and queries in order.  A router ends the question by itself when no
publisher is there.  A plain Zenoh peer does not answer; after a grace time it is taken to be ready.
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
"""Frames between Zenoh's thread and ours.  Ours never waits for the receiver, so this need not hold much."""
BATCH_BYTES = 256 * 1024

if TYPE_CHECKING:
    Channel = zenoh.Subscriber[zenoh.handlers.Handler[zenoh.Sample]]


class ZenohLink(ZenohConnection):
    """The link to one address."""

    def __init__(
        self, settings: ZenohSettings, address: str, filters: Iterable[str], inbox: Inbox, tally: Tally
    ) -> None:
        access = {"access_control": _keep_to_oneself(settings.keys.everything)}
        super().__init__(settings, (address,), access, tally)
        self._keys = settings.keys
        self._inbox = inbox
        self._filters = dict.fromkeys(filters)
        self._interests = Interests()
        self._declared: dict[str, Channel] = {}
        """What is declared for the filters."""
        self._unconfirmed: dict[str, object] = {}
        """Filters that publishers may not have heard of, each with a mark of the attempt to tell them."""
        self._pump: ReplaceableThread | None = None
        """Moves what comes through the channel."""
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
        """Have the query sent; False when it certainly goes nowhere.

        ``on_reached`` is told, on a thread of Zenoh, how many have answered, once all of them have.
        """
        if not self.is_connected:
            return False
        if self._commands.qsize() >= QUERIES_MAX:
            self._tally.add("queries_dropped")
            return False
        self._post(functools.partial(self._query, frame, on_reached))
        return True

    def _opened(self, session: ZenohSession) -> None:
        channel = session.keep(
            session.zenoh.declare_subscriber(self._keys.everything, zenoh.handlers.FifoChannel(CHANNEL_FRAMES))
        )
        thread = ReplaceableThread(
            f"zenoh channel {self.address}",
            lambda: pump(channel, self._inbox, self._keys, self._tally, thread.replace),
        )
        thread.start()  # first: one that did not begin is none to wait for
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
            # A ring of one that is never read: samples are overwritten inside Zenoh and never reach Python.
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

    def _came_up(self) -> None:
        self._is_up = True
        self._up_since = time.monotonic()
        self._sync_number += 1  # answers to what was asked before do not count
        self._is_syncing = False
        self._sync_soon()

    def _went_down(self, reason: str) -> None:
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
        """Ask the publishers whether they have heard of the filters declared so far."""
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
        """The question has ended.  ``answers``: one for each answer and False when time ran out."""
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
        """Whether a question without an answer counts nevertheless.

        When time ran out it may be the router that has not heard of it yet, so that is asked again for a while.
        """
        if has_timed_out:
            return self._is_grace_over() and self._is_ended_by_router()
        return self._is_grace_over() or self._is_ended_by_router()

    def _is_ended_by_router(self) -> bool:
        """A client's query goes to the router and ends there, unless the link was lost while it was under way."""
        return self._is_client and self._session is not None and bool(self._session.zenoh.info.links())

    def _is_grace_over(self) -> bool:
        return time.monotonic() - self._up_since > SYNC_GRACE_S

    def _closing(self) -> None:
        self.is_connected = False

    def _closed(self) -> None:
        self._declared.clear()
        if self._pump is not None:
            self._pump.join()

    def join(self) -> None:
        """As `ZenohConnection.join`; from within a callback of the user nothing is waited for."""
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
        # Answers have the priority of the query.  Below it live frames would starve a repair; with the same one an
        # answer that a slow link holds up would hold up the frames for all links.
        priority=zenoh.Priority.DATA_HIGH,
        payload=payload,
    )


def pump(channel: Channel, inbox: Inbox, keys: ZenohKeys, tally: Tally, relieve: Callable[[], None]) -> None:
    """Move what arrives to the inbox, as much at a time as is there, until the session is closed.

    A frame under the key of another topic is dropped and counted.

    A frame that comes alone is passed on before it is asked whether there are more.  ``relieve`` starts another pump
    for the channel, should the receiver keep this thread; it ends then.
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
    except zenoh.ZError:  # closed, and empty: recv() will say so again
        return None


def _keep_to_oneself(key_expression: str) -> dict[str, object]:
    """Access control that does not let the declaration of this subscriber leave, and lets everything else pass."""
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
        "subjects": [{"id": "everybody"}],
        "policies": [{"rules": [rule["id"]], "subjects": ["everybody"]}],
    }
