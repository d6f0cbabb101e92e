"""The options of the format ``heliograph``, checked before Spark is asked for anything."""

from __future__ import annotations

import pytest

from durable_log import ShardState
from pubsub_api.errors import UsageError
from spark_pipeline.reading.options import WRITE_OPTIONS, SourceOptions, check_names

STATES = [ShardState(shard, 5, 5, 20, 0) for shard in range(2)]


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
    assert options().starts(STATES) == {0: 5, 1: 5}
    assert options(start="latest").starts(STATES) == {0: 20, 1: 20}
    assert options(start='{"1": 7}').starts(STATES) == {0: 5, 1: 7}
    assert options(end='{"1": 99}').ends(STATES) == {0: 20, 1: 20}
    for option in ("start", "end"):
        for text, reason in (("yesterday", "offsets are written as"), ('{"9": 1}', r"names shards \[9\]")):
            wrong = options(**{option: text})
            with pytest.raises(UsageError, match=reason):
                wrong.starts(STATES) if option == "start" else wrong.ends(STATES)


def test_filters_may_have_commas_and_a_read_may_have_limits_of_its_own() -> None:
    assert options(topics="a/#, b").topics == ["a/#", "b"]
    for text in ('["a,b/+", "c"]', ' [ "a,b/+","c" ]'):
        assert options(topics=text).topics == ["a,b/+", "c"]
    assert options(topics="[a],b").topics == ["[a]", "b"]
    found = SourceOptions({"log": "sqlite:///log.db", "events_per_task": "3"})
    assert (found.events_per_batch, found.events_per_task) == (1_000_000, 3)
