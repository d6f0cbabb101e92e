"""A foreign server as a process of the test: on a free port, in a temporary directory, to be killed and frozen."""

from __future__ import annotations

import abc
import contextlib
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from types import TracebackType
from typing import ClassVar, TypeVar

from pubsub_api.testing.ports import free_port
from tests.helpers.waiting import wait_until

START_TIMEOUT_S = 60.0
START_ATTEMPTS = 20

S = TypeVar("S", bound="ServerProcess")


class ServerProcess(abc.ABC):
    """A server that can be killed, frozen and brought back at the same port with what it had on disk."""

    name: ClassVar[str]

    def __init__(self) -> None:
        self.port = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._directory = tempfile.TemporaryDirectory(prefix=f"heliograph-{self.name}-", ignore_cleanup_errors=True)

    @abc.abstractmethod
    def _command(self) -> Sequence[str]:
        """What starts the server at ``port``."""

    @abc.abstractmethod
    def _is_ready(self) -> bool:
        """Whether the process that was started answers."""

    def _prepare(self) -> None:  # noqa: B027  # most need nothing
        """Make what must be there before the first start."""

    def _choose_ports(self) -> None:
        self.port = free_port()

    @property
    def directory(self) -> pathlib.Path:
        return pathlib.Path(self._directory.name)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self: S) -> S:
        """Start at a port of its own, and return when the server answers."""
        self._prepare()
        for _ in range(START_ATTEMPTS):
            self._choose_ports()
            if self._launch():
                return self
        raise AssertionError(f"no {self.name} could be started: {self._log.read_text()[-2000:]}")

    def restart(self) -> None:
        """Start again at the same port.  Another process may hold it for a moment; that is waited for."""
        self.kill()
        wait_until(self._launch, START_TIMEOUT_S, f"{self.name} to start at port {self.port} again")

    def restart_empty(self) -> None:
        """Start again at the same port without anything that the server had on disk."""
        self.kill()
        for path in self.directory.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
        self._prepare()
        self.restart()

    def kill(self) -> None:
        """SIGKILL to the server and everything it started.  The port refuses connections when this returns."""
        if self._process is None:
            return
        children = self._children()
        self._process.kill()
        self._process.wait()
        self._process = None
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)

    def stop(self) -> None:
        """End the server and remove its directory.  Idempotent."""
        self.kill()
        self._directory.cleanup()

    def freeze(self) -> None:
        """SIGSTOP: connections stay open and nothing is answered."""
        frozen = self._signal_all(signal.SIGSTOP)
        wait_until(lambda: all(map(_is_stopped, frozen)), START_TIMEOUT_S, f"{self.name} to stand still")

    def thaw(self) -> None:
        self._signal_all(signal.SIGCONT)

    def __enter__(self: S) -> S:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def _log(self) -> pathlib.Path:
        return self.directory / "log"

    def _run(self, command: Sequence[str]) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as log:
            return subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)

    def _launch(self) -> bool:
        """Start the process; True when it is ready, False when it ended instead, as it does when the port is taken."""
        process = self._process = self._run(self._command())
        wait_until(lambda: process.poll() is not None or self._is_ready(), START_TIMEOUT_S, f"{self.name} to get ready")
        if process.poll() is not None:
            self._process = None
            return False
        return True

    def _children(self) -> list[int]:
        return [int(pid) for pid in pathlib.Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()]

    def _signal_all(self, number: int) -> list[int]:
        pids = [self.pid, *self._children()]
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        return pids


def _is_stopped(pid: int) -> bool:
    """Whether SIGSTOP has reached every thread of the process, or the process is gone."""
    states = []
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
            states.append((task / "stat").read_text().rpartition(")")[2].split()[0])
    return set(states) <= set("TtZX")
