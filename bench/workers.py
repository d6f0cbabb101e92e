"""Worker processes: started, talked to, and always ended.

A worker is a fresh interpreter (spawn: some of the libraries under test do not survive a fork) that runs one function
with a pipe to its parent.  Every wait has a deadline, an exception in the worker becomes `WorkerFailed` in the parent,
and leaving the ``with`` block kills whatever still runs.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
import logging
import multiprocessing
import os
import resource
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any

from bench import profiles

ANSWER_TIMEOUT_S = 120.0
_JOIN_TIMEOUT_S = 10.0
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_SPAWN = multiprocessing.get_context("spawn")


class WorkerFailed(Exception):
    """A worker raised, died or did not answer in time."""


@dataclasses.dataclass(frozen=True)
class _Failure:
    trace: str


class Worker:
    """The parent's handle on one worker."""

    def __init__(self, role: Callable[..., None], *arguments: Any, **options: Any) -> None:
        """Start ``role(pipe, *arguments, **options)`` in a new process.  All of them are pickled."""
        self._name = role.__name__
        self._pipe, theirs = _SPAWN.Pipe()
        self._process = _SPAWN.Process(
            target=_work,
            args=(theirs, functools.partial(role, theirs, *arguments, **options)),
            name=self._name,
            daemon=True,
        )
        self._process.start()
        theirs.close()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def tell(self, message: object) -> None:
        try:
            self._pipe.send(message)
        except OSError as error:
            raise WorkerFailed(f"{self._name} is gone: {error}") from error

    def hear(self, timeout_s: float = ANSWER_TIMEOUT_S) -> Any:
        """The next message of the worker.  Raises WorkerFailed."""
        if not self._pipe.poll(timeout_s):
            raise WorkerFailed(f"{self._name} said nothing for {timeout_s} s")
        try:
            message = self._pipe.recv()
        except (EOFError, OSError) as error:
            raise WorkerFailed(f"{self._name} ended without an answer") from error
        if isinstance(message, _Failure):
            raise WorkerFailed(f"{self._name} failed:\n{message.trace}")
        return message

    def ask(self, question: object, timeout_s: float = ANSWER_TIMEOUT_S) -> Any:
        """Tell it something and hear the answer."""
        self.tell(question)
        return self.hear(timeout_s)

    def end(self) -> None:
        """Let a worker that has given its last answer leave by itself, for a bounded time."""
        self._process.join(_JOIN_TIMEOUT_S)

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process.is_alive():
            self._process.kill()
        self._process.join()
        self._process.close()
        self._pipe.close()


def ask_once(role: Callable[..., None], *arguments: Any, timeout_s: float) -> Any:
    """The one answer of a worker that is started for it.  Raises WorkerFailed."""
    with Worker(role, *arguments) as worker:
        answer = worker.hear(timeout_s)
        worker.end()
        return answer


def _work(pipe: Connection, role: Callable[[], None]) -> None:
    # Loss is provoked on purpose and counted; what a library says about it would only disturb the display.
    logging.getLogger().addHandler(logging.NullHandler())
    try:
        with profiles.recording(multiprocessing.current_process().name):
            role()
    except Exception:  # noqa: BLE001  it is told to the parent, which raises it
        # When the parent is gone no process hears it.
        with contextlib.suppress(OSError):
            pipe.send(_Failure(traceback.format_exc()))
        raise SystemExit(1) from None


@dataclasses.dataclass(frozen=True)
class Usage:
    """What a process has used so far, or between two moments."""

    cpu_s: float
    """In all its threads, those of foreign libraries included."""
    resident_bytes: int

    def __sub__(self, before: Usage) -> Usage:
        return Usage(self.cpu_s - before.cpu_s, self.resident_bytes - before.resident_bytes)


_collecting_s = 0.0
"""CPU time that `usage_now` itself has taken in this process, and that it leaves out."""


def usage_now() -> Usage:
    """Of this process.  Collects garbage, so that what is resident is what is needed; the time for that is left out,
    because it would be more than a thousand changes take."""
    global _collecting_s  # noqa: PLW0603  there is one process
    spent_s = _cpu_s() - _collecting_s
    begun_s = time.thread_time()
    gc.collect()
    _collecting_s += time.thread_time() - begun_s
    with open("/proc/self/statm") as statm:
        resident_bytes = int(statm.read().split()[1]) * _PAGE_BYTES
    return Usage(spent_s, resident_bytes)


def _cpu_s() -> float:
    spent = resource.getrusage(resource.RUSAGE_SELF)
    return spent.ru_utime + spent.ru_stime


def allow_many_files() -> None:
    """As many as the system lets this process have: a local cache takes a dozen, its publisher two for each cache."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
