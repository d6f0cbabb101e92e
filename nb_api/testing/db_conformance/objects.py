"""One object: create, get, set, delete, versions, and refused writes."""

from __future__ import annotations

import pytest

from nb_api.db_api import DbApi, DbObject
from nb_api.errors import ObjectExists, ObjectNotFound, VersionConflict
from nb_api.testing.db_conformance.base import DbConformanceBase
from nb_api.testing.replay import stored


class ObjectConformance(DbConformanceBase):
    def test_what_is_created_can_be_read(self, db: DbApi) -> None:
        version = db.create("port", "p1", {"mac": "fa:16"}, topic="tenant-1")
        assert db.get("port", "p1") == DbObject("port", "p1", "tenant-1", {"mac": "fa:16"}, version)

    def test_a_new_database_is_empty(self, db: DbApi) -> None:
        assert db.revision() == 0
        assert db.changes(0) == []
        assert db.unpublished() == []
        assert stored(db) == {}

    def test_set_replaces_the_value_and_keeps_the_topic(self, db: DbApi) -> None:
        db.create("port", "p1", {"a": 1, "b": 2}, topic="tenant-1")
        version = db.set("port", "p1", {"c": 3})
        assert db.get("port", "p1") == DbObject("port", "p1", "tenant-1", {"c": 3}, version)

    def test_set_can_change_the_topic(self, db: DbApi) -> None:
        db.create("port", "p1", 1, topic="tenant-1")
        db.set("port", "p1", 2, topic="tenant-2")
        assert db.get("port", "p1").topic == "tenant-2"

    def test_set_to_the_same_value_is_a_change(self, db: DbApi) -> None:
        first = db.create("port", "p1", 1, topic="t")
        second = db.set("port", "p1", 1)
        assert first < second
        assert [change.revision for change in db.changes(0)] == [first, second]

    def test_a_deleted_object_is_not_found(self, db: DbApi) -> None:
        db.create("port", "p1", 1, topic="t")
        db.delete("port", "p1")
        with pytest.raises(ObjectNotFound):
            db.get("port", "p1")
        assert stored(db) == {}

    def test_create_refuses_what_exists(self, db: DbApi) -> None:
        version = db.create("port", "p1", 1, topic="t")
        with pytest.raises(ObjectExists, match="p1"):
            db.create("port", "p1", 2, topic="t")
        assert db.get("port", "p1") == DbObject("port", "p1", "t", 1, version)

    def test_what_never_existed_is_not_found(self, db: DbApi) -> None:
        with pytest.raises(ObjectNotFound, match="p1") as caught:
            db.get("port", "p1")
        assert caught.value.deleted_version is None
        with pytest.raises(ObjectNotFound, match="p1"):
            db.set("port", "p1", 1)
        with pytest.raises(ObjectNotFound, match="p1"):
            db.delete("port", "p1")

    def test_what_is_refused_leaves_no_change(self, db: DbApi) -> None:
        version = db.create("port", "p1", 1, topic="t")
        with pytest.raises(ObjectExists):
            db.create("port", "p1", 2, topic="t")
        with pytest.raises(VersionConflict):
            db.set("port", "p1", 2, expected_version=version + 1)
        with pytest.raises(VersionConflict):
            db.delete("port", "p1", expected_version=version + 1)
        with pytest.raises(ObjectNotFound):
            db.set("port", "p2", 2)
        assert db.revision() == version
        assert [change.revision for change in db.changes(0)] == [version]
        assert [change.revision for change in db.unpublished()] == [version]

    def test_versions_rise_and_are_the_revisions_of_the_feed(self, db: DbApi) -> None:
        versions = [db.create("port", "p1", 1, topic="t"), db.set("port", "p1", 2), db.delete("port", "p1")]
        versions.append(db.create("port", "p1", 3, topic="t"))
        assert versions == sorted(set(versions))
        assert versions[0] > 0
        assert [change.revision for change in db.changes(0)] == versions
        assert db.revision() == versions[-1]

    def test_all_tables_share_one_counter(self, db: DbApi) -> None:
        versions = [db.create(table, "k", 1, topic="t") for table in ("a", "b", "a2", "c")]
        versions += [db.set("b", "k", 2), db.delete("a", "k"), db.set("c", "k", 2)]
        assert versions == sorted(set(versions))

    def test_set_with_the_right_version_succeeds(self, db: DbApi) -> None:
        first = db.create("port", "p1", 1, topic="t")
        second = db.set("port", "p1", 2, expected_version=first)
        assert db.get("port", "p1").version == second > first

    def test_set_with_an_old_version_is_a_conflict(self, db: DbApi) -> None:
        first = db.create("port", "p1", 1, topic="t")
        second = db.set("port", "p1", 2)
        with pytest.raises(VersionConflict, match="p1"):
            db.set("port", "p1", 3, expected_version=first)
        assert db.get("port", "p1") == DbObject("port", "p1", "t", 2, second)

    def test_delete_with_an_old_version_is_a_conflict(self, db: DbApi) -> None:
        first = db.create("port", "p1", 1, topic="t")
        second = db.set("port", "p1", 2)
        with pytest.raises(VersionConflict, match="p1"):
            db.delete("port", "p1", expected_version=first)
        assert db.delete("port", "p1", expected_version=second) > second

    def test_a_deleted_object_is_not_found_whatever_version_is_expected(self, db: DbApi) -> None:
        version = db.create("port", "p1", 1, topic="t")
        gone = db.delete("port", "p1")
        for expected in (version, gone, gone + 1):
            with pytest.raises(ObjectNotFound):
                db.set("port", "p1", 2, expected_version=expected)
            with pytest.raises(ObjectNotFound):
                db.delete("port", "p1", expected_version=expected)

    def test_a_delete_leaves_a_tombstone_with_a_version(self, db: DbApi) -> None:
        version = db.create("port", "p1", 1, topic="t")
        gone = db.delete("port", "p1")
        assert gone > version
        with pytest.raises(ObjectNotFound) as caught:
            db.get("port", "p1")
        assert caught.value.deleted_version == gone

    def test_a_key_can_be_created_again_with_a_higher_version(self, db: DbApi) -> None:
        db.create("port", "p1", 1, topic="t")
        gone = db.delete("port", "p1")
        again = db.create("port", "p1", 2, topic="u")
        assert again > gone
        assert db.get("port", "p1") == DbObject("port", "p1", "u", 2, again)

    def test_names_do_not_run_into_each_other(self, db: DbApi) -> None:
        names = [
            ("a", "b/c"), ("a/b", "c"), ("a", "b:c"), ("a:b", "c"), ("a", "b"), ("A", "b"), ("a", "B"), ("a", "b "),
            ("a%", "b"), ("a_", "b"), ("a", "é"), ("a", "e\u0301"), ("a", "'\"\\;--"), ("a", "{b}"), ("a", "b*"),
            ("a" * 255, "\U0001f600" * 255),
        ]  # fmt: skip
        for number, (table, key) in enumerate(names):
            db.create(table, key, number, topic="t")
        assert [db.get(table, key).value for table, key in names] == list(range(len(names)))
        assert {name: held.value for name, held in stored(db).items()} == {name: i for i, name in enumerate(names)}
        assert [(change.table, change.key) for change in db.changes(0)] == names

    def test_a_counter_counts_from_one(self, db: DbApi) -> None:
        assert [db.allocate("ports") for _ in range(3)] == [1, 2, 3]

    def test_counters_are_independent(self, db: DbApi) -> None:
        assert [db.allocate("a"), db.allocate("b"), db.allocate("a")] == [1, 1, 2]

    def test_a_counter_is_no_object(self, db: DbApi) -> None:
        db.allocate("ports")
        assert db.revision() == 0
        assert stored(db) == {}
