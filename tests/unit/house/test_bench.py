"""The benchmark works at tiny sizes.  Nothing here says anything about speed.

Every run takes a process for each end, so one transport is a sample for all; `./run chaos` runs them all.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import pathlib
from array import array
from multiprocessing.connection import Connection

import pytest

from bench import catalog, chart, cli, events, report, results
from bench.ends import Case
from bench.plan import Outcome, Plan, in_turns, median, percentile_us, ratio
from bench.runs import Load, Run, run
from bench.scenarios import SCENARIOS
from bench.scenarios.repair import repair_times_ns
from bench.sinks import AuditSink, LatencySink, RepairSink, Sink
from bench.targets import TARGETS, Check, check
from bench.workers import Worker, WorkerFailed, usage_now

pytestmark = pytest.mark.usefixtures("warm_workers")

EVENTS = 200


def measurable(driver: str) -> pytest.MarkDecorator:
    problem = catalog.problem(driver)
    return pytest.mark.skipif(problem is not None, reason=str(problem))


SAMPLE = "zmq"
DRIVERS = [
    pytest.param(driver, marks=[measurable(driver), *([] if driver == SAMPLE else [pytest.mark.chaos])])
    for driver in catalog.DRIVERS
]


def a_run(**changes: object) -> Run:
    blank = Run("case", 100, 100, 1.0, 1.0, 1.0, 0, 0, [], array("q"), 1, {}, {})
    return dataclasses.replace(blank, **changes)  # type: ignore[arg-type]


# -- what is published


def test_the_event_has_the_size_it_claims() -> None:
    import msgpack

    assert 165 <= len(msgpack.packb(events.mapping(123_456))) <= 195
    assert len(events.topic(7)) == events.TOPIC_BYTES


# -- processes


def answer(pipe: Connection, value: int) -> None:
    pipe.send(pipe.recv() + value)


def fail(pipe: Connection) -> None:
    raise ValueError(f"nothing to say to {pipe}")


def die(pipe: Connection) -> None:
    pipe.close()
    os._exit(1)


def listen(pipe: Connection) -> None:
    pipe.recv()


def test_a_worker_answers_in_a_process_of_its_own() -> None:
    with Worker(answer, 1) as worker:
        worker.tell(41)
        assert worker.hear() == 42


def test_what_a_worker_raises_is_raised_here() -> None:
    with Worker(fail) as worker, pytest.raises(WorkerFailed, match="ValueError: nothing to say"):
        worker.hear()


def test_a_worker_that_dies_is_noticed() -> None:
    with Worker(die) as worker, pytest.raises(WorkerFailed, match="without an answer"):
        worker.hear()


def test_a_worker_that_says_nothing_is_given_up_and_killed() -> None:
    with Worker(listen) as worker, pytest.raises(WorkerFailed, match="said nothing"):
        worker.hear(timeout_s=0.01)


def test_usage_is_a_difference() -> None:
    before = usage_now()
    assert (usage_now() - before).cpu_s >= 0


# -- sinks


@dataclasses.dataclass
class Numbered:
    version: int


def version_of(event: Numbered) -> int:
    return event.version


def test_a_sink_knows_when_everything_came() -> None:
    sink = Sink(2, version_of)
    sink.on_event(None)
    assert not sink.wait(0)
    sink.on_event(None)
    assert sink.wait(0)
    assert sink.findings()["received"] == 2


def test_an_audit_finds_what_is_missing_and_misplaced() -> None:
    sink = AuditSink(10, version_of)
    for number in (1, 2, 5, 4, 8):
        sink.on_event(Numbered(number))
    findings = sink.findings()
    assert findings["holes"] == [(3, 4), (6, 7), (9, 10)]
    assert findings["misplaced"] == 1


@pytest.mark.parametrize(("resync_ns", "undetected"), [(0, 3), (250, 1), (999, 0)])
def test_a_resync_covers_what_was_published_before_it(resync_ns: int, undetected: int) -> None:
    finding = {"holes": [(1, 2), (5, 5)], "resync_ns": resync_ns}
    assert a_run(findings=[finding], sent_ns=array("q", [100, 200, 300, 400, 500])).undetected() == undetected


def test_percentiles() -> None:
    assert percentile_us([1000 * number for number in range(1, 101)], 0.99) == 99
    assert percentile_us([5000], 0.5) == 5
    assert math.isnan(percentile_us([], 0.5))


# -- cases


@pytest.mark.parametrize("driver", DRIVERS)
def test_every_case_delivers_everything(driver: str) -> None:
    with catalog.transport(driver) as transport:
        for case in transport.cases:
            done = run(case, Load(EVENTS), AuditSink)
            assert (done.received, done.undetected(), done.findings[0]["misplaced"]) == (EVENTS, 0, 0), case.name
            assert done.events_per_s > 0
            assert done.publisher_cpu_us > 0


def test_loads_can_be_paced_and_spread() -> None:
    with catalog.transport("zmq") as transport:
        load = Load(EVENTS, topics=10, rate=5000, stamped=True, subscribers=3, processes=2)
        done = run(transport.ours, load, LatencySink)
        assert [len(finding["latencies_ns"]) for finding in done.findings] == [EVENTS] * 3
        assert list(done.sent_ns) == sorted(done.sent_ns)


@pytest.mark.chaos
@measurable("zenoh")
def test_the_time_to_repair_is_that_of_the_events_that_were_dropped() -> None:
    """Of ours, where the receiver drops frames, and of zenoh.ext, where the sender has samples filtered out."""
    from bench import raw_zenoh as raw

    advanced = Case("a", "zenoh", raw.AdvancedSender, raw.AdvancedReceiver, sender_options={"drop": 0.1})
    with catalog.transport("zenoh") as transport:
        alone = {"settings": {"pubsub": {"batch_events_max": 1}}}  # many frames, of which some are lost
        ours = transport.ours_with("o", sender=alone, receiver={"drop": 0.1, "data_only": True})
        for case in (ours, advanced):
            done = run(case, Load(EVENTS, rate=2000, stamped=True), RepairSink)
            dropped = done.publisher.get("dropped", 0) + done.subscriber.get("dropped", 0)
            times_ns = repair_times_ns(done)
            assert done.received + done.subscriber["lost"] == EVENTS
            assert 0 < dropped <= len(times_ns) + done.subscriber["lost"]


def test_events_that_were_not_dropped_have_no_time_to_repair() -> None:
    seen = {"versions": array("q", [30, 10, 20, 40]), "latencies_ns": array("q", [3, 1, 2, 4])}
    sent = array("q", [10, 20, 30, 40, 50])
    ranges = {"dropped_ranges": [(2, 3), (5, 5)]}
    assert repair_times_ns(a_run(findings=[seen], sent_ns=sent, subscriber=ranges)) == [3, 2]
    assert repair_times_ns(a_run(findings=[seen], sent_ns=sent, publisher=ranges)) == [3, 2]
    assert repair_times_ns(a_run(findings=[seen], sent_ns=sent)) == []


@pytest.mark.parametrize("driver", ["zmq", pytest.param("redis", marks=measurable("redis"))])
def test_the_log_is_measured_at_any_size(driver: str) -> None:
    outcome = SCENARIOS["log"](Plan(EVENTS, 1, True, lambda _: None), driver)
    assert {row["case"] for row in outcome.rows} >= {"append", "read", "seal", "read sealed, frames"}
    assert all(row["events/s"] > 0 for row in outcome.rows)
    assert len(outcome.checks) == (6 if driver == "zmq" else 1)


# -- plan, targets, report


def test_ratios_are_taken_within_rounds() -> None:
    fast, slow = [a_run(seconds=0.5), a_run(seconds=5.0)], [a_run(seconds=1.0), a_run(seconds=10.0)]
    assert ratio(fast, slow, lambda run: run.events_per_s) == 2.0
    assert median(slow, lambda run: run.seconds) == 5.5


def test_cases_take_turns() -> None:
    said: list[str] = []
    cases = [Case(name, "zmq", None, None) for name in ("a", "b")]  # type: ignore[arg-type]
    runs = in_turns(Plan(1, 2, True, said.append), cases, lambda case: a_run(case=case.name))
    assert [len(runs[name]) for name in ("a", "b")] == [2, 2]
    assert [sentence[-1] for sentence in said] == ["a", "b", "a", "b"]


def test_targets_are_numbered_and_belong_to_scenarios() -> None:
    assert [target.number for target in TARGETS] == list(range(1, len(TARGETS) + 1))
    assert {target.scenario for target in TARGETS} == set(SCENARIOS)
    names = [(target.scenario, target.name, target.driver) for target in TARGETS]
    assert len(set(names)) == len(names)


def test_a_check_compares_with_the_target_of_the_driver() -> None:
    measured = {"plain": 6.0, "publisher cpu": 1.6}
    assert [(found.target.bound, found.is_met) for found in check("throughput", "zmq", measured)] == [
        (5.0, True),
        (1.5, False),
    ]
    assert [found.target.bound for found in check("throughput", "zenoh", measured)] == [2.0]


def an_outcome() -> Outcome:
    rows = [{"case": "heliograph", "events/s": 10, "p50 us": math.nan}, {"case": "raw", "events/s": 5}]
    return Outcome("throughput", "zmq", rows, [Check(TARGETS[0], "zmq", 6.0), Check(TARGETS[8], "zmq", 0.0)])


def test_results_are_stored_and_drawn(tmp_path: pathlib.Path) -> None:
    stored = results.store(Plan(1, 1, True, print), [an_outcome()], tmp_path)
    content = json.loads(stored.read_text())
    assert content["outcomes"][0]["checks"][0]["met"] is True
    assert chart.draw(stored).read_bytes().startswith(b"\x89PNG")
    chart.draw_rates(stored, tmp_path / "rates.svg")
    assert ">10</text>" in (tmp_path / "rates.svg").read_text()


def test_the_report_names_cases_and_verdicts() -> None:
    from rich.console import Console

    console = Console(width=200, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    report.show(console, an_outcome())
    console.file.close()
    text = console.export_text()
    assert "heliograph" in text
    assert "met" in text


def test_the_command_refuses_what_it_does_not_know(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["nonsense"])
    assert "none of throughput" in capsys.readouterr().err


def test_the_command_leaves_out_a_driver_that_cannot_be_used(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(catalog, "problem", lambda driver: f"no {driver} here")
    assert cli.main(["--driver", "zenoh"]) == 1
    assert "no zenoh here" in capsys.readouterr().out


def test_the_command_measures_prints_and_stores(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["throughput", "--driver", "zmq", "--quick", "--events", "500", "--results", str(tmp_path)]
    assert cli.main(arguments) == 0
    assert "times the tuned raw sender" in capsys.readouterr().out
    assert len(list(tmp_path.glob("*.json"))) == 1
