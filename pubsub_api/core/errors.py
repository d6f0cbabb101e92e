"""Every error Heliograph raises, in one tree.

An error says whose fault it is (``fault``) and whether trying again can help (``retriable``), as class attributes, so
that policy is data and a retry loop stays one line.  Messages name the thing that was wrong and what to do about it.
"""

from __future__ import annotations

from typing import ClassVar, Literal

Fault = Literal["caller", "peer", "environment"]


class HeliographError(Exception):
    """Base of all errors.  Catch this to catch everything the product can raise."""

    fault: ClassVar[Fault] = "caller"
    retriable: ClassVar[bool] = False


class UsageError(HeliographError, ValueError):
    """The calling program asked for something that can never work."""


class InvalidTopic(UsageError):
    """A topic or a topic filter breaks the rules of ``pubsub_api.core.topics``."""


class InvalidEvent(UsageError):
    """An event has a field of the wrong type, an unknown action, or a value that cannot be encoded."""


class InvalidConfig(UsageError):
    """Options contradict each other or have a value the selected driver cannot use."""


class UnsafeFile(InvalidConfig):
    """A private file, or its directory, could be read or replaced by another user.  The message says by whom."""


class LimitReached(HeliographError):
    """A configured bound is used up.  The message names the option.  Nothing that was accepted before is affected."""


class Closed(HeliographError):
    """The session, publisher or subscriber was closed by this program."""


class Forked(HeliographError):
    """A handle that cannot live through ``fork()`` was used in a child process."""


class WaitTimeout(HeliographError, TimeoutError):
    """A ``timeout_s`` given by the caller ran out.  Nothing was lost; waiting again is fine."""

    fault = "environment"
    retriable = True


class FrameError(HeliographError):
    """Bytes received from a peer are not a frame this version can use.  The frame is dropped and counted."""

    fault = "peer"


class NotAFrame(FrameError):
    """The bytes do not start with the magic of a Heliograph frame."""


class UnsupportedVersion(FrameError):
    """The frame states a wire version this release does not speak."""


class MalformedFrame(FrameError):
    """The frame is truncated, has trailing bytes, or a field is out of its range."""


class OversizedFrame(FrameError):
    """The frame is larger than ``frame_bytes_max``.  It was not decoded."""


class BadSignature(FrameError):
    """The frame is unsigned although a key is configured, or its HMAC does not match."""


class ImplausibleHead(FrameError):
    """A frame tells of more events than can have been sent.  What it tells is ignored, and counted under this name."""


class UndecodableBody(FrameError):
    """The header is sound but the body is not the msgpack that its kind prescribes."""


class DriverError(HeliographError):
    """A driver, or the foreign system behind it, could not do what was asked."""

    fault: ClassVar[Fault] = "environment"


class DriverNotFound(DriverError):
    """No driver is installed under that name."""

    fault = "caller"


class DriverDependencyMissing(DriverError):
    """The driver is installed, the library it needs is not.  The message names the pip extra."""


class AddressInUse(DriverError):
    """Another process has bound the address this publisher needs."""


class TransportUnavailable(DriverError):
    """The server or peer behind the driver cannot be reached now."""

    retriable = True


class NotPermitted(DriverError):
    """The server or peer behind the driver does not let this program use the topic: its access control says so."""


class NotSupported(DriverError):
    """The driver's capabilities exclude the operation."""

    fault = "caller"
