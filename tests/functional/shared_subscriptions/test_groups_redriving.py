"""Dead letters that an operator looks at and has delivered again."""

from __future__ import annotations

import contextlib
import json
import pathlib
from collections.abc import Iterator

import pytest

import durable_log
from durable_log import LogApi
from durable_log.log_api import shard_of
from heliograph import exits
from heliograph.main import main
from pubsub_api.core import frame as frames
from pubsub_api.core.events import Event
from shared_subscriptions import groups, redriving
from shared_subscriptions.consuming.dead_letters import DeadLetters
from shared_subscriptions.core.events import GroupEvent
from shared_subscriptions.errors import GroupNotFound
from tests.helpers.nb_tools import sqlite_url


@pytest.fixture
def url(tmp_path: pathlib.Path) -> str:
    return sqlite_url(tmp_path, "log")


@pytest.fixture
def log(url: str) -> Iterator[LogApi]:
    with contextlib.closing(durable_log.open(url)) as opened:
        groups.declare(opened, "work", "jobs/#", start="earliest")
        yield opened


def park(log: LogApi, *keys: str, topic: str = "jobs/a", group: str = "work") -> None:
    letters = DeadLetters(log, group, "dead-letter/{group}")
    for key in keys:
        event = GroupEvent(
            topic=topic, table="port", key=key, action="set", version=7, value={"n": key}, timestamp=5,
            headers={"traceparent": key},
        )  # fmt: skip
        letters.park(event, "the handler said no")


def kept(log: LogApi, topic: str) -> list[Event]:
    return [
        event
        for stored in log.read(shard_of(topic, log.shards), 0)
        if stored.header().topic == topic
        for event in stored.events()
    ]


def test_letters_are_redriven_once(log: LogApi) -> None:
    park(log, "p1", "p2")
    assert [(one.event.key, one.reason) for one in redriving.letters(log, "work")] == [
        ("p1", "the handler said no"), ("p2", "the handler said no"),
    ]  # fmt: skip
    dry = redriving.redrive(log, "work", is_dry=True)
    assert (dry.letters, dry.unfit, dry.is_all, dry.others) == (2, 0, True, [])
    assert kept(log, "jobs/a") == []
    park(log, "p3")
    assert redriving.redrive(log, "work", until=dry.until).letters == 2, "no more than was looked at"
    assert [dict(event.headers) for event in kept(log, "jobs/a")] == [{"traceparent": "p1"}, {"traceparent": "p2"}]
    assert [(event.key, event.value, event.version, event.timestamp) for event in kept(log, "jobs/a")] == [
        ("p1", {"n": "p1"}, 7, 5), ("p2", {"n": "p2"}, 7, 5),
    ]  # fmt: skip
    assert redriving.redrive(log, "work").letters == 1
    assert redriving.redrive(log, "work").letters == 0
    assert redriving.progress(log, "work").letters == 3
    assert [event.key for event in kept(log, "jobs/a")] == ["p1", "p2", "p3"]
    view = groups.show(log, "work")
    assert (view.lag, view.missing) == (3, 0), "numbers that were left out on purpose are no loss"


def test_who_redrives_the_same_letters_again_appends_nothing_twice(
    log: LogApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    park(log, *"abc")
    with monkeypatch.context() as crashed:  # after the append, before it was remembered
        crashed.setattr(redriving, "_remember", lambda *_: None)
        assert redriving.redrive(log, "work", until=None).letters == 3
    park(log, "d")
    assert redriving.redrive(log, "work").letters == 4
    assert [event.key for event in kept(log, "jobs/a")] == [*"abcd"]


def test_what_is_no_letter_of_the_group_is_left_out_and_counted(log: LogApi) -> None:
    groups.declare(log, "audit", "#", start="earliest")
    groups.declare(log, "elsewhere", "other/#", start="earliest")
    park(log, "fit")
    park(log, "foreign", topic="other/a")
    park(log, "bad", topic="jobs/#")
    garbage = frames.pack(frames.Kind.DATA, b"g" * 16, "dead-letter/work", b"\xc1", first=1, after=0, count=1)
    log.append([garbage])
    assert "cannot be decoded" in list(redriving.letters(log, "work"))[-1].reason
    found = redriving.redrive(log, "work")
    assert (found.letters, found.unfit, found.others) == (1, 3, ["audit"])
    assert kept(log, "other/a") == []


def test_one_call_redrives_a_bounded_number(log: LogApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redriving, "LETTERS_MAX", 2)
    park(log, *"abc")
    first = redriving.redrive(log, "work")
    assert (first.letters, first.is_all) == (2, False)
    assert redriving.redrive(log, "work").letters == 1
    assert [event.key for event in kept(log, "jobs/a")] == [*"abc"]


def test_a_group_that_is_not_there_has_no_letters_to_redrive(log: LogApi) -> None:
    with pytest.raises(GroupNotFound):
        redriving.redrive(log, "nobody")


def test_a_group_declared_anew_under_the_same_name_begins_anew(log: LogApi) -> None:
    park(log, "p1")
    redriving.redrive(log, "work")
    groups.destroy(log, "work")
    assert redriving.progress(log, "work").until == 0
    groups.declare(log, "work", "jobs/#", start="earliest")
    assert redriving.redrive(log, "work").letters == 1
    assert len(kept(log, "jobs/a")) == 2


def test_the_command(log: LogApi, url: str, capsys: pytest.CaptureFixture[str]) -> None:
    park(log, "p1", "p2")
    words = ["work", "--log", url]
    assert main(["group", "letters", *words, "--json"]) == exits.OK
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(one["key"], one["value"], one["reason"]) for one in told] == [
        ("p1", {"n": "p1"}, "the handler said no"), ("p2", {"n": "p2"}, "the handler said no"),
    ]  # fmt: skip
    assert main(["group", "redrive", *words]) == exits.USAGE
    assert main(["group", "redrive", *words, "--dry-run"]) == exits.OK
    assert kept(log, "jobs/a") == []
    assert "would append the events of 2 dead letters of group work" in capsys.readouterr().out
    assert main(["group", "redrive", *words, "--yes"]) == exits.OK
    assert "redrove 2 dead letters" in capsys.readouterr().out
    assert main(["group", "letters", *words]) == exits.OK
    assert capsys.readouterr() == ("", "heliograph group: work has no dead letters that were not redriven\n")
    assert main(["group", "letters", *words, "--all"]) == exits.OK
    assert capsys.readouterr().out.count("the handler said no") == 2
