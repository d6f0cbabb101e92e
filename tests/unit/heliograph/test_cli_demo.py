"""The parts of ``heliograph demo``, and endings that are not happy."""

from __future__ import annotations

import json
import pathlib

import pytest

from heliograph import exits, main, parsing
from heliograph.commands.trials import demo
from heliograph.demo import processes, steps
from pubsub_api import loading
from pubsub_api.errors import DriverDependencyMissing


def test_a_copy_that_is_not_equal_is_a_failure(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps, "SETTLE_TIMEOUT_S", 0.1)
    monkeypatch.setattr(processes, "dump", lambda _cache: [["k", "t", "not the truth", 1]])
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
    plan = demo.make_plan(parsing.build_parser().parse_args(["demo"]))
    assert (plan.driver, plan.in_threads, plan.url) == ("memory", True, demo.MEMORY_URL)
    assert "needs the Python library 'zmq'; the demonstration goes on" in capsys.readouterr().err
    assert main.main(["demo", "--bus", "zmq://127.0.0.1:0"]) == exits.ENVIRONMENT


def test_a_picture_that_could_not_be_written_is_refused_at_the_start(
    capsys: pytest.CaptureFixture[str], tmp_path: pathlib.Path
) -> None:
    for place in (tmp_path, tmp_path / "missing" / "demo.svg"):
        assert main.main(["demo", "--driver", "memory", "--svg", str(place)]) == exits.USAGE
        shown = capsys.readouterr()
        assert (shown.out, shown.err) == ("", f"heliograph demo: {place} cannot be written\n")


@pytest.mark.parametrize(
    ("driver", "url"), [("zmq", "zmq://127.0.0.1:0"), ("zenoh", "zenoh://127.0.0.1:0"), ("redis", "redis://127.0.0.1")]
)
def test_every_driver_has_a_home_on_this_machine(driver: str, url: str) -> None:
    plan = demo.make_plan(parsing.build_parser().parse_args(["demo", "--driver", driver]))
    assert plan.url == url
    assert not plan.in_threads


def test_a_part_that_fails_in_a_thread_is_noticed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stumble(*_: object) -> None:
        raise ZeroDivisionError("oops")

    monkeypatch.setitem(processes.KINDS, "controller", stumble)
    assert main.main(["demo", "--driver", "memory", "--seconds", "1"]) == exits.ENVIRONMENT
    assert "the controller 1 ended: ZeroDivisionError: oops" in capsys.readouterr().err
