"""The fleet without I/O: what a report holds, and who is taken for silent, deaf, behind, old or double."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from nb_api.core.changes import Change
from nb_api.core.checks import REPORT_BYTES_MAX
from nb_api.fleet.judging import FleetJudge, FleetMember
from nb_api.fleet.report import FORMAT, CopyReport, FleetReport, read, write

INTERVAL_S = 1.0
WALL = 1_800_000_000.0


def report(name: str = "m", count: int = 1, **fields: Any) -> FleetReport:
    given = {"incarnation": "a", "interval_s": INTERVAL_S, "release": "1.0", "told_at": WALL, **fields}
    return FleetReport(format=FORMAT, name=name, count=count, **given)


def change(revision: int, topic: str = "t", table: str = "port", left_topic: str | None = None) -> Change:
    return Change(revision, "set", table, "k", topic, 1, left_topic)


class Watch:
    """A judge with a clock of its own; every member is told of under its name."""

    def __init__(self, **settings: Any) -> None:
        self.judge = FleetJudge(**settings)
        self.now = 100.0

    def see(self, *found: FleetReport, changes: tuple[Change, ...] = (), after_s: float = 0.5) -> list[FleetMember]:
        self.now += after_s
        data = {f"{one.name} {one.incarnation}": write(one) for one in found}
        return self.judge.observe(data, changes, self.now, WALL)

    def states(self, *found: FleetReport, **see: Any) -> list[tuple[str, ...]]:
        return [one.states for one in self.see(*found, **see)]


def copy(newest: int, **fields: Any) -> CopyReport:
    return CopyReport(position=1, newest=newest, is_complete=True, **{"topics": ["#"], **fields})


class TestReports:
    def test_a_report_of_a_later_release_is_read_without_what_is_unknown(self) -> None:
        told = msgspec.to_builtins(report(host="h")) | {"moon_phase": "full"}
        found = read(msgspec.msgpack.encode(told))
        assert found is not None
        assert (found.name, found.host) == ("m", "h")

    @pytest.mark.parametrize("data", [b"", b"\xff", msgspec.msgpack.encode({"format": FORMAT}), write(report())[:-3]])
    def test_what_is_no_report_is_none(self, data: bytes) -> None:
        assert read(data) is None

    def test_a_report_of_another_format_is_none(self) -> None:
        assert read(write(msgspec.structs.replace(report(), format=FORMAT + 1))) is None

    @pytest.mark.parametrize(
        "forged",
        [
            {"interval_s": float("nan")}, {"interval_s": float("inf")}, {"interval_s": 1e300}, {"interval_s": -1.0},
            {"told_at": float("nan")}, {"up_s": float("inf")}, {"name": "n" * 10_000},
            {"copies": [{"newest": -5}]}, {"copies": [{"newest": 2**63}]}, {"copies": [{"position": 2**64 - 1}]},
        ],
        ids=str,
    )  # fmt: skip
    def test_a_forged_report_is_none(self, forged: dict[str, Any]) -> None:
        assert read(msgspec.msgpack.encode(msgspec.to_builtins(report()) | forged)) is None

    @pytest.mark.parametrize("release", ["9" * 5000, "0." * 3000, "\N{SUPERSCRIPT TWO}", "...", "1..2"])
    def test_a_forged_release_stops_nobody(self, release: str) -> None:
        found = {
            one.name: one.states for one in Watch(own_release="1.0").see(report("forged", release=release), report())
        }
        assert found["m"] == ("ok",)

    def test_a_report_is_bounded_and_says_that_it_was_cut(self) -> None:
        filters = [f"{number:04}" + "t" * 250 for number in range(32)]
        large = report(copies=[copy(1, topics=filters) for _ in range(8)])
        data = write(large)
        assert len(data) <= REPORT_BYTES_MAX
        found = read(data)
        assert found is not None
        assert all(one.is_cut and not one.topics for one in found.copies)


class TestSilence:
    def test_a_report_that_does_not_change_is_silence_whatever_its_clock_says(self) -> None:
        watch = Watch()
        for number in range(10):
            found = watch.see(report("still", told_at=WALL + 3600.0), report("well", number, told_at=WALL - 3600.0))
        assert [(one.states, one.clock_offset_s) for one in found] == [(("silent",), 3600.0), (("ok",), -3600.0)]

    def test_one_with_a_long_interval_is_given_the_time(self) -> None:
        watch = Watch()
        for _ in range(10):
            states = watch.states(report(interval_s=10.0))
        assert states == [("ok",)]

    def test_an_observer_that_stood_still_accuses_nobody(self) -> None:
        watch = Watch()
        watch.see(report())
        assert watch.states(report(), after_s=3600.0) == [("ok",)]

    def test_a_new_process_of_the_name_is_not_silent(self) -> None:
        watch = Watch()
        for _ in range(10):
            watch.see(report(incarnation="a"))
        assert watch.states(report(incarnation="b")) == [("ok",)]


class TestClashes:
    def test_two_that_live_under_one_name_clash(self) -> None:
        watch = Watch()
        for count in range(10):
            found = watch.see(
                report(incarnation="a", count=count, host="h1", pid=1),
                report(incarnation="b", count=count, host="h2", pid=2),
            )
        assert [one.states for one in found] == [("clash",), ("clash",)]
        assert ["h2 (2)" in found[0].why[0], "h1 (1)" in found[1].why[0]] == [True, True]

    def test_a_former_life_is_silent_and_no_clash(self) -> None:
        watch = Watch()
        for count in range(10):
            states = watch.states(report(incarnation="a"), report(incarnation="b", count=count))
        assert states == [("silent",), ("ok",)]


class TestBehind:
    def behind(self, newest: int, *changes: Change, **fields: Any) -> FleetMember:
        """A copy whose reports come while the changes have been in the database for a while."""
        watch = Watch()
        [found] = watch.see(report(count=1, copies=[copy(1, **fields)]), changes=changes)
        for count in range(2, 10):
            [found] = watch.see(report(count=count, copies=[copy(newest, **fields)]))
        return found

    def test_a_copy_that_has_everything_is_well(self) -> None:
        assert self.behind(7, change(5), change(7)).states == ("ok",)

    def test_a_copy_that_lacks_a_change_is_behind(self) -> None:
        found = self.behind(5, change(5), change(7), change(9))
        assert (found.states, found.behind) == (("behind",), 2)
        assert found.behind_s >= 2.0

    @pytest.mark.parametrize(
        ("fields", "missed", "is_behind"),
        [
            ({"tables": ["net"]}, change(7), False),
            ({"tables": ["port"]}, change(7), True),
            ({"topics": ["tenant-1/#"]}, change(7, "tenant-2/a"), False),
            ({"topics": ["tenant-1/#"]}, change(7, "tenant-1/a"), True),
            ({"topics": ["tenant-1/#"]}, change(7, "tenant-2/a", left_topic="tenant-1/a"), True),
            ({}, change(7, table="heliograph.elections"), False),
            ({"is_cut": True}, change(7), False),
        ],
        ids=["other-table", "table", "other-topic", "topic", "left", "own-table", "unknown-selection"],
    )
    def test_only_changes_that_concern_the_copy_count(
        self, fields: dict[str, Any], missed: Change, is_behind: bool
    ) -> None:
        assert ("behind" in self.behind(5, missed, **fields).states) is is_behind

    def test_a_report_from_before_the_change_proves_nothing(self) -> None:
        watch = Watch()
        watch.see(report(count=1, interval_s=60.0, copies=[copy(1)]))
        for _ in range(10):
            states = watch.states(report(count=1, interval_s=60.0, copies=[copy(1)]), changes=(change(7),))
        assert states == [("ok",)]

    def test_a_topic_that_makes_no_sense_hurts_nobody(self) -> None:
        watch = Watch()
        watch.see(report(copies=[copy(1, topics=["a//#/b"])]), changes=(change(7),))
        assert watch.states(report(count=2, copies=[copy(1, topics=["a//#/b"])])) == [("ok",)]


class TestOwnWords:
    @pytest.mark.parametrize(
        ("fields", "state"),
        [
            ({"has_bus": True, "links_up": 1, "refused": 5, "publishers": 0}, "deaf"),
            ({"has_bus": True, "links_up": 1, "links_down": 1, "publishers": 1}, "unlinked"),
            ({"has_bus": True, "links_up": 0, "publishers": 1}, "unlinked"),
            ({"copies": [CopyReport(is_complete=False)]}, "incomplete"),
            ({"problems": ["service: a part of it has stopped"]}, "trouble"),
            ({"release": "0.9.12"}, "old"),
        ],
    )
    def test_what_a_member_says_of_itself(self, fields: dict[str, Any], state: str) -> None:
        watch = Watch()
        watch.see(report("other"), report(**fields))
        found = {one.name: one.states for one in watch.see(report("other", 2), report(count=2, **fields))}
        assert found == {"other": ("ok",), "m": (state,)}

    def test_words_of_any_length_are_cut(self) -> None:
        problems = [f"{number}: {'x' * 900}" for number in range(15)]
        forged = report(problems=problems, release="1" * 4000)
        clashing = report(incarnation="b", host="h" * 9000)
        watch = Watch(own_release="2.0")
        for one in watch.see(forged, clashing):
            assert set(one.states) & {"trouble", "clash", "old"}
            assert all(len(why) < 1100 for why in one.why)

    def test_frames_that_are_refused_now_are_told(self) -> None:
        watch = Watch()
        heard = {"has_bus": True, "links_up": 1, "publishers": 1}
        assert watch.states(report(refused=3, **heard)) == [("ok",)], "that may be long ago"
        assert watch.states(report(count=2, refused=4, **heard)) == [("refusing",)]
        assert watch.states(report(count=3, refused=4, **heard), after_s=60.0) == [("ok",)]

    def test_one_that_heard_publishers_which_are_gone_is_not_deaf(self) -> None:
        watch = Watch()
        gone = {"has_bus": True, "links_up": 1, "publishers": 0, "received": 9}
        assert watch.states(report(refused=3, **gone)) == [("ok",)]
        assert watch.states(report(count=2, refused=4, **gone)) == [("deaf",)]

    def test_callbacks_that_do_not_keep_up_are_slow(self) -> None:
        watch = Watch()
        heard = {"has_bus": True, "links_up": 1, "publishers": 1}
        assert watch.states(report(up_s=1.0, waiting=500, handled=0, **heard)) == [("ok",)], "one report says little"
        assert watch.states(report(count=2, up_s=2.0, waiting=500, handled=400, **heard)) == [("ok",)], "a short while"
        [found] = watch.see(report(count=3, up_s=3.0, waiting=900, handled=800, **heard))
        assert (found.states, found.why) == (
            ("slow",),
            ("900 events wait for its callbacks, which handle 400 a second",),
        )
        [found] = watch.see(report(count=4, up_s=4.0, waiting=1, handled=800, **heard))
        assert found.states == ("slow",), "a callback that hangs"
        assert watch.states(report(count=5, up_s=5.0, waiting=0, handled=801, **heard)) == [("ok",)]

    def test_releases_are_numbers(self) -> None:
        found = Watch().see(report("a", release="0.9"), report("b", release="0.10.1"), report("c", release=""))
        assert {one.name: one.state for one in found} == {"a": "old", "b": "ok", "c": "old"}

    def test_the_observer_is_a_reference_too(self) -> None:
        assert Watch(own_release="2.0").states(report(release="1.0")) == [("old",)]

    def test_a_report_that_cannot_be_read_is_unknown(self) -> None:
        [found] = FleetJudge().observe({"m": b"\xff"}, (), 1.0, WALL)
        assert (found.name, found.states, found.report) == ("m", ("unknown",), None)


def test_rates_are_of_the_members_own_clock() -> None:
    watch = Watch()
    [first] = watch.see(report(received=100, published=10, up_s=10.0))
    assert (first.received_per_s, first.published_per_s) == (None, None)
    [second] = watch.see(report(count=2, received=300, published=10, up_s=12.0))
    assert (second.received_per_s, second.published_per_s) == (100.0, 0.0)


@pytest.mark.parametrize("passed_s", [5e-324, 1e-9])
def test_a_forged_time_makes_no_rate_that_spoils_the_sum(passed_s: float) -> None:
    watch = Watch()
    watch.see(report())
    [found] = watch.see(report(count=2, received=2**63, published=2**64 - 1, up_s=passed_s))
    assert (found.received_per_s, found.published_per_s) == (None, None)


def test_the_worst_come_first() -> None:
    watch = Watch()
    for count in range(10):
        found = watch.see(report("z"), report("y", count, release="0.1"), report("x", count))
    assert [(one.name, one.state) for one in found] == [("z", "silent"), ("y", "old"), ("x", "ok")]


def test_thousands_of_members_with_selections_of_their_own_are_judged_in_bounded_work() -> None:
    watch = Watch()
    members = [report(f"m{number}", copies=[copy(1, topics=[f"tenant-{number}/#"])]) for number in range(2000)]
    changes = tuple(change(revision, f"tenant-{revision}/a") for revision in range(2, 5002))
    assert len(watch.see(*members, changes=changes)) == 2000
