"""Reading what services keep of a name-space: all of it from one of them, and from each other what differs.

A service may lag behind one that acknowledged, and cannot always know it.  So a reader asks every complete service
that it reaches for the digests of its buckets, and reads those that it has not read yet.  Equal sets cost nothing, sets
that differ by what is on its way cost a few buckets, and what any of the services acknowledged before is in what was
read.

Sans-IO: `durability_service.client` asks over the bus, the simulator in memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from durability_service.core.messages import Advert
from durability_service.core.sets.sample_set import Deletion
from durability_service.core.sets.samples import Sample

_SERVICES_MAX = 10_000
_DIGESTS_MAX = 4
"""Of a bucket.  One that is forgotten costs reading the bucket again."""


class SpaceReading:
    """What was read of one name-space, whichever service it came from."""

    def __init__(self) -> None:
        self._read: dict[int, list[bytes]] = {}
        """Bucket -> the digests that it had where it was read, the last ones."""
        self._deletions: set[Deletion] = set()
        self.is_begun = False
        """Some service was read whole."""

    def took(self, digests: Mapping[int, bytes]) -> None:
        """All that was asked of a service was read; its buckets were like that."""
        self.is_begun = True
        for number, digest in digests.items():
            known = self._read.setdefault(number, [])
            if digest not in known:
                known.append(digest)
                del known[:-_DIGESTS_MAX]

    def deleted(self, deletions: Iterable[Deletion]) -> None:
        """A service knows these."""
        self._deletions.update(deletions)

    def differing(self, digests: Mapping[int, bytes]) -> list[int]:
        """Of what another service has, the buckets that were not read like that."""
        return sorted(number for number, digest in digests.items() if digest not in self._read.get(number, ()))

    def wanted(self, samples: Iterable[Sample]) -> list[Sample]:
        """Without what another service said is deleted: a service that lags may not know it yet."""
        if not self._deletions:
            return list(samples)
        return [sample for sample in samples if not any(one.covers(sample) for one in self._deletions)]


News = tuple[int, int, int]
"""Incarnation of a service, and in one of its name-spaces how often data came in late, or replaced what was there."""


class ServiceNews:
    """How services stood when they were read, and whether what they say now means that it is worth reading again."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], News] = {}
        """Node and name-space -> how it stood when it was last heard."""

    def note(self, node: str, name_space: str, news: News) -> News | None:
        """Remember how a service stands; what was known before."""
        key = (node, name_space)
        known = self._known.pop(key, None)
        if len(self._known) >= _SERVICES_MAX:
            del self._known[next(iter(self._known))]
        self._known[key] = max(news, known) if known else news  # an older one that comes late says nothing
        return known

    def heard(self, advert: Advert, names: Iterable[str]) -> tuple[bool, bool]:
        """Whether data came in, and whether data was replaced, since these name-spaces of it were last heard of."""
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
