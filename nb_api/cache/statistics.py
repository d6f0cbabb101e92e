"""What a local cache counts."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

from nb_api.cache.index import IndexStatistics
from nb_api.cache.reading.sync import SyncCounters
from nb_api.cache.telling.subscriptions import TellingStatistics
from nb_api.core.copy.held_objects import CacheCounters
from nb_api.verifying.verification import VerifyCounters
from pubsub_api import SubscriberStatistics


class Followed(NamedTuple):
    """What a copy is of."""

    tables: tuple[str, ...] | None
    """None for all."""
    topics: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class LocalCacheStatistics:
    """Counters since the cache was made: at the top what one watches, below it by what counts."""

    objects: int
    tombstones: int
    position: int
    """Up to this revision of the database everything is reflected, and much after it."""
    newest: int
    """The highest revision of what was heard or read."""
    followed: Followed
    is_synced: bool
    is_provisional: bool
    """The database is away, and the resync source has stood in for it."""
    news: CacheCounters
    syncs: SyncCounters
    verify: VerifyCounters
    """Comparisons of the whole copy with the database, by `LocalCache.verify`."""
    telling: TellingStatistics
    indexes: IndexStatistics
    mismatches: int
    """Versions of objects that were read, or told, and do not fit the class of their table (`LocalCache.table`)."""
    bus: SubscriberStatistics | None
    """Of the subscriber; None when the database's feed is followed."""
