"""What is asked of etcd and what it answers, apart from how that travels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import msgspec


class Txn(NamedTuple):
    """A transaction: if all keys are as expected, then the puts and removals are done, else keys are read."""

    compares: Sequence[tuple[bytes, int, bytes | None]] = ()
    """Key, number of the transaction that put it last (0: there is no such key), and the value unless that is None."""
    puts: Sequence[tuple[bytes, bytes]] = ()
    removals: Sequence[tuple[bytes, bytes]] = ()
    """Key, and where a range of keys ends, empty for one key."""
    reads: Sequence[bytes] = ()


class TxnOutcome(NamedTuple):
    revision: int
    """The number that etcd has counted up to, which is that of this transaction when it wrote something."""
    succeeded: bool
    """All keys were as expected."""
    found: list[KeyValue | None]
    """What the reads have found, when they were done."""


class Codec(Protocol):
    """How the messages are written that are sent over either kind of connection.  All that read raise ValueError or
    msgspec.MsgspecError."""

    def status(self) -> bytes: ...

    def read_cluster_id(self, body: bytes) -> int: ...

    def login(self, user: str, password: str) -> bytes: ...

    def read_token(self, body: bytes) -> str: ...

    def txn(self, txn: Txn) -> bytes: ...

    def read_outcome(self, body: bytes) -> TxnOutcome: ...


class KeyValue(msgspec.Struct, frozen=True):
    """A key as of some revision.  ``version`` counts the times it was put since it was created."""

    key: bytes
    mod_revision: int
    create_revision: int = 0
    version: int = 0
    value: bytes = b""


class EtcdHeader(msgspec.Struct, frozen=True):
    revision: int = 0
    cluster_id: int = 0


class RangeAnswer(msgspec.Struct, frozen=True):
    header: EtcdHeader
    kvs: list[KeyValue] = []
    more: bool = False
    count: int = 0


class PutAnswer(msgspec.Struct, frozen=True):
    header: EtcdHeader
    prev_kv: KeyValue | None = None


class TxnPart(msgspec.Struct, frozen=True):
    response_range: RangeAnswer | None = None


class TxnAnswer(msgspec.Struct, frozen=True):
    header: EtcdHeader
    succeeded: bool = False
    responses: list[TxnPart] = []


def found_in(answer: TxnAnswer) -> list[KeyValue | None]:
    """What the ranges of a transaction have found, each of one key."""
    ranges = [part.response_range for part in answer.responses]
    return [one.kvs[0] if one and one.kvs else None for one in ranges]


class CompactAnswer(msgspec.Struct, frozen=True):
    header: EtcdHeader


class StatusAnswer(msgspec.Struct, frozen=True):
    header: EtcdHeader
    version: str = ""


class LoginAnswer(msgspec.Struct, frozen=True):
    token: str = ""


class WatchEvent(msgspec.Struct, frozen=True):
    kv: KeyValue
    type: str = "PUT"


class WatchResult(msgspec.Struct, frozen=True):
    created: bool = False
    canceled: bool = False
    cancel_reason: str = ""
    compact_revision: int = 0
    events: list[WatchEvent] = []


class WatchLine(msgspec.Struct, frozen=True):
    result: WatchResult | None = None


class JsonCodec(Codec):
    """As the gateway reads and writes them: bytes as base64, and numbers as texts, which msgspec reads into numbers."""

    def status(self) -> bytes:
        return b"{}"

    def read_cluster_id(self, body: bytes) -> int:
        return msgspec.json.decode(body, type=StatusAnswer, strict=False).header.cluster_id

    def login(self, user: str, password: str) -> bytes:
        return msgspec.json.encode({"name": user, "password": password})

    def read_token(self, body: bytes) -> str:
        return msgspec.json.decode(body, type=LoginAnswer, strict=False).token

    def txn(self, txn: Txn) -> bytes:
        compares: list[dict[str, object]] = []
        for key, number, value in txn.compares:
            compares.append({"key": key, "target": "MOD", "result": "EQUAL", "mod_revision": number})
            if value is not None:
                compares.append({"key": key, "target": "VALUE", "result": "EQUAL", "value": value})
        operations: list[dict[str, object]] = [{"request_put": {"key": key, "value": value}} for key, value in txn.puts]
        operations += [{"request_delete_range": {"key": key, "range_end": end}} for key, end in txn.removals]
        return msgspec.json.encode({"compare": compares, "success": operations, "failure": read_operations(txn.reads)})

    def read_outcome(self, body: bytes) -> TxnOutcome:
        answer = msgspec.json.decode(body, type=TxnAnswer, strict=False)
        return TxnOutcome(answer.header.revision, answer.succeeded, [] if answer.succeeded else found_in(answer))


JSON = JsonCodec()


def read_operations(keys: Sequence[bytes]) -> list[dict[str, object]]:
    """Operations of the gateway that read these keys."""
    return [{"request_range": {"key": key}} for key in keys]
