"""The messages of etcd's gRPC interface that are needed, in protobuf's encoding.

By hand, because few messages with few fields are needed: a transaction is written in a fraction of the time that
generated code takes.  Numbers of fields are those of ``rpc.proto`` and ``kv.proto`` of etcd, which never change.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from heliograph_drivers.db.etcd.wire.messages import Codec, KeyValue, Txn, TxnOutcome

_VARINT, _FIXED64, _SIZED, _FIXED32 = 0, 1, 2, 5
_NUMBER_BYTES_MAX = 10
_SMALL = [bytes((value,)) if value < 128 else bytes((value & 127 | 128, value >> 7)) for value in range(128 * 128)]
"""Numbers as they are written; most are lengths, and they are small."""
_DONE = re.compile(
    rb"\x0a([\x00-\x7f])((?:\x08N)?(?:\x10N)?\x18(N)(?:\x20N)?)\x10\x01".replace(b"N", rb"[\x80-\xff]{0,9}[\x00-\x7f]")
)
"""How the answer to a transaction begins that was carried out: its header, with the revision in it, and that it was."""
_COMPARE_MOD, _COMPARE_VALUE = b"\x10\x02\x1a", b"\x10\x03\x1a"
"""Compare.target, and the tag of its key; that the result is to be equal is the default."""
_MOD_REVISION, _VALUE = b"\x30", b"\x3a"
_FIRST, _SECOND, _THIRD = b"\x0a", b"\x12", b"\x1a"
"""Tags of a field of bytes.  TxnRequest: compare, success, failure; its operations: read, put, remove."""


class ProtobufCodec(Codec):
    """As gRPC carries them."""

    def status(self) -> bytes:
        return b""

    def read_cluster_id(self, body: bytes) -> int:
        return next((_header(_bytes(value), 1) for number, value in _fields(body) if number == 1), 0)

    def login(self, user: str, password: str) -> bytes:
        return _sized(_FIRST, user.encode()) + _sized(_SECOND, password.encode())

    def read_token(self, body: bytes) -> str:
        return next((_bytes(value).decode() for number, value in _fields(body) if number == 2), "")

    def txn(self, txn: Txn) -> bytes:
        # What is within something is written first: its length stands before it.
        parts = []
        for key, number, value in txn.compares:
            named = _number(len(key)) + key
            parts.append(_sized(_FIRST, b"%b%b%b%b" % (_COMPARE_MOD, named, _MOD_REVISION, _number(number))))
            if value is not None:
                parts.append(_sized(_FIRST, b"%b%b%b" % (_COMPARE_VALUE, named, _sized(_VALUE, value))))
        for key, value in txn.puts:
            put = b"\x0a%b%b\x12%b%b" % (_number(len(key)), key, _number(len(value)), value)
            size = _number(len(put))
            parts.append(b"\x12%b\x12%b%b" % (_number(1 + len(size) + len(put)), size, put))
        for key, end in txn.removals:
            request = _sized(_FIRST, key) + (_sized(_SECOND, end) if end else b"")
            parts.append(_sized(_SECOND, _sized(_THIRD, request)))
        parts += [_sized(_THIRD, _sized(_FIRST, _sized(_FIRST, key))) for key in txn.reads]
        return b"".join(parts)

    def read_outcome(self, body: bytes) -> TxnOutcome:
        done = _DONE.match(body)
        if done is not None and done[1][0] == len(done[2]):
            return TxnOutcome(_read_number(done[3], 0)[0], True, [])
        revision, succeeded = 0, False
        found: list[KeyValue | None] = []
        for number, value in _fields(body):
            if number == 1:
                revision = _header(_bytes(value), 3)
            elif number == 2:
                succeeded = bool(value)
            elif succeeded:
                break  # the rest says that what was to be put was put
            elif number == 3:
                found.append(_read_first_kv(_bytes(value)))
        return TxnOutcome(revision, succeeded, found)


PROTOBUF = ProtobufCodec()


def _header(header: bytes, wanted: int) -> int:
    """A number of the header that every answer begins with: 1 is the cluster, 3 the revision."""
    return next((_integer(value) for number, value in _fields(header) if number == wanted), 0)


def _read_first_kv(part: bytes) -> KeyValue | None:
    """Of the answer to a read of one key."""
    for number, answer in _fields(part):
        if number == 1:
            for field, kv in _fields(_bytes(answer)):
                if field == 2:
                    return _read_kv(_bytes(kv))
    return None


def _read_kv(data: bytes) -> KeyValue:
    found = dict(_fields(data))
    return KeyValue(
        _bytes(found.get(1, b"")),
        mod_revision=_integer(found.get(3, 0)),
        create_revision=_integer(found.get(2, 0)),
        version=_integer(found.get(4, 0)),
        value=_bytes(found.get(5, b"")),
    )


def _number(value: int) -> bytes:
    if value < len(_SMALL):
        return _SMALL[value]
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    found.append(value)
    return bytes(found)


def _sized(tag: bytes, data: bytes) -> bytes:
    return b"%b%b%b" % (tag, _number(len(data)), data)


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Number and value of each field, in order.  Raises ValueError for what is no message."""
    at, end = 0, len(data)
    while at < end:
        tag, at = _read_number(data, at)
        kind = tag & 7
        size, at = (8 if kind == _FIXED64 else 4, at) if kind in (_FIXED64, _FIXED32) else _read_number(data, at)
        if kind == _VARINT:
            yield tag >> 3, size
            continue
        if kind not in (_SIZED, _FIXED64, _FIXED32):
            raise ValueError("the answer is no message of protobuf")
        if at + size > end:
            raise ValueError("the answer ends too soon")
        yield tag >> 3, data[at : at + size]
        at += size


def _read_number(data: bytes, at: int) -> tuple[int, int]:
    """The number that begins there, and where the next thing begins."""
    number = shift = 0
    for byte in data[at : at + _NUMBER_BYTES_MAX]:
        at += 1
        if byte < 128:  # mostly the first one
            return number | byte << shift, at
        number |= (byte & 127) << shift
        shift += 7
    raise ValueError("the answer has a number without an end")


def _bytes(value: int | bytes) -> bytes:
    if not isinstance(value, bytes):
        raise ValueError("the answer has a number where bytes belong")
    return value


def _integer(value: int | bytes) -> int:
    if not isinstance(value, int):
        raise ValueError("the answer has bytes where a number belongs")
    return value
