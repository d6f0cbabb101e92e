"""Commands that need no second process: drivers, simulate, bench, publish and subscribe on a bus in memory."""

from __future__ import annotations

import io
import json
import pathlib
import subprocess
import sys

import pytest

import heliograph
from heliograph import exits, main
from heliograph.commands.bus import drivers
from heliograph.commands.trials import simulate
from heliograph.terminal.progress import Progress
from pubsub_api import loading
from pubsub_api.errors import DriverDependencyMissing, DriverError
from pubsub_api.testing.simulator import PROFILES, Profile, SimulationFailure


def run_json(argv: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, list[dict[str, object]]]:
    code = main.main([*argv, "--json"])
    return code, [json.loads(line) for line in capsys.readouterr().out.splitlines()]


# -- drivers


def test_drivers_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["drivers", "--json"]) == exits.OK
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert {"memory", "redis", "zenoh", "zmq"} <= set(rows)
    assert rows["zmq"]["aliases"] == ["zmq_pubsub_driver"]
    assert rows["memory"]["usable"] is True
    assert rows["memory"]["capabilities"]["reports"] == ["connect", "disconnect", "subscribed"]


def test_drivers_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["drivers"]) == exits.OK
    out = capsys.readouterr().out
    assert "│ memory" in out
    assert "zmq is also known as zmq_pubsub_driver" in out


def test_drivers_for_the_documentation(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["drivers", "--markdown"]) == exits.OK
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("| driver | address |")
    assert len({line.count("|") for line in lines}) == 1
    assert any(line.startswith("| `memory` | shared | yes | exact |") for line in lines)


def test_a_driver_without_its_library_is_listed_with_what_to_install(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = DriverDependencyMissing("driver 'zmq' needs pyzmq: pip install 'heliograph[zmq]'")
    found = {
        "memory": loading.available_drivers()["memory"],
        "zmq": loading.DriverStatus("heliograph_drivers.pubsub.zmq:ZmqPubSub", problem=problem),
    }
    monkeypatch.setattr(loading, "available_drivers", lambda: found)
    assert main.main(["drivers"]) == exits.OK
    assert f"not usable: {problem}" in capsys.readouterr().out
    assert "zmq" not in drivers.markdown(drivers.find_drivers())


@pytest.mark.parametrize(
    ("size", "text"), [(100, "100 B"), (65_536, "64 KiB"), (2**31 - 1, "2 GiB"), (64 * 2**20 - 64, "64 MiB")]
)
def test_sizes_are_rounded_for_people(size: int, text: str) -> None:
    assert drivers._size(size) == text


# -- simulate


def test_simulate_many(capsys: pytest.CaptureFixture[str]) -> None:
    code, [result] = run_json(["simulate", "--seeds", "3", "--first", "10", "--profile", "calm"], capsys)
    assert code == exits.OK
    assert (result["seeds"], result["first"], result["failures"]) == (3, 10, [])


def test_simulate_one(capsys: pytest.CaptureFixture[str]) -> None:
    code, [report] = run_json(["simulate", "--seed", "3", "--profile", "calm"], capsys)
    assert code == exits.OK
    assert (report["seed"], report["profile"]) == (3, "calm")
    assert main.main(["simulate", "--seed", "3", "--profile", "calm"]) == exits.OK
    assert str(report["digest"]) in capsys.readouterr().out


def test_an_unknown_profile_lists_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["simulate", "--profile", "x"]) == exits.USAGE
    err = capsys.readouterr().err
    assert all(name in err for name in PROFILES)


@pytest.fixture
def failing_seed(monkeypatch: pytest.MonkeyPatch) -> int:
    """Make the simulator fail, as a broken core would, for one seed."""
    bad = 12

    def fail(seed: int, _profile: Profile | None = None) -> object:
        if seed == bad:
            raise SimulationFailure(seed, "an event was lost", ["0.1 it", "0.2 happened"], "calm")
        return sound

    sound = simulate_one_seed()
    monkeypatch.setattr("pubsub_api.testing.simulator.simulate", fail)
    monkeypatch.setattr("pubsub_api.testing.simulator.runner.simulate", fail)
    return bad


def simulate_one_seed() -> object:
    from pubsub_api.testing.simulator import simulate as simulate_seed

    return simulate_seed(0, PROFILES["calm"])


def test_a_failing_seed_is_printed_with_the_command_that_replays_it(
    failing_seed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(["simulate", "--seeds", "5", "--first", "10"]) == exits.FAILED
    out = capsys.readouterr().out
    assert f"failed: seed {failing_seed}, profile calm: an event was lost" in out
    assert f"replay: heliograph simulate --seed {failing_seed} --profile calm" in out


def test_a_replay_shows_the_trace(failing_seed: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["simulate", "--seed", str(failing_seed)]) == exits.FAILED
    assert capsys.readouterr().out.endswith("0.1 it\n0.2 happened\n")
    code, [failure] = run_json(["simulate", "--seed", str(failing_seed)], capsys)
    assert code == exits.FAILED
    assert failure["trace"] == ["0.1 it", "0.2 happened"]


def test_an_interrupted_simulation_says_how_far_it_came(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(_self: object, done: int, _remark: str = "") -> None:
        if done == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(simulate.Progress, "update", interrupt)
    assert main.main(["simulate", "--seeds", "5", "--profile", "calm"]) == exits.INTERRUPTED
    assert capsys.readouterr().out.startswith("2 seeds from 0")


def test_progress_is_said_in_lines_where_there_is_no_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("heliograph.terminal.progress._LINE_INTERVAL_S", 0.0)
    with Progress("seeds", 4) as progress:
        progress.update(1)
        progress.update(4, ", 1 failed")
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("seeds: 1 of 4, ")
    assert ", 1 failed, " in lines[1]


# -- bench


def test_bench_outside_a_checkout(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heliograph, "__file__", str(tmp_path / "heliograph" / "__init__.py"))
    assert main.main(["bench"]) == exits.ENVIRONMENT
    assert "checkout" in capsys.readouterr().err


def test_bench_passes_everything_on(
    tmp_path: pathlib.Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bench").mkdir()
    (tmp_path / "bench" / "__init__.py").touch()
    script = "import sys\nprint(sys.argv[1:])\nsys.exit(7)\n"
    (tmp_path / "bench" / "__main__.py").write_text(script)
    monkeypatch.setattr(heliograph, "__file__", str(tmp_path / "heliograph" / "__init__.py"))
    monkeypatch.chdir(tmp_path)
    assert main.main(["bench", "--help", "--runs", "5", "zmq"]) == 7
    assert capfd.readouterr().out == "['--help', '--runs', '5', 'zmq']\n"


# -- publish and subscribe, inside this process


def test_publish_says_how_many(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["publish", "--bus", "memory://cli", "--topic", "t", "--table", "port", "--key", "p{n}", "--repeat", "600"]
    code, [result] = run_json([*argv, "--version", "5", "--rate", "1000000"], capsys)
    assert code == exits.OK
    assert result["sent"] == 600
    assert main.main(["publish", "--bus", "memory://cli", "--topic", "t", "--table", "port", "--key", "p"]) == exits.OK
    captured = capsys.readouterr()
    assert captured.out.startswith("sent 1 event in ")
    assert "a bus in memory ends at this process" in captured.err


@pytest.mark.parametrize(
    ("header", "why"),
    [
        ("caller", "a header is NAME=TEXT, not 'caller'"),
        ("=me", "a name has 1 to 64 bytes"),
        ("a=" + "x" * 1024, "1024"),
    ],
)
def test_a_bad_header_is_refused_before_anything_is_opened(
    header: str, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(["publish", "--bus", "redis://127.0.0.1:1", "t", "v", "--header", header]) == exits.USAGE
    assert why in capsys.readouterr().err


def publish_lines(text: str, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))
    return main.main(["publish", "--stdin", "--bus", "memory://cli", "--topic", "t", "--json"])


def test_publish_from_standard_input(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    lines = '{"table": "port", "key": "p1", "value": [1]}\n\n{"topic": "u", "table": "x", "key": "y", "version": 3}'
    assert publish_lines(lines, monkeypatch) == exits.OK
    assert json.loads(capsys.readouterr().out)["sent"] == 2


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("{", "line 2 of the input: this is not JSON"),
        ("[" * 100_000, "line 2 of the input: this is not JSON"),
        ("[]", "line 2 of the input: an event is a JSON object, not list"),
        ('{"table": "port"}', "line 2 of the input: the event's key is missing"),
        ('{"table": "port", "key": 7}', "line 2 of the input: the event's key must be a string, not 7"),
        ('{"table": "port", "key": "k", "verison": 1}', "line 2 of the input: 'verison' is no field of an event"),
        ('{"table": "port", "key": "k", "version": -1}', "event 2: event 'port'/'k': version -1"),
        ('{"table": "port", "key": "k", "action": "explode"}', "event 2: event 'port'/'k': action 'explode'"),
        ('{"table": "port", "key": "k", "headers": {"a": 1}}', "event 2: event port/k: header 'a'"),
        ('{"topic": "a//b", "table": "port", "key": "k"}', "event 2: topic 'a//b' has an empty level"),
    ],
)
def test_a_bad_line_is_named(
    line: str, why: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    good = '{"table": "port", "key": "p1"}'
    assert publish_lines(f"{good}\n{line}\n{good}\n", monkeypatch) == exits.USAGE
    captured = capsys.readouterr()
    assert captured.out == ""
    assert why in captured.err
    assert "1 event published" in captured.err


def test_subscribe_ends_with_its_time(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["subscribe", "#", "--bus", "memory://cli-quiet", "--timeout", "3", "--statistics", "--count", "1", "--json"]
    assert main.main(argv) == exits.FAILED
    captured = capsys.readouterr()
    first, last = (json.loads(line) for line in captured.out.splitlines())
    assert first["resync"] == {
        "reason": "initial", "reasons": ["initial"], "topics": ["#"], "generation": 1, "lost": [],
    }  # fmt: skip
    assert last["statistics"]["received"] == 0
    assert "0 of 1 events came within 3.0 s" in captured.err


def test_a_broken_driver_is_listed_with_its_problem(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    status = loading.DriverStatus("x:Y", problem=DriverError("driver 'x' is broken"))
    monkeypatch.setattr(loading, "available_drivers", lambda: {"x": status})
    _code, [rows] = run_json(["drivers"], capsys)
    assert rows == [
        {"name": "x", "aliases": [], "target": "x:Y", "usable": False, "capabilities": None,
         "problem": "driver 'x' is broken"}
    ]  # fmt: skip


def test_a_line_without_end_is_refused_as_such(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("heliograph.commands.bus.publish.LINE_CHARACTERS_MAX", 40)
    monkeypatch.setattr(sys, "stdin", io.StringIO('{"topic": "t", "table": "port", "key": "' + "k" * 40))
    assert main.main(["publish", "--stdin", "--bus", "memory://endless"]) == exits.USAGE
    assert "line 1 of the input: longer than 40 characters" in capsys.readouterr().err


def test_bench_says_which_library_is_missing() -> None:
    code = "import runpy, sys; sys.modules['redis'] = None; runpy.run_module('bench', run_name='__main__')"
    command = [sys.executable, "-c", code, "--help"]
    root = pathlib.Path(heliograph.__file__).parents[1]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, cwd=root)
    assert ended.stderr.startswith("bench: the Python library 'redis' is not installed")
    assert ended.returncode == exits.ENVIRONMENT


def test_subscribe_says_that_nobody_keeps_history(capsys: pytest.CaptureFixture[str]) -> None:
    where = ["--bus", "memory://forgetful", "--timeout", "0.1"]
    main.main(["subscribe", "t", "--durability", "persistent", *where])
    assert "no complete history yet" in capsys.readouterr().err
    main.main(["subscribe", "t", *where])
    assert "history" not in capsys.readouterr().err
