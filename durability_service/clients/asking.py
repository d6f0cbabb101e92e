"""Asking durability services a question, which goes to every process on the bus, and collecting their answers."""

from __future__ import annotations

import logging
import os
import random
import threading
import time
from collections.abc import Callable, Sequence

from durability_service import config, protocol
from durability_service.core import messages
from durability_service.core.messages import Advert
from durability_service.protocol import Answer, Ask
from pubsub_api import Session, loading
from pubsub_api import settings as pubsub_settings
from pubsub_api.core import frame as frames
from pubsub_api.core.errors import Closed, DriverError, FrameError
from pubsub_api.core.frame import Header, Kind
from pubsub_api.driver import LinkReport
from pubsub_api.runtime.backoff import Backoff

LOG = logging.getLogger(__name__)

_ASK_AGAIN_S = 0.3
_ASK_AGAIN_MAX_S = 2.0
"""A question without an answer is repeated, because the link may not have been up.  Each pause is twice as long as the
one before, so that a service that needs long for an answer need not give it many times."""


class Asker:
    """Has a receiving end of its own, for questions and answers.  Any thread may ask.

    ``on_advert`` is called, from the driver's thread, with each advert that services send to each other.
    """

    def __init__(
        self, session: Session, addresses: Sequence[str] | None, on_advert: Callable[[Advert], None] | None = None
    ) -> None:
        conf = session.conf
        config.register(conf)
        self._domain = conf[config.GROUP].domain
        self._frame = pubsub_settings.frame_settings(conf)
        self._on_advert = on_advert
        self._is_closed = False
        self._guid = os.urandom(frames.GUID_BYTES)
        self._changed = threading.Condition()
        self.bad_frames = 0
        self._answers: dict[int, dict[str, Answer]] = {}
        self._id = random.getrandbits(32)
        driver = loading.build_driver(conf)
        if addresses is None:
            named = list(conf[config.GROUP].fellows) if session.capabilities.bind_based else []
            addresses = named or driver.listen_addresses()
        self._end = driver.get_subscriber()
        self._end.initialize(self)
        if on_advert is not None:
            self._end.register_topic(config.control_topics(conf).adverts)
        for address in addresses:
            self._end.register_listen_address(address)
        self._end.daemonize()

    def close(self) -> None:
        """End calls of `ask` and `pause`, which return what they have.  Idempotent."""
        self._is_closed = True
        with self._changed:
            self._changed.notify_all()
        self._end.close()

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    def ask(
        self,
        ask: Ask,
        *,
        timeout_s: float,
        settle_s: float = 0.2,
        enough: Callable[[Answer], bool] | None = None,
        is_settled: Callable[[Sequence[Answer]], bool] = bool,
    ) -> list[Answer]:
        """Ask every process, block, and return the answers of services.

        Returns when one of these is true:
        - ``enough`` is true of an answer;
        - all processes that were asked have answered, a service among them;
        - no further answer came for ``settle_s``, or with ``enough`` until the question is due again, and
          ``is_settled`` is true of the answers;
        - ``timeout_s`` is over, or `close` was called.
        """
        deadline = time.monotonic() + timeout_s
        with self._changed:
            self._id = ask.id = self._id + 1
            ask.domain = self._domain
            ask.confirm = True
            answers = self._answers[ask.id] = {}
        frame = protocol.pack_ask(ask, self._guid, self._frame.key)
        pauses = Backoff(_ASK_AGAIN_S, _ASK_AGAIN_MAX_S)
        while True:
            responders = self._send(frame)
            until = min(deadline, time.monotonic() + pauses.next_s())
            found = self._collect(answers, responders, until, settle_s, enough, is_settled)
            is_all = responders is not None and len(answers) >= responders > 0
            if (found and (is_all or is_settled(found))) or self._is_closed or time.monotonic() >= deadline:
                break
        with self._changed:
            del self._answers[ask.id]
        return found

    def _send(self, frame: bytes) -> int | None:
        try:
            return self._end.query(frame)
        except (DriverError, Closed) as error:  # there is no link yet: `ask` repeats the question
            LOG.debug("Durability client: a question was not sent: %s", error)
            return None

    def _collect(
        self,
        answers: dict[str, Answer],
        responders: int | None,
        deadline: float,
        settle_s: float,
        enough: Callable[[Answer], bool] | None,
        is_settled: Callable[[Sequence[Answer]], bool],
    ) -> list[Answer]:
        with self._changed:
            while True:
                ours = [one for one in answers.values() if one.status or one.page]
                pause_s = deadline - time.monotonic()
                is_all = responders is not None and len(answers) >= responders > 0
                if pause_s <= 0 or self._is_closed or (enough and any(map(enough, ours))) or (is_all and ours):
                    return ours
                if ours and not enough:
                    pause_s = min(settle_s, pause_s)
                if not self._wait_more(answers, pause_s) and ours and is_settled(ours):
                    return ours

    def _wait_more(self, answers: dict[str, Answer], pause_s: float) -> bool:
        """False if no further answer came for this time."""
        known = len(answers)
        return self._changed.wait_for(lambda: len(answers) > known or self._is_closed, pause_s)

    def pause(self, pause_s: float) -> None:
        """Block for this time, or until `close` is called."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed, max(0.0, pause_s))

    # -- what the driver calls

    def on_frames(self, received: Sequence[bytes]) -> None:
        for frame in received:
            try:
                header = frames.unpack(frame, bytes_max=self._frame.bytes_max, key=self._frame.key)
                if header.kind == Kind.REPLY:
                    self._answered(header, protocol.unpack_answer(frame, header))
                elif header.kind == Kind.CONTROL and self._on_advert is not None:
                    message = messages.decode(frames.body(frame, header))
                    if isinstance(message, Advert) and message.domain == self._domain:
                        self._on_advert(message)
            except FrameError as error:
                self.bad_frames += 1
                LOG.debug("Durability client: refused a frame: %s", error)

    def _answered(self, header: Header, answer: Answer) -> None:
        with self._changed:
            if answer.id in self._answers:
                self._answers[answer.id][header.guid.hex()] = answer
                self._changed.notify_all()

    def on_foreign(self, topic: str, payload: bytes | None) -> None:
        """A payload without the header of a frame is never an answer."""

    def on_link(self, report: LinkReport) -> None:
        LOG.debug("Durability client: %s", report)
