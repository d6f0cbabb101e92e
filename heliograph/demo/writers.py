"""The writers of the demonstration: forked from one process like the workers of an API server, all with the same
`NbApi`."""

from __future__ import annotations

import contextlib
import os
import random
import selectors
import signal
import threading
import time
from collections.abc import Callable

from heliograph.demo.settings import KEYS_PER_TENANT, TABLE, TENANTS, ProcessSettings, open_nb
from nb_api import NbApi
from nb_api.errors import ObjectExists, ObjectNotFound

DELETE_SHARE = 0.1
TICK_S = 0.02
FLUSH_TIMEOUT_S = 60.0
_STOP = b"."


class Writer:
    """Changes objects at a rate until it is stopped."""

    def __init__(self, nb: NbApi, number: int, rate: float) -> None:
        self._nb = nb
        self._chance = random.Random(number)
        self._rate = rate
        self.changes = 0

    def work(self, goes_on: Callable[[], bool]) -> None:
        """Change objects while ``goes_on`` returns True.  Returns when all changes are published."""
        due = 0.0
        while goes_on():
            due += self._rate * TICK_S
            while due >= 1:
                due -= 1
                self._change()
            time.sleep(TICK_S)
        self._nb.flush(timeout_s=FLUSH_TIMEOUT_S)

    def _change(self) -> None:
        tenant = self._chance.randrange(TENANTS)
        topic, key = f"demo/tenant-{tenant}/port", f"{tenant}-p{self._chance.randrange(KEYS_PER_TENANT)}"
        # Other writers write the same objects, so an object may exist, or be gone, unexpectedly.
        with contextlib.suppress(ObjectNotFound, ObjectExists):
            if self._chance.random() < DELETE_SHARE:
                self._nb.delete(TABLE, key)
            else:
                self._nb.put(TABLE, key, {"mac": f"{self._chance.getrandbits(32):08x}"}, topic=topic)
        self.changes += 1


class ForkedWriter:
    """A writer in a child of this process.  `_STOP` in the pipe ends it in good order.  When the pipe ends without it,
    the parent has died, and the child exits at once."""

    def __init__(self, settings: ProcessSettings, nb: NbApi, number: int) -> None:
        ours, theirs = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(theirs)
            os._exit(_run_writer(settings, nb, number, ours))
        os.close(ours)
        self._pipe = theirs

    def stop(self) -> None:
        """Returns when all its changes are published."""
        os.write(self._pipe, _STOP)
        self._reap()

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        self._reap()

    def _reap(self) -> None:
        os.waitpid(self.pid, 0)
        os.close(self._pipe)


def _run_writer(settings: ProcessSettings, nb: NbApi, number: int, pipe: int) -> int:
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)

        def goes_on() -> bool:
            if not selector.select(0):
                return True
            if os.read(pipe, 1) != _STOP:
                os._exit(1)
            return False

        Writer(nb, number, settings.rate / settings.writers).work(goes_on)
    nb.close()
    return 0


class ThreadWriter:
    """A writer in a thread, for a demonstration inside one process."""

    def __init__(self, settings: ProcessSettings, nb: NbApi, number: int) -> None:
        self._stop = threading.Event()
        writer = Writer(nb, number, settings.rate / settings.writers)
        self._thread = threading.Thread(target=writer.work, args=(lambda: not self._stop.is_set(),), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    kill = stop


class Writers:
    """All writers of the demonstration."""

    def __init__(self, settings: ProcessSettings) -> None:
        self._settings = settings
        self._nb = open_nb(settings)
        self._make = ThreadWriter if settings.are_threads else ForkedWriter
        self._started = 0
        self._all: list[ThreadWriter | ForkedWriter] = []

    def start(self) -> None:
        """Start writers until there are as many as configured."""
        while len(self._all) < self._settings.writers:
            self._started += 1
            self._all.append(self._make(self._settings, self._nb, self._started))

    def kill_one(self) -> None:
        """Kill a writer at a random moment, and start another one."""
        self._all.pop(0).kill()
        self.start()

    def stop(self) -> None:
        while self._all:
            self._all.pop().stop()

    def close(self) -> None:
        self.stop()
        self._nb.close()
