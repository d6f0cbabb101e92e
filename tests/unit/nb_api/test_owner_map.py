"""Whom a change concerns, whatever happened before."""

from __future__ import annotations

from collections.abc import Callable

import hypothesis.strategies as st
import pytest
from hypothesis import given

from nb_api.controller.core.keys import Key
from nb_api.controller.core.owners import OwnerMap
from nb_api.db_api import DbObject


def held(value: object) -> Callable[[], DbObject]:
    return lambda: DbObject("port", "p", "topic", value, 1)


def owners_of(found: DbObject) -> list[tuple[str, str]]:
    return [("net", name) for name in found.value]


def test_the_keys_that_all_known_objects_concern() -> None:
    owners = OwnerMap(["net"], {"port": owners_of})
    owners.put("net", "n1", held(None))
    owners.put("port", "p1", held(["n1", "n2"]))
    owners.put("port", "p2", held([]))
    assert sorted(owners.keys()) == [Key("net", "n1"), Key("net", "n1"), Key("net", "n2")]
    owners.remove("port", "p1")
    assert list(owners.keys()) == [Key("net", "n1")]


def test_objects_of_other_tables_concern_themselves() -> None:
    owners = OwnerMap(None, {"port": owners_of})
    assert owners.put("net", "n1", held(None)) == (Key("net", "n1"),)
    assert owners.remove("net", "n1") == (Key("net", "n1"),)
    assert [owners.is_followed(table) for table in ("net", "port")] == [True, True]


def test_only_the_tables_that_are_named_are_followed() -> None:
    owners = OwnerMap(["net"], {"port": owners_of})
    assert [owners.is_followed(table) for table in ("net", "port", "other")] == [True, True, False]
    assert owners.put("port", "p1", held(["n1"])) == (Key("net", "n1"),)


def test_what_cannot_be_told_keeps_the_owners_it_had() -> None:
    owners = OwnerMap(None, {"port": owners_of})
    owners.put("port", "p1", held(["n1"]))
    with pytest.raises(TypeError):
        owners.put("port", "p1", held(7))
    assert owners.owners_before("port", "p1") == (Key("net", "n1"),)
    assert set(owners.put("port", "p1", held(["n2"]))) == {Key("net", "n1"), Key("net", "n2")}


def test_nothing_is_left_of_what_is_gone() -> None:
    owners = OwnerMap(None, {"port": owners_of})
    owners.put("port", "p1", held(["n1"]))
    owners.put("net", "n1", held(None))
    assert set(owners.names()) == {("port", "p1"), ("net", "n1")}
    owners.remove("port", "p1")
    owners.remove("port", "p1")
    owners.remove("net", "n1")
    assert list(owners.names()) == []


@given(st.lists(st.tuples(st.sampled_from("abc"), st.one_of(st.none(), st.lists(st.sampled_from("xyz"))))))
def test_every_owner_before_and_after_is_concerned(history: list[tuple[str, list[str] | None]]) -> None:
    """None stands for a delete."""
    owners = OwnerMap(None, {"port": owners_of})
    present: dict[str, list[str]] = {}
    for key, value in history:
        expected = {*present.get(key, []), *(value or [])}
        if value is None:
            present.pop(key, None)
            concerned = owners.remove("port", key)
        else:
            present[key] = value
            concerned = owners.put("port", key, held(value))
        assert sorted(concerned) == sorted(Key("net", name) for name in expected)
    assert {key for _, key in owners.names()} == set(present)
