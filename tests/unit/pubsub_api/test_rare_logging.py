"""What a stranger can cause without end costs a bounded number of log lines."""

from __future__ import annotations

import logging

import pytest

from pubsub_api.runtime.rare_logging import SeldomLog


def test_a_thousand_messages_are_one_line_and_then_a_summary(caplog: pytest.LogCaptureFixture) -> None:
    def messages() -> list[str]:
        return [record.getMessage() for record in caplog.records if record.name == "seldom"]

    now = [0.0]
    log = SeldomLog(logging.getLogger("seldom"), interval_s=10.0, clock=lambda: now[0])
    for number in range(1000):
        log("refused question %d", number)
    assert messages() == ["refused question 0"]
    now[0] = 10.0
    log("refused question %d", 1000)
    log("refused question %d", 1001)
    assert messages()[1:] == ["refused question 1000 (and 999 more like it since the last such line)"]
    now[0] = 30.0
    log("refused %s", "another")
    assert messages()[2:] == ["refused another (and 1 more like it since the last such line)"]
    now[0] = 50.0
    log("refused %s", "one after a pause")
    assert messages()[3:] == ["refused one after a pause"]
