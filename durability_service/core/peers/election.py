"""Choosing the master of a name-space among the services of one role.

The choice is a function of a *view*: the members that are connected and what each says of itself.  Every member hashes
its view and advertises hash and choice; the choice is *agreed* when every member of the view advertises the same.  Two
services that agreed on one view have therefore chosen the same master, always: there is nothing to vote about.

The order of preference: a complete set before an incomplete one, then the priority, then the present master, then, as
long as no member is complete, the quality of what is on disk, then the highest name.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence
from typing import NamedTuple


class ElectionMember(NamedTuple):
    """What the election knows of a service.  All of it is in its advert."""

    node: str
    incarnation: int
    can_lead: bool
    is_complete: bool
    priority: int
    leads: int
    """Counter of the epoch it leads, 0 when it leads none."""
    quality: int

    @property
    def rank(self) -> tuple[bool, int, int, int, str]:
        return self.is_complete, self.priority, self.leads, 0 if self.is_complete else self.quality, self.node


class Choice(NamedTuple):
    view: bytes
    candidate: str
    """Empty when no member may lead."""
    members: frozenset[str]


@functools.lru_cache(maxsize=1024)
def choose(view: tuple[ElectionMember, ...]) -> Choice:
    """The choice that this view, sorted, prescribes.  Views hardly ever change, so choices are remembered."""
    leaders = [member for member in view if member.can_lead and member.priority > 0]
    best = max(leaders, key=lambda member: member.rank, default=None)
    digest = hashlib.blake2b(repr([tuple(member) for member in view]).encode(), digest_size=8).digest()
    return Choice(digest, best.node if best else "", frozenset(member.node for member in view))


def is_agreed(choice: Choice, proposals: Sequence[tuple[bytes, str]]) -> bool:
    """Whether all others in the view advertise the same choice."""
    return bool(choice.candidate) and all(said == (choice.view, choice.candidate) for said in proposals)
