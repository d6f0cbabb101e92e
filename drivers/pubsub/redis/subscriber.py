"""The receiving end of the Redis driver: one link per address, and one receiver, called by one of them at a time."""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Callable, Iterator, Mapping

from drivers.pubsub.redis import channels
from drivers.pubsub.redis.config import RedisSettings
from drivers.pubsub.redis.link import COUNTED_WHERE_POSTED, Message, RedisLink, Relieve
from pubsub_api.core.frame import PREFIX as FRAME_PREFIX
from pubsub_api.core.frame import is_frame, name_of
from pubsub_api.core.topics import CONTROL_TOPIC, check_filter
from pubsub_api.driver import Asked, Disconnected, LinkReport, Receiver, SubscriberApi
from pubsub_api.driver_kit.counting import Tally
from pubsub_api.driver_kit.guarding import GuardedReceiver
from pubsub_api.driver_kit.reach import Reach
from pubsub_api.errors import Closed, TransportUnavailable, UsageError
from pubsub_api.runtime.forking import ForkGuard


class RedisSubscriber(SubscriberApi):
    """See the module's description."""

    def __init__(self, settings: RedisSettings) -> None:
        self._settings = settings
        self._guard = ForkGuard("subscriber")
        self._nonce = os.urandom(channels.NONCE_BYTES)
        self._receiver: GuardedReceiver | None = None
        self._tally = Tally(*COUNTED_WHERE_POSTED, "frames_misplaced")
        # Held during each call of the receiver.  Reentrant, because the receiver may unregister an address.
        self._calling = threading.RLock()
        # Guards the rest.  Never held while calling the receiver or waiting for a thread.
        self._lock = threading.Lock()
        self._filters: dict[str, None] = {}
        self._links: dict[str, RedisLink] = {}
        self._is_started = False
        self._is_closed = False

    def initialize(self, receiver: Receiver) -> None:
        self._check_process()
        self._receiver = GuardedReceiver(receiver)

    def register_topic(self, topic_filter: str) -> bool:
        if topic_filter != CONTROL_TOPIC:
            check_filter(topic_filter)
        with self._usable():
            if topic_filter in self._filters:
                return False
            self._filters[topic_filter] = None
            for link in self._links.values() if self._is_started else ():
                link.add_filter(topic_filter)
            return True

    def unregister_topic(self, topic_filter: str) -> bool:
        with self._usable():
            if topic_filter not in self._filters:
                return False
            del self._filters[topic_filter]
            for link in self._links.values() if self._is_started else ():
                link.drop_filter(topic_filter)
            return True

    def register_listen_address(self, address: str) -> bool:
        """Listen to another server, with the same credentials.  Its address must not carry any."""
        settings = self._settings.at(address)
        with self._usable():
            if settings.address in self._links:
                return False
            link = self._links[settings.address] = self._new_link(settings, address)
            if self._is_started:
                link.start(self._filters)
            return True

    def unregister_listen_address(self, address: str) -> bool:
        """Blocks until the link's thread has ended, unless it is called from within the receiver."""
        settings = self._settings.at(address)
        with self._usable():
            link = self._links.pop(settings.address, None)
            threads = self._threads()
        if link is None:
            return False
        was_up = link.is_up
        link.stop()
        if threading.current_thread() not in threads:
            link.join()
        if was_up:
            gone = Disconnected(link.address, "the address was unregistered")
            self._call(lambda receiver: receiver.on_link(gone))
        return True

    def daemonize(self) -> None:
        with self._usable():
            if self._receiver is None or self._is_started:
                raise UsageError("daemonize is called once, after initialize")
            self._is_started = True
            for link in self._links.values():
                link.start(self._filters)

    @property
    def is_running(self) -> bool:
        if self._guard.is_child:
            return False
        with self._lock:
            return self._is_started and not self._is_closed and all(link.is_alive for link in self._links.values())

    @property
    def receiver_errors(self) -> int:
        return self._receiver.errors if self._receiver is not None else 0

    @property
    def counters(self) -> Mapping[str, int]:
        return self._tally.counts()

    def query(self, frame: bytes) -> int | None:
        """Hand the query to every link that is up.  The servers will tell how many responders that reached."""
        prefix, scope = self._settings.channel_prefix, name_of(frame)
        channel, replies = channels.ask_channel(prefix, scope), channels.reply_channel(prefix, scope, self._nonce)
        with self._usable():
            links = [link for link in self._links.values() if link.is_up]
        reach = Reach(len(links), lambda total: self._tell_reach(frame, total))
        if not reach.ask(functools.partial(link.post, channel, self._nonce + frame, replies) for link in links):
            raise TransportUnavailable("no redis server is connected, or too many queries wait at once")
        return None

    def _tell_reach(self, frame: bytes, responders: int) -> None:
        asked = Asked(self._settings.address, frame, responders)
        self._call(lambda receiver: receiver.on_link(asked))

    def close(self) -> None:
        """Blocks until the threads have ended.  From within the receiver it does not; they then end by themselves."""
        if self._guard.is_child:
            return
        with self._lock:
            self._is_closed = True
            links = list(self._links.values())
            threads = self._threads()
        for link in links:
            link.stop()
        if threading.current_thread() not in threads:
            for link in links:
                link.join()

    def _new_link(self, settings: RedisSettings, address: str) -> RedisLink:
        link = RedisLink(
            settings,
            address,
            on_messages=lambda messages: self._on_messages(link, messages),
            on_report=lambda report: self._on_report(link, report),
            tally=self._tally,
            on_messages_lent=lambda messages, relieve: self._on_messages_lent(link, messages, relieve),
            reads_arrivals=settings.note_arrivals,
        )
        return link

    def _on_messages(self, link: RedisLink, messages: list[Message]) -> None:
        """Hand frames over in one call, in order with the messages between them that are none."""
        prefix = self._settings.channel_prefix
        frames: list[bytes] = []
        for channel, payload in messages:
            if is_frame(payload):
                if channels.is_in_place(prefix, channel, payload):
                    frames.append(payload)
                else:
                    self._tally.add("frames_misplaced")
                continue
            self._on_frames(link, frames)
            frames = []
            topic = channel[len(prefix) :].decode(errors="replace")
            self._on_foreign(link, topic, payload)
        self._on_frames(link, frames)

    def _on_messages_lent(self, link: RedisLink, messages: list[Message], relieve: Relieve) -> bool:
        """As `_on_messages`.  A lone frame goes with the thread, and nobody else is kept from calling meanwhile."""
        receiver = self._receiver
        channel, payload = messages[0]
        if receiver is None or not receiver.lends or len(messages) > 1 or payload[:4] != FRAME_PREFIX:
            self._on_messages(link, messages)
            return False
        prefix = self._settings.channel_prefix
        if name_of(payload) != channel[len(prefix) :] and not channels.is_in_place(prefix, channel, payload):
            self._on_messages(link, messages)
            return False
        if self._is_closed or link.is_stopping:
            return False
        return receiver.on_frames_lent([payload], relieve)

    def _on_frames(self, link: RedisLink, frames: list[bytes]) -> None:
        if frames:
            self._call(lambda receiver: receiver.on_frames(frames), link)

    def _on_foreign(self, link: RedisLink, topic: str, payload: bytes) -> None:
        self._call(lambda receiver: receiver.on_foreign(topic, payload), link)

    def _on_report(self, link: RedisLink, report: LinkReport) -> None:
        self._call(lambda receiver: receiver.on_link(report), link)

    def _call(self, call: Callable[[Receiver], None], link: RedisLink | None = None) -> None:
        """Call the receiver, one at a time, and not at all after closing or for a link that was left."""
        with self._calling:
            if not self._is_closed and self._receiver is not None and not (link is not None and link.is_stopping):
                call(self._receiver)

    def _threads(self) -> set[threading.Thread]:
        return {thread for link in self._links.values() for thread in link.threads}

    @contextlib.contextmanager
    def _usable(self) -> Iterator[None]:
        """Hold the lock, when this object can be used at all.  Raises Forked and Closed."""
        self._check_process()
        with self._lock:
            if self._is_closed:
                raise Closed("the subscriber is closed")
            yield

    def _check_process(self) -> None:
        self._guard.check()
