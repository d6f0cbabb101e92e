"""A Dragonflow-style controller on Heliograph, step one of a move; ``dragonflow_after.py`` is step two.  ``... [URL]``.

It is as it was: a callback fills a queue, a thread applies one update after the other, and ``sync`` reads everything.
Only what calls it is new: `on_event` was the driver's callback, and a resync was a full sync every two minutes.
"""

from __future__ import annotations

import queue
import sys
import tempfile
import threading
import time
from typing import Any

from nb_api import NbApi

flows: dict[str, str] = {}
versions: dict[str, int] = {}
updates: queue.Queue[tuple[str, Any, str, Any, int]] = queue.Queue()


def apply_db_change(key: str, value: Any, version: int) -> None:
    if version > versions.get(key, 0):  # else it is older than what the last sync has read
        versions[key] = version
        flows.pop(key, None)
        flows.update({} if value is None else {key: f"to {value['chassis']}"})


def run(nb: NbApi) -> None:
    while (update := updates.get())[0] != "stop":
        table, key, action, value, version = update
        if action == "sync":
            for lport in nb.get_all("lport", topics=["tenant-7"]):
                apply_db_change(lport.key, lport.value, lport.version)
        elif table == "lport":
            apply_db_change(key, None if action == "delete" else value, version)


def main(bus: str) -> None:
    with tempfile.TemporaryDirectory() as directory, NbApi.open(f"sqlite://{directory}/objects.db", bus=bus) as nb:
        assert nb.session is not None
        threading.Thread(target=run, args=[nb], daemon=True).start()
        with nb.session.subscriber(
            ["tenant-7"],
            lambda event: updates.put((event.table, event.key, event.action, event.value, event.version)),
            on_resync=lambda _: updates.put(("", None, "sync", None, 0)),
        ):
            for number in range(5):  # it was a write to the database, and then send_event
                nb.create("lport", f"p{number}", {"chassis": "compute-1"}, topic="tenant-7")
            nb.delete("lport", "p2")
            while flows.keys() != {"p0", "p1", "p3", "p4"}:
                time.sleep(0.05)
        updates.put(("stop", None, "", None, 0))
    print(f"{len(flows)} flows: {sorted(flows)}")


if __name__ == "__main__":
    main(*(sys.argv[1:] or ["zmq://127.0.0.1:8866"]))
