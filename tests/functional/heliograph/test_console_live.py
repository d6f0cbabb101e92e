"""What moves on the console: topics, rates, the tail of a bus; and viewers that do not behave."""

from __future__ import annotations

import contextlib
import pathlib
import secrets
import socket
import urllib.parse

import pytest

import durable_log
import pubsub_api
from heliograph.console import server as servers
from heliograph.console.live import tail
from heliograph.console.live.rates import RateHistory
from heliograph.console.sources import LateHandle, LogReader
from nb_api.fleet.report import CopyReport, FleetReport, write
from nb_api.loading import open_db
from pubsub_api import Event
from pubsub_api.reporting.http import HEAD_BYTES_MAX
from shared_subscriptions import groups
from shared_subscriptions.consuming.dead_letters import DeadLetters
from shared_subscriptions.core.events import GroupEvent
from tests.helpers import consoles
from tests.helpers.group_nodes import Source
from tests.helpers.nb_tools import sqlite_url
from tests.helpers.waiting import wait_until

SCRIPT = "<script>alert(1)</script>"
SHOWN = "&lt;script&gt;alert(1)&lt;/script&gt;"


def send(publisher: pubsub_api.Publisher, key: str, value: object) -> None:
    publisher.send_event(Event(topic="t/1", table="port", key=key, action="set", value=value))


@pytest.mark.parametrize("shows", ["names", "values"])
def test_the_tail_shows_events_as_text(shows: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tail, "UNSEEN_S", 3600.0)
    bus = f"memory://{secrets.token_hex(4)}"
    with consoles.opened("--bus", bus, "--tail", shows) as console, pubsub_api.open(bus) as session:
        publisher = session.publisher()
        console.wait_shown("/tail?topics=t/%23", "Nothing has passed yet")

        def body() -> str:
            send(publisher, SCRIPT, {"text": SCRIPT, "long": "x" * 5000})
            publisher.flush(timeout_s=30)
            found = console.get("/tail?topics=t/%23").body
            return found if SHOWN in found else ""

        shown = wait_until(body, what="the event")
        assert SCRIPT not in shown
        assert ("not shown</small>" in shown) == (shows == "names")
        assert ("xxx ... (5," in shown) == (shows == "values")
        with contextlib.closing(consoles.Viewer(console.server.url, "/tail?topics=t/%23")) as viewer:
            event = viewer.event()
            assert event is not None
            assert SHOWN in event["parts"]["events"]
            assert SCRIPT not in event["parts"]["events"]
        assert "There is no tail" in console.get("/tail?topics=a/%23/b").body
        assert "cannot join a group" in console.get("/tail?topics=$queue/work/%23").body
        assert "while this page is open" in console.get("/tail").body


def test_topics_with_who_follows_them_and_rates(tmp_path: pathlib.Path) -> None:
    url, log_url = sqlite_url(tmp_path), sqlite_url(tmp_path, "log")
    with contextlib.closing(open_db(url)) as db, contextlib.closing(durable_log.open(log_url)) as log:
        copies = [CopyReport(topics=["jobs/#"]), CopyReport(topics=["else/#"]), CopyReport(topics=["a/#/b"])]
        db.tell_report("one", write(FleetReport(1, "one", "1", 1, 3600.0, copies=copies)))
        groups.declare(log, "work", "jobs/#", start="earliest")
        source = Source(log)
        source.publish("jobs/a", 100)
        source.publish(f"jobs/{SCRIPT}", 1)
        with consoles.opened("--db", url, "--log", log_url) as console:
            console.wait_shown("/controllers", ">one</a>")
            body = console.wait_shown("/topics", "jobs/a")
            assert SHOWN in body
            assert SCRIPT not in body
            row = body.partition('<th scope="row">jobs/a')[2].partition("</tr>")[0]
            assert ">work<" in row
            assert row.endswith('<td class="number">1</td>'), "one copy follows it"
            assert 'aria-label="Lag of all groups over the last 5 minutes"' in console.get("/").body
        history = RateHistory()
        reader = LogReader(LateHandle(lambda: log), history)
        assert reader.read().rates == {}, "from one look alone nobody knows"
        source.publish("jobs/a", 50)
        rates = reader.read().rates
        assert rates["jobs/a"] > 0
        assert rates[f"jobs/{SCRIPT}"] == 0
        assert history.lines()["Recorded/s"][0][1] == sum(rates.values())


def test_members_tell_gaps_and_repairs_and_an_old_one_does_not(tmp_path: pathlib.Path) -> None:
    url = sqlite_url(tmp_path)
    with contextlib.closing(open_db(url)) as db:
        for name, told in (("new", {"gaps": 7, "repaired": 5}), ("old", {})):
            report = FleetReport(1, name, "1", 1, 3600.0, has_bus=True, **told)  # type: ignore[arg-type]
            db.tell_report(name, write(report))
        with consoles.opened("--db", url) as console:
            body = console.wait_shown("/subscribers", ">old</a>")
            rows = {name: body.partition(f">{name}</a>")[2].partition("</tr>")[0] for name in ("new", "old")}
            assert '<td class="number">7</td><td class="number">5</td>' in rows["new"]
            assert rows["old"].count('<span class="unknown">unknown</span></td>') >= 2


def test_texts_of_any_length_make_no_large_page(tmp_path: pathlib.Path) -> None:
    log_url = sqlite_url(tmp_path, "log")
    with contextlib.closing(durable_log.open(log_url)) as log:
        groups.declare(log, "work", "jobs/#", start="earliest")
        letters = DeadLetters(log, "work", "dead-letter/{group}")
        long = "x" * 300_000
        for number in range(30):
            event = GroupEvent(topic="jobs/a", table=long, key=f"{number} {long}", action="set", value=long)
            letters.park(event, f"{number} {long}")
        with consoles.opened("--log", log_url, token=long) as console:
            body = console.wait_shown("/groups", "29 xxx")
            assert body.count("(300,003 characters)") == 40, "keys and reasons of the newest 20"
            assert len(body) < 100_000
            assert console.sources.log.sample.value is not None
            assert all(one.event.value is None for _, one in console.sources.log.sample.value.newest_letters)


# -- viewers that do not behave


def test_who_comes_when_all_streams_are_taken_still_gets_pages(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers, "STREAMS_MAX", 5)
    with consoles.opened("--db", sqlite_url(tmp_path)) as console, contextlib.ExitStack() as stack:
        viewers = [stack.enter_context(contextlib.closing(consoles.Viewer(console.server.url, "/"))) for _ in range(5)]
        assert [viewer.status for viewer in viewers] == [200] * 5
        with contextlib.closing(consoles.Viewer(console.server.url, "/")) as late:
            assert late.status == 503
        assert console.get("/").status == 200
        viewers[0].close()
        wait_until(lambda: _is_admitted(console.server.url), what="a free place for a viewer")


def _is_admitted(url: str) -> bool:
    with contextlib.closing(consoles.Viewer(url, "/")) as viewer:
        return viewer.status == 200


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_a_page_of_a_stranger_has_a_link_to_the_console_and_no_more(tmp_path: pathlib.Path, site: str) -> None:
    """Else any page that somebody of this host looks at could take all streams, or have the console listen to a bus."""
    words = ("--db", sqlite_url(tmp_path), "--bus", "memory://strangers", "--tail", "names")
    with consoles.opened(*words) as console:
        for path in ("/", "/stream/", "/tail?topics=%23", "/stream/tail?topics=%23", "/assets/console.js"):
            for place in ("empty", "image", "iframe", "script"):
                assert console.get(path, Sec_Fetch_Site=site, Sec_Fetch_Dest=place).status == 403
        assert console.get("/", Sec_Fetch_Site=site, Sec_Fetch_Dest="document").status == 200
        assert console.get("/", Sec_Fetch_Site="none", Sec_Fetch_Dest="document").status == 200
        assert console.get("/assets/console.js", Sec_Fetch_Site="same-origin", Sec_Fetch_Dest="script").status == 200


def test_a_head_that_is_cut_off_before_it_says_where_it_comes_from_is_refused(tmp_path: pathlib.Path) -> None:
    """The page of a stranger chooses the URL, and so how much of the head has room; what follows it is not its own."""
    with consoles.opened("--db", sqlite_url(tmp_path)) as console:
        for length in range(HEAD_BYTES_MAX - 150, HEAD_BYTES_MAX, 5):
            got = console.get(f"/?x={'a' * length}", Sec_Fetch_Site="cross-site", Sec_Fetch_Dest="image")
            assert got.status in (400, 403), length
        fitting = console.get(f"/?x={'a' * (HEAD_BYTES_MAX - 500)}", Sec_Fetch_Site="same-origin")
        assert fitting.status == 200


def test_a_viewer_that_does_not_read_is_dropped(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "STREAMS_MAX", 1)
    with consoles.opened("--db", sqlite_url(tmp_path)) as console:
        monkeypatch.setattr(servers, "ANSWER_S", 0.3)  # for writing; those who ask have as long as ever
        large = {f"part{number}": secrets.token_hex(500_000) for number in range(10)}
        page = console.server._console_page("/", "")._replace(parts=large)
        monkeypatch.setattr(console.server, "_console_page", lambda *_: page)
        place = urllib.parse.urlsplit(console.server.url)
        with socket.create_connection((place.hostname, place.port)) as sock:
            sock.sendall(b"GET /stream/ HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert sock.recv(1) == b"H", "the only place is taken"
            wait_until(lambda: _is_admitted(console.server.url), what="the place of the viewer that does not read")
