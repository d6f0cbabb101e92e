"""Keeps a dict equal to a table of SQLite, over a line that loses a fifth of all events.  Needs no set-up.

The publisher's cache is small, so some holes cannot be repaired.  Then the follower is told, and reads the table.
"""

from __future__ import annotations

import contextlib
import pathlib
import sqlite3
import tempfile
import time

import pubsub_api
from pubsub_api import Event, Resync
from pubsub_api.core.frame import Kind
from pubsub_api.testing.faults import Faults
from pubsub_api.testing.faulty import FaultyPubSub


class Follower:
    """A local copy.  Whether an event is news is told by its version, which is the database's revision."""

    def __init__(self, path: pathlib.Path) -> None:
        self.path, self.rows, self.versions, self.snapshot = path, dict[str, int](), dict[str, int](), 0

    def on_event(self, event: Event) -> None:
        if event.version > max(self.snapshot, self.versions.get(event.key, 0)):
            self.rows[event.key] = self.versions[event.key] = event.version

    def on_resync(self, _resync: Resync) -> None:
        self.rows = self.read_table()  # events that come meanwhile wait in the subscriber's queue
        self.snapshot = max([0, *self.rows.values()])

    def read_table(self) -> dict[str, int]:
        with contextlib.closing(sqlite3.connect(self.path)) as db:
            return dict(db.execute("SELECT key, version FROM port"))


faults = Faults(drop=0.2, kinds={Kind.DATA})
with tempfile.TemporaryDirectory() as directory:
    options = pathlib.Path(directory) / "heliograph.conf"
    options.write_text("[pubsub]\nhistory = 100\nmax_idle_time = 1.0\nmessage_delay_window = 0.02\n")
    follower = Follower(pathlib.Path(directory) / "truth.db")
    with contextlib.closing(sqlite3.connect(follower.path)) as truth:
        truth.executescript("PRAGMA synchronous = OFF; CREATE TABLE port (key TEXT PRIMARY KEY, version INT)")
        session = pubsub_api.open(
            "memory://follow", config_files=[options], wrap_driver=lambda driver: FaultyPubSub(driver, faults)
        )
        subscriber = session.subscriber(["port"], follower.on_event, on_resync=follower.on_resync)
        publisher = session.publisher()
        for n in range(1, 1001):
            with truth:  # commit first, then publish
                truth.execute("INSERT OR REPLACE INTO port VALUES (?, ?)", (f"p{n % 20}", n))
            publisher.send_event(Event(topic="port", table="port", key=f"p{n % 20}", action="set", version=n))
        while follower.rows != follower.read_table():
            time.sleep(0.1)
        print("the copy equals the table;", subscriber.statistics())
        session.close()
