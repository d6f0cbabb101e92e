"""Digests: they are the sums over a snapshot of the same revision, and their buckets lead to single objects."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from nb_api.core.digests import BUCKETS, StoredDigests, TableDigest, add_up, bucket_of
from nb_api.db_api import DbApi, DbObject, Write
from nb_api.errors import InvalidObject
from nb_api.testing.db_conformance.base import DbConformanceBase, apply_all
from nb_api.testing.db_conformance.snapshots import FILTERS, TOPICS, write_at_random
from nb_api.testing.replay import apply
from pubsub_api.core.topics import FilterSet
from pubsub_api.testing.receivers import in_threads


def added_up(objects: Sequence[DbObject], *, by_bucket: bool) -> dict[tuple[str, int], TableDigest]:
    return add_up(((found.table, found.version) for found in objects), by_bucket=by_bucket)


def objects_of(db: DbApi) -> list[DbObject]:
    with db.snapshot() as snapshot:
        return list(snapshot)


class DigestConformance(DbConformanceBase):
    def test_an_empty_database_has_no_digests(self, db: DbApi) -> None:
        assert db.digests() == StoredDigests(0, {})
        assert db.digests(["t"], ["a/#"], by_bucket=True) == StoredDigests(0, {})

    def test_digests_are_those_of_a_snapshot(self, db: DbApi) -> None:
        for number, topic in enumerate(TOPICS):
            for table in ("a", "b"):
                db.create(table, f"k{number}", number, topic=topic)
        db.set("a", "k0", "changed")
        db.delete("b", "k1")
        everything = objects_of(db)
        for tables in (None, ["a"], ["a", "b"], ["nothing"], []):
            for topics in (None, *FILTERS):
                wanted = None if topics is None else FilterSet(topics)
                found = [
                    one
                    for one in everything
                    if (tables is None or one.table in tables) and (wanted is None or wanted.match(one.topic))
                ]
                for by_bucket in (False, True):
                    digests = db.digests(tables, topics, by_bucket=by_bucket)
                    assert digests.revision == db.revision()
                    assert digests.parts == added_up(found, by_bucket=by_bucket), (tables, topics)

    def test_a_snapshot_of_buckets(self, db: DbApi) -> None:
        for number in range(30):
            db.create("t", f"k{number}", number, topic=f"a/{number % 3}")
        found = objects_of(db)
        wanted = {bucket_of(one.version) for one in found[:10]}
        with db.snapshot(["t"], ["a/#"], buckets=wanted) as snapshot:
            assert sorted(one.key for one in snapshot) == sorted(
                one.key for one in found if bucket_of(one.version) in wanted
            )
        with db.snapshot(buckets=[]) as snapshot:
            assert not list(snapshot)
        with db.snapshot(buckets=range(BUCKETS)) as snapshot:
            assert len(list(snapshot)) == len(found)

    def test_digests_of_large_sums(self, db: DbApi) -> None:
        """A thousand versions of 53 bits are more than a signed integer of 64 bits has room for."""
        apply_all(db, (Write("create", "t", f"k{number}", number, "t") for number in range(1200)))
        assert db.digests().parts == added_up(objects_of(db), by_bucket=False)

    def test_digests_under_load_are_of_one_revision(self, db: DbApi) -> None:
        def work(seed: int) -> list[StoredDigests]:
            if seed:
                write_at_random(db, seed, 60)
                return []
            return [db.digests() for _ in range(10)]

        found, *_ = in_threads(3, work)
        feed = db.changes(0, limit=10_000)
        for digests in found:
            state = apply({}, [change for change in feed if change.revision <= digests.revision])
            versions = [(table, held.version) for (table, _), held in state.items()]
            assert digests.parts == add_up(versions, by_bucket=False)

    def test_wrong_selections_are_refused(self, db: DbApi) -> None:
        with pytest.raises(InvalidObject):
            db.digests("t")
