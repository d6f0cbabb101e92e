"""Writers and controllers in processes of their own, for tests that kill them.

A node speaks JSON lines with the test.  ``settings`` are the keyword arguments of `tests.helpers.nb_tools.open_nb`.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import sys
import threading
from collections.abc import Sequence
from typing import Any

from nb_api import LocalCache, NbApi
from nb_api.db_api import Change
from nb_api.errors import DbError, ObjectNotFound
from nb_api.writing.publishing import PublishRefusal
from publisher_service.service import PublisherService
from pubsub_api.testing.child import ChildProcess
from tests.helpers.nb_tools import nb_conf, open_nb

Row = tuple[str, str, str, int]
"""Table, key, topic, version."""
TABLES = ("port", "net")
KEYS = 40
TOPICS = ("tenant-1/a", "tenant-1/b", "tenant-2")


class WriterNode(ChildProcess):
    """Creates, updates, moves and deletes objects without end, alone and in transactions, until it is killed."""

    def __init__(self, url: str, bus: str | None, *, seed: int, **settings: Any) -> None:
        super().__init__(
            "writer", url, json.dumps({"bus": bus, "seed": seed, **settings}), module="tests.helpers.nb_nodes"
        )
        assert self.receive()["ready"]

    def start_flood(self) -> None:
        self.ask(do="flood")

    def write(self, count: int) -> None:
        """That many writes; returns when they are published and confirmed."""
        self.ask(do="write", count=count)


class MortalWriters(ChildProcess):
    """Writers, each a forked process, that die between the commit of a change and its publication.

    The bus must be one that survives a fork.
    """

    def __init__(self, url: str, bus: str, *, seed: int, **settings: Any) -> None:
        super().__init__(
            "mortal", url, json.dumps({"bus": bus, "seed": seed, **settings}), module="tests.helpers.nb_nodes"
        )
        assert self.receive()["ready"]

    def die(self) -> None:
        """One of them writes a little and is killed when it is about to publish from the thread that committed."""
        assert self.ask(do="die")["status"] == -signal.SIGKILL


class ControllerNode(ChildProcess):
    """Keeps a copy."""

    def __init__(self, url: str, bus: str | None, topics: list[str] | None = None, **settings: Any) -> None:
        super().__init__(
            "controller", url, json.dumps({"bus": bus, "topics": topics, **settings}), module="tests.helpers.nb_nodes"
        )
        assert self.receive()["ready"]

    def rows(self) -> list[Row]:
        return [tuple(row) for row in self.ask(do="rows")["rows"]]

    def statistics(self) -> dict[str, Any]:
        return self.ask(do="statistics")


class ServiceNode(ChildProcess):
    """A publisher service, with its upkeep of the database."""

    def __init__(self, url: str, bus: str, **settings: Any) -> None:
        super().__init__("service", url, json.dumps({"bus": bus, **settings}), module="tests.helpers.nb_nodes")
        assert self.receive()["ready"]


def rows_of(source: NbApi | LocalCache) -> list[Row]:
    return [(found.table, found.key, found.topic, found.version) for t in TABLES for found in source.get_all(t)]


def write_something(nb: NbApi, chance: random.Random) -> None:
    """One write, or a transaction of several.  What does not apply, because of what others do, is left out."""
    table, key, topic = chance.choice(TABLES), f"k{chance.randrange(KEYS)}", chance.choice(TOPICS)
    dice = chance.random()
    with contextlib.suppress(ObjectNotFound):
        if dice < 0.2:
            nb.delete(table, key)
        elif dice < 0.7:
            nb.put(table, key, dice, topic=topic)
        elif dice < 0.85:
            nb.update(table, key, [dice])
        else:
            _write_together(nb, chance, topic)


def _write_together(nb: NbApi, chance: random.Random, topic: str) -> None:
    """Several in one transaction; the key of a create is never used again."""
    with nb.transaction() as txn:
        for number in chance.sample(range(KEYS), 3):
            txn.create(chance.choice(TABLES), f"{chance.getrandbits(64):x}-{number}", None, topic=topic)


def _say(**message: Any) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def _writer(url: str, settings: dict[str, Any]) -> None:
    chance = random.Random(settings.pop("seed"))
    with open_nb(url, settings.pop("bus"), **settings) as nb:
        _say(ready=True)
        for line in sys.stdin:
            command = json.loads(line)
            _say(ok=True) if command["do"] == "flood" else None
            while command["do"] == "flood":
                with contextlib.suppress(DbError):  # the database may be what is killed
                    write_something(nb, chance)
            for _ in range(command["count"]):
                write_something(nb, chance)
            nb.flush(timeout_s=60)
            _say(ok=True)


def _mortal(url: str, settings: dict[str, Any]) -> None:
    chance = random.Random(settings.pop("seed"))
    with open_nb(url, settings.pop("bus"), **settings) as nb:
        _say(ready=True)
        for _ in sys.stdin:
            seed = chance.getrandbits(32)
            child = os.fork()
            if child == 0:
                _die_before_publication(nb, random.Random(seed))
            _say(status=os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


def _die_before_publication(nb: NbApi, chance: random.Random) -> None:
    assert nb.publisher is not None
    publish = nb.publisher.publish

    def die_or_publish(changes: Sequence[Change]) -> list[PublishRefusal]:
        if threading.current_thread() is threading.main_thread():
            os.kill(os.getpid(), signal.SIGKILL)
        return publish(changes)

    try:
        for _ in range(chance.randrange(1, 4)):
            write_something(nb, chance)
        nb.flush(timeout_s=60)  # now it is known that a writer may publish itself
        nb.publisher.publish = die_or_publish  # type: ignore[method-assign]
        while True:
            write_something(nb, chance)
    finally:
        os._exit(1)  # it should not come to this; and the rest of the program is the parent's


def _controller(url: str, settings: dict[str, Any]) -> None:
    topics = settings.pop("topics")
    with open_nb(url, settings.pop("bus"), **settings) as nb, LocalCache(nb, tables=TABLES, topics=topics) as cache:
        _say(ready=True)
        for line in sys.stdin:
            if json.loads(line)["do"] == "rows":
                _say(rows=rows_of(cache))
            else:
                statistics = cache.statistics()
                _say(**vars(statistics.syncs) | vars(statistics.news) | {"slots": 0})


def _service(url: str, settings: dict[str, Any]) -> None:
    conf = nb_conf(settings.pop("bus"), db={"url": url, **settings.pop("db", {})}, **settings)
    with PublisherService(conf):
        _say(ready=True)
        sys.stdin.read()


if __name__ == "__main__":
    role, node_url, arguments = sys.argv[1:]
    {"writer": _writer, "mortal": _mortal, "controller": _controller, "service": _service}[role](
        node_url, json.loads(arguments)
    )
