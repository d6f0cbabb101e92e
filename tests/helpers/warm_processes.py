"""Processes of tests that begin with the product imported.

To import it is most of what a short program costs, and tests start hundreds.  So they are forked from a process that
has done it: Python's fork server.  Each process that runs tests starts one when it needs it.
"""

from __future__ import annotations

import atexit
import functools
import multiprocessing
import os
import pathlib
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    [
        "heliograph_drivers.db.etcd", "heliograph_drivers.db.postgres", "heliograph_drivers.db.redis",
        "heliograph_drivers.db.sqlite", "heliograph_drivers.log.postgres", "heliograph_drivers.log.redis",
        "heliograph_drivers.log.sqlite", "heliograph_drivers.pubsub.longpoll", "heliograph_drivers.pubsub.redis",
        "heliograph_drivers.pubsub.zenoh", "heliograph_drivers.pubsub.zmq", "durability_service.service",
        "publisher_service.service", "shared_subscriptions.groups", "nb_api", __name__,
    ]
)  # fmt: skip
OURS = (
    "durability_service", "durable_log", "heliograph", "heliograph_drivers", "nb_api", "publisher_service",
    "pubsub_api", "shared_subscriptions", "spark_pipeline",
)  # fmt: skip


class WarmProcess:
    """``python -m MODULE ARGUMENTS`` with pipes at its standard input and output.  It has what a `ChildProcess` uses of
    `subprocess.Popen`."""

    def __init__(self, module: str, arguments: Sequence[str]) -> None:
        theirs_in, ours_in = os.pipe()
        ours_out, theirs_out = os.pipe()
        streams = [Connection(theirs_in), Connection(theirs_out), Connection(os.dup(2))]
        self.stdin = os.fdopen(ours_in, "wb")
        self.stdout = os.fdopen(ours_out, "rb")
        program = functools.partial(runpy.run_module, module, run_name="__main__", alter_sys=True)
        self._process = _start(program, [module, *arguments], streams, os.environ)

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        code = self._process.exitcode
        if code is None:
            assert timeout is not None
            raise subprocess.TimeoutExpired(self._process.name, timeout)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _start(
    program: Callable[[], object], argv: Sequence[str], streams: Sequence[Connection], environment: Mapping[str, str]
) -> ForkServerProcess:
    """Call ``program`` in a process whose standard input, output and errors these streams are; they are closed here.

    The process ends with this one, as daemons of Python do.
    """
    process = CONTEXT.Process(target=_be, args=(program, list(argv), streams, dict(environment)), daemon=True)
    process.start()
    for stream in streams:
        stream.close()
    return process


def run_program(
    program: pathlib.Path, *arguments: str, directory: pathlib.Path, environment: Mapping[str, str], timeout_s: float
) -> str:
    """Run ``python PROGRAM ARGUMENTS`` to its end in a directory; return what it printed.  Raises AssertionError unless
    its exit code is 0.

    The libraries of others are imported already, and nothing of the product is: what the program forgets to import is
    missing.
    """
    with tempfile.TemporaryFile() as nothing, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        streams = [Connection(os.dup(file.fileno())) for file in (nothing, out, err)]
        run = functools.partial(_run_file, program, directory)
        process = _start(run, [str(program), *arguments], streams, environment)
        process.join(timeout_s)
        if process.exitcode is None:
            process.kill()
            process.join()
        for file in (out, err):
            file.seek(0)
        printed, errors = (file.read().decode() for file in (out, err))
        assert process.exitcode == 0, f"{program} ended with {process.exitcode}:\n{printed}{errors}"
        return printed


def _run_file(program: pathlib.Path, directory: pathlib.Path) -> None:
    os.chdir(directory)
    for name in list(sys.modules):
        if name.partition(".")[0] in OURS:
            del sys.modules[name]
    sys.path.insert(0, str(program.parent))
    runpy.run_path(str(program), run_name="__main__")


def _be(
    program: Callable[[], object], argv: list[str], streams: Sequence[Connection], environment: dict[str, str]
) -> None:
    """Be the program, to its end."""
    for number, stream in enumerate(streams):
        os.dup2(stream.fileno(), number)
        stream.close()
    sys.stdin, sys.stdout = os.fdopen(0), os.fdopen(1, "w")
    sys.stderr = os.fdopen(2, "w", buffering=1)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = argv
    try:
        program()
    finally:  # as every interpreter ends; a process of multiprocessing leaves this out
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
