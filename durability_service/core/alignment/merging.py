"""The merge policies, as pure functions of two sets.

========  ==================================================================
policy    the set becomes
========  ==================================================================
IGNORE    what it was
DELETE    what is newer here than ``t``
MERGE     the union
REPLACE   what the other side has, and what is newer here than ``t``
CATCHUP   the same as REPLACE
========  ==================================================================

``t`` is the time of the request: samples that were written here later are never removed.
"""

from __future__ import annotations

import enum
from collections.abc import Callable

from durability_service.core.sets.buckets import Instances
from durability_service.core.sets.samples import InstanceKey, Sample

Keep = Callable[[tuple[Sample, ...]], tuple[Sample, ...]]
"""Which samples of one instance are kept, `SampleSet.kept`."""
Changes = dict[InstanceKey, tuple[Sample, ...]]
"""The instances that change, with all samples they have from then on; an instance without samples is removed."""


class MergePolicy(enum.Enum):
    IGNORE = "IGNORE"
    DELETE = "DELETE"
    MERGE = "MERGE"
    REPLACE = "REPLACE"
    CATCHUP = "CATCHUP"


def merge(policy: MergePolicy, local: Instances, remote: Instances, t: int, keep: Keep) -> Changes:
    """Apply a policy to the instances here and those of the other side.  Neither is modified."""
    if policy is MergePolicy.IGNORE:
        return {}
    if policy is MergePolicy.DELETE:
        remote = {}
    elif policy is MergePolicy.MERGE:
        return _union(local, remote, keep)
    changes: Changes = {}
    for instance in {**local, **remote}:
        mine = local.get(instance, ())
        samples = (*_newer(mine, t), *remote.get(instance, ()))
        kept = keep(samples) if samples else ()
        if kept != mine:
            changes[instance] = kept
    return changes


def _newer(samples: tuple[Sample, ...], t: int) -> tuple[Sample, ...]:
    return tuple(sample for sample in samples if sample.timestamp > t)


def _union(local: Instances, remote: Instances, keep: Keep) -> Changes:
    changes: Changes = {}
    for instance, theirs in remote.items():
        mine = local.get(instance, ())
        kept = keep((*mine, *theirs))
        if kept != mine:
            changes[instance] = kept
    return changes
