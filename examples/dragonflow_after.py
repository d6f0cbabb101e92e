"""The controller of ``dragonflow_before.py`` after step two: one function is left.  ``... [URL]``.

The queue, the versions and the syncs are the work of `Controller` and `LocalCache`, which also see what the old one did
not: objects that were deleted while it was away.  The file is that of the Dragonflow installation, and is understood.
"""

from __future__ import annotations

import pathlib
import sys
import tempfile
import time

from nb_api import Controller, LocalCache, NbApi, Request

DRAGONFLOW_FILE = """
[df]
enable_df_pub_sub = true
pub_sub_driver = zmq_pubsub_driver
"""
flows: dict[str, str] = {}


def reconcile(request: Request) -> None:
    flows.pop(request.key, None)
    if request.object is not None:
        flows[request.key] = f"to {request.object.value['chassis']}"


def main(bus: str) -> None:
    with tempfile.TemporaryDirectory() as directory:
        file = pathlib.Path(directory, "dragonflow.ini")
        file.write_text(DRAGONFLOW_FILE)
        with NbApi.open(f"sqlite://{directory}/objects.db", bus=bus, config_files=[file]) as nb:
            cache = LocalCache(nb, tables=["lport"], topics=["tenant-7"])
            with cache, Controller(cache, reconcile, workers=4):
                for number in range(5):
                    nb.create("lport", f"p{number}", {"chassis": "compute-1"}, topic="tenant-7")
                nb.update("lport", "p1", lambda lport: {**lport, "chassis": "compute-2"})  # no lost update
                nb.delete("lport", "p2")
                wanted = {f"p{number}": f"to compute-{2 if number == 1 else 1}" for number in (0, 1, 3, 4)}
                while flows != wanted:
                    time.sleep(0.05)
    print(f"{len(flows)} flows: {sorted(flows)}")


if __name__ == "__main__":
    main(*(sys.argv[1:] or ["zmq://127.0.0.1:8866"]))
