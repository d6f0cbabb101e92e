"""A database whose server is in trouble: what every driver with a server must live through, as tests to inherit."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, TypeVar
from unittest import mock
from urllib.parse import urlsplit

import pytest

from nb_api import config
from nb_api.db_api import DbApi
from nb_api.errors import DbUnavailable
from nb_api.loading import load_db_driver, open_db
from nb_api.testing.replay import WAIT_S, follow, stored
from pubsub_api.config import new_conf
from tests.helpers.waiting import wait_until

T = TypeVar("T")


class Server(Protocol):
    def kill(self) -> None: ...
    def restart(self) -> None: ...
    def freeze(self) -> None: ...
    def thaw(self) -> None: ...


@contextlib.contextmanager
def opened(url: str, *, snapshot_portion: int = config.SNAPSHOT_PORTION, **options: Any) -> Iterator[DbApi]:
    """The database with these options of [db] and of the driver's own groups, and with snapshots of such portions."""
    conf = new_conf()
    groups = {config.GROUP: config.OPTIONS, **load_db_driver(urlsplit(url).scheme).options}
    for group, known in groups.items():
        conf.register_opts(known, group=group)
        for name in options.keys() & {option.name for option in known}:
            conf.set_override(name, options[name], group=group)
    with (
        mock.patch.object(config, "SNAPSHOT_PORTION", snapshot_portion),
        contextlib.closing(open_db(url, conf)) as db,
    ):
        yield db


@contextlib.contextmanager
def opened_hastily(url: str, **options: Any) -> Iterator[DbApi]:
    """As `opened`, with times so short that a server which stands still for a moment seems to be gone."""
    with contextlib.ExitStack() as stack:
        db = wait_until(
            lambda: attempt(lambda: stack.enter_context(opened(url, **options))), WAIT_S, "the database to be opened"
        )
        assert db is not None
        yield db


def attempt(call: Callable[[], T]) -> T | None:
    """What the call returns, None when the database is unavailable: for now, it is to be hoped."""
    try:
        return call()
    except DbUnavailable:
        return None


def ends_well(condition: Callable[[], object]) -> bool:
    return bool(attempt(condition))


def write_on(db: DbApi, name: str, is_over: threading.Event) -> list[int]:
    """Create objects until the server is gone for good; returns the versions that were acknowledged."""
    versions: list[int] = []
    for number in itertools.count():
        try:
            versions.append(db.create("t", f"{name}-{number}", 1, topic="t"))
        except DbUnavailable:
            if is_over.is_set():
                break
    return versions


class ServerInTrouble:
    """Needs the fixtures ``server``, ``url`` and ``db``."""

    kills = 2

    def is_forgetful(self, server: Any) -> bool:
        """Whether this release of the server is known to lose acknowledged writes; that it has must still be told."""
        return False

    def wait_for_waiter(self, server: Any, url: str) -> None:
        """Until a `wait` of a thread has reached the server."""
        raise NotImplementedError

    def test_no_acknowledged_write_is_lost_when_the_server_is_killed(self, server: Server, db: DbApi) -> None:
        acknowledged: list[int] = []
        with ThreadPoolExecutor(4) as pool:
            for turn in range(self.kills):
                is_over, before = threading.Event(), db.revision()
                writing = [pool.submit(write_on, db, f"{turn}-{worker}", is_over) for worker in range(4)]
                follow(db, lambda seen: len(seen) >= 50, after=before)
                is_over.set()
                server.kill()
                acknowledged += [version for one in writing for version in one.result(WAIT_S)]
                server.restart()
                changes = [change.revision for change in db.changes(0, limit=1_000_000)]
                missing = set(acknowledged) - set(changes)
                assert not missing or (self.is_forgetful(server) and db.check_history(sorted(missing)).lost in missing)
                acknowledged = [version for version in acknowledged if version not in missing]
                assert changes == sorted(set(changes))
                assert [change.revision for change in db.unpublished(limit=1_000_000)] == changes
                assert {held.version for held in stored(db).values()} == set(changes)

    def test_a_restart_between_two_calls_is_not_noticed(self, server: Server, db: DbApi) -> None:
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda i: db.create("t", f"k{i}", i, topic="t"), range(8)))
        server.restart()
        for turn in range(8):
            db.set("t", f"k{turn}", 2)

    def test_a_wait_notices_that_the_server_is_gone(self, server: Server, url: str, db: DbApi) -> None:
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(db.wait, 0, timeout_s=WAIT_S)
            self.wait_for_waiter(server, url)
            server.kill()
            with pytest.raises(DbUnavailable):
                waiting.result(WAIT_S)
            with pytest.raises(DbUnavailable):
                db.revision()
            server.restart()
            waiting = pool.submit(db.wait, 0, timeout_s=WAIT_S)
            db.create("t", "k", 1, topic="t")
            assert waiting.result(WAIT_S) is True

    def test_a_frozen_server_is_given_up_and_used_again(self, server: Server, url: str) -> None:
        with opened(url) as patient:
            version = patient.create("t", "k", 1, topic="t")
        with opened_hastily(url, operation_timeout=0.5) as db:
            server.freeze()
            try:
                with pytest.raises(DbUnavailable):
                    db.get("t", "k")
            finally:
                server.thaw()
            wait_until(lambda: ends_well(lambda: db.get("t", "k").version == version), WAIT_S, "the server to answer")
