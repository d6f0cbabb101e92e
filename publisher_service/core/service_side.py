"""The service's side of the workers' protocol: which workers there are, which batches are new, what is answered.

Sans-IO.  The owner feeds each connection what it reads, publishes the batches it gets back, and then asks every
connection for its acknowledgement.

Theory of operation
-------------------
A worker is known by its GUID and has *taken*, the number of the last batch that was taken over from it, and *refused*,
how many events in all of them could not be published.  Both outlive the connection and, through the journal, the
service: an acknowledgement that is lost with its connection is made up for by the next WELCOME.  A batch must follow
the one before it; one that was taken already is dropped, which is what makes sending again harmless.

======== ============== ======== ======================================================================================
state    what comes     state    what follows
======== ============== ======== ======================================================================================
NEW      HELLO          OPEN     WELCOME with both; an older connection of the same worker is ended
NEW      HELLO          ENDED    REFUSED: another protocol version, or too many workers
OPEN     BATCH next     OPEN     it is handed to the owner, and acknowledged when the owner asks
OPEN     BATCH old      OPEN     it is dropped, counted, and acknowledged again
OPEN     BATCH beyond   ENDED    one typed error
OPEN     BYE            ENDED    the worker is forgotten
any      anything else  ENDED    one typed error
======== ============== ======== ======================================================================================
"""

from __future__ import annotations

import dataclasses
import enum
from collections import OrderedDict
from collections.abc import Iterator
from typing import NamedTuple

from publisher_service.core import messages
from publisher_service.core.messages import (
    Ack,
    MessageReader,
    RefusalMessage,
    Welcome,
    WorkerBatch,
    WorkerBye,
    WorkerHello,
)
from publisher_service.errors import MalformedMessage, UnexpectedMessage


class ConnectionState(enum.Enum):
    NEW = "new"
    OPEN = "open"
    ENDED = "ended"


@dataclasses.dataclass(frozen=True)
class IntakeSettings:
    workers_max: int = 1024
    """Connected at the same time."""
    remembered_max: int = 10_000
    """Workers whose last number is kept, connected or not."""
    message_bytes_max: int = 4 * 1024 * 1024
    event_bytes_max: int = 1024 * 1024


@dataclasses.dataclass
class Worker:
    """What is known of a worker process.  ``connection`` is None while it has none."""

    guid: bytes
    taken: int
    refused: int = 0
    reason: str = ""
    """Why the newest of the refused events could not be published."""
    name: str = ""
    pid: int = 0
    connection: WorkerConnection | None = None


@dataclasses.dataclass
class IntakeCounters:
    batches: int = 0
    events: int = 0
    duplicate_batches: int = 0
    """Sent again by a worker although they had been taken: dropped."""
    unproven_batches: int = 0
    """Batches that a worker says were acknowledged and that this service never saw: its journal was lost."""
    refused_workers: int = 0
    forgotten_workers: int = 0
    """Left out of the table for want of room."""


class TakenBatch(NamedTuple):
    """A new batch.  ``payload`` is the message as it came, for the journal: good until more is fed."""

    worker: Worker
    number: int
    groups: list[messages.Group]
    payload: bytes | memoryview


class ServiceCore:
    """The table of workers.  Not thread-safe: the owner serialises calls, those of its connections too."""

    def __init__(
        self,
        settings: IntakeSettings,
        *,
        guid: bytes,
        taken: dict[bytes, int] | None = None,
        refused: dict[bytes, int] | None = None,
    ) -> None:
        self.settings = settings
        self.guid = guid
        self.counters = IntakeCounters()
        self.workers: OrderedDict[bytes, Worker] = OrderedDict(
            (worker, Worker(worker, number, (refused or {}).get(worker, 0))) for worker, number in (taken or {}).items()
        )
        self.connected = 0
        self.endings = 0
        """How many connections have ended, by whichever side: the owner looks for them when this has grown."""

    def connect(self) -> WorkerConnection:
        """A process connected."""
        return WorkerConnection(self)

    def taken(self) -> dict[bytes, int]:
        """Of every worker that is remembered, the one heard longest ago first."""
        return {guid: worker.taken for guid, worker in self.workers.items()}

    def _greet(self, hello: WorkerHello, connection: WorkerConnection) -> Worker | str:
        """The worker of a HELLO, or why it is refused."""
        if hello.version != messages.VERSION:
            return f"it speaks version {hello.version} of the protocol, this service speaks {messages.VERSION}"
        known = self.workers.get(hello.guid)
        if self.connected >= self.settings.workers_max and (known is None or known.connection is None):
            return f"{self.connected} workers are connected, and there may be {self.settings.workers_max}"
        if known is None:
            known = self.workers[hello.guid] = Worker(hello.guid, hello.first - 1)
            self._make_room()
        elif hello.first > known.taken + 1:
            self.counters.unproven_batches += hello.first - known.taken - 1
            known.taken = hello.first - 1
        if known.connection is not None:
            known.connection.end()
        known.refused = max(known.refused, hello.refused)
        self.workers.move_to_end(hello.guid)
        known.name, known.pid, known.connection = hello.name, hello.pid, connection
        self.connected += 1
        return known

    def _make_room(self) -> None:
        while len(self.workers) > max(self.settings.remembered_max, self.connected + 1):
            oldest = next(guid for guid, worker in self.workers.items() if worker.connection is None)
            del self.workers[oldest]
            self.counters.forgotten_workers += 1

    def forget(self, worker: Worker) -> None:
        """The worker said goodbye: it will not come back."""
        if self.workers.get(worker.guid) is worker:
            del self.workers[worker.guid]


class WorkerConnection:
    """One connection.  ``outgoing`` is what to write; once ``state`` is ENDED that is the last of it."""

    def __init__(self, core: ServiceCore) -> None:
        self._core = core
        self._inbox = MessageReader(core.settings.message_bytes_max)
        self.state = ConnectionState.NEW
        self.worker: Worker | None = None
        self.outgoing = b""
        self._is_ack_due = False
        self._told_refused = 0
        """Of the worker's refused events, those that this connection has told of."""

    def feed(self, data: bytes | memoryview) -> Iterator[TakenBatch]:
        """Bytes came; yields the new batches, in order.  A view is not kept after the last of them.

        Raises WorkerProtocolError: then the connection is ended, and what was yielded before is good."""
        try:
            for payload in self._inbox.feed(data):
                taken = self._on_message(messages.read_from_worker(payload), payload)
                if taken is not None:
                    yield taken
        except Exception:
            self.end()
            raise

    def take_lone(self, data: bytes | memoryview) -> TakenBatch | None:
        """The new batch, when ``data`` is that and nothing else; None, and nothing is done, when `feed` has to look."""
        if self.state is not ConnectionState.OPEN or (payload := self._inbox.lone(data)) is None:
            return None
        try:
            message = messages.read_from_worker(payload)
        except MalformedMessage:
            return None
        assert self.worker is not None
        if isinstance(message, WorkerBatch) and message.number == self.worker.taken + 1:
            return self._taken(self.worker, message, payload)
        return None

    def _on_message(
        self, message: WorkerHello | WorkerBatch | WorkerBye, payload: bytes | memoryview
    ) -> TakenBatch | None:
        if self.state is ConnectionState.OPEN and isinstance(message, WorkerBatch):
            return self._on_batch(message, payload)
        if self.state is ConnectionState.NEW and isinstance(message, WorkerHello):
            self._on_hello(message)
        elif self.state is ConnectionState.OPEN and isinstance(message, WorkerBye):
            assert self.worker is not None
            worker = self.worker
            self.end()
            self._core.forget(worker)
        else:
            raise UnexpectedMessage(f"{type(message).__name__} from a worker whose connection is {self.state.value}")
        return None

    def _on_hello(self, hello: WorkerHello) -> None:
        outcome = self._core._greet(hello, self)
        if isinstance(outcome, str):
            self._core.counters.refused_workers += 1
            self.outgoing += messages.pack(RefusalMessage(outcome))
            self.end()
            return
        self.worker = outcome
        self.state = ConnectionState.OPEN
        self._told_refused = outcome.refused
        welcome = Welcome(
            outcome.taken, self._core.guid, self._core.settings.event_bytes_max, outcome.refused, outcome.reason
        )
        self.outgoing += messages.pack(welcome)

    def _on_batch(self, batch: WorkerBatch, payload: bytes | memoryview) -> TakenBatch | None:
        worker = self.worker
        assert worker is not None
        if batch.number > worker.taken + 1 or batch.number < 1:
            raise UnexpectedMessage(f"batch {batch.number} of worker {worker.name} after {worker.taken}")
        if batch.number <= worker.taken:
            self._is_ack_due = True
            self._core.counters.duplicate_batches += 1
            return None
        return self._taken(worker, batch, payload)

    def _taken(self, worker: Worker, batch: WorkerBatch, payload: bytes | memoryview) -> TakenBatch:
        self._is_ack_due = True
        worker.taken = number = batch.number
        groups = batch.groups
        counters = self._core.counters
        counters.batches += 1
        for _, encoded in groups:
            counters.events += len(encoded)
        return TakenBatch(worker, number, groups, payload)

    def refuse(self, events: int, reason: str) -> None:
        """Events of the batches just taken cannot be published; the next acknowledgement, or WELCOME, says so."""
        assert self.worker is not None
        self.worker.refused += events
        self.worker.reason = reason

    def acknowledge(self) -> None:
        """What was taken so far is published: the worker may forget it."""
        if self._is_ack_due and self.state is ConnectionState.OPEN and self.worker is not None:
            refused = self.worker.refused - self._told_refused
            if refused:
                self.outgoing += messages.pack(Ack(self.worker.taken, refused, self.worker.reason))
                self._told_refused = self.worker.refused
            else:
                self.outgoing += messages.pack_ack(self.worker.taken)
            self._is_ack_due = False

    def end(self) -> None:
        """The connection is over, ended by either side.  The worker stays in the table.  Idempotent."""
        if self.worker is not None and self.worker.connection is self:
            self.worker.connection = None
            self._core.connected -= 1
        if self.state is not ConnectionState.ENDED:
            self.state = ConnectionState.ENDED
            self._core.endings += 1
