"""Reading what services keep of a name-space: everything from one of them, and from each other what differs.

A service may lag behind another one that has acknowledged a sample, and does not always know it.  So a reader asks
every complete service that it reaches for the digests of its buckets, and reads the buckets that it has not read yet in
this state.  Equal sets cost nothing; sets that differ by a few recent samples cost a few buckets.  In the end the
reader has everything that any of these services had acknowledged.

Sans-IO: `durability_service.client` asks over the bus, the simulator in memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from durability_service.core.messages import Advert
from durability_service.core.sets.sample_set import Deletion
from durability_service.core.sets.samples import Sample

_SERVICES_MAX = 10_000
_DIGESTS_MAX = 4
"""Digests that are remembered for each bucket.  If a digest is forgotten, the bucket is read again."""


class SpaceReading:
    """What was read of one name-space, from any service."""

    def __init__(self) -> None:
        self._read: dict[int, list[bytes]] = {}
        """Bucket -> its digests at the services from which it was read, the latest ones."""
        self._deletions: set[Deletion] = set()
        self.is_begun = False
        """A service was read completely."""

    def note_read(self, digests: Mapping[int, bytes]) -> None:
        """All buckets that were asked for were read from one service; these were their digests."""
        self.is_begun = True
        for number, digest in digests.items():
            known = self._read.setdefault(number, [])
            if digest not in known:
                known.append(digest)
                del known[:-_DIGESTS_MAX]

    def note_deletions(self, deletions: Iterable[Deletion]) -> None:
        """A service has reported these deletions of history."""
        self._deletions.update(deletions)

    def differing(self, digests: Mapping[int, bytes]) -> list[int]:
        """The buckets of a service, given by their digests, that were not read yet in this state."""
        return sorted(number for number, digest in digests.items() if digest not in self._read.get(number, ()))

    def wanted(self, samples: Iterable[Sample]) -> list[Sample]:
        """The samples that no known deletion covers.  A service that lags may still have deleted ones."""
        if not self._deletions:
            return list(samples)
        return [sample for sample in samples if not any(one.covers(sample) for one in self._deletions)]


News = tuple[int, int, int]
"""Incarnation of a service, and the counters ``joins`` and ``replacements`` of one of its name-spaces."""


class ServiceNews:
    """Tells from adverts whether services have got data, since they were read, that makes it worth reading again."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], News] = {}
        """Node and name-space -> the latest news."""

    def note(self, node: str, name_space: str, news: News) -> News | None:
        """Remember the news of a service.  Returns those that were known before."""
        key = (node, name_space)
        known = self._known.pop(key, None)
        if len(self._known) >= _SERVICES_MAX:
            del self._known[next(iter(self._known))]
        self._known[key] = max(news, known) if known else news  # adverts may arrive out of order
        return known

    def note_advert(self, advert: Advert, names: Iterable[str]) -> tuple[bool, bool]:
        """Whether data was added late, and whether data was replaced, in these name-spaces since the last note."""
        is_joined = is_replaced = False
        wanted = set(names)
        for space in advert.name_spaces:
            if space.name not in wanted:
                continue
            news = (advert.incarnation, space.joins, space.replacements)
            known = self.note(advert.node, space.name, news)
            if known is not None and known[0] == news[0]:
                is_joined = is_joined or news[1] > known[1]
                is_replaced = is_replaced or news[2] > known[2]
        return is_joined, is_replaced
