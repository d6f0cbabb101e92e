"""What a publisher service that watches tables notes in the database: how far it came, and what it could not tell.

The changes of watched tables are in no outbox.  So this note is how copies know that the bus did not tell them all:
a copy that has not read the database up to ``untold`` has to.
"""

from __future__ import annotations

from typing import NamedTuple

from nb_api.coordination.leases import TOPIC
from nb_api.core.own_tables import OWN_PREFIX
from nb_api.db_api import DbApi
from nb_api.errors import ObjectNotFound

TABLE = f"{OWN_PREFIX}watchers"
NAME = "publisher-service"
"""Of the one that copies believe."""


class WatchNote(NamedTuple):
    revision: int
    """Changes up to here were followed."""
    untold: int
    """Not all changes up to here were published."""


def read(db: DbApi, name: str = NAME) -> WatchNote | None:
    """None when no service ever watched.  Raises DbError."""
    try:
        noted = db.get(TABLE, name).value
    except ObjectNotFound:
        return None
    return WatchNote(int(noted["revision"]), int(noted.get("untold", 0)))


def write(db: DbApi, note: WatchNote, name: str = NAME) -> None:
    """Raises DbError."""
    try:
        db.set(TABLE, name, note._asdict())
    except ObjectNotFound:
        db.create(TABLE, name, note._asdict(), topic=TOPIC)
