"""What a service answers: to clients about its state and its sets, to publishers about what is durable.

Reads the core; the caller holds the service's lock.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from durability_service.core.keeping.holding import Holding
from durability_service.core.keeping.keeper import Keeper
from durability_service.core.service import DurabilityCore
from durability_service.core.sets.samples import InstanceKey, Sample
from durability_service.protocol import Ask, PeerStatus, SamplePage, ServiceStatus, SpaceStatus
from pubsub_api.core.topics import FilterSet

_SAMPLE_OVERHEAD_BYTES = 80
_FOREVER_NS = 1 << 63
_READS_MAX = 64
"""Buckets that are read from disk for one page."""


def service_status(
    core: DurabilityCore, *, lag: int, counters: dict[str, int], actions: dict[str, str]
) -> ServiceStatus:
    settings = core.settings
    return ServiceStatus(
        node=settings.node,
        incarnation=settings.incarnation,
        domain=settings.domain,
        role=settings.role,
        name_spaces=[_space_status(keeper) for _, keeper in sorted(core.keepers.items())],
        peers=[
            PeerStatus(
                node=peer.node,
                role=peer.advert.role,
                is_connected=peer.is_connected,
                is_one_way=peer.is_one_way,
                incompatibility=peer.incompatibility,
                silent_s=round(core.now - peer.heard_at, 3),
            )
            for _, peer in sorted(core.membership.peers.items())
        ],
        lag=lag,
        counters={
            "unwanted": core.unwanted,
            "name_clashes": core.name_clashes.clashes,
            "fellows_refused": core.membership.refused,
            **counters,
        },
        actions=actions,
        kinds=[(wanted, kind.name) for wanted, kind in settings.rules.kinds],
        default_kind=settings.rules.default_kind.name,
        trouble=core.troubles(),
    )


def _space_status(keeper: Keeper) -> SpaceStatus:
    held = keeper.holding
    aligner = keeper.aligner
    return SpaceStatus(
        name=held.name,
        filters=sorted(held.space.filters),
        phase=held.phase.name,
        is_complete=keeper.is_readable,
        epoch=held.epoch,
        master=held.master,
        is_agreed=held.is_agreed,
        samples=held.set.count,
        digest=held.set.digest.hex(),
        persistent=held.is_persistent,
        conflicts=list(keeper.conflicts),
        counters={
            **dataclasses.asdict(held.counters),
            "held": len(held.waiting),
            "expired": held.expiry.expired,
            "requests": aligner.requests,
            "requests_combined": aligner.combined,
            "samples_sent": aligner.samples_sent,
            "askers_dropped": aligner.dropped_askers,
        },
        warnings=[*keeper.warnings, *(["behind: live events were lost here"] if keeper.behind.is_behind else [])],
        durability=held.policy.durability.name,
        joins=held.counters.joins,
        replacements=held.counters.replacements,
    )


def page(core: DurabilityCore, ask: Ask, bytes_max: int, now_ns: int) -> SamplePage | None:
    """The part of a name-space's set that is asked for; None when it is not known here.

    Without what has expired by ``now_ns``, and within the bounds that the question states.

    Objects come in the order of their keys within a bucket, so that a page can be followed by the next although the set
    changes meanwhile: what changes is delivered live.
    """
    keeper = core.keepers.get(ask.name_space)
    if keeper is None:
        return None
    held = keeper.holding
    wanted = FilterSet(ask.topics)
    selected: dict[str, bool] = {}
    found: list[Sample] = []
    digests: dict[int, bytes] = {}
    size = 0
    after = ask.after
    reads_max = held.stored.buckets_read + _READS_MAX
    for number in _numbers(ask, held):
        if held.stored.buckets_read >= reads_max:  # others wait for the lock
            return _page(keeper, ask, found, digests, (number, None))
        if after is None and held.set.size_of(number):
            digests[number] = held.set.digest_of(number)
        bucket = held.set.bucket(number)
        for instance in sorted(bucket if after is None else (one for one in bucket if one > after)):
            topic = instance[0]
            if topic not in selected:
                selected[topic] = wanted.match(topic)
            if selected[topic]:
                samples = _within(ask, held, bucket[instance], now_ns)
                size += sum(len(one.event) + len(topic) + len(one.key) + _SAMPLE_OVERHEAD_BYTES for one in samples)
                found += reversed(samples)
            if size >= bytes_max:
                return _page(keeper, ask, found, digests, (number, instance))
        after = None
    return _page(keeper, ask, found, digests, (-1, None))


def digests(core: DurabilityCore, ask: Ask) -> SamplePage | None:
    """What the set of a name-space is like, bucket by bucket; None when it is not known here."""
    keeper = core.keepers.get(ask.name_space)
    if keeper is None:
        return None
    held = keeper.holding
    return _page(keeper, ask, [], held.set.digests(), (-1, None))


def _numbers(ask: Ask, held: Holding) -> Iterable[int]:
    """The buckets to look at, in order."""
    numbers = range(ask.bucket, held.set.bucket_count)
    return [number for number in sorted(set(ask.only)) if number in numbers] if ask.only else numbers


def _within(ask: Ask, held: Holding, samples: Sequence[Sample], now_ns: int) -> Sequence[Sample]:
    """Of the samples of an object, newest first, those that are asked for and not expired."""
    kept = [
        sample
        for sample in samples
        if ask.since <= sample.timestamp <= (ask.until or _FOREVER_NS)
        and not held.expiry.is_expired(sample, now_ns)
        and not held.set.is_deleted(sample)
    ]
    return kept[: ask.newest] if ask.newest else kept


def _page(
    keeper: Keeper, ask: Ask, samples: list[Sample], digests: dict[int, bytes], then: tuple[int, InstanceKey | None]
) -> SamplePage:
    held = keeper.holding
    is_first = ask.after is None and not ask.bucket
    return SamplePage(
        samples=samples,
        bucket=then[0],
        after=then[1],
        is_complete=keeper.is_readable,
        epoch=held.epoch,
        digests=digests,
        deletions=sorted(held.set.deletions) if is_first else [],
    )
