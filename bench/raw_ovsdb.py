"""OVSDB with the Python IDL, as Open vSwitch's own programs use it, without Heliograph.

Each object is a row.  The writer has an IDL too, as every client that changes rows by name; a follower's IDL keeps the
rows, and a dict beside it the decoded values.  The package ``ovs`` is imported when it is needed: few have it.
"""

from __future__ import annotations

import importlib
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from bench.change_ends import ChangeFollower, ChangeWriter, CopySink, ObjectWrite
from bench.database_servers import OVSDB_SCHEMA, OVSDB_TABLE
from bench.ends import OPEN_TIMEOUT_S

_LOOK_MS = 200


def _open_idl(database: str, notify: Callable[[Any], None] | None = None) -> Any:
    """An IDL that has all rows.  ``notify`` is called with every row that is made or changed."""
    idl_module: Any = importlib.import_module("ovs.db.idl")

    class NotifyingIdl(idl_module.Idl):  # type: ignore[misc]
        def notify(self, event: str, row: Any, updates: Any = None) -> None:  # noqa: ARG002
            if notify is not None and event != idl_module.ROW_DELETE:
                notify(row)

    helper = idl_module.SchemaHelper(schema_json=OVSDB_SCHEMA)
    helper.register_all()
    idl = NotifyingIdl(database, helper)
    deadline = time.monotonic() + OPEN_TIMEOUT_S
    while not idl.has_ever_connected():
        if time.monotonic() > deadline:
            raise RuntimeError(f"ovsdb-server at {database} did not answer")
        _turn(idl)
    return idl


def _turn(idl: Any) -> None:
    """Take what has come, or wait for it, for a short time."""
    if not idl.run():
        poller = importlib.import_module("ovs.poller").Poller()
        idl.wait(poller)
        poller.timer_wait(_LOOK_MS)
        poller.block()


class IdlWriter(ChangeWriter):
    def __init__(self, database: str, _bus: str) -> None:
        self._idl = _open_idl(database)
        self._transaction: Any = importlib.import_module("ovs.db.idl").Transaction
        self._rows: dict[str, Any] = {}
        self._encode = msgspec.json.Encoder().encode

    def fill(self, writes: Sequence[ObjectWrite]) -> None:
        rows = self._idl.tables[OVSDB_TABLE].rows
        self._rows = {row.key: row for row in rows.values()}
        self.put_together(writes)
        while not {write.key for write in writes} <= (self._rows.keys()):
            _turn(self._idl)
            self._rows = {row.key: row for row in rows.values()}

    def put(self, write: ObjectWrite) -> None:
        self.put_together([write])

    def put_together(self, writes: Sequence[ObjectWrite]) -> None:
        status = transaction = None
        while status in (None, self._transaction.TRY_AGAIN):  # as the IDL's documentation says
            if status is not None:
                _turn(self._idl)
            transaction = self._transaction(self._idl)
            for write in writes:
                row = self._rows.get(write.key)
                if row is None:
                    row = transaction.insert(self._idl.tables[OVSDB_TABLE])
                    row.key = write.key
                row.topic = write.topic
                row.value = self._encode(write.value).decode()
            status = transaction.commit_block()
        if transaction is None or status != self._transaction.SUCCESS:
            raise RuntimeError(f"OVSDB did not commit: {status}")

    def close(self) -> None:
        self._idl.close()


class IdlFollower(ChangeFollower):
    def __init__(self, database: str, _bus: str, _addresses: Sequence[str], sink: CopySink) -> None:
        self._sink = sink
        self._decode = msgspec.json.Decoder().decode
        self._copy: dict[str, Any] = {}
        self._idl = _open_idl(database, self._on_row)
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _on_row(self, row: Any) -> None:
        value = self._decode(row.value)
        self._copy[row.key] = value
        self._sink.on_change(row.key, value)

    def _run(self) -> None:
        while not self._is_closed:
            _turn(self._idl)

    def numbers(self) -> dict[str, int]:
        return {key: value["number"] for key, value in self._copy.items()}

    def close(self) -> None:
        self._is_closed = True
        self._thread.join()
        self._idl.close()
