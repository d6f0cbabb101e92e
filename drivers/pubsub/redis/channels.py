"""From topics and filters to Redis channels, glob patterns and commands.  Does no I/O.

A topic is the channel ``{prefix}{topic}``.  A filter without wildcards is that one channel; with wildcards it becomes a
pattern in which both ``+`` and ``#`` are ``*``.  Redis's ``*`` also crosses ``/``, so a pattern can deliver too much;
the core filters.  A wildcard in the first level excludes ``$``, as the topic rules do: the channels of Heliograph
itself are reached only by name, and a subscriber of ``#`` does not receive the queries and replies of others.

The channels of questions and answers begin with the scope of the question (`pubsub_api.core.scopes`), so that an ACL
can restrict them like topics: ``&heliograph:$ask:tenant-7/*`` beside ``&heliograph:tenant-7/*``.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from pubsub_api.core.frame import Kind, is_of_kind, name_of
from pubsub_api.core.scopes import ALL
from pubsub_api.core.topics import CONTROL_TOPIC, is_wildcard, literal_prefix

NONCE_BYTES = 16
"""Size of the random bytes with which a subscriber begins each query, and which name its reply channel."""

_ASK = b"$ask:"
_REPLY = b"$reply:"

_GLOB_SPECIAL = re.compile(rb"[*?\[\]\\]")


class ChannelTarget(NamedTuple):
    """A channel or a pattern to subscribe to."""

    is_pattern: bool
    name: bytes


def channel_of(prefix: bytes, topic: str) -> bytes:
    return prefix + topic.encode()


def arrivals_key(prefix: bytes) -> bytes:
    """The key in which each publisher that connects writes a new random value."""
    return prefix + b"$arrivals"


def ask_channel(prefix: bytes, scope: bytes) -> bytes:
    """The channel for questions of a scope.  A message is the asker's nonce, then a QUERY frame."""
    return prefix + _ASK + scope


def reply_channel(prefix: bytes, scope: bytes, nonce: bytes) -> bytes:
    """The channel for the REPLY frames to questions of a scope from the subscriber with this nonce."""
    return b"".join((prefix, _REPLY, scope, b"/", nonce.hex().encode()))


def is_in_place(prefix: bytes, channel: bytes, frame: bytes) -> bool:
    """Whether a frame came in the channel of its topic or scope.  An ACL restricts channels, not contents: without this
    check a user could send frames of topics that the ACL forbids."""
    name = name_of(frame)
    rest = channel[len(prefix) :]
    if rest == name:
        return True
    return rest[: -2 * NONCE_BYTES] == b"".join((_REPLY, name, b"/")) and is_of_kind(frame, Kind.REPLY)


def answer_targets(prefix: bytes, scope: str) -> list[ChannelTarget]:
    """The subscriptions that receive all questions inside a scope."""
    if scope == ALL:
        return [ChannelTarget(True, _escape(prefix + _ASK) + b"*")]
    stem = literal_prefix(scope).encode()
    exact = ChannelTarget(False, ask_channel(prefix, stem))
    return [exact, ChannelTarget(True, _escape(exact.name) + b"/*")] if is_wildcard(scope) else [exact]


def broader_targets(prefix: bytes, scope: str) -> list[ChannelTarget]:
    """The subscriptions that receive questions about more than the scope.  An ACL may refuse them."""
    if scope == ALL:
        return []
    levels = literal_prefix(scope).split("/")
    stems = ["/".join(levels[:depth]) for depth in range(len(levels) + (not is_wildcard(scope)))]
    scopes = [CONTROL_TOPIC, *(f"{stem}/#" if stem else ALL for stem in stems)]
    return [ChannelTarget(False, ask_channel(prefix, name.encode())) for name in scopes]


def targets(prefix: bytes, topic_filter: str) -> list[ChannelTarget]:
    """The subscriptions that together cover a filter."""
    levels = topic_filter.split("/")
    if levels[-1] != "#":
        return [_target(prefix, levels)]
    stem = levels[:-1]
    if not stem or stem[-1] == "+":  # the star of the level before, or of "#" itself, covers all lower levels
        return [_target(prefix, stem or ["+"])]
    below = _glob(prefix, stem) + b"/*"
    return [_target(prefix, stem), ChannelTarget(True, below)]


def _target(prefix: bytes, levels: list[str]) -> ChannelTarget:
    if "+" in levels:
        return ChannelTarget(True, _glob(prefix, levels))
    return ChannelTarget(False, channel_of(prefix, "/".join(levels)))


def _glob(prefix: bytes, levels: list[str]) -> bytes:
    first = b"[^$]*" if levels[0] == "+" else _escape(levels[0].encode())
    rest = [b"*" if level == "+" else _escape(level.encode()) for level in levels[1:]]
    return _escape(prefix) + b"/".join([first, *rest])


def _escape(text: bytes) -> bytes:
    return _GLOB_SPECIAL.sub(rb"\\\g<0>", text)


def command(*words: bytes) -> bytes:
    """The bytes of a command."""
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)


def publish_head(channel: bytes) -> bytes:
    """The bytes of a PUBLISH command before the payload, which follows as ``<size>\\r\\n<payload>\\r\\n``."""
    return b"*3\r\n$7\r\nPUBLISH\r\n$%d\r\n%s\r\n$" % (len(channel), channel)


def subscribe_command(target: ChannelTarget) -> bytes:
    return command(b"PSUBSCRIBE" if target.is_pattern else b"SUBSCRIBE", target.name)


def unsubscribe_command(target: ChannelTarget) -> bytes:
    return command(b"PUNSUBSCRIBE" if target.is_pattern else b"UNSUBSCRIBE", target.name)


PING = command(b"PING")
