"""What a generation holds, in the store's file: its buckets as they were last packed, and the changes since.

A change is one row, however many samples came and went with it, so that appending costs what a log's append costs.  A
bucket that is packed anew includes all changes before; a change that all buckets include is trimmed.  When a store is
opened, what is left of changes is put into the buckets (`include`), so that a reader finds all there is in a bucket's
row.

Functions of an open connection, called within the store's transactions.  None of them holds more than a few buckets, or
so many changes, in memory.
"""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from durability_service.core.sets.batches import (
    HEAD_BYTES,
    BucketSummary,
    SampleBatch,
    from_content,
    pack,
    pack_buckets,
    summary,
    unpack,
)
from durability_service.core.sets.samples import DIGEST_BYTES, Sample, bucket_of
from pubsub_api.core.errors import UndecodableBody

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
_INCLUDE_SAMPLES = 200_000
"""Samples of changes that are held in memory while they are put into buckets, about."""


class _Removed(msgspec.Struct, array_like=True):
    buckets: Sequence[int]
    digests: bytes


_encode = msgspec.msgpack.Encoder().encode
_decode_removed = msgspec.msgpack.Decoder(_Removed).decode


class _Changed:
    """What is to be done to one bucket."""

    def __init__(self) -> None:
        self.added: dict[bytes, Sample] = {}
        self.removed: set[bytes] = set()

    def add(self, sample: Sample) -> None:
        self.removed.discard(sample.digest)
        self.added[sample.digest] = sample

    def remove(self, digest: bytes) -> None:
        self.added.pop(digest, None)
        self.removed.add(digest)

    def applied(self, samples: Iterable[Sample]) -> list[Sample]:
        known = {one.digest: one for one in samples if one.digest not in self.removed}
        return list({**known, **self.added}.values())


# -- writing


def write_batches(db: sqlite3.Connection, generation: int, batches: Mapping[int, SampleBatch]) -> None:
    """Make these the content of their buckets, all changes so far included."""
    (upto,) = db.execute("SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'change'").fetchone()
    _write(db, generation, upto, batches)


def _write(db: sqlite3.Connection, generation: int, upto: int, batches: Mapping[int, SampleBatch]) -> None:
    db.executemany(
        "INSERT OR REPLACE INTO bucket (generation, number, upto, content) VALUES (?, ?, ?, ?)",
        ((generation, number, upto, batch.content) for number, batch in batches.items()),
    )


def write_change(
    db: sqlite3.Connection, generation: int, added: Sequence[Sample], removed: Sequence[Sample], *, buckets: int
) -> tuple[int, set[int]]:
    """Returns its number, and the buckets that it concerns."""
    gone = [bucket_of(one[:3], buckets) for one in removed]
    cursor = db.execute(
        "INSERT INTO change (generation, added, removed) VALUES (?, ?, ?)",
        (generation, pack(added).content, _encode(_Removed(gone, b"".join([one[8] for one in removed])))),
    )
    assert cursor.lastrowid is not None
    return cursor.lastrowid, {*gone, *(bucket_of(one[:3], buckets) for one in added)}


def copy(db: sqlite3.Connection, generation: int, source: int, numbers: Iterable[int]) -> None:
    """Take buckets over from another generation, as they are."""
    (upto,) = db.execute("SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'change'").fetchone()
    db.executemany(
        "INSERT OR REPLACE INTO bucket (generation, number, upto, content) "
        "SELECT ?, number, ?, content FROM bucket WHERE generation = ? AND number = ?",
        ((generation, upto, source, number) for number in numbers),
    )


def trim(db: sqlite3.Connection, generation: int, before: int | None) -> None:
    """Forget the changes before this one, or all."""
    if before is None:
        db.execute("DELETE FROM change WHERE generation = ?", (generation,))
    else:
        db.execute("DELETE FROM change WHERE generation = ? AND id < ?", (generation, before))


def include(db: sqlite3.Connection, generation: int, *, buckets: int) -> None:
    """Put all changes into their buckets.  Raises UndecodableBody for a damaged row."""
    included = dict(db.execute("SELECT number, upto FROM bucket WHERE generation = ?", (generation,)))
    last = 0
    while True:
        last_before = last
        changed, last = _changed_after(db, generation, last, included, buckets=buckets)
        if last == last_before:
            break
        for number, change in changed.items():
            samples = change.applied(unpack(read(db, generation, number)))
            _write(db, generation, last, pack_buckets(samples, buckets) or {number: pack([])})
    trim(db, generation, None)


def _changed_after(
    db: sqlite3.Connection, generation: int, last: int, included: Mapping[int, int], *, buckets: int
) -> tuple[dict[int, _Changed], int]:
    """Of the changes after that one, as many as may be held in memory, and the last of them."""
    changed: dict[int, _Changed] = {}
    count = 0
    for change, added, removed in db.execute(
        "SELECT id, added, removed FROM change WHERE generation = ? AND id > ? ORDER BY id", (generation, last)
    ):
        for sample in unpack(from_content(added)):
            number = bucket_of(sample[:3], buckets)
            if change > included.get(number, 0):
                changed.setdefault(number, _Changed()).add(sample)
                count += 1
        for number, digest in _gone(removed):
            if change > included.get(number, 0):
                changed.setdefault(number, _Changed()).remove(digest)
        last = change
        if count >= _INCLUDE_SAMPLES:
            break
    return changed, last


def _gone(removed: bytes) -> Iterable[tuple[int, bytes]]:
    found = _decode_removed(removed)
    cut = range(0, len(found.digests), DIGEST_BYTES)
    return zip(found.buckets, (found.digests[start : start + DIGEST_BYTES] for start in cut), strict=True)


# -- reading


def changes(db: sqlite3.Connection, generation: int) -> int:
    """How many changes are not in all of their buckets."""
    (found,) = db.execute("SELECT count(*) FROM change WHERE generation = ?", (generation,)).fetchone()
    return int(found)


def read(db: sqlite3.Connection, generation: int, number: int) -> SampleBatch:
    """A bucket.  Raises UndecodableBody when it is damaged."""
    rows = db.execute("SELECT content FROM bucket WHERE generation = ? AND number = ?", (generation, number)).fetchall()
    return from_content(rows[0][0]) if rows else pack([])


def summaries(db: sqlite3.Connection, generation: int) -> dict[int, BucketSummary]:
    """What is in each bucket that is not empty.  Raises UndecodableBody for one that only seems to be empty; other
    damage is found when the bucket is read."""
    rows = db.execute("SELECT number, substr(content, 1, ?) FROM bucket WHERE generation = ?", (HEAD_BYTES, generation))
    found = ((number, _summary(head)) for number, head in rows)
    return {number: one for number, one in found if one.samples}


def _summary(head: bytes) -> BucketSummary:
    try:
        found = summary(head)
    except IndexError as error:
        raise UndecodableBody("a batch of samples ends too early") from error
    if not found.samples:
        from_content(head)  # one that is empty is not longer
    return found


def count(db: sqlite3.Connection, generation: int, *, buckets: int) -> int:
    """How many samples there are, those in changes included."""
    included = dict(db.execute("SELECT number, upto FROM bucket WHERE generation = ?", (generation,)))
    found = {number: one.samples for number, one in summaries(db, generation).items()}
    changed, last = _changed_after(db, generation, 0, included, buckets=buckets)
    while changed:  # a portion counts by what it adds to the one before
        for number, change in changed.items():
            before = {one.digest for one in unpack(read(db, generation, number))}
            found[number] = found.get(number, 0) + len(change.added.keys() - before) - len(change.removed & before)
        changed, last = _changed_after(db, generation, last, included, buckets=buckets)
    return sum(found.values())


def samples(db: sqlite3.Connection, generation: int) -> Iterator[tuple[int, list[Sample]]]:
    """Each bucket and what is in it.  Buckets may be written meanwhile."""
    numbers = db.execute("SELECT number FROM bucket WHERE generation = ? ORDER BY number", (generation,)).fetchall()
    for (number,) in numbers:
        yield number, unpack(read(db, generation, number))


# -- all of it


def rebucket(db: sqlite3.Connection, source: int, generation: int, *, buckets: int) -> None:
    """Fill an empty generation with what is in another one, in another number of buckets."""
    db.execute("CREATE TEMP TABLE piece (number INTEGER NOT NULL, content BLOB NOT NULL)")
    try:
        for _, found in samples(db, source):
            pieces = ((number, batch.content) for number, batch in pack_buckets(found, buckets).items())
            db.executemany("INSERT INTO piece VALUES (?, ?)", pieces)
        db.execute("CREATE INDEX temp.piece_number ON piece (number)")
        rows = db.execute("SELECT number, content FROM piece ORDER BY number")
        for _, together in itertools.groupby(rows, lambda row: row[0]):
            parts = [unpack(from_content(content)) for _, content in together]
            write_batches(db, generation, pack_buckets(itertools.chain.from_iterable(parts), buckets))
    finally:
        db.execute("DROP TABLE temp.piece")


def clear(db: sqlite3.Connection, generation: int) -> None:
    """Leave nothing in a generation."""
    for table in ("bucket", "change"):
        db.execute(f"DELETE FROM {table} WHERE generation = ?", (generation,))


def purge(db: sqlite3.Connection, generation: int) -> int:
    """Remove a bounded number of rows.  Returns how many went: none when nothing is left."""
    for table in ("bucket", "change"):
        gone = db.execute(
            f"DELETE FROM {table} WHERE id IN (SELECT id FROM {table} WHERE generation = ? LIMIT ?)",
            (generation, PURGE_ROWS),
        ).rowcount
        if gone:
            return gone
    return 0
