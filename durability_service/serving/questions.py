"""Answering queries: of clients of durability services, of publishers that want to be sure, and of subscribers."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence

from durability_service import protocol
from durability_service.core.effects import Event, Interest
from durability_service.core.namespaces import intersect
from durability_service.core.service import DurabilityCore
from durability_service.errors import StoreFailed
from durability_service.protocol import Answer, Ask, ServiceStatus
from durability_service.serving import answers
from durability_service.serving.actions import Actions
from durability_service.serving.administration import Administration
from durability_service.serving.durable_ranges import DurableRanges
from pubsub_api.core import frame as frames
from pubsub_api.core.errors import FrameError, InvalidTopic, UndecodableBody
from pubsub_api.core.sending.replies import Found, Responder
from pubsub_api.core.settings import FrameSettings

LOG = logging.getLogger(__name__)

_PAGE_BYTES = 256 * 1024


class ServiceQuestions:
    """Any thread may ask; answers are made under ``lock``, the service's.

    ``step`` gives the core an event, ``catch_up`` gives it all that has come, ``status`` is that of the service;
    ``on_unreadable`` is called when what is on disk of a set cannot be read.  When the service ``has_failed``, readers
    are not answered: they turn to another.
    """

    def __init__(
        self,
        core: DurabilityCore,
        lock: threading.RLock,
        ranges: DurableRanges,
        actions: Actions,
        *,
        step: Callable[[Event], None],
        catch_up: Callable[[], None],
        status: Callable[[], ServiceStatus],
        on_unreadable: Callable[[Exception], None],
        has_failed: Callable[[], bool],
        frame: FrameSettings,
        guid: bytes,
        reply_bytes_max: int,
        admin_key: bytes | None,
    ) -> None:
        self._core = core
        self._lock = lock
        self._ranges = ranges
        self._actions = actions
        self._step = step
        self._catch_up = catch_up
        self._status = status
        self._on_unreadable = on_unreadable
        self._has_failed = has_failed
        self._frame = frame
        self._guid = guid
        self._node = core.settings.node
        self._responder = Responder(
            guid=guid, name=self._node, is_publisher=False, frame=frame, reply_bytes_max=reply_bytes_max
        )
        self._administration = Administration(admin_key)
        self._asked = 0
        self.bad = 0
        self.is_read = False
        """A reader was given history."""

    def counters(self) -> dict[str, int]:
        return {"questions": self._asked, "administration_refused": self._administration.refused}

    def answer(self, frame: bytes) -> Iterable[bytes]:
        """The answers to a query, as frames."""
        try:
            header = frames.unpack(frame, bytes_max=self._frame.bytes_max, key=self._frame.key)
            ask = protocol.unpack_ask(frame, header)
        except (FrameError, InvalidTopic) as error:
            self.bad += 1
            LOG.warning("Durability: refused a question: %s", error)
            return ()
        if ask.durability:
            self._catch_up()  # the answer includes all that has come
        with self._lock:
            self._asked += 1
            if not ask.durability:
                held = self._held(ask)
                durable = [position for position in held if self._core.keeps_fully(ask.wants[position].topic)]
                return self._responder.pack(ask.id, Found(held=held, durable=durable), time.time_ns(), ask.scope)
            answer = Answer(id=ask.id, responder=self._node, parts=1)
            if ask.domain == self._core.settings.domain and ask.to in ("", self._node) and not self._has_failed():
                self._fill_in(answer, ask)
            if self._has_failed():
                return ()
        return (protocol.pack_answer(answer, self._guid, time.time_ns(), self._frame.key),)

    def _held(self, ask: Ask) -> list[int]:
        if not ask.confirm:
            return []
        return [
            position
            for position, want in enumerate(ask.wants)
            if self._ranges.has((want.guid, want.topic), want.first, want.last)
        ]

    def _fill_in(self, answer: Answer, ask: Ask) -> None:
        if ask.wants_data:
            self._wake(ask.topics)
        if ask.durability == protocol.HISTORY:
            try:
                answer.page = answers.page(self._core, ask, _PAGE_BYTES, time.time_ns())
            except (StoreFailed, UndecodableBody) as error:
                self._on_unreadable(error)
            self.is_read = True
            return
        if ask.durability == protocol.DIGESTS:
            answer.page = answers.digests(self._core, ask)
            return
        if ask.durability in (protocol.DELETE, protocol.SNAPSHOT) and not self._actions.is_known(ask):
            answer.refused = self._administration.admit(ask, self._node, time.monotonic())
            if not answer.refused:
                self._actions.begin(ask)
        answer.status = self._status()
        answer.challenge = self._administration.challenge(time.monotonic())

    def _wake(self, filters: Sequence[str]) -> None:
        """A reader comes: LAZY name-spaces that hold such topics are fetched now."""
        wanted = [
            name
            for name, keeper in self._core.keepers.items()
            if not keeper.holding.is_wanted
            and any(intersect(one, own) for one in filters for own in keeper.holding.space.filters)
        ]
        if wanted:
            self._step(Interest(wanted))
