"""Members of groups for tests: in this process, or in processes of their own that can be killed.

A member keeps a record of what its user saw.  `unexplained` says what several records together cannot account for.
"""

from __future__ import annotations

import collections
import dataclasses
import json
import os
import sys
import threading
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from oslo_config import cfg

import durable_log
from durable_log import LogApi
from pubsub_api.config import new_conf
from pubsub_api.core import frame as frames
from pubsub_api.core.events import Event, encode_event, pack_body
from pubsub_api.testing.child import ChildProcess
from shared_subscriptions import GroupEvent, GroupSubscriber, config

CALM = {"member_lease": 30.0, "retry_delay": 0.05, "unsubscribe_timeout": 60.0}
"""Nobody is killed: leases and patience are so long that no load of the machine ends them."""
HASTY = {**CALM, "member_lease": 1.0}
"""Somebody is killed, and the others must notice soon."""

# Of every member of this process and of those that it starts, which import this module, too.
config.PROGRESS_INTERVAL_S = 0.05
config.COMMIT_INTERVAL_S = 0.1
config.FIND_LEADER_INTERVAL_S = 0.2
config.RESEND_INTERVAL_S = 0.5
config.REBALANCE_DELAY_S = 0.05
config.RENEW_PARTITIONS_INTERVAL_S = 0.1
config.REVOKE_TIMEOUT_S = 60.0


class Seen(NamedTuple):
    topic: str
    key: str
    number: int
    attempt: int
    grant: int


def groups_conf(**options: Any) -> cfg.ConfigOpts:
    """A private ``conf`` with options of ``[groups]``, those of `CALM` unless given."""
    conf = config.register(new_conf())
    for name, value in {**CALM, **options}.items():
        conf.set_override(name, value, group=config.GROUP)
    return config.register(conf)


CALM_LEASE = config.lease_settings(groups_conf(**CALM))
HASTY_LEASE = config.lease_settings(groups_conf(**HASTY))
"""The same for groups that are declared before they have a member."""


class Source:
    """Appends numbered events to a log, as a recorder would."""

    def __init__(self, log: LogApi, *, padding: int = 0) -> None:
        """``padding`` makes each event larger by so many bytes."""
        self._log = log
        self._padding = "x" * padding
        self._guid = os.urandom(16)
        self._last: collections.Counter[str] = collections.Counter()

    def publish(self, topic: str, count: int, *, keys: int = 5, per_frame: int = 10) -> None:
        """Events with the next numbers of the topic; number n has the key ``k(n % keys)``."""
        packed = []
        while count > 0:
            size = min(count, per_frame)
            packed.append(self._frame(topic, size, keys))
            count -= size
        self._log.append(packed)

    def _frame(self, topic: str, size: int, keys: int) -> bytes:
        first = self._last[topic] + 1
        self._last[topic] += size
        events = [
            encode_event(
                Event(
                    table="t",
                    key=f"k{number % keys}",
                    action="set",
                    version=number,
                    value=[number, self._padding] if self._padding else number,
                ),
                1,
            )
            for number in range(first, first + size)
        ]
        return frames.pack(
            frames.Kind.DATA, self._guid, topic, pack_body(events),
            first=first, after=first - 1, count=size, timestamp=1,
        )  # fmt: skip

    def expected(self, topics: Iterable[str] | None = None) -> set[tuple[str, int]]:
        return {
            (topic, number)
            for topic, last in self._last.items()
            if topics is None or topic in topics
            for number in range(1, last + 1)
        }


class Member:
    """A member in this process."""

    def __init__(
        self, url: str, topics: Sequence[str], *, name: str = "", auto_ack: bool = True, kills_at: int = 0,
        hangs_at: int = 0, writes_to: str = "", **options: Any,
    ) -> None:  # fmt: skip
        conf = groups_conf(**options)
        self.seen: list[Seen] = []
        self.events: list[GroupEvent] = []
        self.begun = 0
        """Calls of the callback, also those that have not returned."""
        self.failing: dict[tuple[str, int], int] = {}
        """Topic and number of an event -> the last attempt at which the callback raises."""
        self.gate = threading.Event()
        """While cleared, the callback does not return."""
        self.gate.set()
        self.kills_at = kills_at
        """Number of the event at which the process ends, as if it were killed."""
        self.hangs_at = hangs_at
        """Number of the event at which the callback hangs until `release` is set."""
        self.release = threading.Event()
        self._diary = open(writes_to, "ab", buffering=0) if writes_to else None  # noqa: SIM115  closed with the member
        """What the callback saw, for those who ask after the process was killed."""
        self.subscriber = GroupSubscriber(
            durable_log.open(url, conf=conf), conf, topics, on_event=self._on_event, auto_ack=auto_ack, name=name
        )

    def _on_event(self, event: GroupEvent) -> None:
        self.begun += 1
        self.gate.wait(60)
        self.seen.append(Seen(event.topic, event.key, event.version, event.attempt, event.grant))
        self.events.append(event)
        if self._diary is not None:
            self._diary.write(f"{event.topic} {event.version}\n".encode())
        if event.version == self.kills_at:
            os._exit(9)
        if event.version == self.hangs_at:
            self.release.wait(60)
        if event.attempt <= self.failing.get((event.topic, event.version), 0):
            raise ValueError(f"event {event.version} cannot be handled")

    def got(self) -> set[tuple[str, int]]:
        return {(seen.topic, seen.number) for seen in self.seen}

    @property
    def streams(self) -> int:
        return self.subscriber.statistics().streams

    @property
    def is_leading(self) -> bool:
        return bool(self.subscriber.statistics().is_leading)

    def __enter__(self) -> Member:
        return self

    def __exit__(self, *_: object) -> None:
        self.gate.set()
        self.release.set()
        self.subscriber.close()
        if self._diary is not None:
            self._diary.close()


class MemberProcess(ChildProcess):
    """A member in a process of its own."""

    def __init__(self, url: str, topics: Sequence[str], *, name: str = "", **options: Any) -> None:
        settings = {"topics": list(topics), "name": name, **options}
        super().__init__("member", url, json.dumps(settings), module="tests.helpers.group_nodes")
        assert self.receive()["ready"]

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def record(self) -> list[Seen]:
        return [Seen(*item) for item in self.ask(do="seen")["seen"]]

    def got(self) -> set[tuple[str, int]]:
        return {(seen.topic, seen.number) for seen in self.record()}

    def statistics(self) -> dict[str, Any]:
        return self.ask(do="statistics")

    def leave(self) -> None:
        """Close it in good order; the process stays for questions."""
        self.ask(do="close")


def duplicates(*records: Sequence[Seen]) -> list[tuple[str, int]]:
    counted = collections.Counter((seen.topic, seen.number) for record in records for seen in record)
    return sorted(event for event, count in counted.items() if count > 1)


def disordered(record: Sequence[Seen]) -> list[str]:
    """Where one member saw events of a key in another order than they were published in, under one grant."""
    last: dict[tuple[str, str, int], int] = {}
    problems = []
    for seen in record:
        lane = seen.topic, seen.key, seen.grant
        if seen.number < last.get(lane, 0):
            problems.append(f"{seen.topic} {seen.key}: {seen.number} after {last[lane]}")
        last[lane] = seen.number
    return problems


def _say(**message: Any) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def _member(url: str, settings: dict[str, Any]) -> None:
    is_doomed = "kills_at" in settings
    if is_doomed:
        _say(ready=True)  # it may not live long enough to say so later
    with Member(url, settings.pop("topics"), name=settings.pop("name"), **settings) as member:
        member.subscriber.wait_ready(timeout_s=60)
        if not is_doomed:
            _say(ready=True)
        for line in sys.stdin:
            command = json.loads(line)
            if command["do"] == "seen":
                _say(seen=list(member.seen))
            elif command["do"] == "statistics":
                _say(**dataclasses.asdict(member.subscriber.statistics()))
            elif command["do"] == "close":
                member.subscriber.close()
                _say(ok=True)


if __name__ == "__main__":
    _role, node_url, node_settings = sys.argv[1:]
    _member(node_url, json.loads(node_settings))
