"""The steps of the demonstration, and the proof at the end.

While writers change objects and the network loses frames, one controller is frozen and resumed, a writer is killed at
a random moment, and the publisher service is killed and restarted.  Then the changes stop, and every controller's copy
must become equal to the database.  The speed depends on the machine; the outcome does not.
"""

from __future__ import annotations

import dataclasses
import pathlib
import tempfile
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from heliograph.demo.runner import DemoProcess, ProcessAsThread, SeparateProcess
from heliograph.demo.screens import Screen
from heliograph.demo.settings import FILTER, TABLE, ProcessSettings
from nb_api import DbObject, NbApi
from nb_api.revisions import number_of
from pubsub_api.errors import WaitTimeout

STEP_S = 0.1
START_TIMEOUT_S = 60.0
SETTLE_TIMEOUT_S = 60.0
DUMP_TIMEOUT_S = 10.0
IDLE_S = 1.0


@dataclasses.dataclass(frozen=True)
class Plan:
    """The size and the bus of a demonstration."""

    driver: str
    url: str
    in_threads: bool
    """All parts are threads of one process, because the driver works inside one process only."""
    is_bind_based: bool
    """Writers publish through a publisher service, because one process per address can publish."""
    seconds: float
    controllers: int
    writers: int
    rate: float
    drop: float


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The proof."""

    is_equal: bool
    """Every controller's copy is equal to the database."""
    driver: str
    seconds: float
    settled_s: float
    """Time from the last change until all copies were equal."""
    revision: int
    """Number of changes in the database."""
    rows: int
    """Number of objects in the database."""
    outbox: int
    """Changes that are not confirmed as published; 0 after a success."""
    controllers: list[dict[str, Any]]
    """``name``, ``is_equal`` and the counters of each controller."""

    def total(self, what: str) -> int:
        """The sum of a counter over all controllers."""
        return sum(one.get(what, 0) for one in self.controllers)


class Demonstration:
    """One run of all steps.  `run` may be called once; it leaves neither processes nor files behind."""

    def __init__(self, plan: Plan, screen: Screen) -> None:
        self._plan = plan
        self._screen = screen
        self._processes: list[DemoProcess] = []
        self._controllers: list[DemoProcess] = []
        self._frozen: set[DemoProcess] = set()
        self._address = ""
        self._started = self._changes_began = time.monotonic()

    def run(self) -> Outcome:
        """Run all steps.  Raises WaitTimeout when a step takes too long, DemoProcessDied when a process fails."""
        with tempfile.TemporaryDirectory(prefix="heliograph-demo-") as directory:
            self._directory = pathlib.Path(directory)
            self._database = f"sqlite://{self._directory / 'objects.db'}"
            self._nb = NbApi.open(url=self._database)
            try:
                self._open()
                self._freeze_a_controller()
                self._kill_a_writer()
                self._kill_the_service()
                return self._prove()
            finally:
                for process in self._processes:
                    process.kill()
                self._nb.close()

    # -- the steps

    def _open(self) -> None:
        plan = self._plan
        if plan.is_bind_based:
            self._service = self._launch("service")
            self._wait(lambda: "address" in self._service.state, "the publisher service to start")
            self._address = self._service.state["address"]
            self._say(f"a publisher service at {self._address}, driver {plan.driver}")
        self._say(f"{plan.controllers} controllers and {plan.writers} writers are starting")
        self._writers = self._launch("writers")
        for number in range(1, plan.controllers + 1):
            self._controllers.append(self._launch("controller", number))
        started = [self._writers, *self._controllers]
        self._wait(lambda: all("ready" in process.state for process in started), "all processes to be ready")
        self._say(f"{plan.controllers} controllers follow {FILTER}; {plan.drop:.0%} of their frames get lost")
        self._writers.tell("go")
        how = "threads" if plan.in_threads else "forked processes"
        self._say(f"{plan.writers} writers, {how}, change objects in a database, {plan.rate:.0f} times per second")
        self._changes_began = time.monotonic()

    def _freeze_a_controller(self) -> None:
        self._until(0.2)
        last = self._controllers[-1]
        last.freeze()
        self._frozen.add(last)
        self._say(f"{last.name} is frozen ({'its link' if self._plan.in_threads else 'SIGSTOP'})")
        self._until(0.45)
        last.thaw()
        self._frozen.remove(last)
        behind = max(0, number_of(self._nb.db.revision()) - last.state["revision"])
        self._say(f"{last.name} goes on, {behind} changes behind")

    def _kill_a_writer(self) -> None:
        if self._plan.in_threads:
            return
        self._until(0.55)
        self._writers.tell("kill")
        self._wait(lambda: "killed" in self._writers.state, "a writer to die")
        self._say("a writer is killed (SIGKILL), perhaps between a commit and its publication; another takes its place")

    def _kill_the_service(self) -> None:
        if self._plan.is_bind_based:
            self._until(0.65)
            self._service.kill()
            self._processes.remove(self._service)
            self._say("the publisher service is killed (SIGKILL); writers keep what it has not acknowledged")
            self._until(0.7)
            self._service = self._launch("service")
            self._wait(lambda: "address" in self._service.state, "the publisher service to restart")
            self._say("the publisher service is back, and knows from its journal what it had published before")
        rest_s = self._plan.seconds * 0.2
        back = time.monotonic()
        self._until(1.0)
        while time.monotonic() - back < rest_s:
            self._step()

    def _prove(self) -> Outcome:
        self._writers.tell("stop")
        self._wait(lambda: "stopped" in self._writers.state, "the writers to stop")
        stopped = time.monotonic()
        revision, truth = number_of(self._nb.db.revision()), [_row(found) for found in self._nb.get_all(TABLE)]
        self._say(f"the changes stop after {revision} of them; now every copy must become equal to the database")
        unequal = set(self._controllers)
        while unequal and time.monotonic() - stopped < SETTLE_TIMEOUT_S:
            unequal = {process for process in unequal if process.dump(DUMP_TIMEOUT_S) != truth}
            self._step()
        settled_s = time.monotonic() - stopped
        self._step(2 * STEP_S)  # for the last reports of the counters
        return Outcome(
            is_equal=not unequal,
            driver=self._plan.driver,
            seconds=time.monotonic() - self._started,
            settled_s=settled_s,
            revision=revision,
            rows=len(truth),
            outbox=len(self._nb.db.unpublished()),
            controllers=[
                {"name": process.name, "is_equal": process not in unequal, **process.state}
                for process in self._controllers
            ],
        )

    # -- helpers of the steps

    def _launch(self, kind: str, number: int = 1) -> DemoProcess:
        plan = self._plan
        settings = ProcessSettings(
            kind=kind, number=number, url=self._url(), address=self._address, database=self._database,
            socket=str(self._directory / "service.socket"), writers=plan.writers, are_threads=plan.in_threads,
            rate=plan.rate, drop=plan.drop, idle_s=IDLE_S,
        )  # fmt: skip
        process = (
            ProcessAsThread(settings, urlsplit(plan.url).netloc)
            if plan.in_threads
            else SeparateProcess(settings, self._directory)
        )
        self._processes.append(process)
        return process

    def _url(self) -> str:
        """The bus.  A restarted service takes its former address, also when the system had chosen the port."""
        if not self._address or urlsplit(self._plan.url).port:
            return self._plan.url
        return f"{self._plan.driver}://{self._address.rpartition('/')[2]}"

    def _until(self, part: float) -> None:
        """Wait until this part of the time of the demonstration has passed."""
        while time.monotonic() - self._changes_began < part * self._plan.seconds:
            self._step()

    def _wait(self, condition: Callable[[], bool], what: str, timeout_s: float = START_TIMEOUT_S) -> None:
        deadline = time.monotonic() + timeout_s
        while True:
            is_late = time.monotonic() > deadline  # read first: this process may be paused before the condition
            if condition():
                return
            if is_late:
                raise WaitTimeout(f"waited {timeout_s:.0f} s for {what}")
            self._step()

    def _step(self, pause_s: float = STEP_S) -> None:
        for process in self._processes:
            process.check()
        revision = number_of(self._nb.db.revision())
        self._screen.show(revision, [(process, process in self._frozen) for process in self._controllers])
        time.sleep(pause_s)

    def _say(self, text: str) -> None:
        self._screen.say(time.monotonic() - self._started, text)


def _row(found: DbObject) -> list[Any]:
    return [found.key, found.topic, found.value, found.version]
