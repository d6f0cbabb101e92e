"""``heliograph console`` without a browser: what its pages say, what its streams tell, and what it refuses."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import pathlib
import re
import signal
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

import durable_log
import pubsub_api
from durability_service.core.messages import Epoch
from durability_service.protocol import ServiceStatus, SpaceStatus
from heliograph import exits
from heliograph.console.comparison import CopyComparison
from heliograph.console.layout import PAGES
from heliograph.console.server import ASSETS, MAKERS, REFRESH_S
from heliograph.main import main
from nb_api import DbApi, fleet
from nb_api.fleet.report import CopyReport, FleetReport, write
from nb_api.fleet.reporter import release
from nb_api.loading import open_db
from pubsub_api import reporting
from pubsub_api.testing.child import START_S
from shared_subscriptions.consuming.dead_letters import DeadLetters
from shared_subscriptions.core.events import GroupEvent
from tests.functional.heliograph.test_cli import Command
from tests.helpers import consoles, scraping
from tests.helpers.group_nodes import Source
from tests.helpers.nb_tools import sqlite_url
from tests.helpers.waiting import wait_until

SCRIPT = "<script>alert(1)</script>"
LIKELY = "likely: it has heard as far, and knows of no gap"


def told(db: DbApi, name: str, count: int = 1, **fields: object) -> None:
    """A report of a member, which would tell the next in an hour."""
    known: dict[str, Any] = {"host": "h", "role": "controller", "release": release(), **fields}
    report = FleetReport(1, name, "1", count, 3600.0, **known)
    db.tell_report(name, write(report))


@pytest.fixture
def url(tmp_path: pathlib.Path) -> str:
    return sqlite_url(tmp_path)


@pytest.fixture
def db(url: str) -> Iterator[DbApi]:
    with contextlib.closing(open_db(url)) as opened:
        yield opened


# -- what is there


def test_an_empty_installation_names_the_next_command(tmp_path: pathlib.Path) -> None:
    with consoles.opened("--db", sqlite_url(tmp_path), "--log", sqlite_url(tmp_path, "log")) as console:
        console.wait_shown("/", "there is no database at")
        console.wait_shown("/", "there is no log at")
        for path in (*PAGES, "/member?key=x", "/group?name=x"):
            body = console.wait_shown(path, "<code>heliograph ")
            assert console.get(path).status == 200
            assert "<h1>" in body
        assert list(tmp_path.iterdir()) == [], "who looks makes nothing"


def test_a_database_that_comes_later_is_shown(tmp_path: pathlib.Path, url: str) -> None:
    with consoles.opened("--db", url) as console:
        assert "Problems: 1" in console.wait_shown("/", "there is no database at")
        with contextlib.closing(open_db(url)):
            assert "--fleet" in console.wait_shown("/controllers", "No process reports to this database")
        assert "Problems: 0" in console.wait_shown("/", "No problem was found")


def test_every_page_keeps_to_itself(db: DbApi, url: str) -> None:
    told(db, "one")
    with consoles.opened("--db", url) as console:
        for path in (*MAKERS, *(f"/assets/{name}" for name in ASSETS), "/nowhere"):
            got = console.get(path)
            policy = got.headers["Content-Security-Policy"]
            assert policy.startswith("default-src 'none'; ")
            assert "unsafe" not in policy
            assert set(re.findall(r"-src '(\w+)'", policy)) == {"none", "self"}
            if path in MAKERS:
                assert re.findall(r'(?:src|href|action)="(?!/|#)[^"]*"', got.body) == [], "of this host"
                assert re.findall(r"<script(?! src)|<style|\son\w+=|\sstyle=", got.body) == []
        viewer = consoles.Viewer(console.server.url, "/")
        with contextlib.closing(viewer):
            assert viewer.headers["Content-Security-Policy"] == policy


def test_nothing_but_reading_is_answered_and_only_to_names_of_this_host(db: DbApi, url: str) -> None:
    with consoles.opened("--db", url) as console:
        for method in ("POST", "PUT", "DELETE"):
            assert console.get("/groups", method=method).status == 405
        assert (console.get("/nowhere").status, console.get("/stream/nowhere").status) == (404, 404)
        assert (console.get("/", method="HEAD").status, console.get("/", method="HEAD").body) == (200, "")
        strangers = ("evil.example", "evil.example:80", "127.0.0.1.evil.example", "", "127.0.0.1:80@evil.example")
        for host in (*strangers, "[::1].evil.example", "[::1%25evil.example]", "localhost:evil.example"):
            for path in ("/", "/stream/", "/assets/console.js"):
                assert console.get(path, host=host or " ").status == 403
        for host in ("localhost:9000", "127.0.0.1", "[::1]:80", "LOCALHOST"):
            assert console.get("/", host=host).status == 200


def test_it_listens_on_loopback_only(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["console", "--db", url, "--address", "0.0.0.0:0", "--timeout", "1s"]) == exits.USAGE
    assert "ssh -L" in capsys.readouterr().err


def test_names_are_shown_as_text(db: DbApi, url: str) -> None:
    told(db, SCRIPT, problems=[SCRIPT], copies=[CopyReport(tables=[SCRIPT], topics=["#"], digest=SCRIPT)])
    with consoles.opened("--db", url) as console:
        shown = "&lt;script&gt;alert(1)&lt;/script&gt;"
        console.wait_shown("/controllers", shown)
        for path in ("/", "/topology", f"/member?key={SCRIPT}".replace("/", "%2f"), f"/controllers?q={SCRIPT}"):
            body = console.get(path.replace("<", "%3c").replace(">", "%3e")).body
            assert shown in body
            assert SCRIPT not in body
        with contextlib.closing(consoles.Viewer(console.server.url, "/controllers")) as viewer:
            event = viewer.event()
            assert event is not None
            assert shown in event["parts"]["members"]
            assert SCRIPT not in event["parts"]["members"]


# -- the fleet


def test_of_500_members_a_part_is_shown_and_all_are_counted(db: DbApi, url: str) -> None:
    for number in range(500):
        version = "0.0.1" if number == 7 else release()
        told(db, f"host-{number:03d}", lag=number, release=version, has_bus=True, links_up=1)
    with consoles.opened("--db", url, "--expect", "501") as console:
        body = console.wait_shown("/controllers", "500 rows")
        assert body.count("<tr>") == 51
        assert "Page 1 of 10" in body
        assert "host-007" in body.partition("<tbody>")[2].partition("</tr>")[0], "worst first"
        body = console.get("/controllers?sort=-queue&page=2").body
        first, last = re.findall(r">(host-\d+)</a></th>", body)[:: len(re.findall(r">host-\d+</a></th>", body)) - 1]
        assert (first, last) == ("host-449", "host-400")
        assert "aria-sort" in body
        assert re.findall(r">(host-\d+)</a></th>", console.get("/controllers?q=HOST-49&sort=name").body) == [
            f"host-49{number}" for number in range(10)
        ]
        assert "1 of 500 rows" in console.get("/controllers?state=old").body
        assert "Page 10 of 10" in console.get("/controllers?page=999999").body
        assert console.get("/controllers?page=-1&sort=nothing&state=x&q=%00").status == 200
        assert "1 of 501 expected members does not answer" in console.get("/").body
        assert "499 members ok" in console.get("/topology").body


def test_a_subscriber_whose_callback_hangs_is_the_first_row_and_all_tell_the_same_of_it(
    db: DbApi, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    may_return = threading.Event()
    with pubsub_api.open("memory://hangs") as session, contextlib.ExitStack() as members:
        publisher = session.publisher()
        subscriber = session.subscriber(["t/#"], lambda _event: may_return.wait(60))
        subscriber.wait_ready(timeout_s=60)
        members.callback(may_return.set)
        for number in range(100):
            publisher.send_event(pubsub_api.Event(topic="t/1", table="port", key=f"p{number}", action="set"))
        wait_until(lambda: subscriber.statistics().lag == 99, what="the queue")
        members.enter_context(fleet.report(db, session, name="hangs", interval_s=0.1))
        members.enter_context(fleet.report(db, name="a-well-one", interval_s=0.1))
        with consoles.opened("--db", url) as console:
            row = console.wait_shown("/subscribers", "slow</span>").partition("<tbody>")[2].partition("</tr>")[0]
            assert ">hangs</a>" in row
            assert ">99</td>" in row
            why = "99 events wait for its callbacks, which handle 0 a second"
            console.wait_shown("/", f"1 member is slow: hangs: {why}.")
        assert main(["fleet", "--db", url, "--name", "hangs", "--watch", "0", "--json"]) == exits.OK
        [member] = json.loads(capsys.readouterr().out)["members"]
        assert (member["report"]["lag"], member["report"]["handled"]) == (99, subscriber.statistics().received)
        endpoint = members.enter_context(reporting.serve("127.0.0.1:0"))
        endpoint.report.add_session(session)
        with urllib.request.urlopen(f"{endpoint.url}/metrics") as answer:
            values = scraping.check(answer.read().decode()).values
        assert [value for (name, _), value in values.items() if name == "heliograph_subscriber_lag"] == [99]


def test_fifty_viewers_share_what_is_made(db: DbApi, url: str) -> None:
    told(db, "one")
    with consoles.opened("--db", url) as console, contextlib.ExitStack() as stack:
        console.wait_shown("/controllers", ">one</a>")
        made_before, began = console.server.pages_made, time.monotonic()
        answers_before = console.server.answers
        for _ in range(50):
            viewer = stack.enter_context(contextlib.closing(consoles.Viewer(console.server.url, "/controllers")))
            event = viewer.event()
            assert event is not None
            assert event["parts"].keys() == {"members"}
        moments = console.server.answers - answers_before + (time.monotonic() - began) / REFRESH_S + 2
        assert console.server.pages_made - made_before <= moments


def test_a_stream_tells_all_parts_and_then_what_has_changed(db: DbApi, url: str) -> None:
    told(db, "first")
    with consoles.opened("--db", url) as console:
        console.wait_shown("/", "No problem was found")
        with contextlib.closing(consoles.Viewer(console.server.url, "/?x=1")) as viewer:
            first = viewer.event()
            assert first is not None
            assert first["parts"].keys() == {"problems", "fleet", "rates", "stores"}
            told(db, "second", refused=5, has_bus=True)
            events = iter(viewer.event, None)
            later = next(event for event in events if "second" in event["parts"].get("problems", ""))
            assert "deaf" in later["parts"]["problems"]
            assert later["age_s"] >= 0
            console.server.close()
            assert list(events)[1:] == [], "it ends"


def test_what_is_not_known_is_not_0(db: DbApi, url: str) -> None:
    db.tell_report("from later", b"\x81\xa6format\x63")
    told(db, "new")
    with consoles.opened("--db", url) as console:
        body = console.wait_shown("/controllers", "from later")
        row = body.partition("from later")[2].partition("</tr>")[0]
        assert row.count('<span class="unknown">unknown</span>') == 11
        assert ">0<" not in row
        assert '<dt>Received/s</dt><dd><strong><span class="unknown">' in console.get("/").body
        assert "Source: the database sqlite://" in body


def test_the_page_of_a_member(db: DbApi, url: str) -> None:
    copy = CopyReport(position=5, newest=5, objects=3, is_complete=True, tables=["port"], topics=["t/#"], digest="abc")
    told(db, "host 7/agent", copies=[copy], resyncs={"a gap": 2}, has_bus=True, links_up=1)
    with consoles.opened("--db", url) as console:
        body = console.wait_shown("/member?key=host%207/agent", "Its report")
        for text in ("Resyncs: a gap", "1 of 1", "t/#", "abc"):
            assert text in body
        assert "a gap 2" in console.get("/subscribers").body
        assert "it has ended" in console.get("/member?key=gone").body


def test_copies_that_stand_still_are_compared(db: DbApi) -> None:
    comparison, observer = CopyComparison(), fleet.FleetObserver(db)

    def verdicts(count: int, **digests: str) -> dict[str, str]:
        for name, digest in digests.items():
            newest = 4 if name == "late" else 5
            told(db, name, count, copies=[CopyReport(count, newest, 1, True, ["port"], ["#"], digest=digest)])
        return comparison.observe(observer.look().members)

    assert set(verdicts(1, a="x", b="x", late="y", mute="").values()) == {"changing"}
    assert set(verdicts(3, a="x", b="x", late="y", mute="").values()) == {"changing"}
    settled = {"a": "same as 1 other", "b": "same as 1 other", "late": "no other to compare"}
    assert verdicts(4, a="x", b="x", late="y", mute="") == settled
    assert verdicts(5, a="x", b="x", late="y", mute="", wrong="z") == {**settled, "wrong": "changing"}
    assert verdicts(8, a="x", b="x", wrong="z") == {
        **settled, "a": "DIFFERS from 1 other, same as 1", "b": "DIFFERS from 1 other, same as 1",
        "wrong": "DIFFERS from 2 others, same as 0",
    }  # fmt: skip


def test_the_search_says_who_has_passed_an_object(db: DbApi, url: str) -> None:
    before = db.create("port", "other", 1, topic="t/1")
    version = db.create("port", "p/1", 1, topic="t/1")
    for name, position, newest in (("has", version, version), ("lacks", before, before), ("likely", before, version)):
        told(db, name, copies=[CopyReport(position, newest, 1, True, ["port"], ["t/#"])])
    told(db, "elsewhere", copies=[CopyReport(version, version, tables=["router"], topics=["#"])])
    told(db, "of much", copies=[CopyReport(version, version, is_cut=True)])
    with consoles.opened("--db", url) as console:
        console.wait_shown("/controllers", ">has</a>")
        body = console.get("/search?object=port/p/1").body
        rows = dict(re.findall(r'">([\w ]+)</a></th><td>.*?</td><td><span[^>]*>([^<]*)</span>', body))
        assert rows == {
            "lacks": "no, not yet", "of much": "not known", "likely": LIKELY,
            "has": "yes",
        }  # fmt: skip
        assert list(rows) == ["lacks", "of much", "likely", "has"], "worst first"
        assert f"Version <strong>{version}</strong> of port/p/1, topic t/1" in body
        assert "Of 4 copies that may follow it 1 have it for sure, 1 likely." in body
        deleted = db.delete("port", "p/1")
        assert f"was deleted, by version <strong>{deleted}</strong>" in console.wait_shown(
            "/search?object=port/p/1", "was deleted"
        )
        assert "There is no object port/never" in console.get("/search?object=port/never").body
        assert "The database does not answer" in console.get("/search?object=/").body


def test_a_publisher_service_and_its_entry_and_that_it_is_killed(tmp_path: pathlib.Path, db: DbApi, url: str) -> None:
    file = tmp_path / "heliograph.conf"
    with tempfile.TemporaryDirectory(prefix="hg-") as place:  # the name of a socket file has at most 107 characters
        file.write_text(
            f"[pubsub]\npub_sub_driver = zmq\npublisher_transport = ipc\nenable_df_pub_sub = true\n"
            f"publisher_multiproc_socket = {place}/publisher\n[zmq]\nipc_path = {place}/bus\n[db]\nurl = {url}\n"
            "[discovery]\nlease = 1\n"
        )
        words = ("--config-file", str(file))
        with consoles.opened(*words) as console, Command("publisher-service", *words, "--fleet") as service:
            body = console.wait_shown("/publishers", "Publishers in the directory: 1 row")
            assert f"ipc://{place}/bus" in body
            console.wait_shown("/publishers", "Members that publish: 1 row")
            assert "Backlog, bytes" in console.wait_shown("/publishers", "Source: the publisher service of this host")
            assert f"ipc://{place}/bus" in console.wait_shown("/topology", "publisher-service")
            service.process.kill()
            console.wait_shown("/", "is silent")
            console.wait_shown("/", "has not renewed its entry in the directory")
            console.wait_shown("/", "no publisher service answers")


# -- what is kept


def test_groups_with_lag_and_dead_letters_and_the_log(tmp_path: pathlib.Path, url: str) -> None:
    log_url = sqlite_url(tmp_path, "log")
    assert main(["group", "declare", "work", "jobs/#", "--start", "earliest", "--log", log_url]) == exits.OK
    with contextlib.closing(durable_log.open(log_url)) as log:
        Source(log).publish("jobs/a", 100)
        event = GroupEvent(topic="jobs/a", table="port", key="p<1>", action="set", version=1, offset=3, attempt=5)
        DeadLetters(log, "work", "dead-letter/{group}").park(event, "the handler said no")
    with consoles.opened("--db", url, "--log", log_url) as console:
        body = console.wait_shown("/groups", "the handler said no")
        row = body.partition("<tbody>")[2].partition("</tr>")[0]
        assert '<td class="number">100</td>' in row
        assert "no leader" in row
        assert "port/p&lt;1&gt;" in body
        assert '<td class="number">100</td>' in console.get("/group?name=work").body
        assert "There is no group" in console.get("/group?name=x").body
        overview = console.get("/").body
        assert "Group work has a lag of 100 and no leader." in overview
        assert "Group work has 1 dead letter." in overview
        body = console.get("/log").body
        assert "101 events in" in body
        assert "dead-letter/work" in body


def test_durability_services(url: str) -> None:
    space = SpaceStatus(
        name="all", filters=["#"], phase="ALIGNING", is_complete=False, epoch=Epoch(3, "a"), master="a", is_agreed=True,
        samples=7, digest="", persistent=True, conflicts=["two <masters>"], counters={},
    )  # fmt: skip
    service = ServiceStatus(
        node="store-1",
        incarnation=1,
        domain="d",
        role="r",
        name_spaces=[space],
        peers=[],
        lag=0,
        counters={},
        actions={},
    )
    with consoles.opened("--db", url) as console:
        assert "does not know where to ask" in console.get("/durability").body
        sample = console.sources.durability.sample
        console.sources.durability.sample = dataclasses.replace(sample, value=[service], taken_at=time.monotonic())
        body = console.wait_shown("/durability", "store-1")
        assert "aligning" in body
        assert "two &lt;masters&gt;" in body
        assert "Durability service store-1: all not complete." in console.get("/").body


# -- the command


def test_sigterm_ends_it_while_it_is_looked_at(db: DbApi, url: str) -> None:
    with Command("console", "--db", url, "--address", "0", "--json") as command:
        place = json.loads(command.lines.get(timeout=START_S))["url"]
        with contextlib.ExitStack() as stack:
            viewers = [stack.enter_context(contextlib.closing(consoles.Viewer(place, "/"))) for _ in range(10)]
            assert all(viewer.event() is not None for viewer in viewers)
            command.process.send_signal(signal.SIGTERM)
            assert command.process.wait(START_S) == exits.OK
            for viewer in viewers:
                wait_until(lambda viewer=viewer: viewer.event() is None, what="the end of the stream")
