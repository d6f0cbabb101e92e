"""A process of its own that works on a log, for tests that need more than one.

``python -m durable_log.testing.log_child work URL`` says ``{"ready": true}``, then answers commands, JSON per line:

==================================================  ===================================================================
``{"append": topic, "count": n, "guid": hex}``      appends n frames of 3 events: ``{"events": n, "duplicates": n}``
``{"append_without_end": topics, "guid": hex}``     ``{"topic": t, "last": n}`` after each append, until it is killed
``{"increment": name, "count": n}``                 adds 1 to the record, n times: ``{"done": n}``
``{"maintain": true}``                              ``{"rounds": n}`` after each round of maintenance, until killed
``{"set_shards_without_end": [n, m]}``              ``{"shards": n}`` after each change, then the last again and again
``{"seal": shard, "die_after": step}``              seals, and kills itself after that step, else ``{"sealed": n}``
==================================================  ===================================================================

The last two may have ``"lease_s": n``, how long a lease for sealing on object storage lasts when the process is killed.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator, Sequence
from itertools import chain, count, repeat

from durable_log.errors import RecordConflict
from durable_log.loading import open_log
from durable_log.log_api import LogApi
from durable_log.segments import lease
from durable_log.segments.sealing import Sealer
from durable_log.storage.segmented import SegmentedLog
from durable_log.testing.sources import Source
from durable_log.upkeep.maintenance import Maintainer
from pubsub_api.testing.child import ChildProcess, Message, work_on

FRAME_EVENTS = 3


def log_process(url: str) -> ChildProcess:
    """A process that is about to open the log.  Call ``receive()`` once to wait until it has."""
    return ChildProcess("work", url, module=__name__)


def increment(log: LogApi, name: str) -> None:
    """Add 1 to a record without losing what others add meanwhile."""
    while True:
        found = log.get_record(name)
        value, version = (0, 0) if found is None else (int(found.value), found.version)
        with contextlib.suppress(RecordConflict):
            log.put_records([(name, str(value + 1).encode(), version)])
            return


def _answers(log: LogApi, command: Message) -> Iterator[Message]:
    lease.LEASE_S = command.get("lease_s", lease.LEASE_S)
    if "append" in command:
        source = Source(bytes.fromhex(command["guid"]))
        appended = log.append([source.frame(command["append"], FRAME_EVENTS) for _ in range(command["count"])])
        yield {"events": appended.events, "duplicates": appended.duplicates}
    elif "increment" in command:
        for _ in range(command["count"]):
            increment(log, command["increment"])
        yield {"done": command["count"]}
    elif "seal" in command:
        yield _seal(log, command["seal"], command["die_after"])
    elif "set_shards_without_end" in command:
        yield from _set_shards(log, command["set_shards_without_end"])
    elif "maintain" in command:
        yield from _maintain(log)
    else:
        yield from _append_without_end(log, command["append_without_end"], Source(bytes.fromhex(command["guid"])))


def _maintain(log: LogApi) -> Iterator[Message]:
    assert isinstance(log, SegmentedLog)
    maintainer = Maintainer(log)
    while True:
        maintainer.run_once()
        yield {"rounds": maintainer.statistics.rounds}


def _set_shards(log: LogApi, numbers: Sequence[int]) -> Iterator[Message]:
    for number in chain(numbers, repeat(numbers[-1])):
        if number >= log.shards:
            log.set_shards(number)
        yield {"shards": log.shards}


def _seal(log: LogApi, shard: int, die_after: str) -> Message:
    assert isinstance(log, SegmentedLog)

    def on_step(done: str) -> None:
        if done == die_after:
            os.kill(os.getpid(), signal.SIGKILL)

    return {"sealed": len(Sealer(log, on_step=on_step).seal(shard))}


def _append_without_end(log: LogApi, topics: Sequence[str], source: Source) -> Iterator[Message]:
    for number in count():
        topic = topics[number % len(topics)]
        frames = [source.frame(topic, FRAME_EVENTS) for _ in range(5)]
        log.append(frames)
        yield {"topic": topic, "last": FRAME_EVENTS * 5 * (number // len(topics) + 1)}


if __name__ == "__main__":
    work_on(open_log, _answers)
