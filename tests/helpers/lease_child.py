"""A candidate or a registered publisher in a process of its own.

``python -m tests.helpers.lease_child candidate URL NAME HOLDER LEASE_S`` says ``{"gained": token}`` and ``{"lost":
true}`` as it happens, and answers ``{"ask": "resign"}`` with ``{"resigned": true}``.

``python -m tests.helpers.lease_child publisher URL LEASE_S`` binds to a port of the system's choice, registers, and
says
``{"address": ..., "guid": ...}``; it answers ``{"send": count}`` with ``{"sent": count}``.
"""

from __future__ import annotations

import contextlib
import json
import sys
import threading
from collections.abc import Sequence
from typing import Any

import pubsub_api
from nb_api.coordination import lease_config
from nb_api.coordination.discovery import Registration
from nb_api.coordination.election import Election
from nb_api.db_api import DbApi
from nb_api.loading import build_db
from pubsub_api.testing.child import ChildProcess
from pubsub_api.testing.fast_conf import fast_conf

# As in `nb_tools`, also where that is not imported: a publisher is found soon.
lease_config.REFRESHES_PER_LEASE = 600

_lock = threading.Lock()


def candidate_process(url: str, name: str, holder: str, lease_s: float) -> ChildProcess:
    return ChildProcess("candidate", url, name, holder, str(lease_s), module=__name__)


def publisher_process(url: str, lease_s: float) -> ChildProcess:
    return ChildProcess("publisher", url, str(lease_s), module=__name__)


def discovery_db(url: str, lease_s: float) -> DbApi:
    """A database, open, whose directory has that lease."""
    db = build_db(url)
    lease_config.read_discovery(db.conf)
    db.conf.set_override("lease", lease_s, group=lease_config.DISCOVERY_GROUP)
    db.initialize()
    return db


def say(**message: Any) -> None:
    with _lock:
        sys.stdout.write(json.dumps(message) + "\n")
        sys.stdout.flush()


def be_candidate(url: str, name: str, holder: str, lease_s: str) -> None:
    db = build_db(url)
    db.initialize()
    election = Election(
        db, name, holder=holder, lease_s=float(lease_s),
        on_gain=lambda token: say(gained=token), on_loss=lambda: say(lost=True),
    )  # fmt: skip
    with contextlib.closing(db), election:
        for _ in sys.stdin:
            election.close()
            say(resigned=True)


def be_publisher(url: str, lease_s: str) -> None:
    db = discovery_db(url, float(lease_s))
    with contextlib.closing(db), pubsub_api.open(conf=fast_conf("zmq://127.0.0.1:0")) as session:
        publisher = session.publisher(name="test/publisher")
        with Registration(db, publisher, owns_address=session.capabilities.bind_based) as registration:
            assert registration.wait_done(timeout_s=60)
            say(address=publisher.address, guid=publisher.guid.hex())
            number = 0
            for line in sys.stdin:
                for _ in range(json.loads(line)["send"]):
                    number += 1
                    publisher.send_event(
                        pubsub_api.Event(topic="t", table="port", key="p1", action="set", value=number, version=number)
                    )
                publisher.flush(timeout_s=60)
                say(sent=number)


def main(arguments: Sequence[str]) -> None:
    role, *rest = arguments
    {"candidate": be_candidate, "publisher": be_publisher}[role](*rest)


if __name__ == "__main__":
    main(sys.argv[1:])
