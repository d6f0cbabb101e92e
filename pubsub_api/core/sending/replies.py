"""Packing what a cache found into REPLY frames of bounded size.

A responder always answers, and marks its last frame, also when it found nothing: the asker learns at once that a
range cannot be had here instead of waiting for a time-out.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence

from pubsub_api.core import frame as frames
from pubsub_api.core import messages
from pubsub_api.core.frame import Flag, Kind
from pubsub_api.core.sending.cache import FrameCache
from pubsub_api.core.settings import FrameSettings
from pubsub_api.core.topics import CONTROL_TOPIC, FilterSet

Head = tuple[bytes, str, int]
"""GUID, topic, number."""
_HEAD_OVERHEAD_BYTES = 1 + 18 + 3 + 9
"""Of a head in msgpack, beside its topic, at the most."""


@dataclasses.dataclass
class Found:
    """What answers a query."""

    frames: Sequence[bytes] = ()
    heads: Sequence[Head] = ()
    held: Sequence[int] = ()
    """Positions, among the query's wants, of the ranges that are held whole."""
    durable: Sequence[int] = ()
    """Those of ``held`` that are kept as well as their topic is to be kept."""
    former: Sequence[bytes] = ()
    """GUIDs of the answering publisher's former lives, whose final heads are among the heads."""
    age: float = messages.AGE_UNKNOWN
    """Of the answering publisher, in seconds."""


def select(known: Iterable[Head], topics: Iterable[str]) -> list[Head]:
    """Those of the heads that the filters of a question select.

    The costly part of an answer: it looks at every stream.  So it needs nothing but a copy, and no lock.
    """
    selected = FilterSet(topics)
    return [head for head in known if selected.match(head[1])]


def find(cache: FrameCache, query: messages.Query) -> Found:
    """What a cache has to say, for an owner that no other thread waits for meanwhile."""
    if query.confirm:
        return Found(held=cache.held(query.wants))
    if query.wants:
        return Found(frames=cache.want(query.wants))
    heads = select(cache.known_heads(query.guid), query.topics)
    return Found(frames=cache.history(heads, query) if query.history else (), heads=heads)


@dataclasses.dataclass(frozen=True)
class Responder:
    """The responder, and its bounds."""

    guid: bytes
    name: str
    is_publisher: bool
    frame: FrameSettings
    reply_bytes_max: int

    def pack(self, query_id: int, found: Found, stamp: int, scope: str = CONTROL_TOPIC) -> Iterator[bytes]:
        """Answers to the question of that id and scope: heads first, then the frames in the order given, as few REPLY
        frames as the bound allows."""
        bound = min(self.reply_bytes_max, self.frame.bytes_max - frames.FRAME_OVERHEAD_BYTES_MAX - 64)
        parts = _parts(found, bound)
        for position, (some_heads, some_frames) in enumerate(parts):
            is_last = position == len(parts) - 1
            reply = messages.Reply(
                id=query_id,
                responder=self.name,
                publisher=self.is_publisher,
                heads=some_heads,
                frames=some_frames,
                held=list(found.held) if is_last else [],
                durable=list(found.durable) if is_last else [],
                former=list(found.former),
                age=found.age,
                part=position,
                parts=len(parts) if is_last else 0,
            )
            yield frames.pack(
                Kind.REPLY,
                self.guid,
                scope,
                messages.encode(reply),
                timestamp=stamp,
                flags=Flag.LAST if is_last else Flag.NONE,
                key=self.frame.key,
            )


_Part = tuple[list[Head], list[bytes]]


def _parts(found: Found, bytes_max: int) -> list[_Part]:
    """A few heads go along with the first frames: an answer to a repair is no longer for them."""
    if found.frames and len(found.heads) <= messages.HEADS_PER_FRAME_MAX:
        heads_bytes = sum(len(topic.encode()) + _HEAD_OVERHEAD_BYTES for _, topic, _ in found.heads)
        if heads_bytes <= bytes_max // 4:
            first, *rest = _frame_parts(found.frames, bytes_max - heads_bytes)
            return [(list(found.heads), first[1]), *rest]
    return [*_head_parts(found.heads), *_frame_parts(found.frames, bytes_max)] or [([], [])]


def _head_parts(heads: Sequence[Head]) -> Iterator[_Part]:
    for start in range(0, len(heads), messages.HEADS_PER_FRAME_MAX):
        yield list(heads[start : start + messages.HEADS_PER_FRAME_MAX]), []


def _frame_parts(found: Sequence[bytes], bytes_max: int) -> Iterator[_Part]:
    part: list[bytes] = []
    size = 0
    for stored in found:
        if part and size + len(stored) > bytes_max:
            yield [], part
            part, size = [], 0
        part.append(stored)
        size += len(stored) + 5
    if part:
        yield [], part
