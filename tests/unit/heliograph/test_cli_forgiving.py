"""What a newcomer runs into: commands say what was meant, validate first, ask before they destroy, and make nothing."""

from __future__ import annotations

import contextlib
import io
import json
import pathlib
import sys
from typing import Any

import pytest

import durable_log
from heliograph import exits, main, output, units
from nb_api.loading import open_db

Captured = pytest.CaptureFixture[str]


def errors_of(capsys: Captured, *words: str, code: int = exits.USAGE) -> str:
    assert main.main(list(words)) == code
    return capsys.readouterr().err


@pytest.fixture
def db_url(tmp_path: pathlib.Path) -> str:
    """One with a port p1 in it."""
    url = f"sqlite://{tmp_path}/objects.db"
    with contextlib.closing(open_db(url)) as db:
        db.create("port", "p1", 1, topic="t")
    return url


# -- reading never creates


@pytest.mark.parametrize(
    "words",
    [
        ("db", "list"),
        ("db", "get", "port", "p1"),
        ("db", "watch", "--timeout", "0"),
        ("db", "compact"),
        ("db", "snapshot", "{directory}/snapshot"),
        ("db", "set", "port", "p1", "1"),
        ("db", "delete", "port", "p1"),
        ("controller", "--timeout", "0"),
    ],
)
def test_reading_makes_no_database(words: tuple[str, ...], tmp_path: pathlib.Path, capsys: Captured) -> None:
    words = tuple(word.format(directory=tmp_path) for word in words)
    told = errors_of(capsys, *words, "--db", f"sqlite://{tmp_path}/typo.db")
    assert f"there is no database at sqlite://{tmp_path}/typo.db" in told
    assert list(tmp_path.iterdir()) == []


def test_who_names_no_database_is_told_how(tmp_path: pathlib.Path, capsys: Captured) -> None:
    file = tmp_path / "heliograph.conf"
    file.write_text(f"[db]\nurl = sqlite://{tmp_path}/none.db\n")
    told = errors_of(capsys, "db", "list", "--config-file", str(file))
    assert "none.db, and reading does not make one; name another with --db" in told


@pytest.mark.parametrize(
    "words",
    [
        ("log", "info"),
        ("log", "tail"),
        ("log", "verify"),
        ("group", "list"),
        ("group", "destroy", "g", "--yes"),
        ("group", "serve", "g", "--bus", "memory://reading"),
        ("cache", "--topics", "#", "--bus", "memory://reading", "--timeout", "0"),
    ],
)
def test_reading_makes_no_log(words: tuple[str, ...], tmp_path: pathlib.Path, capsys: Captured) -> None:
    told = errors_of(capsys, *words, "--log", f"sqlite://{tmp_path}/typo.db")
    assert f"there is no log at sqlite://{tmp_path}/typo.db" in told
    assert list(tmp_path.iterdir()) == []


# -- what happened is what is said


def test_what_became_of_an_object(db_url: str, capsys: Captured) -> None:
    def said(*words: str) -> str:
        assert main.main(["db", *words, "--db", db_url]) == exits.OK
        return capsys.readouterr().out

    assert said("set", "port", "p1", "1").startswith("port/p1 is unchanged, version ")
    assert said("set", "port", "p1", "2").startswith("port/p1 has version ")
    assert said("set", "port", "p1", "2", "--create", "--topic", "t").startswith("port/p1 is unchanged, version ")
    assert said("delete", "port", "p1").startswith("port/p1 is deleted; its tombstone has version ")
    assert said("create", "port", "p1", "3", "--topic", "t").startswith("port/p1 has version ")


def test_a_table_without_objects_is_noted(db_url: str, capsys: Captured) -> None:
    assert main.main(["db", "list", "prot", "--db", db_url]) == exits.OK
    told = "heliograph db: no object is in a table 'prot'; tables with objects: port\n"
    assert capsys.readouterr().err == told
    assert main.main(["db", "list", "port", "--topics", "other", "--db", db_url]) == exits.OK
    assert capsys.readouterr().err == ""


def test_a_revision_that_never_was_is_wrong_usage(db_url: str, capsys: Captured) -> None:
    assert "--after 999: no change of this database" in errors_of(
        capsys, "db", "watch", "--after", "999", "--timeout", "0", "--db", db_url
    )


def test_a_second_snapshot_in_the_same_place_is_wrong_usage(
    db_url: str, tmp_path: pathlib.Path, capsys: Captured
) -> None:
    words = ("db", "snapshot", str(tmp_path / "snapshot"), "--db", db_url)
    assert main.main(list(words)) == exits.OK
    assert "is a complete snapshot already" in errors_of(capsys, *words)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("publish", "--topic", "t/#", "--table", "a", "--key", "b"), "topic 't/#' contains '#'"),
        (("publish", "t/+", "1"), "topic 't/+' contains '+'"),
        (("publish", "t", "{"), "this is not JSON"),
        (("subscribe", "a/#/b"), "'a/#/b'"),
        (("db", "set", "port", "p1", "{"), "is not JSON"),
        (("db", "create", "port", "p1", "1", "--topic", "#"), "topic '#'"),
        (("db", "list", "--topics", "a/#/b"), "'a/#/b'"),
        (("controller", "--topics", "a/#/b"), "'a/#/b'"),
        (("durability", "delete", "a/#/b", "--yes"), "'a/#/b'"),
    ],
)
def test_what_can_never_work_is_refused_before_anything_is_opened(
    words: tuple[str, ...], reason: str, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    def opened(*_: object, **__: object) -> None:
        raise AssertionError("it connects first")

    monkeypatch.setattr("pubsub_api.open", opened)
    monkeypatch.setattr("nb_api.NbApi.open", opened)
    assert reason in errors_of(capsys, *words)


def test_a_host_name_that_means_nothing_is_named(capsys: Captured) -> None:
    told = errors_of(
        capsys, "subscribe", "t", "--bus", "zmq://no-such-host.invalid:8866", "--timeout", "0.1", code=exits.ENVIRONMENT
    )
    assert "the host name 'no-such-host.invalid' does not resolve" in told


# -- before it destroys, it asks


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def log_url(tmp_path: pathlib.Path) -> str:
    """One with a group g."""
    url = f"sqlite://{tmp_path}/log.db"
    assert main.main(["group", "declare", "g", "#", "--log", url]) == exits.OK
    return url


def groups(log_url: str, capsys: Captured) -> list[str]:
    capsys.readouterr()
    assert main.main(["group", "list", "--json", "--log", log_url]) == exits.OK
    return [group["name"] for group in json.loads(capsys.readouterr().out)]


@pytest.mark.parametrize(("answer", "left"), [("n\n", ["g"]), ("\n", ["g"]), ("", ["g"]), ("y\n", []), ("Yes\n", [])])
def test_a_group_is_destroyed_when_somebody_says_so(
    answer: str, left: list[str], log_url: str, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", Terminal(answer))
    code = main.main(["group", "destroy", "g", "--log", log_url])
    assert "This will destroy group g and its progress; its lag is 0." in capsys.readouterr().err
    assert code == (exits.FAILED if left else exits.OK)
    assert groups(log_url, capsys) == left


def test_without_a_terminal_a_group_is_destroyed_only_with_yes(
    log_url: str, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    assert "give --yes" in errors_of(capsys, "group", "destroy", "g", "--log", log_url)
    assert main.main(["group", "destroy", "g", "--dry-run", "--log", log_url]) == exits.OK
    assert capsys.readouterr().out == "would destroy group g and its progress; its lag is 0\n"
    assert groups(log_url, capsys) == ["g"]
    assert main.main(["group", "destroy", "g", "--yes", "--log", log_url]) == exits.OK
    assert groups(log_url, capsys) == []


def test_a_dry_trim_drops_nothing(tmp_path: pathlib.Path, capsys: Captured) -> None:
    url = f"sqlite://{tmp_path}/log.db"
    durable_log.open(url).close()
    assert main.main(["log", "trim", "--older-than", "7d", "--dry-run", "--log", url]) == exits.OK
    assert capsys.readouterr().out == "would drop at most 0 events\n"


# -- fewer words


@pytest.mark.parametrize(
    ("words", "event"),
    [
        (("t/x", '{"up": true}'), ("t/x", "message", "t/x", {"up": True})),
        (("t", "hello world"), ("t", "message", "t", "hello world")),
        (("t", "7"), ("t", "message", "t", 7)),
        (("t", "true"), ("t", "message", "t", True)),
        (("t",), ("t", "message", "t", None)),
        (("t", "1", "--table", "port", "--key", "p1"), ("t", "port", "p1", 1)),
    ],
)
def test_topic_and_value_are_enough(
    words: tuple[str, ...], event: tuple[Any, ...], capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[Any] = []
    monkeypatch.setattr("pubsub_api.publishing.publisher.Publisher.send_event", lambda _, it: sent.append(it))
    assert main.main(["publish", *words, "--bus", "memory://short"]) == exits.OK
    assert [(it.topic, it.table, it.key, it.value) for it in sent] == [event]


def test_a_topic_given_twice_is_refused(capsys: Captured) -> None:
    assert "the topic is given twice" in errors_of(capsys, "publish", "a", "1", "--topic", "b", "--bus", "memory://x")


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["publsih"], "heliograph: there is no command 'publsih': did you mean publish? (try heliograph --help)"),
        (["db", "lst"], "heliograph db: there is no verb 'lst': did you mean list? (try heliograph db --help)"),
        (["drivers", "--jsn"], "heliograph drivers: unrecognized arguments: --jsn: did you mean --json? "
                               "(try heliograph drivers --help)"),
        (["drivers", "--log-level", "inof"], "heliograph drivers: argument --log-level: 'inof' is none of debug, info, "
                                             "warning, error: did you mean info? (try heliograph drivers --help)"),
        (["completion", "fsh"], "heliograph completion: argument SHELL: 'fsh' is none of bash, zsh, fish "
                                "(try heliograph completion --help)"),
        (["xyzzy"], "heliograph: there is no command 'xyzzy' (try heliograph --help)"),
    ],
)  # fmt: skip
def test_what_may_have_been_meant(words: list[str], meant: str, capsys: Captured) -> None:
    assert errors_of(capsys, *words) == f"{meant}\n"


@pytest.mark.parametrize(
    ("asked", "same"), [(["help"], ["--help"]), (["help", "publish"], ["publish", "--help"]),
                        (["help", "db", "set"], ["db", "set", "--help"])],
)  # fmt: skip
def test_help_is_a_command(asked: list[str], same: list[str], capsys: Captured) -> None:
    assert main.main(asked) == exits.OK
    shown = capsys.readouterr().out
    assert main.main(same) == exits.OK
    assert shown == capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "value"),
    [("10", 10.0), ("0.5", 0.5), ("10s", 10.0), ("500ms", 0.5), ("5m", 300.0), ("2h", 7200.0), ("1d", 86_400.0),
     ("1h30m", 5400.0), ("1.5h", 5400.0)],
)  # fmt: skip
def test_durations(text: str, value: float) -> None:
    assert units.seconds(text) == value


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("2026-11-16T10:00", 1_794_823_200_000_000_000),
        ("2026-11-16T10:00Z", 1_794_823_200_000_000_000),
        ("2026-11-16T11:00+01:00", 1_794_823_200_000_000_000),
        ("2h", 2_000_000_000_000_000_000 - 7_200_000_000_000),
        ("30", 2_000_000_000_000_000_000 - 30_000_000_000),
    ],
)
def test_times(text: str, ns: int) -> None:
    assert units.Moment(text).ns(2_000_000_000_000_000_000) == ns


@pytest.mark.parametrize("words", [("log", "tail", "--since"), ("log", "trim", "--older-than"), ("group", "seek", "g",
                                   "--start"), ("pipeline", "replay", "--from")])  # fmt: skip
def test_a_time_is_written_in_one_way_everywhere(words: tuple[str, ...], capsys: Captured) -> None:
    assert "2026-11-16T10:00" in errors_of(capsys, *words, "yesterday")


# -- for scripts


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (
            ["subscribe", "#", "--bus", "carrier-pigeon://x"],
            {"class": "DriverNotFound", "fault": "caller", "retriable": False, "exit_code": exits.USAGE},
        ),
        (["publsih"], {"exit_code": exits.USAGE}),
        (["drivers", "--wings"], {"exit_code": exits.USAGE}),
    ],
)
def test_an_error_is_json_where_the_result_is(words: list[str], error: dict[str, Any], capsys: Captured) -> None:
    told = json.loads(errors_of(capsys, *words, "--json"))["error"]
    assert told.pop("message")
    assert told == error


def test_large_numbers_are_strings_and_values_stay_as_they_are(db_url: str, capsys: Captured) -> None:
    assert main.main(["db", "set", "port", "p1", str(2**63 - 1), "--db", db_url]) == exits.OK
    capsys.readouterr()
    assert main.main(["db", "get", "port", "p1", "--json", "--db", db_url]) == exits.OK
    assert json.loads(capsys.readouterr().out)["value"] == 2**63 - 1
    assert json.loads(output.dumps({"appended_ns": 2**60})) == {"appended_ns": str(2**60)}


# -- tables


def test_a_table_wider_than_the_terminal_becomes_paragraphs(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = output.Output(is_json=False)
    shown.console.width = 40
    shown.table("services", ("name", "state", "trouble"), [("a" * 30, "ok", ""), ("b", "failed", "c" * 60)])
    assert capsys.readouterr().out.splitlines() == [
        "services", "", f"name     {'a' * 30}", "state    ok", "", "name     b", "state    failed",
        f"trouble  {'c' * 60}",
    ]  # fmt: skip
    shown.table("", ("name",), [("a",)])
    assert "│ a " in capsys.readouterr().out


def test_shards_that_are_empty_are_not_listed(tmp_path: pathlib.Path, capsys: Captured) -> None:
    url = f"sqlite://{tmp_path}/log.db?shards=4"
    durable_log.open(url).close()
    assert main.main(["log", "info", "--log", url]) == exits.OK
    assert capsys.readouterr().out.startswith("4 of 4 shards were never appended to\n0 events, ")
