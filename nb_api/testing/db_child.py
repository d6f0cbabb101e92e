"""A writer in a process of its own, for tests that need more than one.

``python -m nb_api.testing.db_child work URL`` writes ``{"ready": true}`` when the database is open, then reads commands
from standard input and answers on standard output, one JSON object per line.  The end of the input ends the process.
`pubsub_api.testing.child.ChildProcess` is the other side; `writer_process` starts one.

=======================================================  ============================================================
``{"create": table, "prefix": p, "count": n}``           creates ``p0`` ... with topic ``t``: ``{"versions": [...]}``
``{"increment": [table, key], "count": n}``              adds 1 to the value, n times: ``{"done": n}``
``{"allocate": name, "count": n}``                       ``{"numbers": [...]}``
``{"create_without_end": table, "prefix": p}``           ``{"version": v}`` after each commit, until it is killed
``{"apply_without_end": table, "prefix": p}``            as before, with `WRITES_PER_TRANSACTION`
=======================================================  ============================================================
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

from nb_api.db_api import DbApi, Write
from nb_api.errors import VersionConflict
from nb_api.loading import open_db
from pubsub_api.testing.child import ChildProcess, Message, work_on

WRITES_PER_TRANSACTION = 5


def writer_process(url: str) -> ChildProcess:
    """Start a process that opens the database.  Call ``receive()`` once to wait until it is open."""
    return ChildProcess("work", url, module=__name__)


def increment(db: DbApi, table: str, key: str) -> int:
    """Add 1 to the value, also while other writers add to it; returns the version."""
    while True:
        found = db.get(table, key)
        try:
            return db.set(table, key, found.value + 1, expected_version=found.version)
        except VersionConflict:
            continue


def _answers(db: DbApi, command: Message) -> Iterator[Message]:
    if "create" in command:
        table, prefix = command["create"], command["prefix"]
        yield {"versions": [db.create(table, f"{prefix}{i}", i, topic="t") for i in range(command["count"])]}
    elif "increment" in command:
        for _ in range(command["count"]):
            increment(db, *command["increment"])
        yield {"done": command["count"]}
    elif "allocate" in command:
        yield {"numbers": [db.allocate(command["allocate"]) for _ in range(command["count"])]}
    elif "apply_without_end" in command:
        table, prefix = command["apply_without_end"], command["prefix"]
        for i in count():
            writes = [Write("create", table, f"{prefix}{i}-{j}", i, "t") for j in range(WRITES_PER_TRANSACTION)]
            yield {"version": db.apply(writes)[-1]}
    else:
        table, prefix = command["create_without_end"], command["prefix"]
        yield from ({"version": db.create(table, f"{prefix}{i}", i, topic="t")} for i in count())


if __name__ == "__main__":
    work_on(open_db, _answers)
