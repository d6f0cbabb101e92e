"""Revisions that say which history they belong to.

A database that is restored from a backup gives its numbers again, to other changes.  A number alone then proves
nothing: a reader that saw change 100 before the backup was put back finds a change 100 afterwards, too.  So where a
driver chooses the revisions, each is a number that counts, and below it a *nonce*, bits by chance.  A reader that has
seen a revision asks whether it is there: the change 100 of another history has other bits, and is another revision.

Drivers whose store counts by itself add the nonce below the store's number in the same way.  Redis needs none: no
revision is given twice there (`heliograph_drivers.db.redis`).
"""

from __future__ import annotations

import os
import random
from collections.abc import Collection, Iterable

import msgspec

NONCE_BITS = 20
"""One in a million of the changes of another history would be taken for one's own, if nothing else was compared.  And
eight thousand million changes fit into the 53 bits that every reader of JSON understands."""


_chance = random.Random()
"""Of its own, so that a program that seeds the one of the module does not make two histories alike."""
os.register_at_fork(after_in_child=_chance.seed)


def new_nonce() -> int:
    return _chance.getrandbits(NONCE_BITS)


def number_of(revision: int) -> int:
    """The part of a revision that counts."""
    return revision >> NONCE_BITS


def next_revisions(newest: int, count: int) -> list[int]:
    """The revisions that follow ``newest``, of one transaction."""
    first, nonce = number_of(newest) + 1, new_nonce()
    return [(number << NONCE_BITS) + nonce for number in range(first, first + count)]


class HistoryCheck(msgspec.Struct, frozen=True):
    """What a database says of revisions that a copy has seen."""

    newest: int
    """The newest revision that the feed shows, 0 when there is none."""
    compacted: int
    """Of revisions below this one nothing can be said: the feed has lost them.  0: it has them all."""
    lost: int | None
    """The lowest of the others that is not part of the history; None when all are."""


def judge(asked: Iterable[int], known: Collection[int], *, compacted: int, newest: int) -> HistoryCheck:
    """What to say of the revisions ``asked``, when ``known`` are those of them that the feed has."""
    lost = [revision for revision in asked if revision > compacted and revision not in known]
    return HistoryCheck(newest, compacted, min(lost, default=None))
