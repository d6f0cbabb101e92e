"""What a stranger can cause without end costs a bounded number of log lines."""

from __future__ import annotations

import logging
import os
import signal
import threading

import pytest

from pubsub_api.runtime.rate_limited_log import RateLimitedLog
from tests.helpers.waiting import WAIT_S


def test_a_thousand_messages_are_one_line_and_then_a_summary(caplog: pytest.LogCaptureFixture) -> None:
    def messages() -> list[str]:
        return [record.getMessage() for record in caplog.records if record.name == "seldom"]

    now = [0.0]
    log = RateLimitedLog(logging.getLogger("seldom"), interval_s=10.0, clock=lambda: now[0])
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


def test_a_child_that_was_forked_while_a_line_was_being_written_can_log() -> None:
    parent = os.getpid()
    is_inside, may_leave = threading.Event(), threading.Event()

    def clock() -> float:
        if os.getpid() == parent:
            is_inside.set()
            may_leave.wait(WAIT_S)
        return 0.0

    logger = logging.getLogger("seldom-after-fork")
    logger.disabled = True  # the child must not write into what pytest captures
    log = RateLimitedLog(logger, clock=clock)
    thread = threading.Thread(target=log, args=("in the parent",))
    thread.start()
    assert is_inside.wait(WAIT_S)
    child = os.fork()
    if not child:
        try:
            signal.alarm(int(WAIT_S))  # ends a child that hangs
            log("in the child")
            os._exit(0)
        finally:
            os._exit(1)
    may_leave.set()
    thread.join()
    assert os.waitpid(child, 0)[1] == 0
