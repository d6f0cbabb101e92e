"""Errors between workers and publisher service, in the same tree as all others (`pubsub_api.errors`)."""

from __future__ import annotations

from typing import ClassVar

from pubsub_api.core.errors import Fault
from pubsub_api.errors import HeliographError, TransportUnavailable

__all__ = [
    "JournalError",
    "MalformedMessage",
    "UnexpectedMessage",
    "WindowFull",
    "WorkerProtocolError",
    "WorkerRefused",
]


class WindowFull(TransportUnavailable):
    """The service took nothing for ``send_timeout`` and the window is full.  The event was not taken: send it again."""


class WorkerProtocolError(HeliographError):
    """The other end sent something that breaks the workers' protocol.  That connection ends and nothing else does."""

    fault: ClassVar[Fault] = "peer"


class MalformedMessage(WorkerProtocolError):
    """The bytes are not a message of the protocol, or one that is too large; it was not decoded further."""


class UnexpectedMessage(WorkerProtocolError):
    """A sound message at the wrong time, or with a number that cannot be."""


class WorkerRefused(WorkerProtocolError):
    """The service refuses this worker: another protocol version, or too many workers."""

    retriable = True


class JournalError(HeliographError):
    """The journal of the publisher service cannot be read or written."""

    fault: ClassVar[Fault] = "environment"
