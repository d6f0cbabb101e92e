"""Packing what a cache found into REPLY frames of bounded size.

Whoever is asked always answers, and marks its last frame, also when it found nothing: the asker learns at once that a
range cannot be had here instead of waiting for a time-out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pubsub_api.core import frame as frames
from pubsub_api.core import messages
from pubsub_api.core.frame import Flag, Kind
from pubsub_api.core.settings import FrameSettings
from pubsub_api.core.topics import CONTROL_TOPIC

Head = tuple[bytes, str, int]


def pack_replies(
    query_id: int,
    found: Sequence[bytes],
    heads: Sequence[Head],
    *,
    guid: bytes,
    responder: str,
    is_publisher: bool,
    stamp: int,
    frame: FrameSettings,
    reply_bytes_max: int,
) -> Iterator[bytes]:
    """Heads first, then the frames in the order given, as few REPLY frames as the bound allows."""
    bound = min(reply_bytes_max, frame.bytes_max - frames.FRAME_OVERHEAD_BYTES_MAX - 64)
    parts = [*_head_parts(heads), *_frame_parts(found, bound)] or [([], [])]
    for position, (some_heads, some_frames) in enumerate(parts):
        is_last = position == len(parts) - 1
        reply = messages.Reply(
            id=query_id, responder=responder, publisher=is_publisher, heads=some_heads, frames=some_frames,
            part=position, parts=len(parts) if is_last else 0,
        )  # fmt: skip
        yield frames.pack(
            Kind.REPLY,
            guid,
            CONTROL_TOPIC,
            messages.encode(reply),
            timestamp=stamp,
            flags=Flag.LAST if is_last else Flag.NONE,
            key=frame.key,
        )


Part = tuple[list[Head], list[bytes]]


def _head_parts(heads: Sequence[Head]) -> Iterator[Part]:
    for start in range(0, len(heads), messages.HEADS_PER_FRAME_MAX):
        yield list(heads[start : start + messages.HEADS_PER_FRAME_MAX]), []


def _frame_parts(found: Sequence[bytes], bytes_max: int) -> Iterator[Part]:
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
