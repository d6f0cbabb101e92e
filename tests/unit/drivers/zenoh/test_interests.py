"""What a Zenoh link declares for many filters: bounded, covering what is wanted, and left when nobody wants it."""

from __future__ import annotations

import random

import pytest

from heliograph_drivers.pubsub.zenoh.interests import BROAD_MAX, DECLARED_MAX, InterestChange, Interests
from pubsub_api.core.scopes import covers


class Declared:
    """Does what a link does."""

    def __init__(self) -> None:
        self.interests = Interests()
        self.wanted: set[str] = set()
        self.declared: set[str] = set()
        self.changes = 0
        self._covered_by: dict[str, str] = {}
        """What is wanted -> something declared that covers it, looked for again only when that is left."""

    def add(self, *filters: str) -> None:
        self.wanted |= set(filters)
        self._apply(self.interests.add(filters))

    def remove(self, topic_filter: str) -> None:
        self.wanted.remove(topic_filter)
        self._covered_by.pop(topic_filter, None)
        self._apply(self.interests.remove(topic_filter))

    def _apply(self, change: InterestChange) -> None:
        self.changes += bool(change.declare or change.undeclare)
        assert not self.declared & set(change.declare)
        self.declared |= set(change.declare)
        assert set(change.undeclare) <= self.declared
        self.declared -= set(change.undeclare)
        assert len(self.declared) <= DECLARED_MAX
        for name in self.wanted:
            if self._covered_by.get(name) not in self.declared:
                found = [declared for declared in self.declared if covers(declared, name)]
                assert found, f"nothing covers {name}"
                self._covered_by[name] = found[0]


def test_few_filters_are_declared_as_they_are() -> None:
    link = Declared()
    few = {"$control", "a/+/b", "a/#", "b", *(f"t/{number}" for number in range(100))}
    link.add(*few)
    assert link.declared == few
    link.remove("b")
    assert link.declared == few - {"b"}


def test_many_filters_are_declared_by_their_beginnings_and_others_as_they_are() -> None:
    link = Declared()
    link.add("$control", "alone/+/x", *(f"tenant-{number % 10}/port/{number}" for number in range(10_000)))
    assert link.declared == {"$control", "alone/+/x", *(f"tenant-{number}/port/#" for number in range(10))}
    link.add("tenant-3/port/new", "another")
    assert link.declared == {"$control", "alone/+/x", "another", *(f"tenant-{number}/port/#" for number in range(10))}


@pytest.mark.parametrize("size", [1, 1000])
def test_filters_that_have_nothing_in_common_are_everything(size: int) -> None:
    link = Declared()
    names = [f"tenant-{number}" for number in range(2 * DECLARED_MAX)]
    link.add("$control")
    for start in range(0, len(names), size):
        link.add(*names[start : start + size])
    assert link.declared == {"$control", "#"}
    assert link.changes <= DECLARED_MAX + 2


@pytest.mark.parametrize("seed", range(5))
def test_whatever_comes_and_goes_is_covered(seed: int) -> None:
    draw = random.Random(seed)
    link = Declared()
    link.add("$control")
    for _ in range(1000):
        levels = [str(draw.randrange(BROAD_MAX)) for _ in range(draw.randint(1, 3))]
        name = "/".join(levels) + draw.choice(("", "", "", "/#", "/+"))
        if name in link.wanted:
            link.remove(name)
        else:
            link.add(name)
    for name in sorted(link.wanted):
        link.remove(name)
    assert not link.declared
