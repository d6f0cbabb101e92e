"""The receiving end of the Redis driver: one link per address, which call the receiver one at a time."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable

from heliograph_drivers.pubsub.redis import channels
from heliograph_drivers.pubsub.redis.config import RedisSettings
from heliograph_drivers.pubsub.redis.connection import Message
from heliograph_drivers.pubsub.redis.link import COUNTED_WHERE_POSTED, RedisLink, Relieve
from pubsub_api.core.frame import PREFIX as FRAME_PREFIX
from pubsub_api.core.frame import is_frame, name_of
from pubsub_api.driver import Asked, Disconnected, LinkReport, Receiver
from pubsub_api.driver_kit import DriverSubscriber, GuardedReceiver, ResponderCount, Tally
from pubsub_api.errors import TransportUnavailable


class RedisSubscriber(DriverSubscriber):
    """See the module's description."""

    def __init__(self, settings: RedisSettings) -> None:
        super().__init__(Tally(*COUNTED_WHERE_POSTED, "frames_misplaced"))
        self._settings = settings
        self._nonce = os.urandom(channels.NONCE_BYTES)
        # Held during each call of the receiver; reentrant, because the receiver may unregister an address.  `_lock` is
        # never held while calling the receiver or waiting for a thread.
        self._calling = threading.RLock()
        self._links: dict[str, RedisLink] = {}

    def register_listen_address(self, address: str) -> bool:
        """Listen to another server, with the same credentials.  Its address must not carry any."""
        return super().register_listen_address(self._as_registered(address))

    def unregister_listen_address(self, address: str) -> bool:
        """Blocks until the link's thread has ended, unless it is called from within the receiver."""
        address = self._as_registered(address)
        link = self._links.get(address)
        was_up = link is not None and link.is_up
        if not super().unregister_listen_address(address):
            return False
        if link is not None:
            if not self._is_in_receiver():
                link.join()
            if was_up:
                gone = Disconnected(address, "the address was unregistered")
                self._call(lambda receiver: receiver.on_link(gone))
        return True

    def _as_registered(self, address: str) -> str:
        """The address under which the same server is registered already, or the address itself: one server may be
        written in several ways.  Raises InvalidConfig."""
        server = self._settings.at(address).address
        registered = [known for known in list(self._addresses) if self._settings.at(known).address == server]
        return registered[0] if registered else address

    def query(self, frame: bytes) -> int | None:
        """Hand the query to every link that is up.  `Asked` reports later how many responders it has reached."""
        prefix, scope = self._settings.channel_prefix, name_of(frame)
        channel, replies = channels.ask_channel(prefix, scope), channels.reply_channel(prefix, scope, self._nonce)
        with self._usable():
            links = [link for link in self._links.values() if link.is_up]
        responders = ResponderCount(len(links), lambda total: self._report_responders(frame, total))
        if not responders.ask(functools.partial(link.post, channel, self._nonce + frame, replies) for link in links):
            raise TransportUnavailable("no redis server is connected, or too many queries wait at once")
        return None

    def _report_responders(self, frame: bytes, responders: int) -> None:
        asked = Asked(self._settings.address, frame, responders)
        self._call(lambda receiver: receiver.on_link(asked))

    def _check_address(self, address: str) -> None:
        """`_as_registered` has checked it."""

    def _open(self, receiver: GuardedReceiver) -> None:
        """Does nothing: each link starts its own thread."""

    def _is_alive(self) -> bool:
        return all(link.is_alive for link in list(self._links.values()))

    def _add_filter(self, topic_filter: str) -> None:
        for link in self._links.values():
            link.add_filter(topic_filter)

    def _remove_filter(self, topic_filter: str) -> None:
        for link in self._links.values():
            link.drop_filter(topic_filter)

    def _add_link(self, address: str) -> None:
        link = RedisLink(
            self._settings.at(address),
            address,
            on_messages=self._on_messages,
            on_report=self._on_report,
            tally=self._tally,
            on_messages_lent=self._on_messages_lent,
            reads_arrivals=self._settings.note_arrivals,
        )
        link.start(self._filters)
        self._links[address] = link

    def _remove_link(self, address: str) -> None:
        self._links.pop(address).stop()

    def _close(self) -> None:
        """Blocks until the threads have ended, unless it is called from within the receiver."""
        with self._lock:
            links = list(self._links.values())
        for link in links:
            link.stop()
        if not self._is_in_receiver():
            for link in links:
                link.join()

    def _is_in_receiver(self) -> bool:
        return any(link.is_current for link in list(self._links.values()))

    def _on_messages(self, link: RedisLink, messages: list[Message]) -> None:
        """Hand frames over, as many as follow each other in one call, and foreign messages in their place between."""
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
        """Like `_on_messages`, but a lone frame is handed over with the thread of the link; other links may call the
        receiver meanwhile.  Returns True when the thread was replaced."""
        receiver = self._receiver
        channel, payload = messages[0]
        if receiver is None or not receiver.can_borrow or len(messages) > 1 or not payload.startswith(FRAME_PREFIX):
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
        """Call the receiver, unless this end is closed or the link is stopping.  One call runs at a time."""
        with self._calling:
            if not self._is_closed and self._receiver is not None and not (link is not None and link.is_stopping):
                call(self._receiver)
