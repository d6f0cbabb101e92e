"""What a service answers: to clients about its state and its sets, to publishers about what is durable.

Reads the core; the caller holds the service's lock.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from durability_service.core.holding import Holding
from durability_service.core.samples import InstanceKey, Sample
from durability_service.core.service import DurabilityCore
from durability_service.protocol import Ask, FellowStatus, Page, ServiceStatus, SpaceStatus
from pubsub_api.core.topics import FilterSet

_SAMPLE_OVERHEAD_BYTES = 80
_FOREVER_NS = 1 << 63


def service_status(
    core: DurabilityCore, *, lag: int, counters: dict[str, int], actions: dict[str, str]
) -> ServiceStatus:
    settings = core.settings
    return ServiceStatus(
        node=settings.node,
        incarnation=settings.incarnation,
        domain=settings.domain,
        role=settings.role,
        name_spaces=[_space_status(keeper.holding) for _, keeper in sorted(core.keepers.items())],
        fellows=[
            FellowStatus(
                node=fellow.node,
                role=fellow.advert.role,
                is_connected=fellow.is_connected,
                is_one_way=fellow.is_one_way,
                incompatibility=fellow.incompatibility,
                silent_s=round(core.now - fellow.heard_at, 3),
            )
            for _, fellow in sorted(core.membership.fellows.items())
        ],
        lag=lag,
        counters={"unwanted": core.unwanted, "fellows_refused": core.membership.refused, **counters},
        actions=actions,
        kinds=[(wanted, kind.name) for wanted, kind in settings.rules.kinds],
        default_kind=settings.rules.default_kind.name,
    )


def _space_status(held: Holding) -> SpaceStatus:
    aligner = held.aligner
    return SpaceStatus(
        name=held.name,
        filters=sorted(held.space.filters),
        phase=held.phase.name,
        is_complete=held.is_complete,
        epoch=held.epoch,
        master=held.master,
        is_agreed=held.is_agreed,
        samples=held.set.count,
        digest=held.set.digest.hex(),
        persistent=held.is_persistent,
        conflicts=list(held.conflicts),
        counters={
            **dataclasses.asdict(held.counters),
            "held": len(held.held),
            "expired": held.expiry.expired,
            "requests": aligner.requests,
            "requests_combined": aligner.combined,
            "samples_sent": aligner.samples_sent,
            "askers_dropped": aligner.dropped_askers,
        },
        warnings=list(held.warnings),
        durability=held.policy.durability.name,
        joins=held.counters.joins,
        replacements=held.counters.replacements,
    )


def page(core: DurabilityCore, ask: Ask, bytes_max: int, now_ns: int) -> Page | None:
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
    size = 0
    after = ask.after
    for number in range(ask.bucket, held.set.bucket_count):
        for instance in _instances(held, number, after):
            topic = instance[0]
            if topic not in selected:
                selected[topic] = wanted.match(topic)
            if selected[topic]:
                samples = _within(ask, held, held.set.get(instance), now_ns)
                size += sum(len(one.event) + len(topic) + len(one.key) + _SAMPLE_OVERHEAD_BYTES for one in samples)
                found += reversed(samples)
            if size >= bytes_max:
                return _page(held, found, number, instance)
        after = None
    return _page(held, found, -1, None)


def _within(ask: Ask, held: Holding, samples: Sequence[Sample], now_ns: int) -> Sequence[Sample]:
    """Of the samples of an object, newest first, those that are asked for and not expired."""
    kept = [
        sample
        for sample in samples
        if ask.since <= sample.timestamp <= (ask.until or _FOREVER_NS) and not held.expiry.is_expired(sample, now_ns)
    ]
    return kept[: ask.newest] if ask.newest else kept


def _instances(held: Holding, number: int, after: InstanceKey | None) -> list[InstanceKey]:
    bucket = held.set.bucket(number)
    if after is None:
        return sorted(bucket)
    return sorted(key for key in bucket if key > after)


def _page(held: Holding, samples: list[Sample], bucket: int, after: InstanceKey | None) -> Page:
    return Page(samples=samples, bucket=bucket, after=after, is_complete=held.is_complete, epoch=held.epoch)
