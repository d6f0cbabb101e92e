"""A schema is made from what values look like."""

from __future__ import annotations

import contextlib
import pathlib

import pytest

import durable_log
from pubsub_api.core import frame as frames
from pubsub_api.core.events import Event, encode_event, pack_body
from pubsub_api.core.frame import Kind
from pubsub_api.errors import UsageError
from spark_pipeline.reading.inference import infer_value_schema


@pytest.fixture
def url(tmp_path: pathlib.Path) -> str:
    return f"sqlite://{tmp_path}/log.db?shards=2"


def append(url: str, topic: str, *values: object) -> None:
    encoded = [encode_event(Event(table="t", key="k", action="set", value=value), 1) for value in values]
    frame = frames.pack(Kind.DATA, b"g" * 16, topic, pack_body(encoded), first=1, after=0, count=len(values))
    with contextlib.closing(durable_log.open(url)) as log:
        log.append([frame])


def test_every_field_has_the_type_that_has_room_for_its_values(url: str) -> None:
    append(
        url, "a",
        {"up": True, "mtu": 1500, "load": 1, "name": None, "tags": [], "at": {"host": "h", "none": None}},
        {"up": False, "load": 0.5, "name": "n", "tags": ["x", None], "raw": b"", "at": {"port": 1}, "a`b": "c"},
        {"mixed": 1, "large": 1 << 63, "nothing": None, "empty": {}},
        {"mixed": "1"},
        "no map", None, 7,
    )  # fmt: skip
    assert infer_value_schema(url, ["a"]) == (
        "`up` boolean, `mtu` bigint, `load` double, `name` string, `tags` array<string>, "
        "`at` struct<`host` string, `port` bigint>, `raw` binary, `a``b` string"
    )


def test_only_the_newest_events_of_the_topics_count(url: str) -> None:
    append(url, "a", {"old": 1}, {"new": 1})
    assert infer_value_schema(url, ["a"], events_max=1) == "`new` bigint"
    append(url, "b", {"other": 1})
    assert infer_value_schema(url, ["b"]) == "`other` bigint"
    with pytest.raises(UsageError, match="no event of c has a value"):
        infer_value_schema(url, ["c"])
