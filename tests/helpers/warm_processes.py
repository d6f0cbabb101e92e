"""Processes of tests that begin with the product imported.

To import it is most of what a short program costs, and tests start hundreds.  So they are forked from one process that
has done it: Python's fork server, which each process of a test run starts when it needs it.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import pathlib
import runpy
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection

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


class WarmProcess:
    """``python -m MODULE ARGUMENTS`` with pipes at its standard input and output, and what of `subprocess.Popen` a
    `ChildProcess` uses."""

    def __init__(self, module: str, arguments: Sequence[str]) -> None:
        theirs_in, ours_in = os.pipe()
        ours_out, theirs_out = os.pipe()
        streams = [Connection(theirs_in), Connection(theirs_out), Connection(os.dup(2))]
        self.stdin = open(ours_in, "wb")
        self.stdout = open(ours_out, "rb")
        # Python ends its daemons with it.
        self._process = CONTEXT.Process(
            target=_run, args=(module, list(arguments), streams, dict(os.environ)), daemon=True
        )
        self._process.start()
        for stream in streams:
            stream.close()

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


def _run(module: str, arguments: Sequence[str], streams: Sequence[Connection], environment: Mapping[str, str]) -> None:
    """Be the program, to its end."""
    for number, stream in enumerate(streams):
        os.dup2(stream.fileno(), number)
        stream.close()
    sys.stdin, sys.stdout = open(0), open(1, "w")
    sys.stderr = open(2, "w", buffering=1)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = [module, *arguments]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    finally:  # as the interpreter does; a process of multiprocessing leaves the rest out
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
