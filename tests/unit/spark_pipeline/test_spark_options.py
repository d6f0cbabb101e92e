"""The options of the format ``heliograph``, checked before Spark is asked for anything."""

from __future__ import annotations

import pytest

from durable_log import ShardState
from pubsub_api.errors import UsageError
from spark_pipeline.reading.options import WRITE_OPTIONS, SourceOptions, check_names
from spark_pipeline.schema import EVENT_COLUMNS

STATES = [ShardState(shard, 5, 5, 20, 0) for shard in range(2)]


def find(shard: int, appended_ns: int) -> int:
    """As of a log to which an event is appended each millisecond, from offset 5 on."""
    return min(20, max(5, 5 + -(-appended_ns // 1_000_000) - shard))


def options(**given: str) -> SourceOptions:
    return SourceOptions({"log": "sqlite:///log.db", **given})


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"log": ""}, '"log" is missing'),
        ({"events_per_task": "none"}, "is a number of events"),
        ({"events_per_batch": "0"}, "must be at least 1"),
        ({"topics": "a//b"}, "empty level"),
        ({"topics": '["a", 1]'}, "list of filters in JSON"),
        ({"topic": "a"}, "unknown option 'topic': did you mean 'topics'"),
        ({"Events_Per_Tusk": "1"}, "did you mean 'events_per_task'"),
        ({"failOnDataLoss": "no"}, "true or false"),
        ({"startingTimestamp": "yesterday"}, "a time such as"),
        ({"startingTimestamp": "5", "start": "latest"}, "say the same"),
        ({"endingTimestamp": "5", "end": "latest"}, "say the same"),
        ({"maxEventsPerTrigger": "5", "events_per_batch": "5"}, "say the same"),
        ({"maxEventsPerTriger": "5"}, "did you mean 'maxEventsPerTrigger'"),
        ({"maxEventsPerTrigger": "0"}, "must be at least 1"),
        ({"columns": "topic, nonsense"}, "names 'nonsense'"),
        ({"columns": "*, topic"}, "names 'topic', which is none, or twice"),
        ({"columns": "fields"}, "give both, or none"),
        ({"columns": "topic", "value_schema": "up boolean"}, "give both, or none"),
        ({"group": "g", "query": "q", "failOnDataLoss": "false"}, "does not go with a group"),
        ({"xyz": "1"}, "unknown option 'xyz': there are log, topics"),
    ],
)
def test_a_wrong_option_is_refused_with_the_reason(given: dict[str, str], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        options(**given)


def test_options_of_a_write_are_checked_too() -> None:
    check_names({"LOG": "x", "staging": "y"}, WRITE_OPTIONS)
    with pytest.raises(UsageError, match="unknown option 'stagin': did you mean 'staging'"):
        check_names({"stagin": "y"}, WRITE_OPTIONS)


def test_places_are_offsets_of_shards_that_the_log_has() -> None:
    assert options().starts(STATES, find) == {0: 5, 1: 5}
    assert options(start="latest").starts(STATES, find) == {0: 20, 1: 20}
    assert options(start='{"1": 7}').starts(STATES, find) == {0: 5, 1: 7}
    assert options(end='{"1": 99}').ends(STATES, find) == {0: 20, 1: 20}
    for option in ("start", "end"):
        for text, reason in (("yesterday", "offsets are written as"), ('{"9": 1}', r"names shards \[9\]")):
            wrong = options(**{option: text})
            with pytest.raises(UsageError, match=reason):
                wrong.starts(STATES, find) if option == "start" else wrong.ends(STATES, find)


def test_times_are_milliseconds_or_dates_of_the_store() -> None:
    for text in ("7", "1970-01-01T00:00:00.007", "1970-01-01T00:00:00.007Z", "1970-01-01T02:00:00.007+02:00"):
        assert options(startingTimestamp=text).starts(STATES, find) == {0: 12, 1: 11}
        assert options(endingTimestamp=text).ends(STATES, find) == {0: 12, 1: 11}
    assert options(endingTimestamp="2999-01-01").ends(STATES, find) == {0: 20, 1: 20}


def test_columns_are_those_that_are_named() -> None:
    assert options().columns == list(EVENT_COLUMNS)
    assert options(columns="seq, event_time").columns == ["seq", "event_time"]
    assert options(columns="*,append_time").columns == [*EVENT_COLUMNS, "append_time"]
    assert options(value_schema="up boolean").columns == [*EVENT_COLUMNS, "fields", "bad_value"]
    assert options(maxEventsPerTrigger="7").events_per_batch == 7


def test_filters_may_have_commas_and_a_read_may_have_limits_of_its_own() -> None:
    assert options(topics="a/#, b").topics == ["a/#", "b"]
    for text in ('["a,b/+", "c"]', ' [ "a,b/+","c" ]'):
        assert options(topics=text).topics == ["a,b/+", "c"]
    assert options(topics="[a],b").topics == ["[a]", "b"]
    found = SourceOptions({"log": "sqlite:///log.db", "events_per_task": "3"})
    assert (found.events_per_batch, found.events_per_task) == (1_000_000, 3)
