"""Leases: what a process knows of its own writes when some are not answered, and how long a version has not changed."""

from __future__ import annotations

import math

from pubsub_api.core.leases import LeaseProgress, LeaseWrites


class TestWrites:
    def test_a_lease_counts_from_before_the_write_that_was_carried_out(self) -> None:
        writes = LeaseWrites()
        assert (writes.version, writes.renewed_at) == (0, -math.inf)
        writes.begin("first", 1.0)
        writes.done(7)
        assert (writes.version, writes.renewed_at) == (7, 1.0)

    def test_a_write_that_was_not_answered_is_known_by_its_mark(self) -> None:
        writes = LeaseWrites()
        writes.begin("first", 1.0)
        writes.unknown()
        assert writes.is_uncertain
        assert writes.settle("first", 7) == "done"
        assert not writes.is_uncertain
        assert (writes.version, writes.renewed_at) == (7, 1.0)

    def test_a_record_that_did_not_change_was_not_written(self) -> None:
        writes = LeaseWrites()
        writes.begin("first", 1.0)
        writes.done(7)
        writes.begin("second", 2.0)
        writes.unknown()
        assert writes.settle("not ours to know", 7) == "not done"
        assert (writes.version, writes.renewed_at) == (7, 1.0)

    def test_a_record_with_another_version_and_mark_was_overtaken(self) -> None:
        writes = LeaseWrites()
        writes.begin("first", 1.0)
        writes.done(7)
        writes.begin("second", 2.0)
        writes.unknown()
        assert writes.settle("of another", 8) == "overtaken"
        assert writes.settle(None, 0) == "overtaken"
        assert writes.renewed_at == 1.0

    def test_a_late_write_is_recognised_as_long_as_it_is_remembered(self) -> None:
        writes = LeaseWrites(remembered_max=2)
        for number in range(3):
            writes.begin(number, float(number))
            writes.unknown()
        assert writes.settle(1, 7) == "done"
        assert writes.renewed_at == 1.0
        assert writes.settle(0, 8) == "overtaken"

    def test_a_write_that_is_done_leaves_no_doubt_about_those_before(self) -> None:
        writes = LeaseWrites()
        writes.begin("first", 1.0)
        writes.unknown()
        writes.begin("second", 2.0)
        writes.done(8)
        assert not writes.is_uncertain

    def test_a_record_that_is_gone_was_written_by_nobody(self) -> None:
        writes = LeaseWrites()
        writes.begin("first", 1.0)
        writes.unknown()
        assert writes.settle("first", 0) == "not done"
        assert writes.renewed_at == -math.inf

    def test_writes_that_look_the_same_count_from_the_last_of_them(self) -> None:
        writes = LeaseWrites()
        for now in (1.0, 2.0):
            writes.begin("again", now)
        writes.done(7)
        assert writes.renewed_at == 2.0

    def test_a_lease_is_not_renewed_by_what_is_only_begun(self) -> None:
        writes = LeaseWrites()
        writes.begin("first", 1.0)
        writes.done(7)
        writes.begin("second", 2.0)
        assert (writes.version, writes.renewed_at) == (7, 1.0)
        writes.unknown()
        assert (writes.version, writes.renewed_at) == (7, 1.0)


class TestProgress:
    def test_it_counts_while_the_version_is_the_same(self) -> None:
        progress = LeaseProgress()
        for now, version, idle_s in ((0, 1, 0), (3, 1, 3), (5, 1, 5), (6, 2, 0), (9, 2, 3)):
            progress.observe({"k": version}, now)
            assert progress.idle_s("k") == idle_s

    def test_a_version_that_goes_back_is_a_sign_of_life_too(self) -> None:
        """The database was restored from a copy, and the holder goes on from there."""
        progress = LeaseProgress()
        for now, version, idle_s in ((0, 7, 0), (3, 7, 3), (5, 2, 0), (6, 2, 1)):
            progress.observe({"k": version}, now)
            assert progress.idle_s("k") == idle_s

    def test_what_was_gone_begins_again(self) -> None:
        progress = LeaseProgress()
        progress.observe({"k": 1}, 0)
        progress.observe({}, 5)
        assert progress.idle_s("k") == 0
        progress.observe({"k": 1}, 6)
        assert progress.idle_s("k") == 0

    def test_an_outage_counts_little_and_a_clock_that_goes_back_nothing(self) -> None:
        progress = LeaseProgress(gap_max_s=2)
        progress.observe({"k": 1}, 0)
        progress.observe({"k": 1}, 1000)
        assert progress.idle_s("k") == 2
        progress.observe({"k": 1}, 900)
        assert progress.idle_s("k") == 2
