"""``heliograph group``: what operators type, and what scripts get."""

from __future__ import annotations

import contextlib
import json
import pathlib
from typing import Any

import pytest

import durable_log
from heliograph import exits, main
from shared_subscriptions.names import CHANGES
from spark_pipeline.core import job_ranges
from spark_pipeline.reading import group_jobs
from tests.helpers.group_nodes import Member, Source
from tests.helpers.waiting import wait_until


@pytest.fixture
def url(tmp_path: pathlib.Path) -> str:
    with contextlib.closing(durable_log.open(f"sqlite://{tmp_path}/log.db?shards=2")):
        return f"sqlite://{tmp_path}/log.db"


def run(capsys: pytest.CaptureFixture[str], url: str, *words: str) -> Any:
    """The JSON that a verb prints."""
    capsys.readouterr()
    assert main.main(["group", *words, "--log", url, "--json"]) == exits.OK
    return json.loads(capsys.readouterr().out)


def test_the_life_of_a_group(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    declared = run(capsys, url, "declare", "billing", "tenant-7/#", "--lanes", "2")
    assert (declared["mode"], declared["lanes"], declared["wish"]) == ("shared", 2, "active")
    assert run(capsys, url, "pause", "billing")["wish"] == "paused"
    assert run(capsys, url, "drain", "billing")["until"] == [0, 0]
    assert run(capsys, url, "resume", "billing")["wish"] == "active"
    assert run(capsys, url, "seek", "billing", "--start", "0=0")["generation"] == 2
    assert [group["name"] for group in run(capsys, url, "list")] == ["billing"]
    assert run(capsys, url, "destroy", "billing", "--yes")["destroyed"]
    assert run(capsys, url, "list") == []


def test_show_says_who_has_what_and_why(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, url, "declare", "work", "jobs/#", "--lanes", "4", "--start", "earliest")
    with contextlib.closing(durable_log.open(url)) as log:
        Source(log).publish("jobs/a", 100)
    shown = run(capsys, url, "show", "work")
    assert (shown["lag"], shown["is_lag_exact"]) == (100, True), "of all four lanes together"
    assert any(stream["oldest_s"] is not None for stream in shown["streams"])
    assert shown["status"] is None
    with Member(url, ["$shared/work/jobs/#"], name="worker-1"):

        def is_done(found: Any) -> bool:
            """What the leader says of owners may be older than how far they are."""
            return found["lag"] == 0 and {stream["owner"] for stream in found["streams"]} == {"worker-1"}

        shown = wait_until(
            lambda: found if is_done(found := run(capsys, url, "show", "work")) else None, 60, "all of it done"
        )
    assert shown["status"]["members"][0]["name"] == "worker-1"
    assert shown["status"]["counters"]["terms"] >= 1
    assert "joined" in shown["status"]["moves"][0]["reason"] or "appeared" in shown["status"]["moves"][0]["reason"]
    capsys.readouterr()
    assert main.main(["group", "show", "work", "--log", url]) == exits.OK
    printed = capsys.readouterr().out
    assert "$shared/work/jobs/#: active, 4 lanes per shard, lag 0" in printed
    assert "worker-1" in printed
    assert main.main(["group", "list", "--log", url]) == exits.OK
    assert "$shared/work/jobs/#" in capsys.readouterr().out


def test_show_tells_of_a_queue_who_has_something_of_it(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, url, "declare", "work", "jobs/#", "--queue", "--start", "earliest")
    with contextlib.closing(durable_log.open(url)) as log:
        Source(log).publish("jobs/a", 2)
    with Member(url, ["$queue/work/jobs/#"], name="worker-1", hangs_at=1):
        wait_until(
            lambda: [one["owner"] for one in run(capsys, url, "show", "work")["streams"]] == ["worker-1"],
            60, "the owner to be shown",
        )  # fmt: skip


def test_show_lists_spark_jobs_release_frees_a_name_and_destroy_forgets_them(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run(capsys, url, "declare", "work", "jobs/#", "--start", "earliest")
    assert run(capsys, url, "show", "work")["jobs"] is None
    with contextlib.closing(durable_log.open(url)) as log:
        Source(log).publish("jobs/a", 100)
        waiting = job_ranges.AvailableRanges({0: 0, 1: 0}, {0: 100, 1: 100}, is_ordered=True, events_max=30)
        place = job_ranges.QueryPlace(job_ranges.JobTurn(0), "checkpoint")
        begun = job_ranges.Run("a run", has_begun=False)
        turn = group_jobs.change(log, "work", lambda found: job_ranges.take(found, "job-1", place, waiting, begun))
        assert turn is not None
        shown = run(capsys, url, "show", "work")["jobs"]
        assert shown["jobs"] == [{"name": "job-1", "turns": 1, "in_work": turn.events, "is_claimed": True}]
        assert run(capsys, url, "release", "work", "job-1")["in_work"] == turn.events
        capsys.readouterr()
        assert main.main(["group", "show", "work", "--log", url]) == exits.OK
        printed = capsys.readouterr().out
        assert "Spark jobs" in printed
        assert "released" in printed
        assert main.main(["group", "release", "work", "job-2", "--log", url]) == exits.USAGE
        assert "no job 'job-2'; there are: job-1" in capsys.readouterr().err
        run(capsys, url, "destroy", "work", "--yes")
        left = [record.name for record in log.list_records("")]
        assert left == [CHANGES], "nothing but the sign that some group was changed"


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["show", "nobody"], "no group 'nobody' is declared"),
        (["declare", "a/b", "#"], "must not contain"),
        (["declare", "a", "#x"], "must stand alone"),
        (["seek", "a", "--start", "2026-13-01T00:00"], "neither now, earliest, a time"),
        (["destroy", "a"], "no group 'a' is declared"),
        (["serve", "a"], "name the bus"),
    ],
)
def test_mistakes_are_explained(url: str, words: list[str], reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["group", *words, "--log", url]) != exits.OK
    assert reason in capsys.readouterr().err


def test_a_start_that_makes_no_sense(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["group", "declare", "a", "#", "--start", "whenever", "--log", url]) == exits.USAGE
    assert "neither now, earliest, a time such as" in capsys.readouterr().err


def test_serve_leads_and_records(url: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, url, "declare", "billing", "tenant-7/#")
    bus = f"memory://{tmp_path.name}"
    assert (
        main.main(["group", "serve", "billing", "--log", url, "--bus", bus, "--timeout", "0.5", "--json"]) == exits.OK
    )
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert lines[0]["name"] == "billing"
    assert "is_leading" in lines[-1]


def test_simulate_says_how_many_seeds_held(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["group", "simulate", "--seeds", "3", "--json"]) == exits.OK
    assert json.loads(capsys.readouterr().out) == {"seeds": 3, "first": 0, "failures": []}
    assert main.main(["group", "simulate", "--seed", "5", "--profile", "calm"]) == exits.OK
    assert "1 seed from 5, 0 failed" in capsys.readouterr().out
    assert main.main(["group", "simulate", "--profile", "unheard-of"]) == exits.USAGE
