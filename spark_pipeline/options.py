"""The options of a read, ``spark.read.format("heliograph").option(...)``, checked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import durable_log
from pubsub_api.core.topics import check_filter
from pubsub_api.errors import UsageError
from spark_pipeline.config import OPTIONS
from spark_pipeline.ranges import from_json

_DEFAULTS = {option.dest: option.default for option in OPTIONS}
_OF_A_GROUP = ("topics", "start", "end")
"""What the declaration of a group says, and a job of it must not."""


class SourceOptions:
    """Raises UsageError naming the option that is wrong.  Travels to the workers."""

    def __init__(self, given: Mapping[str, str]) -> None:
        if not given.get("log"):
            raise UsageError('option "log" is missing: the URL of the log, as in sqlite:///dir/log.db')
        self.log = given["log"]
        self.topics = [name.strip() for name in given.get("topics", "#").split(",")]
        for topic_filter in self.topics:
            check_filter(topic_filter)
        self.start = given.get("start", "earliest")
        self.end = given.get("end", "latest")
        self.events_per_batch = _positive(given, "events_per_batch", _DEFAULTS["batch_events_max"])
        self.events_per_task = _positive(given, "events_per_task", _DEFAULTS["partition_events_max"])
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

    def starts(self, states: Iterable[durable_log.ShardState]) -> dict[int, int]:
        """Where to begin in each shard."""
        if self.start == "earliest":
            return {state.shard: state.start for state in states}
        if self.start == "latest":
            return {state.shard: state.end for state in states}
        asked = from_json(self.start)
        return {state.shard: asked.get(state.shard, state.start) for state in states}

    def ends(self, states: Iterable[durable_log.ShardState]) -> dict[int, int]:
        """Where to stop in each shard, never beyond its end."""
        if self.end == "latest":
            return {state.shard: state.end for state in states}
        asked = from_json(self.end)
        return {state.shard: min(state.end, asked.get(state.shard, state.end)) for state in states}


def _positive(given: Mapping[str, str], name: str, default: int) -> int:
    try:
        value = int(given.get(name, default))
    except ValueError as error:
        raise UsageError(f"option {name!r} is a number of events, not {given[name]!r}") from error
    if value < 1:
        raise UsageError(f"option {name!r} must be at least 1, not {value}")
    return value
