"""Which values, names, topics and numbers are allowed, and that others are refused before anything happens."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from nb_api.db_api import DbApi
from nb_api.errors import InvalidObject
from nb_api.testing.db_conformance.base import DbConformanceBase
from nb_api.testing.replay import stored
from pubsub_api.errors import HeliographError, InvalidTopic, LimitReached, UsageError

VALUES: dict[str, Any] = {
    "none": None,
    "false": False,
    "zero": 0,
    "largest": 2**64 - 1,
    "smallest": -(2**63),
    "float": 0.1,
    "infinity": math.inf,
    "empty": "",
    "unicode": "Gr\u00fc\u00dfe \u65e5\u672c \U0001f600 \x00 \u2028",
    "bytes": bytes(range(256)),
    "empty-list": [],
    "empty-map": {},
    "nested": {"a": [1, {"b": [None, True, b"\x00\xff", {"c": {}}]}], "": -1},
    "number-keys": {1: "one", -2: "two"},
    "large": "x" * 100_000,
}

BAD_NAMES: dict[str, Any] = {
    "empty": "",
    "long": "k" * 256,
    "newline": "a\nb",
    "nul": "a\0b",
    "delete-character": "a\x7fb",
    "surrogate": "\ud800",
    "bytes": b"k",
    "none": None,
    "int": 7,
}

BAD_TOPICS: dict[str, Any] = {
    "empty": "", "wildcard": "a/+", "rest": "a/#", "empty-level": "a//b", "reserved": "$a", "bytes": b"t", "int": 7,
}  # fmt: skip

BAD_VALUES: dict[str, Any] = {
    "object": object(), "too-large-int": 2**64, "nested-object": [{"a": object()}], "surrogate": "\ud800",
}  # fmt: skip

Call = Callable[[DbApi], object]

BAD_CALLS: dict[str, tuple[Call, type[HeliographError]]] = {
    "changes-after-negative": (lambda db: db.changes(-1), UsageError),
    "changes-limit-zero": (lambda db: db.changes(0, limit=0), UsageError),
    "unpublished-limit-negative": (lambda db: db.unpublished(limit=-1), UsageError),
    "unpublished-older-than-negative": (lambda db: db.unpublished(older_than_s=-1), UsageError),
    "wait-after-negative": (lambda db: db.wait(-1, timeout_s=0), UsageError),
    "wait-negative-time": (lambda db: db.wait(0, timeout_s=-1), UsageError),
    "compact-keep-negative": (lambda db: db.compact(keep_changes=-1, keep_tombstones_s=0), UsageError),
    "compact-negative-time": (lambda db: db.compact(keep_changes=0, keep_tombstones_s=-1), UsageError),
    "expected-version-negative": (lambda db: db.set("t", "k", 1, expected_version=-1), UsageError),
    "expected-version-str": (lambda db: db.delete("t", "k", expected_version="1"), UsageError),  # type: ignore[arg-type]
    "mark-str": (lambda db: db.mark_published(["1"]), UsageError),  # type: ignore[list-item]
    "snapshot-table": (lambda db: db.snapshot(tables=[""]), InvalidObject),
    "snapshot-one-str": (lambda db: db.snapshot(tables="port"), InvalidObject),
    "snapshot-filter": (lambda db: db.snapshot(topics=["a/#/b"]), InvalidTopic),
}


def _by_name(cases: dict[str, Any]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("bad", list(cases.values()), ids=list(cases))


class ValueConformance(DbConformanceBase):
    @pytest.mark.parametrize("value", list(VALUES.values()), ids=list(VALUES))
    def test_a_value_comes_back_as_it_was(self, db: DbApi, value: Any) -> None:
        db.create("t", "k", value, topic="topic")
        db.create("t", "other", 0, topic="topic")
        db.set("t", "other", value)
        found = [
            db.get("t", "k").value,
            stored(db)["t", "other"].value,
            db.changes(0)[0].value,
            db.unpublished()[2].value,
        ]
        assert found == [value] * 4
        assert [type(one) for one in found] == [type(value)] * 4

    def test_a_tuple_comes_back_as_a_list(self, db: DbApi) -> None:
        db.create("t", "k", (1, (2, 3)), topic="topic")
        assert db.get("t", "k").value == [1, [2, 3]]

    def test_a_value_may_be_changed_by_its_owner(self, db: DbApi) -> None:
        value = {"a": [1]}
        db.create("t", "k", value, topic="topic")
        value["a"].append(2)
        db.get("t", "k").value["a"].append(3)
        assert db.get("t", "k").value == {"a": [1]}

    @_by_name(BAD_NAMES)
    def test_a_bad_table_is_refused(self, db: DbApi, bad: Any) -> None:
        for call in _object_calls(bad, "k"):
            with pytest.raises(InvalidObject, match="table"):
                call(db)

    @_by_name(BAD_NAMES)
    def test_a_bad_key_is_refused(self, db: DbApi, bad: Any) -> None:
        for call in _object_calls("t", bad):
            with pytest.raises(InvalidObject, match="key"):
                call(db)

    @_by_name(BAD_NAMES)
    def test_a_bad_counter_name_is_refused(self, db: DbApi, bad: Any) -> None:
        with pytest.raises(InvalidObject):
            db.allocate(bad)

    @_by_name(BAD_TOPICS)
    def test_a_bad_topic_is_refused(self, db: DbApi, bad: Any) -> None:
        db.create("t", "k", 1, topic="topic")
        with pytest.raises(InvalidTopic):
            db.create("t", "k2", 1, topic=bad)
        with pytest.raises(InvalidTopic):
            db.set("t", "k", 2, topic=bad)
        assert len(db.changes(0)) == 1

    @_by_name(BAD_VALUES)
    def test_a_value_without_msgpack_form_is_refused(self, db: DbApi, bad: Any) -> None:
        db.create("t", "k", 1, topic="topic")
        with pytest.raises(InvalidObject):
            db.create("t", "k2", bad, topic="topic")
        with pytest.raises(InvalidObject):
            db.set("t", "k", bad)
        assert len(db.changes(0)) == 1

    def test_a_value_that_is_too_large_is_refused(self, db: DbApi) -> None:
        with pytest.raises(LimitReached, match="value_bytes_max"):
            db.create("t", "k", bytes(db.conf.db.value_bytes_max), topic="topic")
        assert db.revision() == 0

    def test_the_largest_value_is_stored(self, db: DbApi) -> None:
        value = bytes(db.conf.db.value_bytes_max - 5)  # msgpack needs 5 bytes for type and length
        db.create("t", "k", value, topic="topic")
        assert db.get("t", "k").value == value

    @pytest.mark.parametrize("name", BAD_CALLS)
    def test_a_bad_argument_is_refused(self, db: DbApi, name: str) -> None:
        call, error = BAD_CALLS[name]
        with pytest.raises(error):
            call(db)
        assert db.revision() == 0


def _object_calls(table: Any, key: Any) -> list[Call]:
    return [
        lambda db: db.create(table, key, 1, topic="topic"),
        lambda db: db.set(table, key, 1),
        lambda db: db.delete(table, key),
        lambda db: db.get(table, key),
    ]
