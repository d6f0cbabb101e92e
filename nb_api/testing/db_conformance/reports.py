"""Reports of processes on themselves: kept by name, and not in the feed."""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor

import pytest

from nb_api.core.checks import REPORT_BYTES_MAX
from nb_api.db_api import DbApi
from nb_api.errors import InvalidObject
from nb_api.testing.db_conformance.base import DbConformanceBase
from pubsub_api.errors import HeliographError, LimitReached, UsageError


class ReportConformance(DbConformanceBase):
    def test_without_reports_there_are_none_and_none_can_be_forgotten(self, db: DbApi) -> None:
        assert db.reports() == {}
        db.forget_reports(["nobody"])
        db.forget_reports([])
        assert db.reports() == {}

    def test_a_report_replaces_the_one_before_it(self, db: DbApi, db_url: str) -> None:
        assert db.tell_report("host-1/agent", b"\x00one").before is None
        assert db.tell_report("host-1/agent", b"").before == b"\x00one"
        assert db.tell_report("Gr\u00fc\u00dfe #1", bytes(range(256))).before is None
        expected = {"host-1/agent": b"", "Gr\u00fc\u00dfe #1": bytes(range(256))}
        assert db.reports() == expected
        with contextlib.closing(self.open_db(db_url)) as other:
            assert other.reports() == expected
            other.forget_reports(["host-1/agent", "nobody"])
        assert list(db.reports()) == ["Gr\u00fc\u00dfe #1"]

    def test_reports_are_counted(self, db: DbApi) -> None:
        for number in range(3):
            db.tell_report(f"n{number}", b"1")
        assert db.tell_report("n0", b"2").total == 3

    def test_the_feed_shows_nothing_of_reports(self, db: DbApi) -> None:
        version = db.create("port", "p1", 1, topic="t")
        db.tell_report("n", b"1")
        db.tell_report("n", b"2")
        db.forget_reports(["n"])
        assert db.revision() == version
        assert [change.revision for change in db.changes(0)] == [version]
        assert [change.revision for change in db.unpublished()] == [version]
        assert not db.wait(version, timeout_s=0)
        with db.snapshot() as snapshot:
            assert [one.table for one in snapshot] == ["port"]

    def test_more_reports_than_are_read_at_a_time(self, db: DbApi) -> None:
        names = [f"host-{number:04}/agent" for number in range(1100)]
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(lambda name: db.tell_report(name, name.encode()), names))
        assert db.reports() == {name: name.encode() for name in names}
        db.forget_reports(names[1:])
        assert list(db.reports()) == names[:1]

    @pytest.mark.parametrize(
        ("name", "data", "error"),
        [
            ("", b"", InvalidObject),
            ("a\nb", b"", InvalidObject),
            ("n", "text", UsageError),
            ("n", b"x" * (REPORT_BYTES_MAX + 1), LimitReached),
        ],
        ids=["no-name", "control-character", "text", "too-large"],
    )
    def test_what_can_be_no_report_is_refused(
        self, db: DbApi, name: str, data: bytes, error: type[HeliographError]
    ) -> None:
        with pytest.raises(error):
            db.tell_report(name, data)
        assert db.reports() == {}

    def test_the_largest_report(self, db: DbApi) -> None:
        db.tell_report("n", b"x" * REPORT_BYTES_MAX)
        assert len(db.reports()["n"]) == REPORT_BYTES_MAX
