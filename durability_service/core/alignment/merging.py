"""The merge policies, as pure functions of two sets.

Each takes what is here, what the other side has, and ``t``, the time of the request: what was written here after ``t``
is never touched.  It returns, per instance, what is to be kept, and what a reader of this side would see happen.

========  ========================================  ==================================================================
policy    the set becomes                           what readers see
========  ========================================  ==================================================================
IGNORE    what it was                               nothing
DELETE    what is newer than ``t``                  every instance disposed
MERGE     the union                                 what is new here
REPLACE   the other's, and what is newer than `t`   every instance disposed, then those of the other side as new
CATCHUP   the same as REPLACE                       instances that are not there disposed, those that differ updated
========  ========================================  ==================================================================
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import NamedTuple

from durability_service.core.sets.buckets import Instances
from durability_service.core.sets.samples import InstanceKey, Sample

Keep = Callable[[tuple[Sample, ...]], tuple[Sample, ...]]
"""What is kept of samples of one instance, `SampleSet.kept`."""


class MergePolicy(enum.Enum):
    IGNORE = "IGNORE"
    DELETE = "DELETE"
    MERGE = "MERGE"
    REPLACE = "REPLACE"
    CATCHUP = "CATCHUP"


class SeenVersions(enum.Enum):
    """What a reader sees of an instance."""

    DISPOSED = "disposed"
    NEW = "new"
    UPDATED = "updated"


class Diff(NamedTuple):
    """``changed``: instance -> its samples from now on, none when it goes.  ``seen``: in order."""

    changed: dict[InstanceKey, tuple[Sample, ...]]
    seen: list[tuple[SeenVersions, InstanceKey]]


def diff(policy: MergePolicy, local: Instances, remote: Instances, t: int, keep: Keep) -> Diff:
    """Apply a policy to what is here and what the other side has.  Neither is changed."""
    return _POLICIES[policy](local, remote, t, keep)


def ignore(_local: Instances, _remote: Instances, _t: int, _keep: Keep) -> Diff:
    return Diff({}, [])


def merge(local: Instances, remote: Instances, _t: int, keep: Keep) -> Diff:
    result = Diff({}, [])
    for instance, theirs in remote.items():
        mine = local.get(instance, ())
        kept = keep((*mine, *theirs)) if mine else keep(theirs)
        if kept != mine:
            result.changed[instance] = kept
            result.seen.append((_seen_as(mine, kept), instance))
    return result


def delete(local: Instances, _remote: Instances, t: int, _keep: Keep) -> Diff:
    result = Diff({}, [])
    for instance, mine in local.items():
        left = _newer(mine, t)
        if left != mine:
            result.changed[instance] = left
            if _is_alive(mine):
                result.seen.append((SeenVersions.DISPOSED, instance))
    return result


def catchup(local: Instances, remote: Instances, t: int, keep: Keep) -> Diff:
    result = Diff({}, [])
    for instance, mine, kept in _replaced(local, remote, t, keep):
        if kept != mine:
            result.changed[instance] = kept
            if kept or _is_alive(mine):
                result.seen.append((_seen_as(mine, kept), instance))
    return result


def replace(local: Instances, remote: Instances, t: int, keep: Keep) -> Diff:
    result = Diff({}, [])
    again: list[tuple[SeenVersions, InstanceKey]] = []
    for instance, mine, kept in _replaced(local, remote, t, keep):
        if kept != mine:
            result.changed[instance] = kept
        if _is_alive(mine):
            result.seen.append((SeenVersions.DISPOSED, instance))
        if _is_alive(kept):
            again.append((SeenVersions.NEW, instance))
    result.seen.extend(again)
    return result


def _replaced(
    local: Instances, remote: Instances, t: int, keep: Keep
) -> list[tuple[InstanceKey, tuple[Sample, ...], tuple[Sample, ...]]]:
    """Each instance of either side, what it is here, and what it will be."""
    found = []
    for instance in {**local, **remote}:
        mine = local.get(instance, ())
        samples = (*_newer(mine, t), *remote.get(instance, ()))
        found.append((instance, mine, keep(samples) if samples else ()))
    return found


def _newer(samples: tuple[Sample, ...], t: int) -> tuple[Sample, ...]:
    return tuple(sample for sample in samples if sample.timestamp > t)


def _is_alive(samples: tuple[Sample, ...]) -> bool:
    return bool(samples) and not samples[0].is_delete


def _seen_as(before: tuple[Sample, ...], after: tuple[Sample, ...]) -> SeenVersions:
    if not _is_alive(after):
        return SeenVersions.DISPOSED
    return SeenVersions.UPDATED if _is_alive(before) else SeenVersions.NEW


_POLICIES = {
    MergePolicy.IGNORE: ignore,
    MergePolicy.DELETE: delete,
    MergePolicy.MERGE: merge,
    MergePolicy.REPLACE: replace,
    MergePolicy.CATCHUP: catchup,
}
