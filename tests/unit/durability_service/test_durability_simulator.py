"""The seeded simulator of the durability service, and proof that it would notice."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from durability_service.core import clocks
from durability_service.core.alignment import conflicts, merging
from durability_service.core.alignment.alignee import Alignment
from durability_service.core.alignment.aligner import Aligner
from durability_service.core.alignment.late_samples import LateSamples
from durability_service.core.effects import StoreOperation
from durability_service.core.keeping.epochs import EpochChanges, EpochPast
from durability_service.core.keeping.holding import Holding, WaitingSamples
from durability_service.core.keeping.keeper import Keeper
from durability_service.core.keeping.upkeep import Upkeep
from durability_service.core.messages import AlignEnd
from durability_service.core.namespaces import NamespacePolicy
from durability_service.core.peers.name_clashes import NameClashes
from durability_service.core.reading import SpaceReading
from durability_service.core.service import DurabilityCore
from durability_service.core.sets.expiry import Expiry
from durability_service.core.sets.sample_set import Deletion
from durability_service.core.sets.samples import Sample
from durability_service.testing.simulator import PROFILES, SimulationFailure, profile_of, run_seeds, simulate
from pubsub_api.core.clock import HybridClock

SEEDS = 50
"""`./run chaos` has many more."""


def test_no_seed_breaks_an_invariant() -> None:
    failures = run_seeds(range(SEEDS))
    assert not failures, "\n".join(map(str, failures))


def test_every_profile_is_among_the_seeds() -> None:
    assert {profile_of(seed).name for seed in range(SEEDS)} >= set(PROFILES) - {"crowd", "multitude"}


def test_a_seed_replays_to_the_last_line() -> None:
    assert simulate(7) == simulate(7)
    assert simulate(7).digest != simulate(27).digest


def test_twenty_services_move_the_data_once() -> None:
    """Requests are combined, so the set goes out to all of them, not to each."""
    report = simulate(2, PROFILES["crowd"])
    assert report.services >= 20
    assert report.samples_moved < report.services * report.writes / 4


# -- broken services: each is caught by some seed


class AcknowledgesTooEarly(DurabilityCore):
    """Says that data is durable before the disk does."""

    def store(
        self, holding: Holding, operations: Sequence[StoreOperation], then: Callable[[], None] = lambda: None
    ) -> None:
        super().store(holding, operations)
        then()


class BelievesIncompleteAnswers(DurabilityCore):
    """Takes an answer for whole although buckets are missing."""


class NeverStartsAnEpoch(DurabilityCore):
    """Does not notice that a member was lost, so sides of a split look like one."""


class ForgetsDeletions(DurabilityCore):
    """Deletes history and does not remember that it did."""


class DropsWhatItHeld(DurabilityCore):
    """Loses what came while the set was not complete, and acknowledges it all the same."""


def caught(broken: type[DurabilityCore], *profiles: str) -> str:
    for seed in range(60):
        for profile in profiles:
            try:
                simulate(seed, PROFILES[profile], core_class=broken)
            except SimulationFailure as failure:
                return failure.what
    return ""


def test_acknowledging_too_early_is_caught() -> None:
    assert caught(AcknowledgesTooEarly, "disk", "crashes")


def test_believing_incomplete_answers_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def ended(self: Alignment, message: AlignEnd, now: float) -> bool:
        self.end = message
        return True

    monkeypatch.setattr(Alignment, "ended", ended)
    assert caught(BelievesIncompleteAnswers, "lossy", "late").startswith(("S8", "S17"))


def test_merging_without_epochs_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EpochChanges, "start", lambda *_: None)
    assert caught(NeverStartsAnEpoch, "split", "delete", "catchup")


def test_forgetting_deletions_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def delete(self: Holding, deletions: Sequence[Deletion]) -> list[Sample] | None:
        return [
            gone
            for number in range(self.set.bucket_count)
            for key, kept in list(self.set.bucket(number).items())
            if any(one.covers(kept[0]) for one in deletions)
            for gone in self.set.put(key, ())[1]
        ]

    monkeypatch.setattr(Holding, "delete", delete)
    assert caught(ForgetsDeletions, "deletes")


def test_dropping_what_was_held_back_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    original = WaitingSamples.take
    monkeypatch.setattr(WaitingSamples, "take", lambda self: ([], original(self)[1]))
    assert caught(DropsWhatItHeld, "calm", "crashes")


def test_injecting_a_second_set_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Keeper, "_fetch", lambda self, *_: self._inject())
    assert "S6" in caught(DurabilityCore, "calm", "late")


def test_falling_silent_while_aligning_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    original = DurabilityCore._advertise

    def advertise(self: DurabilityCore) -> None:
        if not any(keeper.holding.alignment for keeper in self.keepers.values()):
            original(self)

    monkeypatch.setattr(DurabilityCore, "_advertise", advertise)
    assert "L6" in caught(DurabilityCore, "lossy", "chaos")


def test_keeping_what_has_expired_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Expiry, "step", lambda *_: [])
    assert "S21" in caught(DurabilityCore, "lifespan")


def test_advertising_before_the_disk_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    original = EpochChanges.adopt

    def adopt(self: EpochChanges, past: EpochPast) -> None:
        original(self, past)
        self._holding.epoch = past[0]

    monkeypatch.setattr(EpochChanges, "adopt", adopt)
    assert "S3" in caught(DurabilityCore, "disk", "split")


def test_joining_by_the_wrong_scope_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    original = NamespacePolicy.merge_for
    monkeypatch.setattr(NamespacePolicy, "merge_for", lambda self, role, own_role: original(self, own_role, role))
    assert "S14" in caught(DurabilityCore, "scopes")


def test_taking_different_sets_for_equal_ones_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Aligner, "_differing", lambda *_: iter(()))
    assert "S17" in caught(DurabilityCore, "lossy", "split")


def test_giving_up_what_was_written_after_the_request_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merging, "_newer", lambda *_: ())
    assert "S13" in caught(DurabilityCore, "catchup", "replace")


def test_going_by_a_clock_that_jumps_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HybridClock, "tick", lambda _self, wall_ns: wall_ns)
    assert "S20" in caught(DurabilityCore, "skew")


def test_looking_old_for_want_of_events_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Upkeep, "_renew_s", float("inf"))
    assert "S7" in caught(DurabilityCore, "idle")


def test_refusing_what_is_minutes_ahead_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clocks, "AHEAD_MAX_S", 60.0)
    assert "L7" in caught(DurabilityCore, "ahead")


def test_an_old_set_that_is_used_because_it_was_first_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Keeper, "_is_base_old", False)
    assert "S22" in caught(DurabilityCore, "old")


def test_reading_from_one_service_only_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SpaceReading, "differing", lambda *_: [])
    assert "S23" in caught(DurabilityCore, "behind")


def test_not_telling_readers_what_came_late_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LateSamples, "take", lambda self, _now: setattr(self, "_due", float("inf")))
    assert "L8" in caught(DurabilityCore, "readers", "behind")


def test_following_another_side_that_is_to_be_ignored_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conflicts, "is_apart", lambda *_: False)
    assert "S24" in caught(DurabilityCore, "ignore")


def test_serving_under_a_name_that_is_taken_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NameClashes, "received", lambda *_: False)
    assert "S25" in caught(DurabilityCore, "cloned")
