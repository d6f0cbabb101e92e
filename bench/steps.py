"""How many steps of the interpreter a lone change takes: ``python -m bench.steps write etcd``, ``... follow sqlite``.

Or a lone event on the bus alone: ``python -m bench.steps send zmq``, ``... receive zmq``; or one that takes the way
through the publisher service: ``python -m bench.steps work zmq``, ``... serve zmq``.

A step is one bytecode instruction.  Their number is the same on a busy machine as on a quiet one, which times are not.
So it tells what a change of the code did to the way of a change, where nothing else does.  What C code and the system
do is not in it.  Counted are the thread that writes, from the call of `NbApi.put` until it returns, or the thread that
receives, from being woken until it waits again.  Of an event on the bus they are the caller of `Publisher.send_event`
and the same receiver, with a callback that does nothing; through the service, the caller of
`WorkerPublisher.send_event`, and the intake's thread from its wake-up until it waits again.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from types import FrameType
from typing import Any

from bench import catalog, database_servers, events
from bench.change_ends import OBJECTS, CopySink, object_write
from bench.change_systems import OURS
from bench.ours import QUIET_S
from bench.sinks import Sink
from bench.through_service import service_conf
from publisher_service.service import PublisherService
from publisher_service.worker.publisher import WorkerPublisher
from pubsub_api.subscribing import inline_dispatch

CHANGES = 200
_BUSES = ("redis", "zmq")
"""Those whose frames are received by a thread of Python."""
_ROWS = 30
_RECEIVING = ("zmq-subscriber", "redis-link", "heliograph-intake")
"""How the names of the threads begin that receive: frames, or what workers send."""
_ANY_TIME_S = 60.0
_REST_S = 0.005
"""For a receiver that is counted to come to rest, and for a writer's next change to be a lone one."""


class StepCounter:
    """Counts by function, while ``is_on``."""

    def __init__(self) -> None:
        self.steps: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()
        self.is_on = False

    def trace(self, frame: FrameType, event: str, _: Any) -> Any:
        """For `sys.settrace`."""
        name = f"{frame.f_code.co_filename}:{frame.f_code.co_name}"
        if event == "call":
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
            self.calls[name] += self.is_on
        elif event == "opcode":
            self.steps[name] += self.is_on
        return self.trace

    def trace_receiving(self, frame: FrameType, event: str, argument: Any) -> Any:
        """For `threading.settrace`: other threads are left alone."""
        is_wanted = threading.current_thread().name.startswith(_RECEIVING)
        return self.trace(frame, event, argument) if is_wanted else None

    def show(self) -> None:
        print(f"{self.steps.total() / CHANGES:.0f} steps and {self.calls.total() / CHANGES:.0f} calls per change")
        for name, steps in self.steps.most_common(_ROWS):
            print(f"{steps / CHANGES:8.1f} steps {self.calls[name] / CHANGES:6.2f} calls  {name}")


@contextlib.contextmanager
def _callbacks_at_ease() -> Iterator[None]:
    """Counting takes its time, and a callback that takes long is called by another thread."""
    with contextlib.ExitStack() as stack:
        for limit in ("MOMENT_S", "LENT_MAX_S"):
            stack.callback(setattr, inline_dispatch, limit, getattr(inline_dispatch, limit))
            setattr(inline_dispatch, limit, _ANY_TIME_S)
        yield


class _LoneSink(Sink):
    """Tells of each event."""

    def __init__(self) -> None:
        super().__init__(2 * CHANGES, int)
        self._came = threading.Lock()  # entered without a step of Python, which is not to be counted
        self._came.acquire()

    def on_event(self, _event: Any) -> None:
        self._came.release()

    def wait(self) -> None:
        """Until the event has come, and the receiver waits again: so each comes alone."""
        self._came.acquire(timeout=QUIET_S)
        time.sleep(_REST_S)


def count_bus(side: str, driver: str) -> StepCounter:
    """``side`` is send or receive."""
    counter = StepCounter()
    sink = _LoneSink()
    with catalog.transport(driver) as transport, contextlib.ExitStack() as stack, _callbacks_at_ease():
        sender = transport.ours.open_sender()
        stack.callback(sender.close)
        if side == "receive":
            threading.settrace(counter.trace_receiving)
        stack.callback(transport.ours.open_receiver(sender.address, events.topic(), sink).close)
        threading.settrace(None)  # type: ignore[arg-type]
        for number in range(2 * CHANGES):
            counter.is_on = number >= CHANGES
            before = sys.gettrace()
            sys.settrace(counter.trace if side == "send" else before)
            sender.send(events.topic(), number)
            sys.settrace(before)
            sink.wait()
        counter.is_on = False
    return counter


def count_service(side: str, driver: str) -> StepCounter:
    """``side`` is work or serve: a worker, or the service, which are in one process here."""
    counter = StepCounter()
    sink = _LoneSink()
    with catalog.transport(driver) as transport, contextlib.ExitStack() as stack, _callbacks_at_ease():
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="heliograph-bench-"))
        conf = service_conf(transport.ours.server, directory)
        if side == "serve":
            threading.settrace(counter.trace_receiving)
        service = stack.enter_context(PublisherService(conf))
        threading.settrace(None)  # type: ignore[arg-type]
        worker = stack.enter_context(WorkerPublisher(conf))
        stack.callback(transport.ours.open_receiver(service.publisher.address, events.topic(), sink).close)
        for number in range(2 * CHANGES):
            counter.is_on = number >= CHANGES
            event = events.event(number, events.topic())
            before = sys.gettrace()
            sys.settrace(counter.trace if side == "work" else before)
            worker.send_event(event)
            sys.settrace(before)
            sink.wait()
        counter.is_on = False
    return counter


def count(side: str, database: str) -> StepCounter:
    """``side`` is write or follow."""
    counter = StepCounter()
    (system,) = (one for one in OURS if one.database == database)
    assert system.follower is not None
    with contextlib.ExitStack() as stack, _callbacks_at_ease():
        server = stack.enter_context(database_servers.running(database))
        url = server.new_url()
        bus = system.bus if system.bus.startswith("zmq") else url.partition("?")[0]
        writer = system.writer(url, bus)
        stack.callback(writer.close)
        writer.fill([object_write(place, -1) for place in range(OBJECTS)])
        if side == "follow":
            threading.settrace(counter.trace_receiving)
        sink = CopySink()
        stack.callback(system.follower(url, bus, writer.addresses, sink).close)
        threading.settrace(None)  # type: ignore[arg-type]
        for number in range(2 * CHANGES):
            counter.is_on = number >= CHANGES  # after it has found its way
            write = object_write(number % OBJECTS, number)
            before = sys.gettrace()
            sys.settrace(counter.trace if side == "write" else before)
            writer.put(write)
            sys.settrace(before)
            sink.wait({write.key: number}, QUIET_S)  # so that each comes alone
            time.sleep(_REST_S)
        counter.is_on = False
    return counter


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="bench.steps", description=__doc__.partition("\n")[0])
    sides = parser.add_subparsers(dest="side", required=True)
    for side in ("write", "follow"):
        sides.add_parser(side).add_argument("system", choices=sorted({one.database for one in OURS}))
    for side in ("send", "receive"):
        sides.add_parser(side).add_argument("system", choices=_BUSES)
    for side in ("work", "serve"):
        sides.add_parser(side).add_argument("system", choices=("zmq",))
    wanted = parser.parse_args()
    counted = {"write": count, "follow": count, "work": count_service, "serve": count_service}
    counted.get(wanted.side, count_bus)(wanted.side, wanted.system).show()
