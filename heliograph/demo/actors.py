"""The actors of the demonstration: a publisher and a controller.  Each is a function that runs until it is told to end.

An actor gets a `Role`, takes commands (words) from a queue and reports dictionaries.
``python -m heliograph.demo.actors JSON`` plays one in a process of its own, with commands on standard input and reports
on standard output, one per line; the end of the input ends it, so that no actor outlives the demonstration.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import pathlib
import queue
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import pubsub_api
from heliograph.demo.truth import LocalCopy, Truth
from pubsub_api import Event, Resync, loading
from pubsub_api.config import GROUP
from pubsub_api.errors import AddressInUse
from pubsub_api.testing.faults import Faults
from pubsub_api.testing.faulty import FaultyPubSub

Report = Callable[[dict[str, Any]], None]
Commands = queue.SimpleQueue[str]

TOPICS = tuple(f"demo/tenant-{number}/port" for number in range(1, 6))
FILTER = "demo/#"
PUBLISHER_NAME = "demo-publisher"
KEYS_PER_TOPIC = 40
DELETE_SHARE = 0.1

TICK_S = 0.02
REPORT_S = 0.2
BIND_PATIENCE_S = 20.0
READY_TIMEOUT_S = 120.0


@dataclasses.dataclass(frozen=True)
class Role:
    """Everything an actor needs to know, as plain data."""

    part: str
    """``publisher`` or ``controller``."""
    number: int
    url: str
    address: str
    """Where a controller listens; empty: where the URL says."""
    truth: str
    """Path of the database."""
    rate: float
    """Changes per second that the publisher makes."""
    drop: float
    """Part of the frames that a controller loses on the way, from 0 to 1."""
    idle_s: float
    """Hellos come this often, so that the loss of a last event is noticed within the time of a demonstration."""


def open_session(role: Role, faults: Faults | None = None) -> pubsub_api.Session:
    conf = loading.conf_from_url(role.url)
    conf.set_override("max_idle_time", role.idle_s, group=GROUP)
    return pubsub_api.open(conf=conf, wrap_driver=None if faults is None else lambda it: FaultyPubSub(it, faults))


def play_publisher(role: Role, commands: Commands, report: Report) -> None:
    """Commands: ``go`` begins to change objects, ``stop`` ceases but answers queries, ``end`` ends."""
    truth = Truth(pathlib.Path(role.truth))
    with open_session(role) as session:
        publisher = _patiently(session)
        report({"address": publisher.address, "events": 0})
        chance = random.Random(role.number)
        command, sent, due, last_report = "", 0, 0.0, 0.0
        while command != "end":
            now = time.monotonic()
            if command == "go":
                due += role.rate * TICK_S
                while sent < due:
                    sent += 1
                    publisher.send_event(_change(truth, chance))
            if now - last_report >= REPORT_S:
                last_report = now
                report({"events": sent, "queries": publisher.statistics().queries})
            said = _next(commands, TICK_S)
            if said == "stop":
                publisher.flush(timeout_s=READY_TIMEOUT_S)
                report({"events": sent, "stopped": True})
            command = said or command
    truth.close()


def _patiently(session: pubsub_api.Session) -> pubsub_api.Publisher:
    """A publisher; when the one that was killed still seems to hold the address, that is waited out."""
    deadline = time.monotonic() + BIND_PATIENCE_S
    while True:
        try:
            return session.publisher(name=PUBLISHER_NAME)
        except AddressInUse:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def _change(truth: Truth, chance: random.Random) -> Event:
    """Change an object in the database, then say so: first the commit, then the event."""
    topic = chance.choice(TOPICS)
    key = f"p{chance.randrange(KEYS_PER_TOPIC)}"
    value = None if chance.random() < DELETE_SHARE else f"{chance.getrandbits(32):08x}"
    version = truth.change(topic, key, value)
    event = Event(topic=topic, table="port", key=key, action="set", value=value, version=version)
    if value is None:
        event.action = "delete"
    return event


class Controller:
    """Keeps a copy of the objects from events; a resync makes it read the database again."""

    def __init__(self, truth: Truth) -> None:
        self._truth = truth
        self._lock = threading.Lock()
        self._copy = LocalCopy()
        self._reasons: list[str] = []

    def on_events(self, events: Sequence[Event]) -> None:
        with self._lock:
            for event in events:
                self._copy.apply((event.topic, event.key), event.value, event.version)

    def on_resync(self, resync: Resync) -> None:
        revision, rows = self._truth.snapshot()
        with self._lock:
            self._reasons.append(resync.reason.value)
            self._copy.replace(revision, rows)

    def state(self) -> dict[str, Any]:
        with self._lock:
            return {"revision": self._copy.revision, "rows": len(self._copy.rows()), "reasons": list(self._reasons)}

    def dump(self) -> list[list[Any]]:
        """Every object as ``[topic, key, value, version]``, for the comparison with the truth."""
        with self._lock:
            return [[*key, *row] for key, row in sorted(self._copy.rows().items())]


def play_controller(role: Role, commands: Commands, report: Report) -> None:
    """Commands: ``dump`` reports the copy, ``freeze`` and ``thaw`` stop and resume the link, ``end`` ends."""
    truth = Truth(pathlib.Path(role.truth))
    controller = Controller(truth)
    faults = Faults(seed=role.number, drop=role.drop)
    with open_session(role, faults) as session:
        subscriber = session.subscriber(
            [FILTER],
            on_events=controller.on_events,
            on_resync=controller.on_resync,
            addresses=[role.address] if role.address else None,
        )
        subscriber.wait_ready(timeout_s=READY_TIMEOUT_S)
        command = ""
        while command != "end":
            counters = subscriber.statistics()
            report(
                {
                    "ready": True, "received": counters.received, "gaps": counters.gaps, "repaired": counters.repaired,
                    "resyncs": counters.resyncs, "lost": counters.lost, "dropped": faults.counts().dropped,
                    **controller.state(),
                }
            )  # fmt: skip
            command = _next(commands, REPORT_S)
            if command == "dump":
                report({"dump": controller.dump()})
            elif command == "freeze":
                faults.freeze()
            elif command == "thaw":
                faults.thaw()
    truth.close()


def _next(commands: Commands, timeout_s: float) -> str:
    try:
        return commands.get(timeout=timeout_s)
    except queue.Empty:
        return ""


PARTS: dict[str, Callable[[Role, Commands, Report], None]] = {
    "publisher": play_publisher,
    "controller": play_controller,
}


def main() -> None:
    """Play the part that the argument describes."""
    # Ctrl-C in the terminal reaches every process of the demonstration; the first one ends the others in order.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.basicConfig(level=logging.WARNING)
    role = Role(**json.loads(sys.argv[1]))
    commands: Commands = queue.SimpleQueue()
    threading.Thread(target=_read_commands, args=(commands,), name="commands", daemon=True).start()
    PARTS[role.part](role, commands, _say)


def _read_commands(commands: Commands) -> None:
    for line in sys.stdin:
        commands.put(line.strip())
    commands.put("end")


def _say(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
