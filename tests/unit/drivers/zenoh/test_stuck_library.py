"""Zenoh's own code was seen to wait for ever, in calls that hear no signal: nothing of ours waits with it."""

from __future__ import annotations

import threading
import types

import pytest
import zenoh

from heliograph_drivers.pubsub.zenoh import session as session_module
from tests.helpers.zenoh_ends import build


def test_a_session_that_cannot_be_closed_is_given_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(session_module, "STUCK_S", 0.1)
    publisher = build("zenoh://127.0.0.1:0").get_publisher()
    publisher.initialize(print)
    session, is_over = publisher._session, threading.Event()  # type: ignore[attr-defined]
    inner = session.zenoh
    session.zenoh = types.SimpleNamespace(close=is_over.wait)
    try:
        session.close()
        assert "given up" in caplog.text
    finally:
        is_over.set()
        session.zenoh = inner
        monkeypatch.undo()
        publisher.close()
    assert inner.is_closed()


def test_errors_of_the_library_come_through() -> None:
    with pytest.raises(zenoh.ZError, match="bad"):
        session_module.within_limit(lambda: zenoh.KeyExpr("bad//key"), "trying")
