"""What Spark keeps in the checkpoint of a streaming query: the query's offsets, the log that they belong to, and a mark
of each batch.

An offset alone proves nothing: a log that was made anew in the same place has other events at the same offsets, and one
that was restored from a copy ends before them, until it has grown again.  So a checkpoint also has the identity of the
log, and of each shard when the last event before the offset was appended.  What does not match is refused, because
going on would leave out events in silence.
"""

from __future__ import annotations

import hashlib
import pathlib
import urllib.parse
from collections.abc import Mapping, Sequence
from typing import Any

from durable_log import LogApi, ShardState
from pubsub_api.errors import UsageError
from pubsub_api.runtime.plugins import without_password
from spark_pipeline.core.ranges import Offsets, from_json, to_json
from spark_pipeline.errors import OtherLog, SparkMissing
from spark_pipeline.objects import ObjectDirectory, is_url

_LOG = "log"
_APPENDED = "appended"
_LOST = "lost"
"""How many events the query has left out because retention had removed them, when there were any."""
_SINCE = "since"
"""When the query began, by the store's clock: what retention by topic dropped before that was not to be read."""
_OFFSETS = "offsets"
"""Directory of a checkpoint in which Spark plans its batches."""

Times = Mapping[int, int]
"""Shard -> when the last event before an offset was appended, for the shards where that event is still there."""


def to_checkpoint(
    log: LogApi, offsets: Offsets, former: Mapping[str, Any] | None = None, *, lost: int = 0
) -> dict[str, Any]:
    """What goes into the checkpoint.  Shards that have not moved since the ``former`` ones stay as they are in it:
    Spark takes every difference for new events.  ``lost`` events are added to those that it has lost before."""
    kept: Mapping[str, Any] = former or {}
    moved = {shard: offset for shard, offset in offsets.items() if kept.get(str(shard)) != offset}
    stayed = {shard: when for shard, when in kept.get(_APPENDED, {}).items() if int(shard) not in moved}
    noted = {_LOST: kept.get(_LOST, 0) + lost} if _LOST in kept or lost else {}
    noted[_SINCE] = kept.get(_SINCE) or log.now_ns()
    return {**to_json(offsets), _LOG: log.identity, _APPENDED: stayed | to_json(times_before(log, moved)), **noted}


def from_checkpoint(log: LogApi, kept: Mapping[str, Any]) -> dict[int, int]:
    """The offsets that a checkpoint has kept.  Raises OtherLog when they belong to another log, UsageError."""
    check_identity(log, kept.get(_LOG, ""), "this checkpoint")
    return from_json({name: value for name, value in kept.items() if name not in (_LOG, _APPENDED, _LOST, _SINCE)})


def began_at(log: LogApi, kept: Mapping[str, Any]) -> int:
    """When a query began; now for a checkpoint of a release that did not note it."""
    return int(kept.get(_SINCE) or log.now_ns())


def check_kept(log: LogApi, kept: Mapping[str, Any], offsets: Offsets, what: str) -> None:
    """Raises OtherLog when the events before these offsets are not those that were there when they were kept."""
    check_times(log, offsets, from_json(kept.get(_APPENDED, {})), what)


def mark_with_log(log: LogApi, kept: Mapping[str, Any], offsets: Offsets) -> dict[str, Any]:
    """The same, with the log that it belongs to, and what `check_kept` compares."""
    return {**kept, _LOG: log.identity, _APPENDED: to_json(times_before(log, offsets))}


def times_before(log: LogApi, offsets: Offsets) -> dict[int, int]:
    """When the last event before each offset was appended."""
    found = {shard: log.appended_at(shard, offset - 1) for shard, offset in offsets.items() if offset}
    return {shard: when for shard, when in found.items() if when is not None}


def check_times(log: LogApi, offsets: Offsets, times: Times, what: str) -> None:
    """Raises OtherLog when the last event before an offset was appended at another time than this one."""
    now = times_before(log, {shard: offsets[shard] for shard in times if shard in offsets})
    for shard, when in now.items():
        if when != times[shard]:
            raise OtherLog(
                f"{what} is at offset {offsets[shard]} of shard {shard}, and the event before that is not the one that "
                "was read: an older copy of the log was restored, and has grown since. Nothing was read. Restore the "
                "newer one, or begin anew with what the log holds"
            )


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


def batch_mark(checkpoint: str, number: int) -> str:
    """A mark of one batch: the same each time the batch is run, and another one for a batch of the same number that
    was planned apart from it, which only a copy of the checkpoint can bring about.

    Before a batch runs, Spark writes where it ends in every source, and the time, into a file, and takes it from there
    when it runs the batch again.  Empty when there is no such file, because the query itself does not name its
    checkpoint, or it is where this process cannot read, as in HDFS.  Raises PipelineError when an object store cannot
    be reached.
    """
    if is_url(checkpoint) and not checkpoint.startswith("file:"):
        try:
            stored = ObjectDirectory(checkpoint, "a checkpoint").read(f"{_OFFSETS}/{number}")
        except (UsageError, SparkMissing):
            return ""
        return "" if stored is None else hashlib.blake2b(stored, digest_size=16).hexdigest()
    try:
        planned = pathlib.Path(_path(checkpoint), _OFFSETS, str(number)).read_bytes()
    except OSError:
        return ""
    return hashlib.blake2b(planned, digest_size=16).hexdigest()


def _path(checkpoint: str) -> str:
    url = urllib.parse.urlsplit(checkpoint)
    return urllib.parse.unquote(url.path) if url.scheme == "file" else checkpoint
