"""An interrupt, such as Ctrl-C, at any moment of a call of the publisher: it raises, and every later call works."""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable, Iterator
from types import CodeType, FrameType
from typing import Any

import pytest

import pubsub_api
from pubsub_api import errors
from pubsub_api.core.events import encode_event
from pubsub_api.publishing import batching
from pubsub_api.publishing import publisher as publishing
from tests.helpers.waiting import WAIT_S

MOMENTS_MAX = 200
EVENT = pubsub_api.Event(topic="a", table="t", key="k", action="set", value={})


@pytest.fixture
def publisher(monkeypatch: pytest.MonkeyPatch) -> Iterator[pubsub_api.Publisher]:
    monkeypatch.setattr(publishing, "_FLOOD_GAP_NS", -1)  # however soon after another an event comes, it is a lone one
    with pubsub_api.open("memory://") as session:
        yield session.publisher(name="p")


class Interrupt:
    """Raises where the interpreter would run the handler of a signal: right after a call has returned, the one with
    number ``moment`` in the module.  `is_over` when there are not so many."""

    def __init__(self, moment: int) -> None:
        self._left = moment
        self.is_over = True
        self._moments: dict[CodeType, set[int]] = {}

    def trace(self, frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_filename != batching.__file__:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "opcode" and frame.f_lasti in self._after_calls(frame.f_code):
            self._left -= 1
            if self._left == 0:
                self.is_over = False
                raise KeyboardInterrupt
        return self.trace

    def _after_calls(self, code: CodeType) -> set[int]:
        if code not in self._moments:
            steps = list(dis.get_instructions(code))
            pairs = zip(steps, steps[1:], strict=False)
            self._moments[code] = {after.offset for step, after in pairs if step.opname.startswith("CALL")}
        return self._moments[code]


def send(publisher: pubsub_api.Publisher) -> None:
    publisher.send_event(EVENT)


def send_many(publisher: pubsub_api.Publisher) -> None:
    publisher.send_events([EVENT] * 3)


def forward(publisher: pubsub_api.Publisher) -> None:
    publisher.send_encoded("a", [encode_event(EVENT, 1)])


def flush(publisher: pubsub_api.Publisher) -> None:
    publisher.flush()


def flush_in_time(publisher: pubsub_api.Publisher) -> None:
    publisher.flush(timeout_s=WAIT_S)


@pytest.mark.parametrize("call", [send, send_many, forward, flush, flush_in_time])
def test_an_interrupt_leaves_nothing_locked(
    publisher: pubsub_api.Publisher, call: Callable[[pubsub_api.Publisher], None]
) -> None:
    before = sys.gettrace()
    for moment in range(1, MOMENTS_MAX):
        interrupt = Interrupt(moment)
        try:
            sys.settrace(interrupt.trace)
            call(publisher)
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(before)
        try:
            publisher.flush(timeout_s=WAIT_S)
        except errors.WaitTimeout:
            publisher._batcher.lock.release()  # so that the test can end
            pytest.fail(f"interrupted at moment {moment}, it stays locked")
        if interrupt.is_over:
            return
    pytest.fail("there are more moments than that")
