"""What is known of objects that are gone, here and in shards of other processes."""

from __future__ import annotations

import pytest

from nb_api.controller.core import ends
from nb_api.controller.core.ends import ObjectEnds
from nb_api.controller.core.keys import Key
from nb_api.core.copy.differences import CachedObject, Deleted, pack

A, B, C = Key("port", "a"), Key("port", "b"), Key("port", "c")


def deleted(key: Key, version: int = 1) -> Deleted:
    return Deleted(key.table, key.key, CachedObject(version, "topic", pack(None)), version + 1)


def test_an_end_is_known_until_a_run_has_dealt_with_that_version() -> None:
    known = ObjectEnds()
    known.tell(A, deleted(A, 5), is_elsewhere=False)
    known.settle(A, 4)
    known.found(A, 5)
    assert known.of(A) == deleted(A, 5)
    known.settle(A, 5)
    assert known.of(A) is None
    known.tell(A, deleted(A, 7), is_elsewhere=False)
    known.found(A, 8)
    assert known.of(A) is None


def test_an_object_that_is_there_again_has_no_end() -> None:
    known = ObjectEnds()
    known.tell(A, deleted(A), is_elsewhere=False)
    known.tell(B, deleted(B), is_elsewhere=True)
    for key in (A, B):
        known.tell(key, None, is_elsewhere=key == B)
    assert known.of(A) is None
    assert known.take_over(lambda _key: True) == []


def test_ends_go_with_their_keys() -> None:
    known = ObjectEnds()
    for key in (A, B):
        known.tell(key, deleted(key), is_elsewhere=False)
    known.hand_over(A.__eq__)
    assert [known.of(key) for key in (A, B)] == [None, deleted(B)]
    assert known.take_over(B.__eq__) == []
    assert known.take_over(A.__eq__) == [A]
    assert known.of(A) == deleted(A)


def test_the_oldest_of_other_processes_are_forgotten_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ends, "ELSEWHERE_MAX", 2)
    known = ObjectEnds()
    for key in (A, B, A, C):
        known.tell(key, deleted(key), is_elsewhere=True)
    assert known.forgotten == 1
    assert known.take_over(lambda _key: True) == [A, C]
