"""What a generation holds, in the store's file: its buckets as they were last packed, and the changes since.

A change is one row, however many samples came and went with it, so that appending costs what a log's append costs.  A
bucket that is packed anew includes all changes before; a change that all buckets include is trimmed.  A reader
of a generation begins with its buckets and applies to each the changes that are younger.

Functions of an open connection, called within the store's transactions.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from durability_service.core.sets.batches import SampleBatch, from_content, pack, spread, unpack
from durability_service.core.sets.samples import DIGEST_BYTES, Sample, bucket_of

SCHEMA = (
    """CREATE TABLE bucket (
        id INTEGER PRIMARY KEY,
        generation INTEGER NOT NULL,
        number INTEGER NOT NULL,
        upto INTEGER NOT NULL,  -- the last change that is included
        content BLOB NOT NULL)""",
    "CREATE UNIQUE INDEX bucket_number ON bucket (generation, number)",
    "CREATE INDEX bucket_upto ON bucket (generation, upto)",
    # Numbers must never be used again, or a bucket would seem to include a change that came later.
    """CREATE TABLE change (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        generation INTEGER NOT NULL,
        added BLOB NOT NULL,
        removed BLOB NOT NULL)""",
    "CREATE INDEX change_generation ON change (generation)",
)
PURGE_ROWS = 32
"""Buckets or changes of an old generation that are purged at a time."""


class _Removed(msgspec.Struct, array_like=True):
    buckets: Sequence[int]
    digests: bytes


_encode = msgspec.msgpack.Encoder().encode
_decode_removed = msgspec.msgpack.Decoder(_Removed).decode


class Content:
    """What was found: whole buckets, still packed, and the samples of those that changes were applied to."""

    def __init__(self, batches: dict[int, SampleBatch], samples: list[Sample]) -> None:
        self.batches = batches
        self.samples = samples

    def __iter__(self) -> Iterator[Sample]:
        for batch in self.batches.values():
            yield from unpack(batch)
        yield from self.samples


def write_batches(db: sqlite3.Connection, generation: int, batches: Mapping[int, SampleBatch]) -> None:
    """Make these the content of their buckets, all changes so far included."""
    (upto,) = db.execute("SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'change'").fetchone()
    db.executemany(
        "INSERT OR REPLACE INTO bucket (generation, number, upto, content) VALUES (?, ?, ?, ?)",
        ((generation, number, upto, batch.content) for number, batch in batches.items()),
    )


def write_change(
    db: sqlite3.Connection, generation: int, added: Sequence[Sample], removed: Sequence[Sample], *, buckets: int
) -> None:
    gone = _Removed([bucket_of(one[:3], buckets) for one in removed], b"".join([one[8] for one in removed]))
    db.execute(
        "INSERT INTO change (generation, added, removed) VALUES (?, ?, ?)",
        (generation, pack(added).content, _encode(gone)),
    )


def trim(db: sqlite3.Connection, generation: int, *, buckets: int) -> None:
    """Forget the changes that every bucket includes."""
    written, upto = db.execute("SELECT count(*), min(upto) FROM bucket WHERE generation = ?", (generation,)).fetchone()
    if written == buckets:
        db.execute("DELETE FROM change WHERE generation = ? AND id <= ?", (generation, upto))


def changes(db: sqlite3.Connection, generation: int) -> int:
    """How many changes a reader of the generation has to look at."""
    (found,) = db.execute("SELECT count(*) FROM change WHERE generation = ?", (generation,)).fetchone()
    return int(found)


def load(db: sqlite3.Connection, generation: int, *, buckets: int) -> Content:
    """Raises UndecodableBody for a damaged row."""
    batches: dict[int, SampleBatch] = {}
    included: dict[int, int] = {}
    for number, upto, content in db.execute(
        "SELECT number, upto, content FROM bucket WHERE generation = ?", (generation,)
    ):
        batches[number], included[number] = from_content(content), upto
    changed: dict[int, dict[bytes, Sample]] = {}

    def changing(number: int) -> dict[bytes, Sample]:
        if number not in changed:
            batch = batches.pop(number, None)
            changed[number] = {one.digest: one for one in unpack(batch)} if batch else {}
        return changed[number]

    for change, added, removed in db.execute(
        "SELECT id, added, removed FROM change WHERE generation = ? ORDER BY id", (generation,)
    ):
        for sample in unpack(from_content(added)):
            number = bucket_of(sample[:3], buckets)
            if change > included.get(number, 0):
                changing(number)[sample.digest] = sample
        for number, digest in _gone(removed):
            if change > included.get(number, 0):
                changing(number).pop(digest, None)
    return Content(batches, [sample for samples in changed.values() for sample in samples.values()])


def _gone(removed: bytes) -> Iterable[tuple[int, bytes]]:
    found = _decode_removed(removed)
    cut = range(0, len(found.digests), DIGEST_BYTES)
    return zip(found.buckets, (found.digests[start : start + DIGEST_BYTES] for start in cut), strict=True)


def rewrite(db: sqlite3.Connection, generation: int, samples: Iterable[Sample], *, buckets: int) -> None:
    """Make these samples, and no others, the content of a generation."""
    for table in ("bucket", "change"):
        db.execute(f"DELETE FROM {table} WHERE generation = ?", (generation,))
    write_batches(db, generation, spread(samples, buckets))


def purge(db: sqlite3.Connection, generation: int) -> int:
    """Remove a bounded number of rows.  Returns how many went: none when nothing is left."""
    for table in ("bucket", "change"):
        gone = db.execute(
            f"DELETE FROM {table} WHERE id IN (SELECT id FROM {table} WHERE generation = ?1 LIMIT ?2)",
            (generation, PURGE_ROWS),
        ).rowcount
        if gone:
            return gone
    return 0
