"""Sets on disk that are old, that only look old, and publishers whose clock was ahead for a moment."""

from __future__ import annotations

from typing import Any

from durability_service.core.clocks import AHEAD_MAX_S, TELL_AGAIN_S
from durability_service.core.effects import DeleteHistory
from durability_service.core.keeping.lifecycle import Phase
from tests.unit.durability_service.test_durability_core import LONG_S, SPACE, Rig

CLEANUP_S = 20.0


def aged(*names: str, **settings: Any) -> Rig:
    rig = Rig()
    for name in names:
        rig.add(name, cleanup_s=CLEANUP_S, **settings)
    return rig


def test_a_service_that_was_idle_for_long_and_away_for_a_moment_keeps_what_it_acknowledged() -> None:
    rig = aged("a", "b")
    rig.start("a")
    rig.write("a", "k")
    rig.run(2 * CLEANUP_S)  # nothing is written
    rig.nodes["a"].crash()
    rig.start("b")  # empty, and complete
    rig.start("a")
    assert (rig.keys("a"), rig.keys("b")) == ("k", "k")


def test_a_service_that_was_away_for_long_sets_its_data_aside_and_says_how_old_it_is() -> None:
    rig = aged("a", "b")
    rig.start("a", "b")
    rig.write("a", "k")
    rig.nodes["a"].stop()
    rig.write("b", "k", is_delete=True)
    rig.run(2 * CLEANUP_S)
    rig.start("a")
    assert (rig.keys("a"), rig.keys("b")) == ("", "")
    (warning,) = rig.keeper("a").warnings
    assert "was set aside" in warning
    assert "ago" in warning


def test_an_old_set_that_starts_first_says_how_old_it_is() -> None:
    rig = aged("a")
    rig.start("a")
    rig.write("a", "k")
    rig.nodes["a"].stop()
    rig.run(2 * CLEANUP_S)
    rig.start("a")
    assert rig.keys("a") == "k"
    (warning,) = rig.keeper("a").warnings
    assert "last maintained 4" in warning
    assert "was injected" in warning


def test_an_old_set_does_not_bring_deleted_objects_back_where_peers_are_required() -> None:
    rig = aged("a", "b", injection_peers_min=1)
    rig.start("a", "b")
    rig.write("a", "k", "l")
    rig.nodes["a"].stop()
    rig.write("b", "l", is_delete=True)
    rig.run(2 * CLEANUP_S)  # by now nobody remembers that it was deleted
    rig.nodes["b"].stop()
    rig.start("a")
    assert rig.held("a").phase is Phase.ELECT
    assert any("injection_peers_min" in warning for warning in rig.keeper("a").warnings)
    rig.start("b")
    assert (rig.keys("a"), rig.keys("b")) == ("k", "k")


def test_a_set_that_is_empty_but_maintained_comes_before_one_that_is_old() -> None:
    rig = aged("b", "c", injection_peers_min=1)
    rig.start()
    rig.write("b", "k")
    rig.nodes["c"].stop()
    rig.write("b", "k", is_delete=True)
    rig.run(2 * CLEANUP_S)
    rig.nodes["b"].stop()
    rig.start("c", "b")
    assert (rig.keys("b"), rig.keys("c")) == ("", "")


def test_being_maintained_is_noted_cheaply() -> None:
    rig = aged("a")
    rig.start("a")
    noted = {rig.nodes["a"].disk.current[SPACE.name].marks.alive}
    for _ in range(100):
        rig.run(CLEANUP_S / 100)
        noted.add(rig.nodes["a"].disk.current[SPACE.name].marks.alive)
    assert 5 <= len(noted) <= 12


# -- clocks


def test_a_moment_of_a_clock_that_is_ahead_mutes_nobody() -> None:
    rig = aged("a", "b")
    rig.start()
    rig.nodes["a"].set_clock(300.0)
    rig.write("a", "k")
    rig.nodes["a"].set_clock(0.0)
    rig.write("a", "l", "m")
    rig.run()
    for name in "ab":
        assert rig.keys(name) == "klm"
        assert rig.nodes[name].unacknowledged == []
    core = rig.nodes["b"].core
    assert core is not None
    (warning,) = core.clocks_ahead.warnings(core.now)
    assert "ahead of our clock" in warning
    assert rig.held("b").counters.from_the_future == 3
    rig.run(TELL_AGAIN_S)
    assert core.clocks_ahead.warnings(core.now) == []


def test_a_moment_of_a_services_own_clock_does_not_last() -> None:
    """A deletion of history afterwards covers what was published before, and nothing that is published later."""
    rig = aged("a")
    rig.start()
    rig.nodes["a"].set_clock(300.0)
    rig.run()
    rig.nodes["a"].set_clock(0.0)
    rig.write("a", "k")
    rig.nodes["a"].feed(DeleteHistory(["#"]))
    assert rig.keys("a") == ""
    rig.run(0.1)
    rig.write("a", "l")
    assert rig.keys("a") == "l"


def test_what_is_years_ahead_is_refused_and_told() -> None:
    rig = aged("a")
    rig.start()
    rig.nodes["a"].set_clock(2 * AHEAD_MAX_S)
    sample = rig.writers["a"].sample("a/x", "k", is_delete=False)
    rig.nodes["a"].set_clock(0.0)
    rig.oracle.wrote(sample)
    rig.network.publish("a", sample)
    rig.run(LONG_S)
    assert rig.keys("a") == ""
    assert rig.held("a").counters.future_refused == 1
    assert rig.nodes["a"].unacknowledged == [sample]
    core = rig.nodes["a"].core
    assert core is not None
    assert "not kept" in core.clocks_ahead.warnings(core.now)[0]
