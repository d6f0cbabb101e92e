"""The options of a read, ``spark.read.format("heliograph").option(...)``, checked."""

from __future__ import annotations

import datetime
import difflib
import re
from collections.abc import Callable, Mapping, Sequence

import msgspec

import durable_log
from pubsub_api.core.topics import check_filter
from pubsub_api.errors import UsageError
from spark_pipeline.config import BATCH_EVENTS_MAX, PARTITION_EVENTS_MAX
from spark_pipeline.core.ranges import from_json
from spark_pipeline.reading.columns import BAD_VALUE, FIELDS, NAMES
from spark_pipeline.schema import EVENT_COLUMNS

READ_OPTIONS = (
    "log", "topics", "start", "end", "startingTimestamp", "endingTimestamp", "columns", "value_schema",
    "failOnDataLoss", "maxEventsPerTrigger", "events_per_batch", "events_per_task", "group", "query", "ranges",
)  # fmt: skip
WRITE_OPTIONS = ("log", "db", "bus", "staging", "query")
OF_SPARK = ("checkpointlocation", "queryname")
"""What a streaming query says to Spark itself, and Spark passes on."""
_JSON_LIST = re.compile(r'\s*\[\s*"')
_OF_A_GROUP = ("topics", "start", "end", "startingTimestamp", "endingTimestamp", "failOnDataLoss")
"""What the declaration of a group says, and a job of it must not; what retention took from a group is counted there."""
_SAME = (("start", "startingTimestamp"), ("end", "endingTimestamp"), ("events_per_batch", "maxEventsPerTrigger"))
"""Pairs of options of which a read has one at most."""
_1970 = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)

Find = Callable[[int, int], int]
"""Shard and time -> the first offset appended then or later, as `durable_log.LogApi.find`."""


def check_names(given: Mapping[str, str], known: Sequence[str]) -> None:
    """Raises UsageError for an option that does not exist, with the name that was probably meant."""
    names = {one.lower(): one for one in known}
    for name in given:
        if name.lower() not in names:
            near = difflib.get_close_matches(name.lower(), names, 1)
            raise UsageError(
                f"unknown option {name!r}: "
                + (f"did you mean {names[near[0]]!r}?" if near else f"there are {', '.join(known)}")
            )


class SourceOptions:
    """Raises UsageError naming the option that is wrong.  Travels to the workers."""

    def __init__(self, given: Mapping[str, str]) -> None:
        check_names(given, READ_OPTIONS)
        if not given.get("log"):
            raise UsageError('option "log" is missing: the URL of the log, as in sqlite:///dir/log.db')
        self.log = given["log"]
        self.topics = _filters(given.get("topics", "#"))
        for one, other in _SAME:
            if one in given and other in given:
                raise UsageError(f"options {one!r} and {other!r} say the same: give one of them")
        self.start = given.get("start", "earliest")
        self.end = given.get("end", "latest")
        self.start_ns = _moment_ns(given, "startingTimestamp")
        self.end_ns = _moment_ns(given, "endingTimestamp")
        self.fail_on_data_loss = _boolean(given, "failOnDataLoss", default=True)
        self.value_schema = given.get("value_schema", "")
        self.columns = _columns(given, has_fields=bool(self.value_schema))
        self.events_per_batch = _positive(
            given, "maxEventsPerTrigger" if "maxEventsPerTrigger" in given else "events_per_batch", BATCH_EVENTS_MAX
        )
        self.events_per_task = _positive(given, "events_per_task", PARTITION_EVENTS_MAX)
        self.group = given.get("group", "")
        self.query = given.get("query", "")
        self.gives_ranges = _boolean(given, "ranges", default=False)
        """Whether rows are ranges of offsets, for `spark_pipeline.reading.follow`, in place of events."""
        if self.gives_ranges and (self.group or "columns" in given or "value_schema" in given):
            raise UsageError("option 'ranges' goes neither with a group nor with columns")
        if self.group:
            self._check_group(given)

    def _check_group(self, given: Mapping[str, str]) -> None:
        for name in _OF_A_GROUP:
            if name in given:
                raise UsageError(f"option {name!r} does not go with a group: its declaration says that for all jobs")
        if not self.query:
            raise UsageError('option "query" is missing: the name of this job in its group, the same after restarts')

    def starts(self, states: Sequence[durable_log.ShardState], find: Find) -> dict[int, int]:
        """Where to begin in each shard."""
        if self.start_ns is not None:
            return {state.shard: find(state.shard, self.start_ns) for state in states}
        if self.start == "earliest":
            return {state.shard: state.start for state in states}
        if self.start == "latest":
            return {state.shard: state.end for state in states}
        asked = self._places("start", states)
        return {state.shard: asked.get(state.shard, state.start) for state in states}

    def ends(self, states: Sequence[durable_log.ShardState], find: Find) -> dict[int, int]:
        """Where to stop in each shard, never beyond its end."""
        if self.end_ns is not None:
            return {state.shard: min(state.end, find(state.shard, self.end_ns)) for state in states}
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


def _columns(given: Mapping[str, str], *, has_fields: bool) -> list[str]:
    """The names of the columns, in the order that they are asked for; ``*`` is all columns of an event."""
    of_values = [FIELDS, BAD_VALUE] if has_fields else []
    if "columns" not in given:
        return [*EVENT_COLUMNS, *of_values]
    asked = [name.strip() for name in given["columns"].split(",")]
    names = [name for one in asked for name in (EVENT_COLUMNS if one == "*" else [one])]
    wrong = [name for name in names if name not in NAMES or names.count(name) > 1]
    if wrong:
        raise UsageError(
            f"option 'columns' names {wrong[0]!r}, which is none, or twice: there are *, {', '.join(NAMES)}"
        )
    if has_fields != (FIELDS in names):
        raise UsageError(f"option 'value_schema' says what the column {FIELDS!r} is: give both, or none")
    return names


def _moment_ns(given: Mapping[str, str], name: str) -> int | None:
    """Milliseconds since 1970, as other sources of Spark have it, or a date, which is UTC unless it says otherwise."""
    if name not in given:
        return None
    text = given[name].strip()
    if text.isdecimal():
        return int(text) * 1_000_000
    try:
        at = datetime.datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError as error:
        raise UsageError(
            f"option {name!r} is a time such as 2026-11-16T10:00:00Z, or milliseconds since 1970, not {text!r}"
        ) from error
    at = at if at.tzinfo else at.replace(tzinfo=datetime.timezone.utc)
    return (at - _1970) // datetime.timedelta(microseconds=1) * 1000


def _boolean(given: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = str(given.get(name, default)).lower()
    if text not in ("true", "false"):
        raise UsageError(f"option {name!r} is true or false, not {given[name]!r}")
    return text == "true"


def _positive(given: Mapping[str, str], name: str, default: int) -> int:
    try:
        value = int(given.get(name, default))
    except ValueError as error:
        raise UsageError(f"option {name!r} is a number of events, not {given[name]!r}") from error
    if value < 1:
        raise UsageError(f"option {name!r} must be at least 1, not {value}")
    return value
