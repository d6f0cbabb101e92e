"""Profiles of the benchmark's processes: every thread is in them, and calls are counted per event."""

from __future__ import annotations

import io
import pathlib
import threading

import pytest
from rich.console import Console

from bench import profiles
from bench.change_ends import CopySink

CALLS = 40


def step() -> None:
    """What each event costs, twice."""


def follow() -> None:
    sink = CopySink()
    for number in range(CALLS):
        sink.on_change("key", {"at": 0, "number": number})
        step()
        step()


def record(directory: pathlib.Path, monkeypatch: pytest.MonkeyPatch, role: str) -> None:
    monkeypatch.setenv(profiles.VARIABLE, str(directory))
    with profiles.recording(role):
        thread = threading.Thread(target=follow)
        thread.start()
        thread.join()


def test_calls_are_counted_per_event_in_every_thread(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record(tmp_path, monkeypatch, "follow")
    (path,) = tmp_path.iterdir()
    events, found = profiles.costs(path)
    assert events == CALLS
    assert [cost.calls for cost in found if cost.name.endswith(" step")] == [2.0]


def test_the_report_names_role_and_function(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record(tmp_path, monkeypatch, "follow")
    console = Console(width=200, file=io.StringIO(), record=True)
    profiles.show(console, tmp_path)
    text = console.export_text()
    assert f"{CALLS} events" in text
    assert "on_change" in text


def test_of_a_role_without_events_nothing_is_shown(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record(tmp_path, monkeypatch, "serve")
    assert profiles.costs(next(tmp_path.iterdir())) == (0, [])


def test_nothing_is_profiled_unless_asked(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(profiles.VARIABLE, raising=False)
    with profiles.recording("follow"):
        follow()
    assert list(tmp_path.iterdir()) == []
