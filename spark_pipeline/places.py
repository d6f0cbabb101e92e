"""Where a streaming query stands in a log, as Spark keeps it in the checkpoint: offsets, and the log they belong to.

An offset alone proves nothing: a log that was made anew in the same place has other events at the same offsets, and one
that was restored from a copy ends before them.  Both are refused, because going on would leave out events in silence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from durable_log import LogApi, ShardState
from pubsub_api.plugins import without_password
from spark_pipeline.errors import OtherLog
from spark_pipeline.ranges import Offsets, from_json, to_json

_LOG = "log"


def to_checkpoint(log: LogApi, offsets: Offsets) -> dict[str, int | str]:
    """What goes into the checkpoint."""
    return {**to_json(offsets), _LOG: log.identity}


def from_checkpoint(log: LogApi, kept: Mapping[str, int | str]) -> dict[int, int]:
    """The offsets that a checkpoint has kept.  Raises OtherLog when they belong to another log, UsageError."""
    check_identity(log, str(kept.get(_LOG, "")), "this checkpoint")
    return from_json({shard: int(offset) for shard, offset in kept.items() if shard != _LOG})


def mark_with_log(log: LogApi, kept: Mapping[str, object]) -> dict[str, object]:
    """The same, with the log that it belongs to."""
    return {**kept, _LOG: log.identity}


def check_identity(log: LogApi, identity: object, what: str) -> None:
    """Raises OtherLog when ``what`` was made from a log that is not this one."""
    if identity != log.identity:
        place = without_password(f"{log.url.scheme}://{log.url.netloc}{log.url.path}")
        raise OtherLog(
            f"{what} was made from the log {identity or '(not noted)'}, and at {place} is the log {log.identity}: "
            "it was made anew, or the URL is another one. Nothing was read. To read this one, take a new checkpoint"
        )


def check_reached(states: Sequence[ShardState], offsets: Offsets, what: str) -> None:
    """Raises OtherLog when a log ends before what was read from it."""
    ends = {state.shard: state.end for state in states}
    for shard, offset in offsets.items():
        if offset > ends.get(shard, 0):
            raise OtherLog(
                f"{what} is at offset {offset} of shard {shard}, and the log ends at {ends.get(shard, 0)}: an older "
                "copy of the log was restored, and what follows would be other events at known offsets. Nothing was "
                "read. Restore the newer one, or begin anew with what the log holds"
            )
