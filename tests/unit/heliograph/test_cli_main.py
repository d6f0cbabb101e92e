"""The command line as a whole: help, exit codes, errors as one line."""

from __future__ import annotations

import argparse
import importlib.metadata
import io
import json
import logging
import os
import pathlib
import pkgutil
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from heliograph import commands, exits, main, options, output, parsing
from heliograph.terminal.console import PipeConsole
from pubsub_api import errors

COMMANDS = tuple(commands.SUMMARIES)


def test_log_lines_can_be_json(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def run(args: argparse.Namespace, out: object) -> int:
        try:
            raise OSError("no\nroute")
        except OSError:
            logging.getLogger("pubsub_api.x").warning("lost %d of %s", 3, "topic", extra={"topic": "t"}, exc_info=True)
        return exits.OK

    monkeypatch.setattr("heliograph.commands.bus.drivers.run", run)
    assert main.main(["drivers", "--log-format", "json"]) == exits.OK
    (line,) = capsys.readouterr().err.splitlines()
    told = json.loads(line)
    assert (told["level"], told["logger"], told["message"]) == ("warning", "pubsub_api.x", "lost 3 of topic")
    assert told["topic"] == "t"
    assert told["time"].endswith("Z")
    assert "no\nroute" in told["exception"]


@pytest.fixture
def logging_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(args: argparse.Namespace, out: object) -> int:
        del args, out
        logging.getLogger("pubsub_api.x").info("lost %d of %s", 3, "topic")
        return exits.OK

    monkeypatch.setattr("heliograph.commands.bus.cache.run", run)


@pytest.mark.usefixtures("logging_cache")
def test_oslo_log_writes_where_the_configuration_says(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("oslo_log")
    words = ["cache", "--topics", "#", "--log-format", "oslo", "--config-file", str(tmp_path / "c.conf")]
    file = tmp_path / "c.conf"
    file.write_text(f"[DEFAULT]\nuse_json = true\nlog_file = {tmp_path / 'told'}\n[pubsub]\nhistory = 5\n")
    assert main.main(words) == exits.OK
    (line,) = (tmp_path / "told").read_text().splitlines()
    told = json.loads(line)
    assert (told["name"], told["levelname"], told["message"]) == ("pubsub_api.x", "INFO", "lost 3 of topic")
    file.write_text("[DEFAULT]\ndefault_log_levels = pubsub_api=WARNING\n")
    assert main.main(words) == exits.OK
    logging.getLogger("pubsub_api").setLevel(logging.NOTSET)
    assert capsys.readouterr() == ("", "")
    file.write_text("")
    assert main.main(words) == exits.OK
    out, err = capsys.readouterr()
    assert not out, "standard output has results only"
    assert "INFO pubsub_api.x [-] lost 3 of topic" in err
    file.write_text(f"[DEFAULT]\nlog_config_append = {tmp_path / 'absent'}\n")
    assert main.main(words) == exits.USAGE
    assert capsys.readouterr().err.startswith("heliograph cache: oslo.log cannot be set up: ")


def test_without_oslo_log_the_extra_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "oslo_log", None)
    assert main.main(["drivers", "--log-format", "oslo"]) == exits.ENVIRONMENT
    assert "pip install 'heliograph[oslo]'" in capsys.readouterr().err


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["--version"]) == exits.OK
    assert capsys.readouterr().out == f"heliograph {importlib.metadata.version('heliograph')}\n"


def test_help_lists_every_command_and_the_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["--help"]) == exits.OK
    shown = capsys.readouterr().out
    assert all(f"\n    {command}" in shown for command in COMMANDS)
    assert "130  interrupted" in shown


def test_every_command_has_a_module_and_every_module_a_summary() -> None:
    found = pkgutil.walk_packages(commands.__path__, f"{commands.__name__}.")
    assert sorted(commands.MODULES.values()) == sorted(module.name for module in found if not module.ispkg)
    assert list(COMMANDS) == sorted(commands.MODULES)


def test_the_help_waits_for_no_library() -> None:
    # What these say of themselves comes from the drivers, the checks and the processes that they are about.
    light = [[name, "--help"] for name in COMMANDS if name not in ("bench", "demo", "doctor", "drivers")]
    code = (
        f"import sys; from heliograph.main import main; assert not any(map(main, {[['--help'], *light]})); "
        "sys.exit(str(sorted({'nb_api', 'pubsub_api.session', 'oslo_config', 'rich'} & set(sys.modules)) or ''))"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert ended.stderr.strip() == ""


@pytest.mark.parametrize("command", [name for name in COMMANDS if name != "bench"])
def test_the_help_of_a_command_teaches(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main([command, "--help"]) == exits.OK
    shown = capsys.readouterr().out
    assert f"examples:\n  heliograph {command}" in shown
    assert "exit codes:" in shown
    usage = shown.partition("\n\n")[0].replace("\n", " ")
    assert usage.index("[--verbose]") > usage.find("[--json]"), "what a command has of its own comes first"


def test_the_help_of_every_verb_has_an_example_and_explains_every_argument() -> None:
    whole = parsing.build_parser()
    for parser in _parsers(whole):
        if parser is not whole and parser.add_help:  # `bench` has its own
            assert parser.prog in (parser.epilog or ""), parser.prog
        assert max(map(len, (parser.description or "").splitlines()), default=0) <= 120, parser.prog
        assert parser.format_help().count(f"\n  {_first_verb(parser)} ") <= 1, "verbs are listed once"
        unexplained = [one.dest for one in parser._actions if one.help is None]
        assert not set(unexplained) - {"command", "verb", "job"}, parser.prog


def _first_verb(parser: argparse.ArgumentParser) -> str:
    return next(iter(parsing.subparsers_of(parser)), "-")


def _parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for further in action.choices.values():
                yield from _parsers(further)


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["no-such-command"],
        ["--no-such-option"],
        ["drivers", "--no-such-option"],
        ["drivers", "--json", "--markdown"],
        ["publish", "--topic", "t"],
        ["publish", "--topic", "t", "--table", "t", "--key", "k", "--value", "{"],
        ["publish", "--stdin", "--repeat", "2"],
        ["publish", "--topic", "a/#", "--table", "t", "--key", "k", "--bus", "memory://usage"],
        ["publish", "--rate", "0"],
        ["publish", "--repeat", "-1"],
        ["publish", "--linger", "nan"],
        ["subscribe"],
        ["subscribe", "a/#/b", "--bus", "memory://usage"],
        ["subscribe", "#", "--history", "none"],
        ["subscribe", "$shared/billing/#", "--bus", "memory://usage"],
        ["subscribe", "#", "--bus", "memory://x", "--config-file", "y"],
        ["subscribe", "#", "--config-file", "no-such-file"],
        ["subscribe", "#", "--bus", "carrier-pigeon://x"],
        ["subscribe", "#", "--bus", "just words"],
        ["decode", "no-such-file"],
        ["simulate", "--profile", "no-such-profile"],
        ["demo", "--driver", "carrier-pigeon"],
        ["demo", "--seconds", "0"],
        ["demo", "--controllers", "1000"],
        ["demo", "--drop", "0.9"],
        ["cache", "--topics", "#", "--bus", "zmq://127.0.0.1:0"],
    ],
)
def test_wrong_usage(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(argv) == exits.USAGE
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err
    assert "Traceback" not in captured.err


def test_an_error_is_one_line_with_blame_and_advice(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["subscribe", "#", "--bus", "carrier-pigeon://x"]) == exits.USAGE
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("heliograph subscribe: no driver is installed under the name 'carrier-pigeon'")
    assert "[" not in line
    assert main.main(["subscribe", "#", "--bus", "carrier-pigeon://x", "--verbose"]) == exits.USAGE
    [line] = capsys.readouterr().err.splitlines()
    assert line.endswith("[DriverNotFound; the fault is with the request; trying again does not help]")


def test_debug_shows_the_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["decode", "no-such-file", "--debug"]) == exits.USAGE
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.InvalidTopic("x"), exits.USAGE),
        (errors.DriverNotFound("x"), exits.USAGE),
        (errors.DriverDependencyMissing("x"), exits.ENVIRONMENT),
        (errors.AddressInUse("x"), exits.ENVIRONMENT),
        (errors.TransportUnavailable("x"), exits.ENVIRONMENT),
        (errors.WaitTimeout("x"), exits.ENVIRONMENT),
        (errors.MalformedFrame("x"), exits.FAILED),
    ],
)
def test_the_exit_code_follows_from_the_fault(error: errors.HeliographError, code: int) -> None:
    assert exits.code_for(error) == code
    assert "\n" not in exits.on_one_line(type(error)("two\nlines"))


def test_a_bug_is_called_one(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def stumble(*_: object) -> int:
        raise ZeroDivisionError("oops")

    monkeypatch.setattr("heliograph.commands.bus.drivers.run", stumble)
    assert main.main(["drivers"]) == exits.FAILED
    err = capsys.readouterr().err
    assert "internal error" in err
    assert "ZeroDivisionError: oops" in err
    assert "Traceback" not in err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_command(
    number: signal.Signals, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def wait_for_it(*_: object) -> int:
        os.kill(os.getpid(), number)
        while True:
            signal.pause()

    monkeypatch.setattr("heliograph.commands.bus.drivers.run", wait_for_it)
    before = signal.getsignal(signal.SIGTERM)
    assert main.main(["drivers"]) == exits.INTERRUPTED
    assert signal.getsignal(signal.SIGTERM) is before
    assert capsys.readouterr().err == "heliograph drivers: interrupted\n"


def test_a_signal_while_libraries_are_imported(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_name: str) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        while True:
            signal.pause()

    monkeypatch.setattr("importlib.import_module", interrupted)
    assert main.main(["drivers"]) == exits.INTERRUPTED
    assert capsys.readouterr().err == "heliograph: interrupted\n"


def test_an_unknown_option_is_told_with_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["drivers", "--wings"]) == exits.USAGE
    told = "heliograph drivers: unrecognized arguments: --wings (try heliograph drivers --help)\n"
    assert capsys.readouterr().err == told


def test_nobody_needs_to_listen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", None)
    assert main.main(["drivers"]) == exits.OK
    assert main.main(["drivers", "--wings"]) == exits.USAGE
    sys.stdout.close()
    sys.stderr.close()


def test_a_table_that_nobody_reads_is_no_failure_of_the_work() -> None:
    class Abandoned(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError(text)

    with pytest.raises(BrokenPipeError):
        PipeConsole(file=Abandoned()).print("a row")


def test_the_logging_of_the_caller_is_left_alone(capsys: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger()
    before = root.level, list(root.handlers)
    assert main.main(["drivers", "--log-level", "debug"]) == exits.OK
    assert (root.level, list(root.handlers)) == before
    capsys.readouterr()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"a": [1, None, True]}, '{"a": [1, null, true]}'),
        (b"\x00\xff", '{"bytes": "00ff"}'),
        ({1: 2, b"\x01": 3}, '{"1": 2, "01": 3}'),
        (float("nan"), '"nan"'),
        (float("-inf"), '"-inf"'),
        ("\x1b[31m\u2603", '"\\u001b[31m\\u2603"'),
        (2**64, '"18446744073709551616"'),
        (2**53, "9007199254740992"),
        (output.Payload({"n": 2**64}), '{"n": 18446744073709551616}'),
        (exits, f'"{exits}"'.replace("\\", "\\\\")),
    ],
)
def test_anything_becomes_json(value: object, text: str) -> None:
    assert output.dumps(value) == text


def test_what_is_nested_too_deeply_is_cut_and_said() -> None:
    value: list[object] = []
    for _ in range(5000):
        value = [value]
    assert f"nested deeper than {output.DEPTH_MAX} levels" in output.dumps(value)


def test_no_event_plays_tricks_on_a_terminal() -> None:
    assert output.printable("a\x1b[2Jb\r\x07\u2603\n") == "a\\x1b[2Jb\\r\\x07\u2603\n"
    assert "\x1b" not in output.compact({"k\x1b": "\x1b\x9b"})


def test_a_timestamp_that_is_no_time_is_shown_as_it_is() -> None:
    assert output.clock_text(1_700_000_000_123_456_789) == "2023-11-14T22:13:20.123456Z"
    assert output.clock_text(2**63 - 1).startswith("2262-")
    assert output.clock_text(2**70) == str(2**70)


@pytest.mark.parametrize("text", ["-1", "x", "inf", "nan", "1e9", "10x", "s", "400d", "1h 5m"])
def test_seconds_refuses(text: str) -> None:
    with pytest.raises(options.argparse.ArgumentTypeError, match="seconds"):
        options.seconds(text)


@pytest.mark.parametrize("text", ["-1", "x", "1.5", ""])
def test_a_count_that_may_be_none_at_all_refuses(text: str) -> None:
    assert options.natural_int("0") == 0
    with pytest.raises(options.argparse.ArgumentTypeError, match="0 or more"):
        options.natural_int(text)


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "1e-300", "x"])
def test_a_rate_that_no_clock_can_keep_is_refused(text: str) -> None:
    assert options.rate("0.5") == 0.5
    with pytest.raises(options.argparse.ArgumentTypeError, match="events per second"):
        options.rate(text)


@pytest.mark.parametrize("text", ["", "{", "NaN", "[-Infinity]", "1e999", "[-1e999]", "[" * 100_000])
def test_only_json_is_taken_for_json(text: str) -> None:
    assert options.json_value('{"up": [1, null]}') == {"up": [1, None]}
    with pytest.raises(ValueError):  # noqa: PT011  its words are those of the library
        options.json_value(text)
