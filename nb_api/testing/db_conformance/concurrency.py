"""Many threads on one database object: no update is lost, no number is allocated twice, and the feed has no holes."""

from __future__ import annotations

import threading

from nb_api.db_api import DbApi
from nb_api.errors import ObjectExists, VersionConflict
from nb_api.testing.db_child import increment
from nb_api.testing.db_conformance.base import DbConformanceBase
from nb_api.testing.db_conformance.snapshots import write_at_random
from nb_api.testing.replay import apply, follow, stored
from pubsub_api.testing.receivers import in_threads


class ConcurrencyConformance(DbConformanceBase):
    def test_of_writers_that_expect_the_same_version_one_wins(self, db: DbApi) -> None:
        version = db.create("t", "k", 0, topic="t")
        for _ in range(10):
            barrier = threading.Barrier(4)

            def attempt(number: int, expected: int = version, barrier: threading.Barrier = barrier) -> int | None:
                barrier.wait()
                try:
                    return db.set("t", "k", number, expected_version=expected)
                except VersionConflict:
                    return None

            won = [new for new in in_threads(4, attempt) if new is not None]
            assert len(won) == 1
            version = won[0]
            assert db.get("t", "k").version == version

    def test_of_creators_of_the_same_key_one_wins(self, db: DbApi) -> None:
        for number in range(10):
            barrier = threading.Barrier(4)

            def attempt(_: int, key: str = f"k{number}", barrier: threading.Barrier = barrier) -> int | None:
                barrier.wait()
                try:
                    return db.create("t", key, 1, topic="t")
                except ObjectExists:
                    return None

            assert len([new for new in in_threads(4, attempt) if new is not None]) == 1

    def test_no_update_is_lost(self, db: DbApi) -> None:
        db.create("t", "k", 0, topic="t")
        in_threads(8, lambda _: [increment(db, "t", "k") for _ in range(50)])
        assert db.get("t", "k").value == 8 * 50
        assert [change.value for change in db.changes(0, limit=1000)] == list(range(8 * 50 + 1))

    def test_a_counter_never_gives_a_number_twice(self, db: DbApi) -> None:
        given = in_threads(8, lambda _: [db.allocate("ports") for _ in range(50)])
        assert all(numbers == sorted(numbers) for numbers in given)
        everything = [number for numbers in given for number in numbers]
        assert len(set(everything)) == len(everything)
        assert db.allocate("ports") > max(everything)

    def test_a_follower_sees_the_same_changes_as_a_later_reader(self, db: DbApi) -> None:
        """Large values make some writers slow.  Their late commits must not appear before what a follower has read."""
        writers, each = 6, 60

        def work(number: int) -> list[int]:
            if number == writers:
                return [change.revision for change in follow(db, lambda seen: len(seen) == writers * each, limit=7)]
            padding = bytes(200_000 if number < 2 else 10)
            return [db.create("t", f"{number}-{i}", padding, topic="t") for i in range(each)]

        *written, seen = in_threads(writers + 1, work)
        assert all(versions == sorted(versions) for versions in written)
        assert seen == sorted(version for versions in written for version in versions)
        assert [change.revision for change in db.changes(0)] == seen

    def test_a_feed_of_random_writers_leads_to_what_is_stored(self, db: DbApi) -> None:
        in_threads(4, lambda seed: write_at_random(db, seed, 100))
        assert apply({}, db.changes(0)) == stored(db)
        assert db.changes(0) == db.unpublished()
