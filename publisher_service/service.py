"""The publisher service: one publisher for all workers of a host.

Owns the socket file, the journal, one publisher and the intake between them.  It decides nothing itself: each part has
its module, and this one puts them together in the right order and takes them apart again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import time
from types import TracebackType
from typing import Any

from oslo_config import cfg

import pubsub_api
from publisher_service import config, health, ownership, reporting
from publisher_service.core import messages
from publisher_service.core.service_side import IntakeSettings, ServiceCore
from publisher_service.errors import JournalError
from publisher_service.intake import Intake
from publisher_service.journal import Journal, RecoveredJournal, predecessor_of
from publisher_service.sequencer import Sequencer
from publisher_service.upkeep import start
from publisher_service.worker.publisher import event_bytes_max
from pubsub_api import settings
from pubsub_api.config import GROUP as PUBSUB
from pubsub_api.config import batch_bytes_max, forget_time
from pubsub_api.errors import InvalidConfig
from pubsub_api.publishing.default_name import default_name
from pubsub_api.publishing.publisher import Publisher
from pubsub_api.reporting import serve
from pubsub_api.runtime.sockets import socket_file

LOG = logging.getLogger(__name__)

_STUCK_S = 30.0
"""An intake that has not turned for this long does not live any more, whatever its thread says."""


class PublisherService:
    """Use it in a ``with``, or `start` and `stop` it.  `start` raises AddressInUse and InvalidConfig."""

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        config.register(conf)
        self.conf = conf
        self._path = ownership.socket_path(conf)
        self._parts = contextlib.ExitStack()
        """What was started, to be ended in reverse."""
        self._is_started = False
        self._is_stopping = False
        self._started_at = time.monotonic()
        self.recovered = RecoveredJournal()
        self.journal_damaged = 0
        self.reload_failures = 0
        """How often the configuration could not be read again."""
        self.health_address = ""
        """Where the service tells how it is; empty when it does not."""
        self.upkeep: start.DatabaseUpkeep | None = None
        """None when there is no database to serve."""

    def start(self) -> None:
        """Own the socket, read the journal, bind the publisher, take workers.  Undoes everything when it fails."""
        with contextlib.ExitStack() as parts:
            owned = parts.enter_context(ownership.Ownership(self._path))
            self.session = parts.enter_context(pubsub_api.open(conf=self.conf))
            journal = self._open_journal(parts)
            self.publisher = self._open_publisher(parts)
            self.sequencer = Sequencer(
                self.publisher,
                self._start_journal(journal),
                event_bytes_max=event_bytes_max(self.conf),
                streams_max=self.conf[PUBSUB].streams_max,
            )
            self.core = self._make_core()
            if self.publisher.address == f"ipc://{self._path}":
                raise InvalidConfig(f"{self._path} is the publisher's own socket: set [zmq] ipc_path to another one")
            listener = parts.enter_context(socket_file.listen(self._path))
            parts.callback(self._path.unlink, missing_ok=True)
            self.intake = Intake(listener, self.core, self.sequencer)
            self.intake.start()
            parts.callback(self._stop_intake)
            if start.are_wanted(self.conf):
                owns_address = self.session.capabilities.bind_based
                self.upkeep = parts.enter_context(
                    start.DatabaseUpkeep(
                        self.conf, self.publisher, self.sequencer, owns_address=owns_address, place=owned.place
                    )
                )
            self._open_health(parts)
            self._parts = parts.pop_all()
        self._is_started = True
        LOG.info("Publisher service %s publishes at %s and takes workers at %s.",
                 self.publisher.name, self.publisher.address, self._path)  # fmt: skip

    def stop(self) -> None:
        """Accept no new workers, drain, flush, say goodbye, release everything.  Idempotent."""
        self._is_stopping = True
        self._parts.close()

    @property
    def is_well(self) -> bool:
        """Whether the parts that do the work still turn."""
        return (
            self._is_started
            and not self._is_stopping
            and self.intake.is_alive
            and time.monotonic() - self.intake.turned_at < _STUCK_S
        )

    # -- parts

    def _open_journal(self, parts: contextlib.ExitStack) -> Journal | None:
        """The journal with what it told in ``recovered``; None when there shall be none."""
        options = self.conf[config.GROUP]
        path = ownership.beside(self._path, ".journal")
        journal = Journal(path, bytes_max=options.journal_bytes_max, workers_max=config.WORKERS_REMEMBERED_MAX)
        if not options.journal_bytes_max:
            journal.discard()  # one that is not written on would tell the next service what is not true any more
            return None
        parts.callback(journal.close)
        if not journal.is_writable():
            # What stands in it may be true no longer: a service that could not write it could not remove it.
            LOG.warning("Going on without a journal: subscribers resync now, and should this service die.")
            self.journal_damaged += 1
            return None
        self.recovered = journal.recover()
        if self.recovered.is_damaged:
            self.journal_damaged += 1
            LOG.warning("The journal %s cannot be believed and is begun anew: subscribers resync.", path)
        return journal

    def _open_publisher(self, parts: contextlib.ExitStack) -> Publisher:
        told = self.recovered
        if told.age_s > forget_time(self.conf):
            told = RecoveredJournal()  # no subscriber remembers that incarnation: to tell of it would look like news
        predecessor = predecessor_of(told, settings.frame_settings(self.conf))
        name = self.conf[PUBSUB].publisher_name or f"{default_name().partition('/')[0]}/publisher-service"
        publisher = parts.enter_context(self.session.publisher(name=name, predecessor=predecessor))
        if predecessor is not None:
            LOG.info("Goes on where publisher %s ended: %d streams, %d frames kept for repair.",
                     predecessor.guid.hex(), len(predecessor.heads), len(predecessor.frames))  # fmt: skip
        return publisher

    def _start_journal(self, journal: Journal | None) -> Journal | None:
        if journal is None:
            return None
        try:
            journal.start(self.publisher.guid, self.recovered)
        except JournalError as error:
            LOG.warning("%s. Going on without a journal: subscribers resync should this service die.", error)
            journal.discard()
            self.journal_damaged += 1
            return None
        return journal

    def _make_core(self) -> ServiceCore:
        pubsub = self.conf[PUBSUB]
        return ServiceCore(
            IntakeSettings(
                workers_max=config.WORKERS_MAX,
                remembered_max=config.WORKERS_REMEMBERED_MAX,
                message_bytes_max=messages.message_bytes_max(
                    batch_events_max=pubsub.batch_events_max,
                    batch_bytes_max=batch_bytes_max(self.conf),
                    event_bytes_max=event_bytes_max(self.conf),
                ),
                event_bytes_max=event_bytes_max(self.conf),
            ),
            guid=self.publisher.guid,
            taken=self.recovered.taken,
            refused=self.recovered.refused,
        )

    def _stop_intake(self) -> None:
        self.intake.stop(drain_timeout_s=config.DRAIN_TIMEOUT_S)

    def _open_health(self, parts: contextlib.ExitStack) -> None:
        options = self.conf[config.GROUP]
        if options.health == "unix":
            path = ownership.beside(self._path, ownership.HEALTH_SUFFIX)
            parts.enter_context(health.serve_unix(path, self.report))
            parts.callback(path.unlink, missing_ok=True)
            self.health_address = f"unix:{path}"
        elif options.health == "http":
            address = f"127.0.0.1:{options.health_port}"
            told = reporting.make_report(self)
            endpoint = parts.enter_context(serve(address, told, status=lambda: health.guarded(self.report)))
            self.health_address = f"{endpoint.url}/"

    # -- looking at it

    def report(self) -> dict[str, Any]:
        """How the service is, as plain data."""
        published = self.publisher.statistics()
        last = self.sequencer.published_at
        return {
            "ok": self.is_well,
            "pid": os.getpid(),
            "uptime_s": round(time.monotonic() - self._started_at, 3),
            "name": published.name,
            "guid": published.guid,
            "address": published.address,
            "socket": str(self._path),
            "workers": self.core.connected,
            "workers_remembered": len(self.core.workers),
            "backlog_bytes": published.backlog_bytes,
            "last_publish_s": None if last is None else round(time.monotonic() - last, 3),
            "events": published.events,
            "streams": published.streams,
            "frames": published.frames,
            "send_failures": published.send_failures,
            "hop": dataclasses.asdict(self.core.counters) | dataclasses.asdict(self.intake.counters),
            "sequencer": dataclasses.asdict(self.sequencer.counters),
            "journal": {
                "on": self.sequencer.has_journal,
                "damaged": self.journal_damaged,
                "recovered_events": sum(len(stretch.encoded) for stretch in self.recovered.stretches),
                "recovered_lives": len(self.recovered.incarnations),
            },
            "reload_failures": self.reload_failures,
            "database": self.upkeep.report() if self.upkeep is not None else None,
        }

    def __enter__(self) -> PublisherService:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
