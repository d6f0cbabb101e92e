"""An error that nobody foresaw, on the receiving thread that all ZeroMQ subscribers of a process share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from heliograph_drivers.pubsub.zmq.links import SubscriberLinks
from heliograph_drivers.pubsub.zmq.loop import ReceiveLoop
from pubsub_api.driver import Disconnected
from pubsub_api.testing.conformance.stage import Listener, Stage
from tests.helpers.zmq_tools import open_stage


@pytest.fixture
def stage() -> Iterator[Stage]:
    with open_stage() as stage:
        yield stage


def once(method: Callable[..., Any], is_meant: Callable[[Any], bool] = lambda _self: True) -> Callable[..., Any]:
    """As ``method``, but the first call that is meant raises."""
    raised = False

    def replacement(self: Any, *arguments: Any) -> Any:
        nonlocal raised
        if not raised and is_meant(self):
            raised = True
            raise RuntimeError("nobody foresaw this")
        return method(self, *arguments)

    return replacement


def losses(listener: Listener) -> list[str]:
    return [report.reason for report in listener.heard.links if isinstance(report, Disconnected)]


def break_reading(links: SubscriberLinks, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next time that there is something to read."""
    broken = once(SubscriberLinks._pass_on_lent, lambda found: found is links)
    monkeypatch.setattr(SubscriberLinks, "_pass_on_lent", broken)


def break_command(links: SubscriberLinks, _monkeypatch: pytest.MonkeyPatch) -> None:
    links.post(once(lambda _self: None), links)


@pytest.mark.parametrize("fault", [break_reading, break_command])
def test_an_error_of_one_subscriber_leaves_the_others_alone(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, fault: Callable[[SubscriberLinks, pytest.MonkeyPatch], None]
) -> None:
    speaker = stage.publisher()
    struck, other = stage.subscriber("D"), stage.subscriber("D")
    fault(struck.api._links, monkeypatch)  # type: ignore[attr-defined]
    speaker.send("D")
    struck.heard.wait_connected(speaker.address, count=2)
    sent = speaker.send("D")
    struck.heard.wait_frame(sent)
    other.heard.wait_frame(sent)
    assert losses(struck) == ["nobody foresaw this"]
    assert not losses(other)


def test_an_error_of_the_loop_itself_opens_all_links_again(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    speaker = stage.publisher()
    listeners = [stage.subscriber("D"), stage.subscriber("D")]
    monkeypatch.setattr(ReceiveLoop, "_turn", once(ReceiveLoop._turn))
    listeners[0].api.register_topic("other")  # wakes the thread
    for listener in listeners:
        listener.heard.wait_connected(speaker.address, count=2)
    sent = speaker.send("D")
    for listener in listeners:
        listener.heard.wait_frame(sent)
        assert losses(listener) == ["nobody foresaw this"]
