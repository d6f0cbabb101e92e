"""What of the fleet fits a terminal."""

from __future__ import annotations

import pytest

from heliograph.terminal.fleet_view import COLUMNS, cells, fit_columns
from nb_api.fleet.judging import FleetJudge, FleetMember
from nb_api.fleet.report import CopyReport, FleetReport, write


def members(*now: float) -> list[FleetMember]:
    """A process on a host, as it is seen at these moments."""
    copy = CopyReport(position=5, newest=5, is_complete=True, topics=["#"], digest="0123456789")
    report = FleetReport(1, "host-7/agent", "a", 1, 1.0, host="host-7", role="controller", release="1.0", copies=[copy])
    judge = FleetJudge()
    for moment in now:
        found = judge.observe({"host-7/agent": write(report)}, (), moment, 1_800_000_000.0 + moment)
    return found


def test_where_there_is_room_everything_is_shown() -> None:
    columns, [row], left_out = fit_columns(members(1.0), 200)
    assert (tuple(columns), row, left_out) == (COLUMNS, cells(members(1.0)[0]), "")


@pytest.mark.parametrize("width", [80, 100, 120])
def test_what_is_of_least_use_is_left_out_and_named(width: int) -> None:
    columns, [row], left_out = fit_columns(members(1.0), width)
    assert sum(3 + max(len(name), len(str(value))) for name, value in zip(columns, row, strict=True)) < width
    assert {"member", "state", "behind", "queue", "events/s", "seen"} <= set(columns)
    gone = [name for name in COLUMNS if name not in columns]
    assert gone
    assert all(name in left_out for name in gone)


def test_of_a_silent_member_nothing_is_told_that_is_not_known() -> None:
    found = dict(zip(COLUMNS, cells(members(1.0, 3.0, 5.0, 7.0)[0]), strict=True))
    assert found["state"] == "silent"
    assert (found["behind"], found["clock"]) == ("", "")
