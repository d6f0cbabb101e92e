"""The processes of the demonstration: a publisher service, writers, a controller.

Each is a function that gets `ProcessSettings`, takes commands (words) from a queue, reports dictionaries, and returns
after the command ``end``.  ``python -m heliograph.demo.processes JSON`` runs one, with commands on standard input and
reports on standard output, one per line.  The end of the input ends it, so that no process outlives the demonstration.
"""

from __future__ import annotations

import json
import logging
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from heliograph.demo.settings import FILTER, TABLE, ProcessSettings, open_nb, read_conf
from heliograph.demo.writers import Writers
from nb_api import CacheChange, LocalCache, LocalCacheStatistics, Resynced
from nb_api.revisions import number_of
from publisher_service.service import PublisherService
from pubsub_api.errors import AddressInUse
from pubsub_api.testing.faults import Faults

Report = Callable[[dict[str, Any]], None]
Commands = queue.SimpleQueue[str]

REPORT_S = 0.2
BIND_TIMEOUT_S = 20.0
READY_TIMEOUT_S = 120.0


def run_service(settings: ProcessSettings, commands: Commands, report: Report) -> None:
    """Commands: ``end`` ends."""
    service = _start_service(settings)
    try:
        report({"address": service.publisher.address})
        while _next(commands, REPORT_S) != "end":
            report({"events": service.publisher.statistics().events})
    finally:
        service.stop()


def _start_service(settings: ProcessSettings) -> PublisherService:
    """Start a service.  Waits while the address still seems to belong to the service that was killed.

    Raises AddressInUse after `BIND_TIMEOUT_S`.
    """
    deadline = time.monotonic() + BIND_TIMEOUT_S
    while True:
        service = PublisherService(read_conf(settings))
        try:
            service.start()
        except AddressInUse:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
        else:
            return service


def run_writers(settings: ProcessSettings, commands: Commands, report: Report) -> None:
    """Commands: ``go`` starts the writers, ``kill`` kills one, ``stop`` stops all, ``end`` ends."""
    writers = Writers(settings)
    report({"ready": True})
    command = ""
    while command != "end":
        command = _next(commands, REPORT_S)
        if command == "go":
            writers.start()
        elif command == "kill":
            writers.kill_one()
            report({"killed": True})
        elif command == "stop":
            writers.stop()
            report({"stopped": True})
    writers.close()


class DemoController:
    """The counters of a controller, from the changes of its copy."""

    def __init__(self) -> None:
        self._newest = 0
        self._reasons: list[str] = []

    def on_changes(self, changes: Sequence[CacheChange]) -> None:
        for change in changes:
            if isinstance(change, Resynced):
                self._reasons.append(f"{change.kind}: {change.reason}")
                self._newest = max(self._newest, change.revision)
            else:
                self._newest = max(self._newest, change.version)

    def report(self, cache: LocalCacheStatistics, dropped: int) -> dict[str, Any]:
        bus = cache.bus
        assert bus is not None
        return {
            "revision": number_of(self._newest), "rows": cache.objects, "reasons": list(self._reasons),
            "received": bus.received, "gaps": bus.repair.gaps, "repaired": bus.repair.repaired, "lost": bus.lost,
            "dropped": dropped, "resyncs": cache.syncs.snapshots + cache.syncs.deltas,
        }  # fmt: skip


def dump(cache: LocalCache) -> list[list[Any]]:
    """Every object as ``[key, topic, value, version]``, for the comparison with the database."""
    return [[found.key, found.topic, found.value, found.version] for found in cache.get_all(TABLE)]


def run_controller(settings: ProcessSettings, commands: Commands, report: Report) -> None:
    """Commands: ``dump`` reports the copy, ``freeze`` and ``thaw`` stop and resume the link, ``end`` ends."""
    faults = Faults(seed=settings.number, drop=settings.drop)
    controller = DemoController()
    addresses = [settings.address] if settings.address else None
    with (
        open_nb(settings, faults) as nb,
        LocalCache(nb, tables=[TABLE], topics=[FILTER], on_changes=controller.on_changes, addresses=addresses) as cache,
    ):
        cache.wait_synced(timeout_s=READY_TIMEOUT_S)
        command = ""
        while command != "end":
            report({"ready": True, **controller.report(cache.statistics(), faults.counts().dropped)})
            command = _next(commands, REPORT_S)
            if command == "dump":
                report({"dump": dump(cache)})
            elif command == "freeze":
                faults.freeze()
            elif command == "thaw":
                faults.thaw()


def _next(commands: Commands, timeout_s: float) -> str:
    try:
        return commands.get(timeout=timeout_s)
    except queue.Empty:
        return ""


KINDS: dict[str, Callable[[ProcessSettings, Commands, Report], None]] = {
    "service": run_service,
    "writers": run_writers,
    "controller": run_controller,
}


def main() -> None:
    """Run the process that the argument describes."""
    # Ctrl-C in the terminal reaches every process of the demonstration; the first one ends the others in order.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.basicConfig(level=logging.WARNING)
    settings = ProcessSettings(**json.loads(sys.argv[1]))
    commands: Commands = queue.SimpleQueue()
    threading.Thread(target=_read_commands, args=(commands,), name="commands", daemon=True).start()
    KINDS[settings.kind](settings, commands, _report)


def _read_commands(commands: Commands) -> None:
    for line in sys.stdin:
        commands.put(line.strip())
    commands.put("end")


def _report(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
