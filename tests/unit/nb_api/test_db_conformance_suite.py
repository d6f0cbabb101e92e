"""The conformance suite of databases finds drivers that are wrong.  Each of these is right but for one thing."""

from __future__ import annotations

import contextlib
import pathlib
import threading
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import urlsplit

import pytest

from nb_api import loading
from nb_api.db_api import Change, Snapshot, Write
from nb_api.errors import ObjectExists, RevisionUnknown, VersionConflict
from nb_api.testing.db_conformance import DbConformance
from pubsub_api.errors import WaitTimeout

_Sqlite: Any = loading.load_db_driver("sqlite")


class RightDb(_Sqlite):  # type: ignore[misc]
    """Nothing is wrong with it."""


class OverwritingDb(RightDb):
    def create(self, table: str, key: str, value: Any, *, topic: str) -> int:
        try:
            return int(super().create(table, key, value, topic=topic))
        except ObjectExists:
            return int(super().set(table, key, value, topic=topic))


class CarelessDb(RightDb):
    """Looks at the version, and then writes whatever happened meanwhile."""

    def set(self, table: str, key: str, value: Any, **options: Any) -> int:
        expected = options.pop("expected_version", None)
        if expected not in (None, self.get(table, key).version):
            raise VersionConflict(key)
        threading.Event().wait(0.02)  # long enough for the others to look as well
        return int(super().set(table, key, value, **options))


class ForgetfulDb(RightDb):
    """A change is in the outbox only when its writer lives long enough."""

    def create(self, table: str, key: str, value: Any, *, topic: str) -> int:
        version = int(super().create(table, key, value, topic=topic))
        self.mark_published([version])
        return version


class SkippingDb(RightDb):
    def changes(self, after_revision: int, *, limit: int = 1000) -> list[Change]:
        return [change for change in super().changes(after_revision, limit=limit) if change.revision % 50]


class UnboundedDb(RightDb):
    def changes(self, after_revision: int, *, limit: int = 1000) -> list[Change]:
        return list(super().changes(after_revision, limit=1000))


class SleepyDb(RightDb):
    def wait(self, after_revision: int, *, timeout_s: float) -> bool:
        threading.Event().wait(min(timeout_s, 0.1))
        return False


class UnselectiveDb(RightDb):
    def snapshot(self, tables: Sequence[str] | None = None, topics: Sequence[str] | None = None, **_: Any) -> Snapshot:
        found: Snapshot = super().snapshot(tables, None if topics is None else ["#"])
        return found


class FuzzySnapshotDb(RightDb):
    """A snapshot whose revision is read before its transaction begins."""

    def snapshot(self, tables: Sequence[str] | None = None, topics: Sequence[str] | None = None, **_: Any) -> Snapshot:
        revision = self.revision()
        found: Any = super().snapshot(tables, topics)
        found._revision = max(0, revision - 1)
        return found  # type: ignore[no-any-return]


class LyingDb(RightDb):
    def compact(self, *, keep_changes: int, keep_tombstones_s: float) -> int:
        return int(super().compact(keep_changes=keep_changes, keep_tombstones_s=3600)) + 1


class HalfDb(RightDb):
    """Every write is a transaction of its own."""

    def apply(self, writes: Sequence[Write]) -> list[int]:
        return [version for write in writes for version in super(HalfDb, self).apply([write])]


class OptimisticDb(RightDb):
    """Waits for the future, also for one that has been there before."""

    def changes(self, after_revision: int, *, limit: int = 1000) -> list[Change]:
        try:
            return list(super().changes(after_revision, limit=limit))
        except RevisionUnknown:
            return []


CASES: dict[Callable[..., None], type[RightDb]] = {
    DbConformance.test_create_refuses_what_exists: OverwritingDb,
    DbConformance.test_of_creators_of_the_same_key_one_wins: OverwritingDb,
    DbConformance.test_of_writers_that_expect_the_same_version_one_wins: CarelessDb,
    DbConformance.test_changes_wait_in_order_until_they_are_published: ForgetfulDb,
    DbConformance.test_a_feed_of_random_writers_leads_to_what_is_stored: SkippingDb,
    DbConformance.test_the_limit_is_kept: UnboundedDb,
    DbConformance.test_wait_is_woken_by_a_change: SleepyDb,
    DbConformance.test_a_snapshot_has_every_object_once: FuzzySnapshotDb,
    DbConformance.test_what_is_written_while_it_is_read_is_not_in_it: FuzzySnapshotDb,
    DbConformance.test_compaction_forgets_the_oldest_changes: LyingDb,
    DbConformance.test_tombstones_expire: LyingDb,
    DbConformance.test_an_object_that_changed_its_topic_is_selected_by_the_new_one: UnselectiveDb,
    DbConformance.test_the_largest_transaction: HalfDb,
    DbConformance.test_a_revision_that_was_never_reached_is_unknown: OptimisticDb,
}


def run(test: Callable[..., None], driver_class: type[RightDb], path: pathlib.Path) -> None:
    options = loading.build_db(f"sqlite://{path}").conf
    options.set_override("synchronous", "normal", group="db_sqlite")
    with contextlib.closing(driver_class(options, urlsplit(f"sqlite://{path}"))) as db:
        db.initialize()
        test(DbConformance(), db)


@pytest.mark.parametrize("test", CASES, ids=lambda test: test.__name__)
def test_a_wrong_driver_fails(test: Callable[..., None], tmp_path: pathlib.Path) -> None:
    with pytest.raises((AssertionError, pytest.fail.Exception, WaitTimeout)):
        run(test, CASES[test], tmp_path / "wrong.db")


@pytest.mark.parametrize("test", CASES, ids=lambda test: test.__name__)
def test_a_right_driver_passes(test: Callable[..., None], tmp_path: pathlib.Path) -> None:
    run(test, RightDb, tmp_path / "right.db")


def test_no_test_of_the_suite_hides_another() -> None:
    names = [name for part in DbConformance.__mro__ for name in vars(part) if name.startswith("test_")]
    assert len(names) == len(set(names))
