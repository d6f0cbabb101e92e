"""The durable log: appending, reading and sealing, next to plain SQLite with the same frames and the same commits.

A log belongs to no transport.  Under ``zmq`` the embedded one is measured, in SQLite, under ``redis`` the one in Redis.
"""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
import random
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence

import durable_log
from bench import events, redis_server
from bench.plan import Outcome, Plan, Row
from bench.targets import check
from durable_log.log_api import LogApi, StoredFrame
from durable_log.segments.columns import EVENT_COLUMNS, import_pyarrow
from durable_log.segments.sealing import Sealer
from durable_log.storage.segmented import SegmentedLog

FRAME_EVENTS = 64
COMMIT_FRAMES = 64
SHARE = 2.0
GUID = bytes(16)
RANDOM_READS = 30


@dataclasses.dataclass
class Rates:
    """Events/s of every round, by what was done."""

    rounds: dict[str, list[float]] = dataclasses.field(default_factory=dict)
    cpu_rounds: dict[str, list[float]] = dataclasses.field(default_factory=dict)
    """The same for each second of processor time: what a busy machine measures too."""

    def add(self, name: str, count: int, work: Callable[[], object]) -> None:
        start, cpu_start = time.perf_counter(), time.process_time()
        work()
        self.cpu_rounds.setdefault(name, []).append(count / max(time.process_time() - cpu_start, 1e-9))
        self.rounds.setdefault(name, []).append(count / (time.perf_counter() - start))

    def ratio(self, ours: str, theirs: str) -> float:
        pairs = zip(self.rounds[ours], self.rounds[theirs], strict=True)
        return statistics.median(mine / other for mine, other in pairs)

    def per_cpu_second(self, name: str) -> float:
        return statistics.median(self.cpu_rounds[name])

    def rows(self) -> list[Row]:
        return [
            {
                "case": name,
                "events/s": round(statistics.median(found)),
                "events/CPU s": round(self.per_cpu_second(name)),
            }
            for name, found in self.rounds.items()
        ]


def measure(plan: Plan, driver: str) -> Outcome:
    if driver not in ("zmq", "redis"):
        return Outcome("log", driver, [], [], ["a log belongs to no transport: see zmq for SQLite, and redis"])
    made = make_frames(max(FRAME_EVENTS, int(plan.events * SHARE)))
    rates = Rates()
    _import_all(made[:1])
    for number in range(1, plan.rounds + 1):
        plan.say(f"round {number} of {plan.rounds}: the log, {driver}")
        with tempfile.TemporaryDirectory(prefix="heliograph-bench-") as name, _url(driver, name) as url:
            directory = pathlib.Path(name)
            if driver == "zmq":
                _plain(rates, directory / "plain.db", made)
            with contextlib.closing(durable_log.open(f"{url}&segment_directory={directory / 'segments'}")) as log:
                assert isinstance(log, SegmentedLog)
                _ours(rates, log, made)
    measured = {
        "columns": rates.ratio("read sealed, columns", "read sealed, columns, pyarrow alone"),
        "frames": rates.per_cpu_second("read sealed, frames") / 1e6,
        "seal": rates.per_cpu_second("seal") / 1e6,
        "anywhere": 1e3 / rates.per_cpu_second("read sealed, anywhere, reads/s"),
    }
    if driver == "zmq":
        measured |= {
            "append": rates.ratio("append", "append, plain SQLite"),
            "read": rates.ratio("read", "read, plain SQLite"),
        }
    return Outcome("log", driver, rates.rows(), check("log", driver, measured))


def _import_all(made: Sequence[bytes]) -> None:
    """What a process imports when it seals and reads first, pandas too where it is installed: not while the clock
    runs."""
    with (
        tempfile.TemporaryDirectory(prefix="heliograph-bench-") as directory,
        contextlib.closing(durable_log.open(f"sqlite://{directory}/log.db?shards=1")) as log,
    ):
        assert isinstance(log, SegmentedLog)
        _ours(Rates(), log, made)


def make_frames(count: int, *, keys: int = 0) -> list[bytes]:
    """About ``count`` events of one stream, framed as a publisher does in a flood; of so many objects, or of a few."""
    topic = events.topic()
    made = []
    for first in range(1, count + 1, FRAME_EVENTS):
        batch = [events.event(first + i, topic) for i in range(FRAME_EVENTS)]
        for number, event in enumerate(batch if keys else (), first):
            event.key = f"{number % keys:036x}"
        made.append(events.frame(GUID, topic, batch, first))
    return made


def commits(made: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    return (made[start : start + COMMIT_FRAMES] for start in range(0, len(made), COMMIT_FRAMES))


def append_all(log: LogApi, made: Sequence[bytes]) -> None:
    for portion in commits(made):
        log.append(portion)


def read_all(log: LogApi) -> Iterator[list[StoredFrame]]:
    """All that the first shard holds, in the portions of its reads."""
    offset = 0
    while found := log.read(0, offset):
        yield found
        offset = found[-1].end


@contextlib.contextmanager
def _url(driver: str, directory: str) -> Iterator[str]:
    if driver == "zmq":
        yield f"sqlite://{directory}/log.db?shards=1"
    else:
        with redis_server.running() as address:
            yield f"{address}?shards=1"


def _plain(rates: Rates, path: pathlib.Path, made: Sequence[bytes]) -> None:
    total = len(made) * FRAME_EVENTS
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.executescript("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;")
        connection.execute("CREATE TABLE frames (id INTEGER PRIMARY KEY, frame BLOB)")

        def append() -> None:
            for portion in commits(made):
                connection.execute("BEGIN IMMEDIATE")
                connection.executemany("INSERT INTO frames (frame) VALUES (?)", [(frame,) for frame in portion])
                connection.execute("COMMIT")

        rates.add("append, plain SQLite", total, append)
        rates.add("read, plain SQLite", total, lambda: connection.execute("SELECT id, frame FROM frames").fetchall())


def _ours(rates: Rates, log: SegmentedLog, made: Sequence[bytes]) -> None:
    total = len(made) * FRAME_EVENTS

    def append() -> None:
        append_all(log, made)

    def read() -> None:
        for _ in read_all(log):
            pass

    def columns() -> None:
        assert sum(batch.num_rows for batch in durable_log.arrow_batches(log, 0, 0, total)) == total

    rates.add("append", total, append)
    rates.add("append again, nothing new", total, append)
    rates.add("read", total, read)
    rates.add("read, columns", total, columns)
    rates.add("seal", total, lambda: Sealer(log).seal(0))
    _pyarrow_alone(log)  # whichever comes first pays for the memory that both use
    rates.add("read sealed, columns", total, columns)
    rates.add("read sealed, columns, pyarrow alone", total, lambda: _pyarrow_alone(log))
    rates.add("read sealed, frames", total, read)
    rates.add("read sealed, anywhere, reads/s", RANDOM_READS, lambda: _anywhere(log, total))


def _anywhere(log: SegmentedLog, total: int) -> None:
    """Reads of 100 events each, of which none finds anything that the one before it left in memory."""
    chance = random.Random(1)
    for _ in range(RANDOM_READS):
        for segment in log.segments():
            log.segment_reader.forget(segment)
        assert log.read(0, chance.randrange(total), events_max=100)


def _pyarrow_alone(log: SegmentedLog) -> None:
    parquet = import_pyarrow().parquet
    for segment in log.segments():
        with parquet.ParquetFile(segment.path) as file:
            for group in range(file.num_row_groups):
                file.read_row_group(group, columns=list(EVENT_COLUMNS), use_threads=False)
