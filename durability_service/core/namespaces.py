"""Name-spaces, the policies that apply to them, and whether two services can work together.

A name-space is a named collection of topic filters whose data is handled as one set.  It is a concept of the whole
domain: name-spaces of two services must be the same or disjoint.  Whether two filters have a topic in common is
decided exactly, wildcards included, not by comparing strings.
"""

from __future__ import annotations

import dataclasses
import enum
import fnmatch
from collections.abc import Iterable, Sequence

from durability_service.core.alignment.merging import MergePolicy
from pubsub_api.core.durability import Durability
from pubsub_api.core.topics import FilterSet, check_filter

SAME_ROLE = "@same"
"""A scope that means the service's own role."""
PRIORITY_MAX = 255


Kind = Durability


class Alignee(enum.Enum):
    """When a service gets the data of a name-space."""

    INITIAL = "INITIAL"
    LAZY = "LAZY"
    ON_REQUEST = "ON_REQUEST"


@dataclasses.dataclass(frozen=True)
class NameSpace:
    name: str
    filters: frozenset[str]

    def __post_init__(self) -> None:
        for topic_filter in self.filters:
            check_filter(topic_filter)

    def matcher(self) -> FilterSet:
        return FilterSet(self.filters)


@dataclasses.dataclass(frozen=True)
class NamespacePolicy:
    """What a service does for the name-spaces whose name matches ``name_space``."""

    name_space: str = "*"
    aligner: bool = True
    alignee: Alignee = Alignee.INITIAL
    durability: Kind = Kind.PERSISTENT
    """Data is kept no stronger than this."""
    delayed_alignment: bool = False
    equality_check: bool = True
    master_priority: int = PRIORITY_MAX
    """0: never master.  Otherwise the highest wins."""
    merges: tuple[tuple[str, MergePolicy], ...] = ((SAME_ROLE, MergePolicy.MERGE), ("*", MergePolicy.IGNORE))
    """Scope, matched against the role of the other side, and what to do.  The first that matches wins."""

    def merge_for(self, role: str, own_role: str) -> MergePolicy:
        for scope, merge in self.merges:
            if (role == own_role) if scope == SAME_ROLE else fnmatch.fnmatchcase(role, scope):
                return merge
        return MergePolicy.IGNORE


def policy_for(name: str, policies: Sequence[NamespacePolicy]) -> NamespacePolicy | None:
    """The first policy whose expression matches the name-space."""
    return next((policy for policy in policies if fnmatch.fnmatchcase(name, policy.name_space)), None)


def intersect(one: str, other: str) -> bool:
    """Whether some topic is selected by both filters."""
    return _intersect(one.split("/"), other.split("/"))


def _intersect(one: list[str], other: list[str]) -> bool:
    if one[:1] == ["#"] or other[:1] == ["#"]:  # stands for any rest, also for none
        return True
    if not one or not other:
        return not one and not other
    if one[0] != other[0] and "+" not in (one[0], other[0]):
        return False
    return _intersect(one[1:], other[1:])


def covers(one: str, other: str) -> bool:
    """Whether every topic that ``other`` selects is selected by ``one``."""
    return _covers(one.split("/"), other.split("/"))


def _covers(one: list[str], other: list[str]) -> bool:
    if one[:1] == ["#"]:
        return True
    if not one or not other:
        return not one and not other
    if other[0] == "#" or one[0] not in ("+", other[0]):
        return False
    return _covers(one[1:], other[1:])


def overlap(one: NameSpace, other: NameSpace) -> tuple[str, str] | None:
    """Two filters of the name-spaces that have a topic in common, if there are any."""
    for left in sorted(one.filters):
        for right in sorted(other.filters):
            if intersect(left, right):
                return left, right
    return None


def incompatibility(mine: Iterable[NameSpace], theirs: Iterable[NameSpace]) -> str:
    """Why services with these name-spaces cannot work together; empty when they can."""
    others = list(theirs)
    for own in mine:
        for other in others:
            if own.name == other.name:
                if own.filters != other.filters:
                    return (
                        f"name-space {own.name!r} is {{{', '.join(sorted(own.filters))}}} here and "
                        f"{{{', '.join(sorted(other.filters))}}} there"
                    )
            elif shared := overlap(own, other):
                return (
                    f"name-spaces {own.name!r} and {other.name!r} intersect: "
                    f"some topic is selected by {shared[0]!r} and {shared[1]!r}"
                )
    return ""
