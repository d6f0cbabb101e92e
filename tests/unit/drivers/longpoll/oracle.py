"""What must hold in `tests.unit.drivers.longpoll.world`, whatever happens there.  The names P1 to P11 are the
invariants' own.

=== =====================================================================================================
P1  numbers of a stream rise strictly at each subscriber: nothing comes twice
P2  while a link is up nothing is missing in silence: a frame follows what was delivered before it
P3  what a mailbox holds is what it says it holds, beyond what was acknowledged
P4  commands take effect in order and once; one poll and one batch are under way at most
P5  at rest both sides agree on the filters, and nothing is left of anybody else
P6  nothing comes for a filter that was dropped, nor for one that is younger than the frame
P7  a new life of the publisher is preceded by a report that the old one is gone
P8  who was declared dead and lives recovers (at rest P2 and P5 hold for all)
P9  mailboxes and answers stay within their bounds
P10 a dead side is noticed within the configured times, by exactly one report
P11 a poll waits ``poll_interval`` at most
=== =====================================================================================================
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from heliograph_drivers.pubsub.longpoll.core.mailbox import ENTRY_BYTES, MailboxPolicy
from heliograph_drivers.pubsub.longpoll.core.session import SessionState
from heliograph_drivers.pubsub.longpoll.core.wire import FrameBatch, Mail
from pubsub_api.core import frame as frames
from pubsub_api.core.frame import Kind
from pubsub_api.core.topics import matches
from tests.unit.drivers.longpoll import world as world_module
from tests.unit.drivers.longpoll.index_entries import entries, filters_of

if TYPE_CHECKING:
    from tests.unit.drivers.longpoll.world import Publisher, Subscriber, World

Stream = tuple[bytes, str]
SLACK_S = 1.0
"""How long messages and the ticks of the world may take, together."""


class Seen:
    """What one subscriber saw."""

    def __init__(self) -> None:
        self.last: dict[Stream, int] = {}
        self.in_effect: dict[str, dict[Stream, int]] = {}
        """Filter -> the streams it selects, each with the number after which nothing may be missing."""
        self.is_up = False
        self.ups = self.downs = self.resets = 0
        self.guid = b""
        self.was_up, self.downs_before = False, 0
        """As it was when the last frame came."""
        self.skipped = 0

    def known(self, stream: Stream) -> int | None:
        """The number up to which a stream is accounted for; None when nobody relies on it."""
        starts = [heads[stream] for heads in self.in_effect.values() if stream in heads]
        return max(self.last.get(stream, 0), min(starts)) if starts else None


class Oracle:
    def __init__(self, world: World) -> None:
        self.world = world
        self.seen: dict[int, Seen] = {}
        self.published_at: dict[tuple[Stream, int], float] = {}
        self.commands: dict[bytes, list[tuple[bool, str]]] = {}

    def of(self, subscriber: Subscriber) -> Seen:
        return self.seen.setdefault(subscriber.number, Seen())

    # -- at the publisher

    def on_publish(self, publisher: Publisher, topic: str, number: int) -> None:
        self.published_at[(publisher.guid, topic), number] = self.world.now

    def on_answer(self, mail: Mail) -> None:
        sizes = [len(frame) for _, run in mail.runs for frame in run]
        assert len(sizes) <= world_module.BOUNDS.reply_frames_max, "P9"
        assert sum(sizes) <= world_module.BOUNDS.reply_bytes_max or len(sizes) == 1, "P9"

    def on_batch(self, subscriber: Subscriber, batch: FrameBatch) -> None:
        """What was numbered once keeps its number."""
        known = self.commands.setdefault(batch.session, [])
        assert batch.first <= len(known) + 1, "P4"
        for number, command in enumerate(batch.commands, batch.first):
            if number <= len(known):
                assert known[number - 1] == command, "P4"
            else:
                known.append(command)

    def check_alone(self, subscriber: Subscriber, kind: str, session: bytes) -> None:
        assert session not in subscriber.calls[kind].values(), "P4: two at a time"

    def check_mailboxes(self, publisher: Publisher) -> None:
        bounds = world_module.BOUNDS
        for session in publisher.core.sessions.values():
            mailbox = session.mailbox
            assert not mailbox.is_overfull, "P9"
            assert len(mailbox) <= bounds.frames_max + bounds.reply_frames_max, "P9"

    def check_publisher(self, publisher: Publisher) -> None:
        self.check_mailboxes(publisher)
        core = publisher.core
        by_filter = dict(entries(core.index))
        assert all(by_filter.values()), "P5: an empty entry"
        for session in core.sessions.values():
            mailbox = session.mailbox
            held = [entry for entry in mailbox._waiting if entry.is_waiting] + mailbox._sent
            assert mailbox.held_bytes == sum(len(entry.frame) + ENTRY_BYTES for entry in held), "P3"
            assert len(mailbox) == len(held), "P3"
            wanted: set[str] = set()
            for is_wanted, name in self.commands[session.id][: session.applied]:
                (wanted.add if is_wanted else wanted.discard)(name)
            assert filters_of(core.index, session) == wanted, "P4"
            assert {name for name, who in by_filter.items() if session in who} == wanted, "P5: both directions"
            if session.state is SessionState.PARKED:
                assert session.due <= self.world.now + world_module.POLL_INTERVAL_S, "P11"
        assert sum(map(len, by_filter.values())) == len(core.index), "P5"
        assert core.index._filters.keys() <= set(core.sessions.values()), "P5"

    # -- at a subscriber

    def on_up(self, subscriber: Subscriber) -> None:
        seen = self.of(subscriber)
        assert not seen.is_up, "P10: up twice"
        seen.is_up = True
        seen.ups += 1
        seen.in_effect = {name: self._heads(name) for name in subscriber.wanted}

    def on_in_effect(self, subscriber: Subscriber, topic_filter: str) -> None:
        seen = self.of(subscriber)
        assert seen.is_up
        assert topic_filter in subscriber.wanted, "P6"
        seen.in_effect[topic_filter] = self._heads(topic_filter)

    def on_unsubscribe(self, subscriber: Subscriber, topic_filter: str) -> None:
        self.of(subscriber).in_effect.pop(topic_filter, None)

    def on_down(self, subscriber: Subscriber, reason: str) -> None:
        seen = self.of(subscriber)
        assert seen.is_up, "P10: down twice"
        assert reason
        seen.is_up = False
        seen.downs += 1
        seen.in_effect.clear()

    def _heads(self, topic_filter: str) -> dict[Stream, int]:
        """Where the streams stand that a filter selects: from here on nothing may be missing."""
        publisher = self.world.publisher
        return {
            (publisher.guid, topic): head for topic, head in publisher.heads.items() if matches(topic_filter, topic)
        }

    def on_deliver(self, subscriber: Subscriber, delivered: list[bytes]) -> None:
        seen = self.of(subscriber)
        for frame in delivered:
            header = frames.unpack(frame, bytes_max=100_000, key=world_module.KEY)
            stream = (header.guid, header.topic)
            assert any(matches(name, header.topic) for name in subscriber.wanted), "P6: nobody asked for it"
            if header.guid != seen.guid:
                assert not seen.was_up or seen.downs > seen.downs_before, "P7"
                seen.guid = header.guid
            seen.was_up, seen.downs_before = seen.is_up, seen.downs
            if header.kind == Kind.HELLO:
                self._check_hello(seen, stream, header)
                continue
            self._check_data(subscriber, seen, stream, header)

    def _check_hello(self, seen: Seen, stream: Stream, header: frames.Header) -> None:
        """A head that is announced is not beyond what was delivered: else it would be taken for loss."""
        known = seen.known(stream)
        assert known is None or header.after <= known, "P2: a hello shows a hole"

    def _check_data(self, subscriber: Subscriber, seen: Seen, stream: Stream, header: frames.Header) -> None:
        when = self.published_at[stream, header.first]
        assert any(
            matches(name, header.topic) and since <= when for name, since in subscriber.wanted.items()
        ), "P6: older than the subscription"  # fmt: skip
        last = seen.last.get(stream, 0)
        assert header.first > last, "P1"
        known = seen.known(stream)
        assert known is None or header.after <= known, "P2: a hole that nobody told of"
        skipped = header.first - 1 - header.after
        if world_module.policy_of(header.topic) is MailboxPolicy.LOSSLESS:
            assert skipped == 0, "P3: nothing is removed on purpose"
        seen.skipped += skipped
        seen.last[stream] = header.first

    # -- always, and at rest

    def check(self) -> None:
        publisher = self.world.publisher
        patience_s = world_module.POLL_INTERVAL_S + world_module.POLL_GRACE_S + SLACK_S
        for subscriber in self.world.subscribers:
            if subscriber.is_alive and not subscriber.is_frozen:
                is_late = self.world.now > max(publisher.died_at, subscriber.thawed_at) + patience_s
                assert not (subscriber.core.is_up and is_late), "P10: a dead publisher"
                assert subscriber.core.is_up == self.of(subscriber).is_up

    def check_rest(self) -> None:
        """Faults are over, and more time has passed than any of them can be felt."""
        world, publisher = self.world, self.world.publisher
        self.check_publisher(publisher)
        alive = [subscriber for subscriber in world.subscribers if subscriber.is_alive]
        sessions = {subscriber.core._session: subscriber for subscriber in alive}
        assert set(publisher.core.sessions) == set(sessions), "P5, P10: somebody is missing, or left over"
        for session in publisher.core.sessions.values():
            subscriber = sessions[session.id]
            assert set(filters_of(publisher.core.index, session)) == set(subscriber.wanted), "P5"
            assert not session.mailbox.has_mail, "P2: mail that nobody fetches"
            assert self.of(subscriber).is_up, "P8"
            assert self.of(subscriber).ups == self.of(subscriber).downs + 1, "P10"
            self._check_heads(subscriber, session.mailbox._skips)
        assert not publisher.core.overfull

    def _check_heads(self, subscriber: Subscriber, skips: dict[tuple[bytes, bytes], int]) -> None:
        publisher, seen = self.world.publisher, self.of(subscriber)
        for topic, head in publisher.heads.items():
            known = seen.known((publisher.guid, topic))
            is_complete = known is None or known >= skips.get((publisher.guid, topic.encode()), head)
            assert is_complete, "P2: the end of a stream is missing"

    def check_empty(self) -> None:
        """Everybody has left: nothing is left of them."""
        core = self.world.publisher.core
        assert (len(core.index), len(core.sessions), len(core.overfull)) == (0, 0, 0)
        assert core.index._root.is_empty
        assert not core.index._exact
        assert not core.index._filters
        assert not self.world.publisher.parked
