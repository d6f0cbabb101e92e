"""Starts, commands and ends the demonstration's processes, which are threads with a driver inside one process."""

from __future__ import annotations

import abc
import dataclasses
import json
import logging
import os
import pathlib
import queue
import signal
import subprocess
import sys
import threading
from typing import Any

from heliograph.demo.processes import KINDS
from heliograph.demo.settings import ProcessSettings
from pubsub_api.errors import HeliographError
from pubsub_api.testing.faulty import memory_bus

LOG = logging.getLogger(__name__)


class DemoProcessDied(HeliographError):
    """A process ended without the command to do so.  The message has the last line of its standard error."""

    fault = "environment"


class DemoProcess(abc.ABC):
    """The handle of one process.  ``state`` holds the newest value of everything it has reported."""

    def __init__(self, settings: ProcessSettings) -> None:
        self.settings = settings
        self.state: dict[str, Any] = {}
        """Another thread replaces its entries; it may be read at any time."""
        self._dumps: queue.SimpleQueue[list[list[Any]]] = queue.SimpleQueue()

    @property
    def name(self) -> str:
        kind = self.settings.kind
        return f"{kind} {self.settings.number}" if kind == "controller" else kind

    def dump(self, timeout_s: float) -> list[list[Any]] | None:
        """A controller's copy; None when the controller does not answer in time.  Blocks."""
        while not self._dumps.empty():  # an answer to an earlier question, which came too late
            self._dumps.get()
        self.tell("dump")
        try:
            return self._dumps.get(timeout=timeout_s)
        except queue.Empty:
            return None

    def _on_report(self, message: dict[str, Any]) -> None:
        if "dump" in message:
            self._dumps.put(message["dump"])
        else:
            self.state.update(message)

    @abc.abstractmethod
    def tell(self, command: str) -> None:
        """Send a command.  Does not wait for its effect."""

    @abc.abstractmethod
    def check(self) -> None:
        """Raises DemoProcessDied when the process has ended."""

    @abc.abstractmethod
    def freeze(self) -> None:
        """Stop the process at once, in the middle of its work."""

    @abc.abstractmethod
    def thaw(self) -> None:
        """Let it go on."""

    @abc.abstractmethod
    def kill(self) -> None:
        """End the process without a goodbye to its peers.  Returns when it has ended.  May be called twice."""


class SeparateProcess(DemoProcess):
    """A process of the operating system: frozen by SIGSTOP, killed by SIGKILL."""

    def __init__(self, settings: ProcessSettings, directory: pathlib.Path) -> None:
        super().__init__(settings)
        self._stderr = directory / f"{settings.kind}-{settings.number}.stderr"
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
        with self._stderr.open("wb") as stderr:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "heliograph.demo.processes", json.dumps(dataclasses.asdict(settings))],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, env=environment,
            )  # fmt: skip
        self._reader = threading.Thread(target=self._read, name=f"demo-{self.name}", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            try:
                message = json.loads(line)
            except ValueError:  # killed in the middle of a line
                continue
            self._on_report(message)

    def tell(self, command: str) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(command.encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            self.check()

    def check(self) -> None:
        code = self._process.poll()
        if code is not None:
            words = self._stderr.read_text(errors="replace")
            LOG.warning("Demo: the %s ended with status %d: %s", self.name, code, words)
            raise DemoProcessDied(f"the {self.name} ended with status {code}: {_last_line(words)}")

    def freeze(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None and not pipe.closed:
                try:
                    pipe.close()
                except BrokenPipeError:  # it was killed before it read its last command
                    continue


def _last_line(words: str) -> str:
    """The last line of a traceback, which names the error."""
    lines = words.strip().splitlines()
    return lines[-1] if lines else "it wrote nothing to standard error"


class ProcessAsThread(DemoProcess):
    """A thread instead of a process.  ``freeze`` freezes its link; ``kill`` cuts the bus while it says goodbye."""

    def __init__(self, settings: ProcessSettings, bus_name: str) -> None:
        super().__init__(settings)
        self._bus = memory_bus(bus_name)
        self._commands: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._failure = ""
        self._thread = threading.Thread(target=self._run, name=f"demo-{self.name}", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            KINDS[self.settings.kind](self.settings, self._commands, self._on_report)
        except Exception as error:  # `check` reports it, as it reports the status of a process
            LOG.warning("Demo: the %s failed", self.name, exc_info=True)
            self._failure = f"{type(error).__name__}: {error}"

    def tell(self, command: str) -> None:
        self._commands.put(command)

    def check(self) -> None:
        if not self._thread.is_alive():
            raise DemoProcessDied(f"the {self.name} ended: {_last_line(self._failure)}")

    def freeze(self) -> None:
        self.tell("freeze")

    def thaw(self) -> None:
        self.tell("thaw")

    def kill(self) -> None:
        self._bus.faults.partition(True)
        self.tell("end")
        self._thread.join()
        self._bus.faults.partition(False)
