"""Actions of the console: that they do what they say, that they are recorded, and that nobody else can do them."""

from __future__ import annotations

import contextlib
import logging
import pathlib
import socket
import time
import urllib.parse
from collections.abc import Iterator

import pytest

import durable_log
from durable_log import LogApi
from heliograph import exits
from heliograph.console.acting.actions import ACTIONS
from heliograph.main import main
from nb_api.fleet.report import FleetReport, write
from nb_api.loading import open_db
from shared_subscriptions import groups, redriving
from shared_subscriptions.consuming.dead_letters import DeadLetters
from shared_subscriptions.core.events import GroupEvent
from shared_subscriptions.errors import GroupNotFound
from tests.helpers import consoles
from tests.helpers.consoles import OpenConsole
from tests.helpers.group_nodes import Source
from tests.helpers.nb_tools import sqlite_url

TOKEN = "correct horse battery staple"
SCRIPT = "<script>alert(1)</script>"


@pytest.fixture
def log_url(tmp_path: pathlib.Path) -> str:
    return sqlite_url(tmp_path, "log")


@pytest.fixture
def log(log_url: str) -> Iterator[LogApi]:
    with contextlib.closing(durable_log.open(log_url)) as opened:
        groups.declare(opened, "work", "jobs/#", start="earliest")
        Source(opened).publish("jobs/a", 100)
        yield opened


@pytest.fixture
def console(log: LogApi, log_url: str) -> Iterator[OpenConsole]:
    with consoles.opened("--log", log_url, token=TOKEN) as opened:
        opened.wait_shown("/groups", "jobs/#")
        yield opened


def act(console: OpenConsole, do: str, target: str = "work", **fields: str) -> str:
    """Asks for an action as the form does, and returns the newest row of the record."""
    given = {**console.asked(do, target), "do": do, "target": target, "who": "Ada", "token": TOKEN, **fields}
    got = console.post(given)
    assert (got.status, got.headers["Location"]) == (303, "/actions"), got.body
    return console.wait_shown("/actions", "<tbody>").partition("<tbody>")[2].partition("</tr>")[0]


def wish(log: LogApi) -> str:
    return groups.get(log, "work").wish.value


# -- what actions do


def test_without_a_token_there_are_no_actions(log: LogApi, log_url: str) -> None:
    with consoles.opened("--log", log_url) as console:
        body = console.wait_shown("/group?name=work", "Partitions")
        assert "/action" not in body
        for path in ("/action?do=pause&target=work", "/actions", "/stream/actions", "/tail"):
            assert console.get(path).status == 404
        given = {"do": "pause", "target": "work", "token": TOKEN, "who": "Ada"}
        assert console.post(given).status == 405
        assert console.post({**given, "token": ""}).status == 405
        assert wish(log) == "active"


def test_a_group_is_paused_resumed_and_drained(console: OpenConsole, log: LogApi) -> None:
    body = console.wait_shown("/group?name=work", "/action?do=pause&amp;target=work")
    assert "/action?do=destroy&amp;target=work" in body
    form = console.get("/action?do=pause&target=work").body
    assert "This will pause group work" in form
    assert "<code>heliograph group pause work</code>" in form
    assert "<script" not in form, "a form is not overwritten while somebody types"
    for do, wanted in (("pause", "paused"), ("resume", "active"), ("drain", "draining")):
        row = act(console, do)
        assert wish(log) == wanted
        for shown in (do, "work", "Ada", "127.0.0.1:", f"group work is {wanted}"):
            assert shown in row


def test_dead_letters_are_redriven_as_they_were_shown(console: OpenConsole, log: LogApi) -> None:
    assert "no dead letter" in console.get("/action?do=redrive&target=work").body
    letters = DeadLetters(log, "work", "dead-letter/{group}")
    letters.park(GroupEvent(topic="jobs/a", table="port", key="p1", action="set"), SCRIPT)
    mark = console.asked("redrive", "work")["mark"]
    letters.park(GroupEvent(topic="jobs/a", table="port", key="p2", action="set"), "came later")
    assert "redrove 1 dead letter of group work" in act(console, "redrive", mark=mark)
    assert [one.event.key for one in redriving.letters(log, "work", redriving.progress(log, "work").until)] == ["p2"]
    assert "refused: it has changed since it was asked for" in act(console, "redrive", mark=mark), "sent twice"
    shown = console.wait_shown("/group?name=work", "came later")
    assert SCRIPT not in shown
    assert "does not name the offset" in act(console, "redrive", mark=console.asked("redrive", "work")["mark"] + "x")


def test_destroying_needs_the_name_to_be_typed(console: OpenConsole, log: LogApi) -> None:
    assert "It cannot be undone" in console.get("/action?do=destroy&target=work").body
    assert "refused: another name was typed" in act(console, "destroy")
    assert "refused: another name was typed" in act(console, "destroy", typed="WORK")
    groups.get(log, "work")
    assert "group work is destroyed" in act(console, "destroy", typed="work")
    with pytest.raises(GroupNotFound):
        groups.get(log, "work")
    assert "failed: no group" in act(console, "pause")


def test_a_group_that_was_declared_anew_meanwhile_is_left_alone(console: OpenConsole, log: LogApi) -> None:
    mark = console.asked("destroy", "work")["mark"]
    groups.destroy(log, "work")
    groups.declare(log, "work", "jobs/#")
    assert "refused: it has changed" in act(console, "destroy", typed="work", mark=mark)
    groups.get(log, "work")


def test_the_log_is_sealed(console: OpenConsole, log: LogApi) -> None:
    console.wait_shown("/log", f"/action?do=seal&amp;target={log.identity}")
    assert "sealed 100 events" in act(console, "seal", log.identity)
    assert sum(segment.rows for segment in log.segments()) == 100
    assert "failed: the log of the console is" in act(console, "seal", "another")


def test_a_silent_member_is_forgotten_and_no_other(tmp_path: pathlib.Path) -> None:
    url = sqlite_url(tmp_path)
    with contextlib.closing(open_db(url)) as db:
        db.tell_report("gone", write(FleetReport(1, "gone", "1", 1, 0.05)))
        db.tell_report("here", write(FleetReport(1, "here", "1", 1, 3600.0)))
        with consoles.opened("--db", url, token=TOKEN) as console:
            assert "failed: the console cannot reach the log now" in act(console, "pause")
            console.wait_shown("/member?key=gone", "/action?do=forget&amp;target=gone")
            assert "/action" not in console.get("/member?key=here").body.partition("<main")[2]
            assert "failed: member here is not silent" in act(console, "forget", "here")
            assert "forgot member gone" in act(console, "forget", "gone")
            console.wait_shown("/member?key=gone", "it has ended")


# -- who may not


def test_a_wrong_token_does_nothing_and_guessing_is_slowed(
    console: OpenConsole, log: LogApi, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert console.server._actions is not None
    now = time.monotonic()
    monkeypatch.setattr(console.server._actions.guard, "_clock", lambda: now)
    asked = {**console.asked("pause", "work"), "who": "Eve"}
    for guess in ("", TOKEN[:-1], TOKEN.upper()):
        assert console.post({**asked, "token": guess}).status == 403
    got = console.post({**asked, "token": TOKEN})
    assert (got.status, wish(log)) == (429, "active"), "nobody is heard for a while"
    assert int(got.headers["Retry-After"]) >= 1
    now += 1.5
    assert console.post({**asked, "token": TOKEN, "do": "resume"}).status == 303
    assert "3 wrong tokens since it began" in console.wait_shown("/actions", "wrong token")
    assert caplog.text.count("got a wrong admin token from 127.0.0.1:") == 3


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example", "Sec_Fetch_Site": "cross-site"},
        {"Origin": "http://evil.example", "Sec_Fetch_Site": ""},
        {"Origin": "http://127.0.0.1:1"},
        {"Origin": "null"},
        {"Origin": "", "Sec_Fetch_Site": "same-site"},
        {"Host": "evil.example", "Origin": "http://evil.example"},
        {"Content_Type": "text/plain"},
        {"Content_Type": ""},
    ],
    ids=str,
)
def test_a_form_of_another_site_is_refused_also_with_the_token(
    console: OpenConsole, log: LogApi, headers: dict[str, str]
) -> None:
    fields = {**console.asked("pause", "work"), "who": "Ada", "token": TOKEN}
    assert console.post(fields, **headers).status == 403
    assert wish(log) == "active"
    assert console.post(fields, Origin="", Sec_Fetch_Site="").status == 303, "a program that knows the token"


def test_nothing_is_done_by_get_or_elsewhere(console: OpenConsole, log: LogApi) -> None:
    fields = {**console.asked("pause", "work"), "who": "Ada", "token": TOKEN}
    assert console.get(f"/action?{urllib.parse.urlencode(fields)}").status == 200
    for path in ("/", "/actions", "/groups", "/stream/action", "//action", "/action/", "/assets/../action"):
        assert console.post(fields, path=path).status == 405
    for path in ("/stream/action?do=pause&target=work", "/action/", "/assets/../server.py", "/assets/%2e%2e/server.py"):
        assert console.get(path).status == 404
    for body in (b"", b"%ff=%ff&" * 100, b"\xff", b"do=pause&do=destroy;", b"do=" + b"x" * 3000):
        assert console.post(body).status in (403, 404)
    assert console.post(b"do=pause&" + b"x" * 9000).status == 400
    for length in ("-1", "1e3", "9" * 40):
        assert console.post(b"", Content_Length=length).status == 400
    assert wish(log) == "active"


def test_who_does_not_send_the_rest_holds_up_nobody(console: OpenConsole) -> None:
    place = urllib.parse.urlsplit(console.server.url)
    with contextlib.ExitStack() as stack:
        for _ in range(50):
            sock = stack.enter_context(socket.create_connection((place.hostname, place.port)))
            sock.sendall(b"POST /action HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\ndo=pause")
        assert "group work is paused" in act(console, "pause")


def test_the_token_is_shown_nowhere_and_a_record_is_one_line(
    console: OpenConsole, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        row = act(console, "pause", who=f"{SCRIPT}\nConsole action: destroy work, by Ada")
        assert SCRIPT not in row
        assert "&lt;script&gt;" in row
        console.post({"do": "pause", "target": "work", "token": "a wrong one, quite long", "who": "Eve"})
        console.get("/action?do=<script>&target=<script>")
    assert TOKEN not in caplog.text
    assert "quite long" not in caplog.text
    [record] = [one for one in caplog.records if one.name == "heliograph.console.acting.audit"]
    assert "\n" not in record.getMessage()
    audit = record.__dict__["audit"]
    assert (audit["action"], audit["target"], audit["is_done"]) == ("pause", "work", True)
    for path in ("/", "/actions", "/action?do=pause&target=work", "/group?name=work"):
        assert TOKEN not in console.get(path).body


def test_names_in_forms_are_text(console: OpenConsole) -> None:
    for do in (*ACTIONS, SCRIPT):
        body = console.get(f"/action?{urllib.parse.urlencode({'do': do, 'target': SCRIPT})}").body
        assert SCRIPT not in body
    hostile = "x'; rm -rf /; '"
    assert hostile not in console.get(f"/action?do=pause&target={urllib.parse.quote(hostile)}").body


# -- the file


def test_the_token_comes_from_a_file_that_only_its_owner_can_read(
    tmp_path: pathlib.Path, log_url: str, log: LogApi, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "token"
    words = ["console", "--address", "0", "--log", log_url, "--timeout", "0.1s", "--admin-token-file", str(file)]
    assert main(words) == exits.USAGE
    assert "cannot be read" in capsys.readouterr().err
    file.write_text("short\n")
    file.chmod(0o600)
    assert main(words) == exits.USAGE
    assert "could be guessed" in capsys.readouterr().err
    file.write_text(TOKEN)
    file.chmod(0o640)
    assert main(words) == exits.USAGE
    assert "chmod 600" in capsys.readouterr().err
    file.chmod(0o600)
    assert main(words) == exits.OK
