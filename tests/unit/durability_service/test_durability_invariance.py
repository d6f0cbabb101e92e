"""What makes no difference to who leads and what is kept: combining requests, comparing sets, clocks that are off."""

from __future__ import annotations

import random
from typing import Any

import pytest

from durability_service.core.alignment.merging import MergePolicy
from tests.unit.durability_service.test_durability_core import Rig, policy

NAMES = "abcz"
CLOCKS_S = ((0.0, 0.0, 0.0, 0.0), (4.0, -4.0, 2.0, -1.0), (-3.0, 4.0, 0.0, 4.0))

Outcome = tuple[str, dict[str, list[tuple[str, bytes, int]]]]
"""Who leads, and of each service key, writer and number of what it keeps."""


def outcome(rig: Rig) -> Outcome:
    kept = {name: sorted((one.key, one.writer, one.number) for one in rig.held(name).set) for name in NAMES}
    return rig.master(*NAMES), kept


def late_joiners(seed: int, merge: MergePolicy, **settings: Any) -> Outcome:
    """Services with sets of their own on disk join one that leads."""
    chance = random.Random(seed)
    rig = Rig(merge)
    for name in NAMES:
        rig.add(name, policy(merge, master_priority=200 if name == "z" else 1), **settings)
    for name in NAMES:
        rig.preload(name, *chance.sample("klmnopqr", 4))
    rig.start("z")
    rig.start(*"abc")
    return outcome(rig)


@pytest.mark.parametrize("merge", [MergePolicy.MERGE, MergePolicy.CATCHUP])
@pytest.mark.parametrize("seed", range(4))
def test_a_shared_answer_leaves_everybody_with_what_an_answer_of_its_own_would(seed: int, merge: MergePolicy) -> None:
    """S18."""
    combined = late_joiners(seed, merge, combine_initial_s=0.5)
    assert combined == late_joiners(seed, merge, combine_initial_s=0.0)


@pytest.mark.parametrize("merge", [MergePolicy.MERGE, MergePolicy.CATCHUP, MergePolicy.REPLACE])
def test_comparing_sets_spares_traffic_and_changes_nothing_else(merge: MergePolicy) -> None:
    def healed(*, equality_check: bool) -> Outcome:
        rig = Rig(merge)
        for name in NAMES:
            rig.add(name, policy(merge, equality_check=equality_check))
        rig.start()
        rig.write("a", "k", "l", "m")
        rig.split("a", "b")
        rig.write("a", "k", "n")
        rig.write("z", "k", "o")
        rig.heal()
        return outcome(rig)

    assert healed(equality_check=True) == healed(equality_check=False)


@pytest.mark.parametrize("clocks_s", CLOCKS_S[1:])
@pytest.mark.parametrize("merge", [MergePolicy.MERGE, MergePolicy.CATCHUP])
def test_clocks_that_are_off_change_neither_who_leads_nor_what_is_kept(
    merge: MergePolicy, clocks_s: tuple[float]
) -> None:
    """S20.  Each object has one writer: of two whose clocks are apart, the one that is ahead wins."""

    def healed(offsets_s: tuple[float, ...]) -> Outcome:
        rig = Rig(merge)
        for name, offset_s in zip(NAMES, offsets_s, strict=True):
            rig.add(name, skew_s=offset_s)
        rig.start()
        rig.write("a", "k", "l")
        rig.split("a", "b")
        rig.write("a", "k", "n")
        rig.write("z", "o")
        rig.heal()
        rig.nodes["a"].set_clock(-5.0)  # from now on it seems to write in its own past
        rig.write("a", "k")
        rig.run()
        return outcome(rig)

    assert healed(clocks_s) == healed(CLOCKS_S[0])
