"""Merge policy IGNORE: after a split each side keeps what it has, and within a side nothing stays different."""

from __future__ import annotations

from durability_service.core.alignment.merging import MergePolicy
from tests.unit.durability_service.test_durability_core import Rig, policy


def test_ignore_ignores_after_a_split_and_in_every_epoch_after_it() -> None:
    rig = Rig(MergePolicy.IGNORE)
    for name in "abc":
        rig.add(name)
    rig.start()
    rig.write("a", "x")
    rig.split("a", "b")
    rig.write("a", "y")
    rig.write("c", "z")
    rig.heal()
    assert [rig.keys(name) for name in "abc"] == ["xy", "xy", "xz"]
    apart = [name for name in "abc" if any("IGNORE" in one for one in rig.keeper(name).warnings)]
    assert apart == [name for name in "abc" if rig.keys(name) != rig.keys(rig.master())]
    rig.write("b", "n")  # what is live reaches both sides
    rig.nodes[rig.master()].stop()  # so that there is another master, and another epoch
    rig.run()
    left = [name for name in "abc" if rig.nodes[name].is_alive]
    assert [rig.keys(name) for name in left] == [{"a": "nxy", "b": "nxy", "c": "nxz"}[name] for name in left]


def test_within_a_side_what_was_lost_is_made_up_for_although_sides_are_ignored() -> None:
    rig = Rig(MergePolicy.IGNORE)
    for name in "abc":
        rig.add(name)
    rig.start()
    rig.write_unheard("a", "b")
    rig.run()
    assert [rig.keys(name) for name in "abc"] == ["x", "x", "x"]


def test_a_late_set_that_is_used_by_delayed_alignment_gets_to_everybody() -> None:
    rig = Rig(MergePolicy.IGNORE)
    for name in "ab":
        rig.add(name, policy(MergePolicy.IGNORE, delayed_alignment=True))
    rig.preload("b", "x", "y")
    rig.start("a")  # empty, and nothing was ever written
    rig.start("b")
    assert [rig.keys(name) for name in "ab"] == ["xy", "xy"]
