"""The options of a read, ``spark.read.format("heliograph").option(...)``, checked."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence

import msgspec

import durable_log
from pubsub_api.core.topics import check_filter
from pubsub_api.errors import UsageError
from spark_pipeline.config import BATCH_EVENTS_MAX, PARTITION_EVENTS_MAX
from spark_pipeline.core.ranges import from_json

READ_OPTIONS = ("log", "topics", "start", "end", "events_per_batch", "events_per_task", "group", "query")
WRITE_OPTIONS = ("log", "db", "bus", "staging", "query")
OF_SPARK = ("checkpointlocation", "queryname")
"""What a streaming query says to Spark itself, and Spark passes on."""
_JSON_LIST = re.compile(r'\s*\[\s*"')
_OF_A_GROUP = ("topics", "start", "end")
"""What the declaration of a group says, and a job of it must not."""


def check_names(given: Mapping[str, str], known: Sequence[str]) -> None:
    """Raises UsageError for an option that does not exist, with the name that was probably meant."""
    for name in given:
        if name.lower() not in known:
            near = difflib.get_close_matches(name.lower(), known, 1)
            raise UsageError(
                f"unknown option {name!r}: "
                + (f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}")
            )


class SourceOptions:
    """Raises UsageError naming the option that is wrong.  Travels to the workers."""

    def __init__(self, given: Mapping[str, str]) -> None:
        check_names(given, READ_OPTIONS)
        if not given.get("log"):
            raise UsageError('option "log" is missing: the URL of the log, as in sqlite:///dir/log.db')
        self.log = given["log"]
        self.topics = _filters(given.get("topics", "#"))
        self.start = given.get("start", "earliest")
        self.end = given.get("end", "latest")
        self.events_per_batch = _positive(given, "events_per_batch", BATCH_EVENTS_MAX)
        self.events_per_task = _positive(given, "events_per_task", PARTITION_EVENTS_MAX)
        self.group = given.get("group", "")
        self.query = given.get("query", "")
        if self.group:
            self._check_group(given)

    def _check_group(self, given: Mapping[str, str]) -> None:
        for name in _OF_A_GROUP:
            if name in given:
                raise UsageError(f"option {name!r} does not go with a group: its declaration says that for all jobs")
        if not self.query:
            raise UsageError('option "query" is missing: the name of this job in its group, the same after restarts')

    def starts(self, states: Sequence[durable_log.ShardState]) -> dict[int, int]:
        """Where to begin in each shard."""
        if self.start == "earliest":
            return {state.shard: state.start for state in states}
        if self.start == "latest":
            return {state.shard: state.end for state in states}
        asked = self._places("start", states)
        return {state.shard: asked.get(state.shard, state.start) for state in states}

    def ends(self, states: Sequence[durable_log.ShardState]) -> dict[int, int]:
        """Where to stop in each shard, never beyond its end."""
        if self.end == "latest":
            return {state.shard: state.end for state in states}
        asked = self._places("end", states)
        return {state.shard: min(state.end, asked.get(state.shard, state.end)) for state in states}

    def _places(self, option: str, states: Sequence[durable_log.ShardState]) -> dict[int, int]:
        asked = from_json(getattr(self, option))
        if not asked.keys() <= {state.shard for state in states}:
            raise UsageError(f"option {option!r} names shards {sorted(asked)}, and the log has 0 to {len(states) - 1}")
        return asked


def _filters(text: str) -> list[str]:
    """Separated by commas; or a list in JSON, for filters that have commas themselves."""
    try:
        filters = msgspec.json.decode(text, type=list[str]) if _JSON_LIST.match(text) else text.split(",")
    except msgspec.MsgspecError as error:
        raise UsageError(
            f"option 'topics' is a list of filters in JSON, or separated by commas, not {text!r}"
        ) from error
    return [check_filter(one.strip()) for one in filters]


def _positive(given: Mapping[str, str], name: str, default: int) -> int:
    try:
        value = int(given.get(name, default))
    except ValueError as error:
        raise UsageError(f"option {name!r} is a number of events, not {given[name]!r}") from error
    if value < 1:
        raise UsageError(f"option {name!r} must be at least 1, not {value}")
    return value
