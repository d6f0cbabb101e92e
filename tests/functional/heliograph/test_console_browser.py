"""The console in a real browser, where there is one: Chromium through Playwright.

With HELIOGRAPH_SCREENSHOTS=DIRECTORY the pictures of docs/console.md are written there.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import pytest

from nb_api import fleet
from nb_api.fleet.judging import STATES
from nb_api.loading import open_db
from tests.helpers import consoles
from tests.helpers.fleet_nodes import UNWELL, fifty_controllers
from tests.helpers.nb_tools import sqlite_url

sync_api: Any = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

PATIENCE_MS = 60_000
BROWSERS = ("chromium", "chromium-browser", "chromium-headless-shell", "google-chrome")


@pytest.fixture
def browser() -> Iterator[Any]:
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    with sync_api.sync_playwright() as playwright:
        try:
            # Tests may run as root in a container, where Chromium has no sandbox.
            found = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        except sync_api.Error as error:
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
    with fifty_controllers(directory) as url, consoles.opened("--db", url, "--expect", "50") as console:
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
