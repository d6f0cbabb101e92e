"""``fork()``: a child does not use inherited handles, and opens its own where the driver is fork-safe.

A broken driver blocks in a forked child instead of failing, so the child is killed when it takes too long.
"""

from __future__ import annotations

import os
import select
import signal
import time
import warnings
from collections.abc import Callable

from pubsub_api.errors import Forked, HeliographError, WaitTimeout
from pubsub_api.testing.conformance.base import ConformanceBase
from pubsub_api.testing.conformance.stage import Stage
from pubsub_api.testing.receivers import WAIT_S

FORK_S = 1.5 * WAIT_S


def in_forked_child(work: Callable[[], str]) -> str:
    """Call ``work`` in a forked child and return its result, or the repr of what it raised.

    Raises WaitTimeout when the child has not answered in time; it is killed in any case.
    """
    read_end, write_end = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of forks with threads
        pid = os.fork()
    if pid == 0:
        _work_and_exit(work, write_end)
    os.close(write_end)
    try:
        return _read_all(read_end)
    finally:
        os.close(read_end)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _work_and_exit(work: Callable[[], str], write_end: int) -> None:
    try:
        result = work()
    except BaseException as error:  # noqa: BLE001 - the parent gets it
        result = repr(error)
    os.write(write_end, result.encode())
    # Without clean-up: the exit handlers and buffers belong to the parent.
    os._exit(0)


def _read_all(read_end: int) -> str:
    deadline = time.monotonic() + FORK_S
    data = b""
    while select.select([read_end], [], [], max(0.0, deadline - time.monotonic()))[0]:
        chunk = os.read(read_end, 65_536)
        if not chunk:
            return data.decode()
        data += chunk
    raise WaitTimeout(f"the forked child did nothing for {FORK_S} s")


def outcome(call: Callable[[], object]) -> str:
    """Whether a call raised Forked, another error, or nothing."""
    try:
        call()
    except Forked:
        return "Forked"
    except HeliographError as error:
        return repr(error)
    return "nothing"


class ForkConformance(ConformanceBase):
    def test_inherited_objects_refuse_to_work_in_a_child(self, stage: Stage) -> None:
        speaker = stage.publisher()
        listener = stage.subscriber("t")
        calls: dict[str, Callable[[], object]] = {
            "send": lambda: speaker.api.send("t", speaker.frames.data("t")),
            "send_many": lambda: speaker.api.send_many([("t", speaker.frames.data("t"))]),
            "register_topic": lambda: listener.api.register_topic("u"),
            "unregister_topic": lambda: listener.api.unregister_topic("t"),
            "register_listen_address": lambda: listener.api.register_listen_address(listener.addresses[0]),
        }
        if stage.capabilities.queries:
            calls["query"] = listener.ask
        expected = str(dict.fromkeys(calls, "Forked"))
        assert in_forked_child(lambda: str({name: outcome(call) for name, call in calls.items()})) == expected
        listener.heard.wait_frame(speaker.send("t"))

    def test_closing_inherited_objects_does_not_disturb_the_parent(self, stage: Stage) -> None:
        speaker = stage.publisher()
        listener = stage.subscriber("t")
        result = in_forked_child(lambda: f"{outcome(speaker.api.close)} {outcome(listener.api.close)}")
        assert set(result.split()) <= {"Forked", "nothing"}
        listener.heard.wait_frame(speaker.send("t"))
        assert listener.api.is_running

    def test_a_child_opens_its_own_objects_or_gets_an_error_at_once(self, stage: Stage, second_url: str) -> None:
        speaker = stage.publisher()
        listener = stage.subscriber("t")

        def exchange() -> str:
            fresh = Stage(self.make_driver(self.make_conf(second_url)), stage.at, second_url)
            own_speaker = fresh.publisher()
            own_listener = fresh.subscriber("t")
            frame = own_speaker.send("t")
            own_listener.heard.wait_frame(frame)
            fresh.close()
            return "exchanged"

        result = in_forked_child(lambda: outcome(exchange).replace("nothing", "exchanged"))
        assert result == ("exchanged" if stage.capabilities.fork_safe else "Forked")
        listener.heard.wait_frame(speaker.send("t"))

    def test_a_child_may_be_forked_before_anything_is_open(self, stage: Stage, driver_url: str) -> None:
        def open_and_close() -> str:
            fresh = Stage(self.make_driver(self.make_conf(driver_url)), stage.at, driver_url)
            fresh.publisher()
            fresh.close()
            return "opened"

        result = in_forked_child(lambda: outcome(open_and_close).replace("nothing", "opened"))
        assert result in (("opened",) if stage.capabilities.fork_safe else ("opened", "Forked"))
