"""The parts of ``heliograph demo``: the truth, a copy of it, and an ending that is not happy."""

from __future__ import annotations

import json
import pathlib
import random
from collections.abc import Iterator

import hypothesis.strategies as st
import pytest
from hypothesis import given

from heliograph import exits, main
from heliograph.commands import demo
from heliograph.demo import actors, play
from heliograph.demo.truth import LocalCopy, Truth
from pubsub_api import loading
from pubsub_api.errors import DriverDependencyMissing


@pytest.fixture
def truth(tmp_path: pathlib.Path) -> Iterator[Truth]:
    truth = Truth(tmp_path / "truth.db", create=True)
    yield truth
    truth.close()


def test_the_truth_counts_every_change(truth: Truth) -> None:
    assert [truth.change("t", "a", "1"), truth.change("t", "b", "2"), truth.change("t", "a", None)] == [1, 2, 3]
    assert truth.revision() == 3
    assert truth.snapshot() == (3, {("t", "b"): ("2", 2)})


def test_a_change_is_seen_by_others_at_once(truth: Truth, tmp_path: pathlib.Path) -> None:
    reader = Truth(tmp_path / "truth.db")
    truth.change("t", "a", "1")
    assert reader.snapshot() == (1, {("t", "a"): ("1", 1)})
    reader.close()


class Recorder:
    """Applies changes to a model of the database, and remembers every state that a snapshot could show."""

    def __init__(self, chance: random.Random, count: int) -> None:
        self.changes: list[tuple[tuple[str, str], str | None, int]] = []
        rows: dict[tuple[str, str], tuple[str, int]] = {}
        self.states = [(0, dict(rows))]
        for version in range(1, count + 1):
            key = ("t", f"k{chance.randrange(3)}")
            value = None if chance.random() < 0.3 else str(version)
            self.changes.append((key, value, version))
            if value is None:
                rows.pop(key, None)
            else:
                rows[key] = (value, version)
            self.states.append((version, dict(rows)))


@given(st.integers(0, 2**32), st.integers(1, 30))
def test_a_copy_that_saw_every_change_is_equal_whatever_the_order(seed: int, count: int) -> None:
    """Changes in any order, some twice, with snapshots of any age in between, which cover what was left out before."""
    chance = random.Random(seed)
    recorder = Recorder(chance, count)
    steps = [*recorder.changes, *chance.sample(recorder.changes, count // 2)]
    chance.shuffle(steps)
    copy = LocalCopy()
    for key, value, version in steps:
        copy.apply(key, value, version)
        if chance.random() < 0.2:
            copy.replace(*chance.choice(recorder.states))
    assert copy.rows() == recorder.states[-1][1]
    assert copy.revision == count


@given(st.integers(0, 2**32), st.integers(1, 30))
def test_a_snapshot_makes_up_for_everything_that_was_lost(seed: int, count: int) -> None:
    chance = random.Random(seed)
    recorder = Recorder(chance, count)
    copy = LocalCopy()
    for key, value, version in chance.sample(recorder.changes, count // 2):
        copy.apply(key, value, version)
    copy.replace(*recorder.states[-1])
    for key, value, version in recorder.changes:  # what was under way all the time arrives late, and changes nothing
        copy.apply(key, value, version)
    assert copy.rows() == recorder.states[-1][1]


def test_an_event_comes_after_its_commit(truth: Truth) -> None:
    events = [actors._change(truth, random.Random(seed)) for seed in range(20)]
    assert [event.version for event in events] == list(range(1, 21))
    assert {event.action for event in events} == {"set", "delete"}
    assert all((event.value is None) == (event.action == "delete") for event in events)


def test_a_copy_that_is_not_equal_is_a_failure(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(play, "SETTLE_TIMEOUT_S", 0.1)
    monkeypatch.setattr(actors.Controller, "dump", lambda _self: [["t", "k", "not the truth", 1]])
    arguments = ["demo", "--driver", "memory", "--seconds", "1", "--controllers", "2", "--rate", "50"]
    assert main.main(arguments) == exits.FAILED
    assert "Failed: not equal to the database after 0 s: controller 1, controller 2." in capsys.readouterr().out
    assert main.main([*arguments, "--json"]) == exits.FAILED
    outcome = json.loads(capsys.readouterr().out)
    assert outcome["is_equal"] is False


def test_without_pyzmq_it_goes_on_in_memory_and_says_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    load = loading.load_driver

    def load_without_zmq(name: str) -> object:
        if name == "zmq":
            raise DriverDependencyMissing("driver 'zmq' needs the Python library 'zmq'")
        return load(name)

    monkeypatch.setattr(loading, "load_driver", load_without_zmq)
    plan = demo.make_plan(main.build_parser().parse_args(["demo"]))
    assert (plan.driver, plan.in_threads, plan.url) == ("memory", True, demo.MEMORY_URL)
    assert "needs the Python library 'zmq'; the demonstration goes on" in capsys.readouterr().err
    assert main.main(["demo", "--url", "zmq://127.0.0.1:0"]) == exits.ENVIRONMENT


@pytest.mark.parametrize(
    ("driver", "url"), [("zmq", "zmq://127.0.0.1:0"), ("zenoh", "zenoh://127.0.0.1:0"), ("redis", "redis://127.0.0.1")]
)
def test_every_driver_has_a_home_on_this_machine(driver: str, url: str) -> None:
    plan = demo.make_plan(main.build_parser().parse_args(["demo", "--driver", driver]))
    assert plan.url == url
    assert not plan.in_threads


def test_an_actor_that_fails_in_a_thread_is_noticed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stumble(*_: object) -> None:
        raise ZeroDivisionError("oops")

    monkeypatch.setitem(actors.PARTS, "controller", stumble)
    assert main.main(["demo", "--driver", "memory", "--seconds", "1"]) == exits.ENVIRONMENT
    assert "the controller 1 ended: ZeroDivisionError: oops" in capsys.readouterr().err
