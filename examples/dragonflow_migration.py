"""A Dragonflow-style application moves to Heliograph in two steps, each of which works.  ``... [URL]``.

Before: a controller registers a callback with the pub/sub module, puts updates into a queue, applies them one by one,
and reads the whole database for the action ``sync``.  Step one keeps that controller and replaces what is below it.
Step two replaces the controller by one function.  Here both run beside each other, and come to the same.
"""

from __future__ import annotations

import pathlib
import queue
import sys
import tempfile
import threading
import time
from typing import Any

from nb_api import Controller, LocalCache, NbApi, Request
from pubsub_api import Event, Resync

DRAGONFLOW_FILE = """
[df]
enable_df_pub_sub = true
pub_sub_driver = zmq_pubsub_driver
"""
Update = tuple[str | None, str | None, str, Any, int]


class DragonflowController:
    """Before: the queue, the versions and the full sync are the application's own work, and so are their faults."""

    def __init__(self, nb: NbApi) -> None:
        self.nb = nb
        self.flows: dict[str, str] = {}
        self.versions: dict[str, int] = {}
        self.updates: queue.Queue[Update] = queue.Queue()
        self.thread = threading.Thread(target=self.run, daemon=True)

    def db_change_callback(self, table: str | None, key: str | None, action: str, value: Any, version: int) -> None:
        self.updates.put((table, key, action, value, version))

    def run(self) -> None:
        while True:
            table, key, action, value, version = self.updates.get()
            if action == "stop":
                return
            if action == "sync":
                self.sync()
            elif table == "lport" and key is not None:
                self.apply(key, None if action == "delete" else value, version)

    def apply(self, key: str, value: Any, version: int) -> None:
        if version > self.versions.get(key, 0):  # else it is older than what the last sync has read
            self.versions[key] = version
            self.flows.pop(key, None)
            if value is not None:
                self.flows[key] = f"port {key} at {value['chassis']}"

    def sync(self) -> None:
        found = {port.key: port for port in self.nb.get_all("lport", topics=["tenant-7"])}
        for key in self.flows.keys() - found.keys():
            del self.flows[key]
        for port in found.values():
            self.apply(port.key, port.value, port.version)


class StepOne(DragonflowController):
    """The same controller.  What was the driver's ``callback`` is `on_event`, what was the action ``sync`` is a resync:
    it comes when it is needed, and not every two minutes."""

    def on_event(self, event: Event) -> None:
        self.db_change_callback(event.table, event.key, event.action, event.value, event.version)

    def on_resync(self, _resync: Resync) -> None:
        self.db_change_callback(None, None, "sync", None, 0)


class StepTwo:
    """Versions and syncs are the work of `LocalCache`, the queue that of `Controller`: what is left is one function."""

    def __init__(self) -> None:
        self.flows: dict[str, str] = {}

    def reconcile(self, request: Request) -> None:
        self.flows.pop(request.key, None)
        if request.object is not None:
            self.flows[request.key] = f"port {request.key} at {request.object.value['chassis']}"


def write(nb: NbApi) -> None:
    """Before: a write to the database, and then ``send_event``, which could fail after it.  Now one call does both."""
    for number in range(5):
        nb.create("lport", f"p{number}", {"chassis": "compute-1"}, topic="tenant-7")
    nb.update("lport", "p1", lambda port: {**port, "chassis": "compute-2"})  # no lost update, no version by hand
    nb.delete("lport", "p2")


def main(bus: str) -> None:
    with tempfile.TemporaryDirectory() as directory:
        file = pathlib.Path(directory, "dragonflow.ini")
        file.write_text(DRAGONFLOW_FILE)
        with NbApi.open(f"sqlite://{directory}/objects.db", bus=bus, config_files=[file]) as nb:
            old, new = StepOne(nb), StepTwo()
            assert nb.session is not None
            old.thread.start()
            subscriber = nb.session.subscriber(["tenant-7"], old.on_event, on_resync=old.on_resync)
            cache = LocalCache(nb, tables=["lport"], topics=["tenant-7"])
            with subscriber, cache, Controller(cache, new.reconcile, workers=4):
                write(nb)
                wanted = {f"p{at}": f"port p{at} at compute-{2 if at == 1 else 1}" for at in (0, 1, 3, 4)}
                while not old.flows == new.flows == wanted:
                    time.sleep(0.05)
            old.updates.put((None, None, "stop", None, 0))
            old.thread.join()
    print(f"{len(new.flows)} flows, the same before and after")


if __name__ == "__main__":
    main(*(sys.argv[1:] or ["zmq://127.0.0.1:8866"]))
