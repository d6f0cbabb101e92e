"""A world in virtual time for the long-poll protocol: one publisher that may be started again, subscribers that are
killed, frozen and cut off, and a network that loses, delays, repeats and reorders.  Everything comes from one seed.

What must hold is checked by `tests.unit.drivers.longpoll.oracle` after every step.
"""

from __future__ import annotations

import dataclasses
import heapq
import itertools
import random
from collections.abc import Callable

from heliograph_drivers.pubsub.longpoll.core import actions
from heliograph_drivers.pubsub.longpoll.core.actions import LinkSettings
from heliograph_drivers.pubsub.longpoll.core.mailbox import Bounds, MailboxPolicy
from heliograph_drivers.pubsub.longpoll.core.publisher import LongpollPublisherCore
from heliograph_drivers.pubsub.longpoll.core.session import LongpollPublisherSettings, PollAnswer
from heliograph_drivers.pubsub.longpoll.core.subscriber import LinkCore
from heliograph_drivers.pubsub.longpoll.core.wire import Applied, FrameBatch, Leave, Mail, Poll
from pubsub_api.core import frame as frames
from pubsub_api.core.frame import Kind
from tests.unit.drivers.longpoll.oracle import Oracle

POLL_INTERVAL_S, POLL_GRACE_S, SESSION_TIMEOUT_S, COMMAND_TIMEOUT_S = 10.0, 5.0, 30.0, 5.0
BOUNDS = Bounds(frames_max=40, bytes_max=40 * 400, reply_frames_max=10, reply_bytes_max=2000)
LINK = LinkSettings(POLL_INTERVAL_S, POLL_GRACE_S, COMMAND_TIMEOUT_S, batch_max=3, retry_min_s=0.1, retry_max_s=2.0)
KEY = b"key of the world"
DELAY_S_MAX = 0.5
TOPICS = [f"{channel}/k{key}" for channel in ("state", "latest", "lossy") for key in range(4)]
FILTERS = [*TOPICS, "state/#", "latest/#", "lossy/#", "+/k1", "#", "$control"]


def policy_of(topic: str) -> MailboxPolicy:
    return {"latest": MailboxPolicy.LATEST, "lossy": MailboxPolicy.LOSSY}.get(
        topic.partition("/")[0], MailboxPolicy.LOSSLESS
    )


SETTINGS = LongpollPublisherSettings(
    BOUNDS, POLL_INTERVAL_S, SESSION_TIMEOUT_S, sessions_max=100, subscriptions_max=10_000, policy_of=policy_of, key=KEY
)


@dataclasses.dataclass
class Network:
    """Probabilities, per message."""

    drop: float = 0.0
    duplicate: float = 0.0
    slow: float = 0.0
    """Takes up to `DELAY_S_MAX` instead of a moment, which reorders."""


class Publisher:
    """One life of the publisher."""

    def __init__(self, world: World, number: int) -> None:
        self.guid = number.to_bytes(16, "big")
        self.core = LongpollPublisherCore(SETTINGS, b"life" + number.to_bytes(12, "big"))
        self.heads = dict.fromkeys([*TOPICS, "$control"], 0)
        self.parked: dict[tuple[bytes, int], Callable[[Mail], None]] = {}
        self.is_alive = True
        self.died_at = float("inf")
        self.is_frozen = False
        self._world = world

    def publish(self, topic: str) -> None:
        self.heads[topic] += 1
        number = self.heads[topic]
        frame = frames.pack(
            Kind.DATA, self.guid, topic, b"\x90" + bytes(self._world.random.randrange(200)),
            first=number, after=number - 1, count=1, key=KEY,
        )  # fmt: skip
        self._world.oracle.on_publish(self, topic, number)
        self._put(topic, frame)

    def hello(self, topic: str) -> None:
        head = self.heads[topic]
        self._put(topic, frames.pack(Kind.HELLO, self.guid, topic, b"\x80", first=head + 1, after=head, key=KEY))

    def _put(self, topic: str, frame: bytes) -> None:
        self.core.publish(topic, frame)
        self.core.reset_overfull()
        self._world.oracle.check_mailboxes(self)
        if self._world.random.random() < 0.8:
            self.answer(self.core.flush(self._world.now))
        else:
            self._world.after(0.05, lambda: self.answer(self.core.flush(self._world.now)))

    def answer(self, answers: list[PollAnswer]) -> None:
        # Sets of sessions have an order of their own in every process; a seed must not notice.
        for session, poll, mail in sorted(answers, key=lambda answer: answer[:2]):
            self._world.oracle.on_answer(mail)
            reply = self.parked.pop((session, poll), None)
            if reply is not None:
                reply(mail)
        self._world.oracle.check_publisher(self)


class Subscriber:
    """One subscriber with its link."""

    def __init__(self, world: World, number: int) -> None:
        self.number = number
        self.is_alive = True
        self.is_frozen = False
        self.thawed_at = 0.0
        self.wanted: dict[str, float] = {}
        """Filter -> when it was subscribed."""
        self.calls: dict[str, dict[object, bytes]] = {"poll": {}, "batch": {}}
        """What is under way, with its session."""
        self._world = world
        self.core = LinkCore(
            LINK, [], new_session=world.new_session, jitter=world.random.random, now=world.now
        )  # fmt: skip
        world.wake(self)

    def subscribe(self, topic_filter: str) -> None:
        if topic_filter not in self.wanted:
            self.wanted[topic_filter] = self._world.now
            self.core.subscribe(topic_filter)
            self.act()

    def unsubscribe(self, topic_filter: str) -> None:
        if topic_filter in self.wanted:
            del self.wanted[topic_filter]
            self._world.oracle.on_unsubscribe(self, topic_filter)
            self.core.unsubscribe(topic_filter)
            self.act()

    def thaw(self) -> None:
        self.is_frozen = False
        self.thawed_at = self._world.now

    def leave(self) -> None:
        self.core.close()
        self.act()
        self.is_alive = False

    def act(self) -> None:
        for action in self.core.take():
            self._do(action)
        self._world.wake(self)

    def _do(self, action: actions.Action) -> None:
        world, oracle = self._world, self._world.oracle
        if isinstance(action, actions.SendPoll):
            poll = action.poll
            world.call("poll", self, poll, action.timeout_s, self.core.poll_answered, self.core.poll_failed)
        elif isinstance(action, actions.SendBatch):
            oracle.on_batch(self, action.batch)
            world.call(
                "batch", self, action.batch, action.timeout_s, self.core.batch_answered, self.core.batch_failed
            )  # fmt: skip
        elif isinstance(action, actions.SendLeave):
            world.send_leave(action.leave)
        elif isinstance(action, actions.Deliver):
            oracle.on_deliver(self, action.frames)
        elif isinstance(action, actions.Up):
            oracle.on_up(self)
        elif isinstance(action, actions.Down):
            oracle.on_down(self, action.reason)
        else:
            oracle.on_in_effect(self, action.topic_filter)


class World:
    """The clock, the network and everybody in it."""

    def __init__(self, seed: int, subscribers: int = 3) -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        self.network = Network()
        self.is_cut = False
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()
        self._sessions = itertools.count(1)
        self._lives = itertools.count(1)
        self.oracle = Oracle(self)
        self.publisher = Publisher(self, next(self._lives))
        self._numbers = itertools.count()
        self.subscribers = [Subscriber(self, next(self._numbers)) for _ in range(subscribers)]
        self.tick_publisher()

    def new_session(self) -> bytes:
        return next(self._sessions).to_bytes(16, "big")

    def after(self, delay_s: float, call: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + delay_s, next(self._count), call))

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while self._events and self._events[0][0] <= end:
            self.now, _, call = heapq.heappop(self._events)
            call()
            self.oracle.check()
        self.now = end

    def wake(self, subscriber: Subscriber) -> None:
        due = subscriber.core.next_deadline()
        if due is not None:
            self.after(max(0.0, due - self.now), lambda: self._wake_now(subscriber))

    def _wake_now(self, subscriber: Subscriber) -> None:
        due = subscriber.core.next_deadline()
        if subscriber.is_frozen:
            self.after(0.5, lambda: self._wake_now(subscriber))
        elif subscriber.is_alive and due is not None and due <= self.now:
            subscriber.core.tick(self.now)
            subscriber.act()

    def tick_publisher(self) -> None:
        if self.publisher.is_alive and not self.publisher.is_frozen:
            self.publisher.answer(self.publisher.core.tick(self.now))
        self.after(0.25, self.tick_publisher)

    # -- misfortunes

    def kill_publisher(self) -> None:
        self.publisher.is_alive = False
        self.publisher.died_at = self.now

    def start_publisher(self) -> None:
        if not self.publisher.is_alive:
            self.publisher = Publisher(self, next(self._lives))

    def replace_subscriber(self, position: int) -> None:
        """Kill one, without goodbye, and start another."""
        self.subscribers[position].is_alive = False
        self.subscribers[position] = Subscriber(self, next(self._numbers))

    # -- the network

    def delay_s(self) -> float:
        return self.random.uniform(0.001, DELAY_S_MAX if self.random.random() < self.network.slow else 0.01)

    def is_lost(self) -> bool:
        return self.is_cut or self.random.random() < self.network.drop

    def call(
        self,
        kind: str,
        subscriber: Subscriber,
        request: Poll | FrameBatch,
        timeout_s: float,
        answered: Callable[..., None],
        failed: Callable[..., None],
    ) -> None:
        """A call that ends in an answer, perhaps twice, or in a failure."""
        token, has_failed = object(), False
        self.oracle.check_alone(subscriber, kind, request.session)
        subscriber.calls[kind][token] = request.session

        def end(finish: Callable[..., None], what: Applied | Mail | str) -> None:
            if not subscriber.is_alive:
                return
            if subscriber.is_frozen:
                self.after(0.5, lambda: end(finish, what))
                return
            nonlocal has_failed
            is_over = token not in subscriber.calls[kind]
            subscriber.calls[kind].pop(token, None)
            # An answer that comes twice must do no harm; after a failure nothing comes, and a failure comes once.
            if has_failed or (is_over and finish is failed):
                return
            has_failed = finish is failed
            finish(request, what, self.now)
            subscriber.act()

        def respond(what: Applied | Mail) -> None:
            if not self.is_lost():
                self.after(self.delay_s(), lambda: end(answered, what))
            elif self.random.random() < 0.5:
                self.after(self.delay_s(), lambda: end(failed, "the connection broke"))

        publisher = self.publisher
        for _ in range(1 + (self.random.random() < self.network.duplicate)):
            if not self.is_lost():
                self.after(self.delay_s(), lambda: self._arrive(publisher, request, respond))
            elif self.random.random() < 0.5:
                self.after(self.delay_s(), lambda: end(failed, "the connection broke"))
        if not publisher.is_alive and not self.is_cut:
            self.after(self.delay_s(), lambda: end(failed, "connection refused"))
        self.after(timeout_s, lambda: end(failed, "no answer in time"))

    def _arrive(self, publisher: Publisher, request: Poll | FrameBatch, respond: Callable[..., None]) -> None:
        if not publisher.is_alive:
            return
        if publisher.is_frozen:
            self.after(0.5, lambda: self._arrive(publisher, request, respond))
        elif isinstance(request, FrameBatch):
            respond(publisher.core.command(request, self.now))
            self.oracle.check_publisher(publisher)
        else:
            publisher.parked.setdefault((request.session, request.number), respond)
            publisher.answer(publisher.core.poll(request, self.now))
            if self.random.random() < self.network.drop / 4:
                publisher.parked.pop((request.session, request.number), None)
                publisher.core.hang_up(request.session, request.number, self.now)

    def send_leave(self, leave: Leave) -> None:
        publisher = self.publisher
        if publisher.is_alive and not self.is_lost():
            self.after(self.delay_s(), lambda: publisher.answer(publisher.core.leave(leave, self.now)))
