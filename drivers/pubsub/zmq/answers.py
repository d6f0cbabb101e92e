"""Reads questions to a publisher from a ROUTER socket of ZeroMQ, and sends the answers.

It never blocks.  An answer is made reply by reply, as fast as the asker takes them: while the asker has its share of
unread replies (`PeerLimits`), the rest of the answer waits and is not made yet.  The number of waiting answers is
limited, per asker and in all; further answers are dropped and counted, and the asker asks again.
"""

from __future__ import annotations

import collections
import errno
import logging
from collections.abc import Iterator

import zmq

from heliograph_drivers.pubsub.zmq.access.peer_limits import Account, PeerLimits
from heliograph_drivers.pubsub.zmq.endpoints import Socket
from pubsub_api.core.frame import is_frame
from pubsub_api.driver_kit import GuardedHandler, Tally
from pubsub_api.runtime.rate_limited_log import RateLimitedLog

LOG = logging.getLogger(__name__)

RETRY_MS = 5
"""How often waiting answers are tried again.  With half of the default share that is 400 MB/s for one asker."""
_PARTS_PER_TURN = 128
"""Parts that are read before other sockets get a turn.  A question has two parts: its asker and the query."""
_WAITING_MAX = 1000
_WAITING_PER_ASKER_MAX = 100
_FRAMING_BYTES = 9


class _Answer:
    """An unfinished answer: the next reply, and an iterator that makes the later ones."""

    __slots__ = ("account", "asker", "replies", "reply")

    def __init__(self, asker: bytes, account: Account | None, replies: Iterator[bytes]) -> None:
        self.asker = asker
        self.account = account
        self.replies = replies
        self.reply = next(replies, None)


class Answers:
    """See the module's description.  Use it from the service thread of a publisher."""

    def __init__(self, router: Socket, handler: GuardedHandler, limits: PeerLimits, tally: Tally, name: str) -> None:
        self._router = router
        self._handler = handler
        self._limits = limits
        self._tally = tally
        self._name = name
        self._waiting: dict[bytes, collections.deque[_Answer]] = {}
        """Asker -> its answers, in the order of the questions."""
        self._waiting_count = 0
        self._log_garbage = RateLimitedLog(LOG)
        self._asker: bytes | None = None
        """The sender of the message that is being read; None between messages."""
        self._account: Account | None = None
        self._question = b""
        self._parts = 0

    @property
    def is_waiting(self) -> bool:
        """Whether answers wait for room: then call `go_on` every `RETRY_MS`."""
        return bool(self._waiting)

    def read(self) -> None:
        """Read some parts of questions, and begin to answer complete questions.

        A message may have any number of parts.  Only the first is kept.  The next call goes on in the same message.
        """
        for _ in range(_PARTS_PER_TURN):
            try:
                part = self._router.recv(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            if self._asker is None:
                descriptor = part.get(zmq.SRCFD)
                self._account = self._limits.account_of(descriptor if isinstance(descriptor, int) else -1)
                self._asker, self._question, self._parts = part.bytes, b"", 0
            else:
                self._question = self._question if self._parts else part.bytes
                self._parts += 1
            if self._account is not None:
                self._account.add_read(len(part) + _FRAMING_BYTES)
            if not part.more:
                asker, self._asker = self._asker, None
                self._on_message(asker)

    def _on_message(self, asker: bytes) -> None:
        if self._parts == 1 and is_frame(self._question):
            self._begin(_Answer(asker, self._account, self._handler(self._question)))
        else:
            self._tally.add("not_queries")
            self._log_garbage("%s: a message of %d parts that is no query was dropped", self._name, self._parts)

    def go_on(self) -> None:
        """Try again to send the waiting answers."""
        for asker, answers in list(self._waiting.items()):
            while answers and self._send(answers[0]):
                answers.popleft()
                self._waiting_count -= 1
            if not answers:
                del self._waiting[asker]

    def _begin(self, answer: _Answer) -> None:
        answers = self._waiting.get(answer.asker)
        if not answers and self._send(answer):
            return
        if self._waiting_count >= _WAITING_MAX or len(answers or ()) >= _WAITING_PER_ASKER_MAX:
            self._drop("too many answers wait for their askers to read")
            return
        self._waiting.setdefault(answer.asker, collections.deque()).append(answer)
        self._waiting_count += 1

    def _send(self, answer: _Answer) -> bool:
        """Send replies while there are more and there is room.  Returns False when the rest must wait."""
        while answer.reply is not None:
            size = len(answer.reply)
            if not self._limits.has_room(answer.account, size):
                return False
            try:
                self._router.send(answer.asker, zmq.SNDMORE)
                self._router.send(answer.reply)
            except zmq.Again:
                return False
            except zmq.ZMQError as error:
                if error.errno != errno.EHOSTUNREACH:
                    raise
                self._drop("an asker has gone before its answer")
                return True
            self._limits.note_answer(answer.account, size)
            answer.reply = next(answer.replies, None)
        return True

    def _drop(self, why: str) -> None:
        self._tally.add("replies_dropped")
        LOG.debug("%s: an answer was dropped: %s", self._name, why)
