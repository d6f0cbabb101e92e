"""A foreign server as a child of the benchmark: started, waited for, ended, and asked how much CPU it took."""

from __future__ import annotations

import contextlib
import os
import pathlib
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence

START_TIMEOUT_S = 60.0
_STOP_TIMEOUT_S = 10.0
_LOOK_INTERVAL_S = 0.02
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def running(
    name: str, command: Sequence[str], is_ready: Callable[[], bool], *, user: str | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Start a server, as ``user`` if one is given, wait until it is ready, and end it.  Raises RuntimeError."""
    server = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, user=user,
        extra_groups=[] if user else None,
    )  # fmt: skip
    try:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not is_ready():
            if server.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{name} did not start: {' '.join(command)}")
            time.sleep(_LOOK_INTERVAL_S)
        yield server
    finally:
        server.terminate()
        try:
            server.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def cpu_s(pid: int) -> float:
    """CPU seconds of a process and of all processes that it has started, also of those that have ended."""
    total, found = 0.0, [pid]
    while found:
        number = found.pop()
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            times = pathlib.Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[11:15]
            total += sum(map(int, times)) / _TICKS_PER_S
            for task in pathlib.Path(f"/proc/{number}/task").iterdir():
                found += map(int, (task / "children").read_text().split())
    return total
