"""A snapshot in etcd: ranges as of one revision.  It holds nothing in the server, and a compaction can end it."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from heliograph_drivers.db.etcd.http import EtcdClient
from heliograph_drivers.db.etcd.keys import EtcdKeys, EtcdRecord, end_of, newest_of
from heliograph_drivers.db.etcd.refusals import Compacted
from heliograph_drivers.db.etcd.wire.messages import RangeAnswer
from nb_api.core import checks
from nb_api.db_api import DbObject, Snapshot
from nb_api.errors import DbUnavailable
from pubsub_api.errors import Closed

_decode_record = msgspec.msgpack.Decoder(EtcdRecord).decode


class EtcdSnapshot(Snapshot):
    def __init__(self, client: EtcdClient, keys: EtcdKeys, selection: checks.TopicSelection, portion: int) -> None:
        self._client = client
        self._keys = keys
        self._selection = selection
        self._portion = portion
        self._is_closed = False
        head = client.call("kv/range", {"key": keys.head}, RangeAnswer)
        self._store_revision = head.header.revision
        self._revision = newest_of(head.kvs[0] if head.kvs else None)

    @property
    def revision(self) -> int:
        return self._revision

    def __iter__(self) -> Iterator[DbObject]:
        tables = self._selection.tables
        prefixes = [self._keys.objects] if tables is None else [self._keys.table(table) for table in sorted(tables)]
        for prefix in prefixes:
            yield from self._read(prefix)
        self.close()

    def close(self) -> None:
        self._is_closed = True

    def _read(self, prefix: bytes) -> Iterator[DbObject]:
        start, more = prefix, True
        while more:
            answer = self._fetch(start, end_of(prefix))
            more = answer.more
            for entry in answer.kvs:
                table, key = self._keys.split(entry.key)
                record = _decode_record(entry.value)
                version = record.revision(entry.mod_revision)
                if (
                    record.value is not None
                    and self._selection.is_in_bucket(version)
                    and self._selection.selects(table, record.topic)
                ):
                    yield DbObject(table, key, record.topic, checks.decode_value(record.value), version)
            if more:
                start = answer.kvs[-1].key + b"\0"

    def _fetch(self, start: bytes, end: bytes) -> RangeAnswer:
        if self._is_closed:
            raise Closed("the snapshot was read to its end or closed; take another one")
        request = {"key": start, "range_end": end, "limit": self._portion, "revision": self._store_revision}
        try:
            return self._client.call("kv/range", request, RangeAnswer)
        except Compacted as error:
            raise DbUnavailable("the snapshot was compacted away while it was read; take another one") from error
