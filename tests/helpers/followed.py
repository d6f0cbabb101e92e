"""A writer and the copy of a controller, on the bus or on the feed, while the database under them loses its history."""

from __future__ import annotations

import contextlib
import itertools
import random
import threading
import time
from collections.abc import Iterator
from typing import Any
from unittest import mock

from nb_api import LocalCache, NbApi, Resynced
from nb_api.errors import DbError, DbUnavailable
from tests.helpers.histories import Database
from tests.helpers.nb_tools import memory_bus, open_nb
from tests.helpers.waiting import wait_until

WAIT_S = 60.0


def write(nb: NbApi, key: str, value: Any) -> None:
    """Until the database that was away takes it."""

    def put() -> bool:
        try:
            nb.put("port", key, value, topic="t")
        except DbUnavailable:
            return False
        return True

    wait_until(put, WAIT_S, f"{key} to be written")


def wait_equal(cache: LocalCache, nb: NbApi) -> None:
    def is_equal() -> bool:
        try:
            return cache.get_all("port") == nb.get_all("port")
        except DbUnavailable:
            return False

    wait_until(is_equal, WAIT_S, "the copy to equal the database")


@contextlib.contextmanager
def followed(url: str, following: str, **cache: Any) -> Iterator[tuple[NbApi, LocalCache, list[Resynced]]]:
    """A writer, and the copy of a controller of its own, and what that was told of resyncs."""
    bus = memory_bus() if following == "bus" else None
    told: list[Resynced] = []

    def note(changes: Any) -> None:
        told.extend(change for change in changes if isinstance(change, Resynced))

    with (
        open_nb(url, bus) as nb,
        open_nb(url, bus, cache=cache) as other,
        contextlib.closing(LocalCache(other, on_changes=note)) as copy,
    ):
        copy.wait_synced(timeout_s=WAIT_S)
        yield nb, copy, told


def misfortunes(database: Database, following: str, *, rounds: int, seed: int) -> None:
    """A writer goes on while the database is put back, loses everything, crashes, or its clock jumps.  After each of
    these the copy becomes equal to it."""
    chance = random.Random(seed)
    real = time.time
    with followed(database.url, following) as (nb, copy, _):
        database.backup()
        for _ in range(rounds):
            with _writing(nb):
                kind = chance.choice((database.restore, database.lose, database.crash, database.backup, None))
                if kind is None:
                    jump_s = chance.choice((-3600.0, 3600.0))
                    with mock.patch("time.time", lambda jump_s=jump_s: real() + jump_s):
                        write(nb, "jumped", jump_s)
                else:
                    kind()
            write(nb, "last", chance.random())
            wait_equal(copy, nb)


@contextlib.contextmanager
def _writing(nb: NbApi) -> Iterator[None]:
    """Somebody writes all the time, as fast as it goes, and does not mind what fails."""
    is_over, begun = threading.Event(), threading.Event()

    def work() -> None:
        for number in itertools.count():
            if is_over.is_set() and number > 20:
                return
            with contextlib.suppress(DbError):
                nb.put("port", f"k{number % 17}", number, topic="t")
                if number % 5 == 0:
                    nb.delete("port", f"k{number % 17}")
            begun.set()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        assert begun.wait(WAIT_S)
        yield
    finally:
        is_over.set()
        thread.join()
