"""Counting the steps that a change takes: it runs, and tells of both sides."""

from __future__ import annotations

import pytest

from bench import steps
from pubsub_api.subscribing import inline_dispatch


@pytest.mark.parametrize(("side", "part"), [("write", "api.py:put"), ("follow", "local_cache.py:on_events")])
def test_the_steps_of_a_change_are_counted_by_function(side: str, part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "CHANGES", 5)
    limits = inline_dispatch.MOMENT_S, inline_dispatch.LENT_MAX_S
    counted = steps.count(side, "sqlite")
    (name,) = (name for name in counted.calls if name.endswith((f"nb_api/{part}", f"cache/{part}")))
    assert 1 <= counted.calls[name] <= 5
    assert counted.steps[name] > counted.calls[name]
    assert limits == (inline_dispatch.MOMENT_S, inline_dispatch.LENT_MAX_S)


@pytest.mark.parametrize(("side", "part"), [("send", "publisher.py:send_event"), ("receive", "dispatching.py:tell")])
def test_the_steps_of_an_event_on_the_bus_are_counted_too(
    side: str, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps, "CHANGES", 5)
    counted = steps.count_bus(side, "zmq")
    (name,) = (name for name in counted.calls if name.endswith((f"publishing/{part}", f"subscribing/{part}")))
    assert 1 <= counted.calls[name] <= 5
    assert counted.steps[name] > counted.calls[name]
