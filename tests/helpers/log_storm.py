"""A log under fire: whoever records, stands by, seals and compacts is killed at random, and publishers come and go.

`storm` runs it and checks what must hold: every event that was published is in the log once, of a compacted topic the
newest event of each object is, and no file was removed but those that compaction has replaced.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from typing import Any

import durable_log
import pubsub_api
from durable_log.log_api import LogApi
from durable_log.storage.segmented import SegmentedLog
from durable_log.testing.log_child import log_process
from durable_log.testing.sources import read_events
from durable_log.upkeep.verifying import verify
from pubsub_api.testing.child import ChildProcess
from pubsub_api.testing.fast_conf import fast_conf
from tests.helpers.bus_members import BusMember
from tests.helpers.waiting import wait_until

HAPPENED, STATE, PROBE = "tenant-7/happened", "tenant-7/state", "tenant-7/probe"
LOG_OPTIONS = f"shards=2&seal_events=100&compact_topics={STATE}"
MEMBERS = 3
EVENTS = 200
KEYS = 7
Files = dict[str, tuple[int, int, int]]
"""Path -> shard and offsets of segments that were published."""
PATIENCE_S = 240.0
PATIENT = {"member_lease": 3.0}
"""A busy machine must not make a member look dead: while nobody stands by, what a leader heard last is lost with it
when the publisher has ended, too."""


class Crew:
    """The processes that work on the log, and who of them is killed next."""

    def __init__(self, bus_url: str, log_url: str, chance: random.Random) -> None:
        self._bus_url = bus_url
        self._log_url = log_url
        self._chance = chance
        self.members: list[BusMember] = []
        self.maintainer: ChildProcess | None = None

    def fill(self) -> None:
        """Start who is missing, and wait until one member leads and another one stands by."""
        while len(self.members) < MEMBERS:
            self.members.append(BusMember(self._bus_url, self._log_url, **PATIENT))
        if self.maintainer is None:
            self.maintainer = log_process(self._log_url)
            self.maintainer.receive(PATIENCE_S)
            self.maintainer.ask(maintain=True)
        wait_until(self._is_complete, PATIENCE_S, "a leader and a standby")

    def _is_complete(self) -> bool:
        found = [one.statistics() for one in self.members]
        return any(one["is_leading"] for one in found) and any(one["standing_by"] for one in found)

    def kill_somebody(self, publisher: pubsub_api.Publisher) -> str:
        """When the standby of a leader hears the publisher, which says something now and then meanwhile."""

        def is_heard() -> list[tuple[BusMember, dict[str, Any]]]:
            publisher.send_event(pubsub_api.Event(topic=PROBE, table="t", key="k", action="set", value=1, version=1))
            found = [(one, one.statistics()) for one in self.members]
            has_leader = any(one["is_leading"] for _, one in found)
            return found if has_leader and any(publisher.guid.hex() in one["heard"] for _, one in found) else []

        found = wait_until(is_heard, PATIENCE_S, "the standby to hear")
        if self._chance.random() < 0.4:
            assert self.maintainer is not None
            self.maintainer.kill()
            self.maintainer = None
            return "maintenance"
        wants_leader = self._chance.random() < 0.7
        doomed = next((one for one, said in found if bool(said["is_leading"]) == wants_leader), self.members[0])
        self.members.remove(doomed)
        doomed.kill()
        return "leader" if wants_leader else "member"

    def close(self) -> None:
        for one in (*self.members, self.maintainer):
            if one is not None:
                one.kill()


def storm(bus_url: str, log_url: str, seed: int, kills: int) -> None:
    """Kill so many, one after the other, while publishers that live for a moment only publish."""
    chance = random.Random(seed)
    separator = "&" if "?" in log_url else "?"
    url = f"{log_url}{separator}{LOG_OPTIONS}"
    crew = Crew(bus_url, url, chance)
    with contextlib.closing(durable_log.open(url)) as log, contextlib.closing(crew):
        assert isinstance(log, SegmentedLog)
        files: Files = {}
        for number in range(kills):
            crew.fill()
            with _publisher(bus_url) as publisher:
                _send(publisher, 2 * number * EVENTS)
                _wait_heard(log, (2 * number + 1) * EVENTS)
                victim = crew.kill_somebody(publisher)
                _send(publisher, (2 * number + 1) * EVENTS)
            count = 2 * (number + 1) * EVENTS
            what = f"what was published around kill {number} ({victim}) of seed {seed}"
            wait_until(lambda: len(_versions(log, HAPPENED)) >= count, PATIENCE_S, what)  # noqa: B023
            wait_until(lambda: _newest(log) == _expected(count), PATIENCE_S, f"{what}: of each object the newest")  # noqa: B023
            files |= _check(log, files, count)


@contextlib.contextmanager
def _publisher(bus_url: str) -> Iterator[pubsub_api.Publisher]:
    with pubsub_api.open(conf=fast_conf(bus_url)) as session:
        yield session.publisher()


def _send(publisher: pubsub_api.Publisher, start: int) -> None:
    events = [
        pubsub_api.Event(topic=topic, table="t", key=f"k{number % KEYS}", action="set", value=number, version=number)
        for number in range(start + 1, start + EVENTS + 1) for topic in (HAPPENED, STATE)
    ]  # fmt: skip
    publisher.send_events(events)
    publisher.flush(timeout_s=PATIENCE_S)


def _wait_heard(log: LogApi, count: int) -> None:
    """Until the first half is recorded, which was sent before anybody was connected to this publisher."""
    wait_until(lambda: len(_versions(log, HAPPENED)) >= count, PATIENCE_S, "the first half to be recorded")


def _versions(log: LogApi, topic: str) -> list[int]:
    return [one.event.version for one in read_events(log) if one.event.topic == topic]


def _newest(log: LogApi) -> dict[str, int]:
    """Of each object of the topic that is compacted."""
    newest: dict[str, int] = {}
    for one in read_events(log):
        if one.event.topic == STATE:
            newest[one.event.key] = max(newest.get(one.event.key, 0), one.event.version)
    return newest


def _expected(count: int) -> dict[str, int]:
    return {f"k{number % KEYS}": number for number in range(1, count + 1)}


def _check(log: SegmentedLog, files: Files, count: int) -> Files:
    """Returns the segments that there are."""
    assert sorted(_versions(log, HAPPENED)) == list(range(1, count + 1)), "each event is in the log, once"
    assert _newest(log) == _expected(count), "of each object the newest"
    problems = verify(log).problems
    assert problems == [], problems
    covered = [(segment.shard, segment.first, segment.end) for segment in log.segments()]
    published = {found.path: (found.shard, found.name.first, found.name.end) for found in log.segment_store.published()}
    for path, span in files.items():
        assert path in published or span in covered, f"{path} is gone, and nothing is in its place"
    return published
