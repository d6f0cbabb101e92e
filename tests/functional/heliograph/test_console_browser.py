"""The console in a real browser, where there is one: Chromium through Playwright.  `./run browser` brings both.

With HELIOGRAPH_SCREENSHOTS=DIRECTORY the pictures of docs/console.md are written there.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import pytest

import durable_log
import pubsub_api
from nb_api import fleet
from nb_api.fleet.judging import STATES
from nb_api.loading import open_db
from shared_subscriptions import groups
from shared_subscriptions.consuming.dead_letters import DeadLetters
from shared_subscriptions.core.events import GroupEvent
from tests.helpers import chromium, consoles
from tests.helpers.fleet_nodes import UNWELL, many_controllers
from tests.helpers.group_nodes import Source
from tests.helpers.nb_tools import sqlite_url
from tests.helpers.waiting import wait_until

sync_api: Any = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

PATIENCE_MS = 60_000


@pytest.fixture
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        try:
            # Tests may run as root in a container, where Chromium has no sandbox.
            found = playwright.chromium.launch(executable_path=chromium.found(), args=["--no-sandbox"])
        except sync_api.Error as error:
            if chromium.VARIABLE in os.environ:
                raise
            pytest.skip(f"no Chromium can be started: {str(error).splitlines()[0]}")
        yield found
        found.close()


@pytest.fixture
def directory() -> Iterator[pathlib.Path]:
    """A short name: that of a socket file has at most 107 characters."""
    with tempfile.TemporaryDirectory(prefix="hg-") as name:
        yield pathlib.Path(name)


class Watched:
    """A tab, and all that went wrong in it or left this host."""

    def __init__(self, browser: Any, url: str, **options: Any) -> None:
        self.page = browser.new_context(base_url=url, **options).new_page()
        self.page.set_default_timeout(PATIENCE_MS)
        sync_api.expect.set_options(timeout=PATIENCE_MS)
        self.wrong: list[str] = []
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on("console", lambda said: self.wrong.append(said.text) if said.type == "error" else None)
        self.page.on(
            "request", lambda sent: None if sent.url.startswith(url) else self.wrong.append(f"asked for {sent.url}")
        )

    def picture(self, name: str) -> None:
        if "HELIOGRAPH_SCREENSHOTS" in os.environ:
            self.page.screenshot(path=pathlib.Path(os.environ["HELIOGRAPH_SCREENSHOTS"], f"{name}.png"))


def test_of_fifty_controllers_the_frozen_the_old_and_the_deaf_one_are_shown(
    browser: Any, directory: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    expect = sync_api.expect
    with many_controllers(directory, 50) as url, consoles.opened("--db", url, "--expect", "50") as console:
        began = time.monotonic()
        tab = Watched(browser, console.server.url, viewport={"width": 1280, "height": 620})
        tab.page.goto("/")
        expect(tab.page.locator("#live")).to_have_text("live")
        for name, state in UNWELL.items():
            # The worst state of a member decides in which sentence it is.
            worse = "|".join(STATES[: STATES.index(state) + 1])  # type: ignore[arg-type]
            sentence = re.compile(rf"(is|are) ({worse}): .*{name}")
            expect(tab.page.locator("#problems li").filter(has_text=sentence)).to_have_count(1)
        with capsys.disabled():
            sys.stderr.write(f"the page shows all three after {time.monotonic() - began:.1f} s\n")
        tab.picture("console-overview")
        tab.page.get_by_role("link", name="Controllers").click()
        expect(tab.page.get_by_role("heading", level=1)).to_have_text("Controllers")
        for name, state in UNWELL.items():
            row = tab.page.get_by_role("row").filter(has=tab.page.get_by_role("link", name=name, exact=True))
            expect(row.locator(".state", has_text=re.compile(f"^{state}$"))).to_have_count(1)
        tab.picture("console-controllers")
        tab.page.get_by_label("State").select_option("silent")
        tab.page.get_by_role("button", name="Filter").click()
        expect(tab.page.get_by_role("link", name="frozen-0")).to_have_count(1)
        assert "state=silent" in tab.page.url
        tab.page.get_by_role("link", name="Topology").click()
        expect(tab.page.locator("svg text", has_text="frozen-0")).to_have_count(1)
        tab.picture("console-topology")
        assert tab.wrong == []


def test_a_page_is_live_again_after_a_restart_and_names_are_text(browser: Any, directory: pathlib.Path) -> None:
    expect = sync_api.expect
    url = sqlite_url(directory)
    with (
        contextlib.closing(open_db(url)) as db,
        fleet.report(db, name="<img src=x onerror=alert(1)>", interval_s=0.5) as told,
    ):
        assert told.wait_done(timeout_s=60)
        with consoles.opened("--db", url) as console:
            place = console.server.url
            narrow = Watched(browser, place, viewport={"width": 360, "height": 640}, color_scheme="dark")
            narrow.page.goto("/controllers")
            live = narrow.page.locator("#live")
            expect(live).to_have_text("live")
            expect(narrow.page.get_by_role("link", name="<img src=x onerror=alert(1)>")).to_be_visible()
            wide = narrow.page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
            assert wide <= 0, "only tables scroll sideways"
            narrow.picture("console-narrow")
            assert narrow.wrong == []
            narrow.page.get_by_role("button", name="Pause").click()
            expect(live).to_have_text("paused")
            narrow.page.get_by_role("button", name="Go on").click()
            expect(live).to_have_text("live")
        expect(live).to_have_text("disconnected")
        with consoles.opened("--db", url, "--address", place.rpartition(":")[2]):
            expect(live).to_have_text("live")


def test_an_operator_redrives_dead_letters_and_destroys_a_group(browser: Any, directory: pathlib.Path) -> None:
    expect = sync_api.expect
    log_url, token = sqlite_url(directory, "log"), "correct horse battery staple"
    with contextlib.closing(durable_log.open(log_url)) as log:
        groups.declare(log, "billing", "jobs/#", start="earliest")
        Source(log).publish("jobs/a", 40)
        event = GroupEvent(topic="jobs/a", table="port", key="<i>p1", action="set", version=1, offset=3, attempt=5)
        DeadLetters(log, "billing", "dead-letter/{group}").park(event, "the handler said no")
        with consoles.opened("--log", log_url, token=token) as console:
            tab = Watched(browser, console.server.url, viewport={"width": 1000, "height": 640})
            page = tab.page
            page.goto("/group?name=billing")
            expect(page.get_by_role("cell", name="the handler said no")).to_be_visible()
            page.get_by_role("link", name="Redrive").click()
            expect(page.get_by_text("This will append the events of 1 dead letter of group billing")).to_be_visible()
            page.get_by_label("Your name").fill("Ada")
            page.get_by_label("Admin token").fill(token)
            tab.picture("console-action")
            page.get_by_role("button", name="Redrive dead letters").click()
            expect(page.get_by_role("heading", level=1)).to_have_text("Actions")
            expect(page.get_by_text("redrove 1 dead letter of group billing")).to_be_visible()
            assert token not in page.url
            assert page.context.cookies() == []
            narrow = Watched(browser, console.server.url, viewport={"width": 360, "height": 640}, color_scheme="dark")
            for path in ("/", "/topics", "/group?name=billing", "/actions", "/action?do=destroy&target=billing"):
                narrow.page.goto(path)
                wide = narrow.page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
                assert wide <= 0, f"{path} is too wide for a narrow screen"
                unnamed = narrow.page.locator("input:visible, select:visible, button:visible")
                assert all(
                    one.evaluate("one => Boolean(one.labels.length || one.textContent)") for one in unnamed.all()
                )
            narrow.page.get_by_label("Type the name").fill("billing")
            narrow.page.get_by_label("Your name").fill("Ada")
            narrow.page.get_by_label("Admin token").fill(token)
            narrow.page.get_by_role("button", name="Destroy").click()
            expect(narrow.page.get_by_text("group billing is destroyed")).to_be_visible()
            assert groups.names(log) == []
            assert [*tab.wrong, *narrow.wrong] == []


def test_a_form_of_another_site_does_nothing_and_the_tail_shows_text(browser: Any, directory: pathlib.Path) -> None:
    expect = sync_api.expect
    log_url, token, bus = sqlite_url(directory, "log"), "correct horse battery staple", "memory://browser"
    with contextlib.closing(durable_log.open(log_url)) as log, pubsub_api.open(bus) as session:
        groups.declare(log, "billing", "jobs/#")
        publisher = session.publisher()
        words = ("--log", log_url, "--bus", bus, "--tail", "values")
        with consoles.opened(*words, token=token) as console, consoles.opened("--log", log_url) as other:
            console.wait_shown("/groups", "billing")
            fields = {**console.asked("pause", "billing"), "who": "Eve", "token": token}
            page = Watched(browser, other.server.url).page
            page.context.route("**/evil", lambda route: route.fulfill(
                content_type="text/html",
                body=f"<form method=post action={console.server.url}/action>"
                + "".join(f'<input name="{name}" value="{value}">' for name, value in fields.items())
                + "<button>Win</button></form>",
            ))  # fmt: skip
            page.goto("/evil")
            page.get_by_role("button").click()
            expect(page.get_by_text("not sent from a page of this console")).to_be_visible()
            assert groups.get(log, "billing").wish.value == "active"
            tab = Watched(browser, console.server.url)
            tab.page.goto("/tail?topics=t/%23")
            expect(tab.page.locator("#live")).to_have_text("live")
            cell = tab.page.get_by_role("cell", name="<img src=x onerror=alert(1)>")

            def is_shown() -> bool:
                value = "<img src=x onerror=alert(1)>"
                publisher.send_event(pubsub_api.Event(topic="t/1", table="port", key="p", action="set", value=value))
                tab.page.wait_for_timeout(200)
                return bool(cell.count())

            wait_until(is_shown, what="an event on the page")
            assert tab.wrong == []
