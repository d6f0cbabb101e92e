"""What happens in the demonstration, scene by scene, and the proof at the end.

Under a publisher that changes objects all the time and a network that loses frames, one controller is frozen and
resumed, and the publisher is killed and restarted.  Then the changes stop, and every controller's copy must become
equal to the database.  How fast that all goes depends on the machine; whether it ends well does not.
"""

from __future__ import annotations

import dataclasses
import pathlib
import tempfile
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from heliograph.demo.actors import FILTER, Role
from heliograph.demo.screens import Screen
from heliograph.demo.troupe import Actor, ProcessActor, ThreadActor
from heliograph.demo.truth import Truth
from pubsub_api.errors import WaitTimeout

STEP_S = 0.1
START_TIMEOUT_S = 60.0
SETTLE_TIMEOUT_S = 60.0
DUMP_TIMEOUT_S = 10.0
IDLE_S = 1.0


@dataclasses.dataclass(frozen=True)
class Plan:
    """What to play."""

    driver: str
    url: str
    in_threads: bool
    """The driver lives inside one process, so the actors do, too."""
    is_bind_based: bool
    seconds: float
    controllers: int
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
    """How long it took after the last change."""
    events: int
    """Changes made, and so events published or covered by a resync."""
    rows: int
    """Objects in the database."""
    controllers: list[dict[str, Any]]
    """Of each: ``name``, ``is_equal``, and its counters."""


class Play:
    """One performance.  `run` may be called once; it leaves neither processes nor files behind."""

    def __init__(self, plan: Plan, screen: Screen) -> None:
        self._plan = plan
        self._screen = screen
        self._actors: list[Actor] = []
        self._controllers: list[Actor] = []
        self._frozen: set[Actor] = set()
        self._born = self._start = time.monotonic()

    def run(self) -> Outcome:
        """Raises WaitTimeout when a server or the machine is not up to it, ActorDied when an actor fails."""
        with tempfile.TemporaryDirectory(prefix="heliograph-demo-") as directory:
            self._directory = pathlib.Path(directory)
            self._truth = Truth(self._directory / "truth.db", create=True)
            try:
                self._open()
                self._freeze_a_controller()
                self._kill_the_publisher()
                return self._prove()
            finally:
                for actor in self._actors:
                    actor.kill()
                self._truth.close()

    # -- scenes

    def _open(self) -> None:
        plan = self._plan
        self._publisher = self._hire("publisher", 1, plan.url)
        self._wait(lambda: "address" in self._publisher.state, "the publisher to start")
        self._say(f"a publisher at {self._publisher.state['address']}, driver {plan.driver}")
        for number in range(1, plan.controllers + 1):
            self._controllers.append(self._hire("controller", number, plan.url, self._publisher.state["address"]))
        self._wait(lambda: all("ready" in actor.state for actor in self._controllers), "the controllers to be ready")
        self._say(f"{plan.controllers} controllers subscribed to {FILTER}; {plan.drop:.0%} of their frames get lost")
        self._publisher.tell("go")
        self._start = time.monotonic()

    def _freeze_a_controller(self) -> None:
        self._until(0.2)
        victim = self._controllers[-1]
        victim.freeze()
        self._frozen.add(victim)
        self._say(f"{victim.name} is frozen ({'its link' if self._plan.in_threads else 'SIGSTOP'})")
        self._until(0.5)
        victim.thaw()
        self._frozen.remove(victim)
        self._say(f"{victim.name} goes on, {self._truth.revision() - victim.state['revision']} changes behind")

    def _kill_the_publisher(self) -> None:
        self._until(0.65)
        former = self._publisher
        former.kill()
        self._actors.remove(former)
        self._say(f"the publisher is killed ({'its goodbye is lost' if self._plan.in_threads else 'SIGKILL'})")
        self._until(0.7)
        self._publisher = self._hire("publisher", 2, self._restart_url(former.state["address"]))
        self._wait(lambda: "address" in self._publisher.state, "the publisher to restart")
        self._publisher.tell("go")
        self._say("the publisher is back, under the same name, with no memory of its former life")
        rest_s = self._plan.seconds * 0.2
        back = time.monotonic()
        self._until(1.0)
        self._wait(lambda: time.monotonic() - back >= rest_s, "the last scene to end", timeout_s=rest_s + STEP_S)

    def _prove(self) -> Outcome:
        self._publisher.tell("stop")
        self._wait(lambda: "stopped" in self._publisher.state, "the publisher to stop")
        stopped = time.monotonic()
        revision, rows = self._truth.snapshot()
        self._say(f"the changes stop at revision {revision}; now every copy must become equal to the database")
        expected = [[*key, *row] for key, row in sorted(rows.items())]
        unequal = set(self._controllers)
        while unequal and time.monotonic() - stopped < SETTLE_TIMEOUT_S:
            unequal = {actor for actor in unequal if actor.dump(DUMP_TIMEOUT_S) != expected}
            self._step()
        self._step(2 * STEP_S)  # the counters of the last moment are still on their way
        return Outcome(
            is_equal=not unequal,
            driver=self._plan.driver,
            seconds=time.monotonic() - self._born,
            settled_s=time.monotonic() - stopped,
            events=revision,
            rows=len(rows),
            controllers=[
                {"name": actor.name, "is_equal": actor not in unequal, **actor.state} for actor in self._controllers
            ],
        )

    # -- the director's means

    def _hire(self, part: str, number: int, url: str, address: str = "") -> Actor:
        plan = self._plan
        truth = str(self._directory / "truth.db")
        role = Role(part, number, url, address, truth, rate=plan.rate, drop=plan.drop, idle_s=IDLE_S)
        actor = ThreadActor(role, urlsplit(url).netloc) if plan.in_threads else ProcessActor(role, self._directory)
        self._actors.append(actor)
        return actor

    def _restart_url(self, address: str) -> str:
        """Where the publisher comes back: at its former address, also when the system had chosen the port."""
        if not self._plan.is_bind_based or urlsplit(self._plan.url).port:
            return self._plan.url
        return f"{self._plan.driver}://{address.rpartition('/')[2]}"

    def _until(self, part: float) -> None:
        """Let this part of the time pass."""
        while time.monotonic() - self._start < part * self._plan.seconds:
            self._step()

    def _wait(self, condition: Callable[[], bool], what: str, timeout_s: float = START_TIMEOUT_S) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > deadline:
                raise WaitTimeout(f"waited {timeout_s:.0f} s in vain for {what}")
            self._step()

    def _step(self, pause_s: float = STEP_S) -> None:
        for actor in self._actors:
            actor.check()
        self._screen.show(self._truth.revision(), [(actor, actor in self._frozen) for actor in self._controllers])
        time.sleep(pause_s)

    def _say(self, text: str) -> None:
        self._screen.say(time.monotonic() - self._born, text)
