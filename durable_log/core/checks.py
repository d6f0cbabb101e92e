"""Checks of what callers hand in, the same for every driver.  They raise UsageError or a FrameError, and do no I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pubsub_api.core import frame as frames
from pubsub_api.core.frame import Header, Kind
from pubsub_api.errors import MalformedFrame, UsageError

NAME_BYTES_MAX = 512
OFFSET_MAX = 2**47 - 1

Write = tuple[str, bytes | None, int | None]


def read_headers(data: Sequence[bytes], *, bytes_max: int) -> list[Header]:
    """The headers of DATA frames.  Signatures are not checked: the recorder did so.  Raises FrameError."""
    headers = []
    for one in data:
        header = frames.unpack(one, bytes_max=bytes_max)
        if header.kind != Kind.DATA:
            raise MalformedFrame(f"a log stores DATA frames; this one is of kind {header.kind}")
        headers.append(header)
    return headers


def check_shard(shard: int, shards: int) -> None:
    if type(shard) is not int or not 0 <= shard < shards:
        raise UsageError(f"there is no shard {shard!r}: the log has {shards}, counted from 0")


def lost_shard(shard: int) -> UsageError:
    """The log had it when it was opened."""
    return UsageError(f"there is no shard {shard} any more: an older copy was put in the place of the log")


def check_offset(offset: int) -> None:
    if type(offset) is not int or not 0 <= offset <= OFFSET_MAX:
        raise UsageError(f"an offset is an int from 0 to 2**47 - 1, not {offset!r}")


def check_limit(limit: int, what: str) -> None:
    if type(limit) is not int or limit < 1:
        raise UsageError(f"{what} must be an int of at least 1, not {limit!r}")


def check_ends(ends: Mapping[int, int], shards: int, timeout_s: float) -> None:
    for shard, end in ends.items():
        check_shard(shard, shards)
        check_offset(end)
    if timeout_s < 0:
        raise UsageError(f"a timeout cannot be negative: {timeout_s!r}")


def check_name(name: str) -> None:
    if type(name) is not str or not name or "\0" in name or len(name.encode(errors="replace")) > NAME_BYTES_MAX:
        raise UsageError(f"a record's name is a str of 1 to {NAME_BYTES_MAX} bytes without NUL, not {name!r:.80}")


def check_writes(writes: Sequence[Write], *, bytes_max: int) -> None:
    for name, value, expected in writes:
        check_name(name)
        if value is not None and (type(value) is not bytes or len(value) > bytes_max):
            raise UsageError(f"record {name!r}: a value is bytes, at most {bytes_max} of them")
        if expected is not None and (type(expected) is not int or expected < 0):
            raise UsageError(f"record {name!r}: {expected!r} is no version")
    if len({name for name, _, _ in writes}) != len(writes):
        raise UsageError("one call writes each record at most once")
