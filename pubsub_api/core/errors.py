"""Every error that Heliograph raises, in one tree.

Class attributes say whose fault an error is (``fault``) and whether trying again can help (``retriable``), so that a
retry loop needs no list of classes.  Messages say what was wrong and what to do about it.
"""

from __future__ import annotations

from typing import ClassVar, Literal

Fault = Literal["caller", "peer", "environment"]


class HeliographError(Exception):
    """Base of all errors that Heliograph raises."""

    fault: ClassVar[Fault] = "caller"
    retriable: ClassVar[bool] = False


class UsageError(HeliographError, ValueError):
    """The calling program asked for something that is never possible."""


class InvalidTopic(UsageError):
    """A topic or a topic filter breaks the rules of ``pubsub_api.core.topics``."""


class InvalidEvent(UsageError):
    """An event has a field of the wrong type, an unknown action, or a value that cannot be encoded."""


class InvalidConfig(UsageError):
    """Options contradict each other, or have a value that the selected driver cannot use."""


class UnsafeFile(InvalidConfig):
    """Another user could read or replace a private file, or its directory.  The message says which user."""


class LimitReached(HeliographError):
    """A bound is reached; the message names the option, if it is one.  What was accepted before is not affected."""


class Closed(HeliographError):
    """The session, publisher or subscriber was closed by this program."""


class Forked(HeliographError):
    """A handle that works only in the process that made it was used in a forked child."""


class WaitTimeout(HeliographError, TimeoutError):
    """The ``timeout_s`` of the caller is over.  Nothing was lost, and the caller may wait again."""

    fault = "environment"
    retriable = True


class FrameError(HeliographError):
    """Bytes from a peer are no frame that this version can use.  They are dropped and counted."""

    fault = "peer"


class NotAFrame(FrameError):
    """The bytes do not start with the magic of a Heliograph frame."""


class UnsupportedVersion(FrameError):
    """The frame has a wire version that this release does not support."""


class MalformedFrame(FrameError):
    """The frame is truncated, has trailing bytes, or a field is out of its range."""


class OversizedFrame(FrameError):
    """The frame is larger than ``frame_bytes_max``.  It was not decoded."""


class BadSignature(FrameError):
    """The frame is unsigned although a key is configured, or its HMAC does not match."""


class ImplausibleHead(FrameError):
    """A frame announces more events than can have been sent.  It is ignored, and counted under this name."""


class UndecodableBody(FrameError):
    """The header is correct, but the body is not the msgpack that its kind prescribes."""


class DriverError(HeliographError):
    """A driver, or the foreign system behind it, failed."""

    fault: ClassVar[Fault] = "environment"


class DriverNotFound(DriverError):
    """No driver is installed under that name."""

    fault = "caller"


class DriverDependencyMissing(DriverError):
    """The driver is installed, but not the library that it needs.  The message names the pip extra."""


class AddressInUse(DriverError):
    """Another process has bound the address that this publisher needs."""


class TransportUnavailable(DriverError):
    """The server or peer behind the driver cannot be reached now."""

    retriable = True


class NotPermitted(DriverError):
    """The access control of the server or peer behind the driver does not let this program use the topic."""


class NotSupported(DriverError):
    """The driver's capabilities exclude the operation."""

    fault = "caller"
