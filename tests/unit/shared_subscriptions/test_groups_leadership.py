"""Which process leads a group: candidates, the sign of life of a process, and writes whose outcome is not known."""

from __future__ import annotations

import pytest

from shared_subscriptions.core.leading.candidate import Candidate, CandidateRole, Claim, LeaderRecord, SeenRecord
from shared_subscriptions.core.leading.process_lease import ProcessLease
from shared_subscriptions.core.settings import LeaseSettings

LEASE = LeaseSettings(member_lease_s=10.0, claim_time_s=20.0)


def seen(candidate: str, version: int, *, is_vacant: bool = False) -> SeenRecord:
    return SeenRecord(LeaderRecord(id=candidate, beat=version, is_vacant=is_vacant), version)


def test_a_record_that_does_not_change_is_claimed_after_the_claim_time_and_not_before() -> None:
    made = Candidate(LeaderRecord(id="me"), LEASE)
    made.observed(seen("other", 5), 0.0)
    made.observed(seen("other", 5), 19.9)
    assert not made.wants_to_claim(19.9)
    made.observed(seen("other", 6), 19.9)
    assert not made.wants_to_claim(39.0)
    assert made.wants_to_claim(39.9)
    assert made.claim(39.9).expected == 6


@pytest.mark.parametrize("found", [None, seen("other", 3, is_vacant=True)])
def test_a_place_that_is_free_is_claimed_at_once(found: SeenRecord | None) -> None:
    made = Candidate(LeaderRecord(id="me"), LEASE)
    made.observed(found, 0.0)
    assert made.wants_to_claim(0.0)
    made.claim(0.0)
    made.written(9)
    assert (made.role, made.epoch) == (CandidateRole.LEADING, 9)
    made.renewal(1.0)
    made.written(10)
    assert made.epoch == 9
    assert made.renewed_at == 1.0


def test_a_leader_whose_record_was_changed_is_deposed() -> None:
    made = Candidate(LeaderRecord(id="me"), LEASE)
    made.observed(None, 0.0)
    made.claim(0.0)
    made.written(9)
    made.observed(seen("other", 10), 1.0)
    assert made.role is CandidateRole.WATCHING
    assert made.leader is not None
    assert made.leader.id == "other"


@pytest.mark.parametrize("has_happened", [True, False])
def test_a_write_of_unknown_outcome_is_settled_by_reading(has_happened: bool) -> None:
    made = Candidate(LeaderRecord(id="me"), LEASE)
    made.observed(None, 0.0)
    claim = made.claim(0.0)
    made.unknown()
    assert made.role is CandidateRole.UNCERTAIN
    assert not made.wants_to_claim(1.0)
    made.observed(SeenRecord(claim.record, 4) if has_happened else None, 1.0)
    assert made.role is (CandidateRole.LEADING if has_happened else CandidateRole.WATCHING)
    assert made.epoch == (4 if has_happened else 0)


def leading(*, now: float = 0.0, version: int = 9) -> tuple[Candidate, ProcessLease, Claim]:
    """A candidate that leads under a sign of life which was renewed just before, and its claim."""
    made, sign = Candidate(LeaderRecord(id="me", lease="sign"), LEASE), ProcessLease("sign")
    sign.renewal(now)
    sign.written(version - 1)
    made.sign_of_life = sign
    made.observed(None, now)
    claim = made.claim(now)
    made.written(version)
    return made, sign, claim


def test_a_leader_holds_from_the_newer_of_its_record_and_its_sign_of_life() -> None:
    made, sign, _ = leading()
    assert made.renewed_at == 0.0
    sign.renewal(3.0)
    assert made.renewed_at == 0.0, "not before it is known that it was written"
    sign.written(10)
    assert made.renewed_at == 3.0
    made.renewal(5.0)
    made.written(11)
    assert made.renewed_at == 5.0


def test_who_lost_its_sign_of_life_leads_no_more_although_its_record_stands() -> None:
    made, sign, claim = leading()
    sign.renewal(1.0)
    sign.refused()
    made.observed(SeenRecord(claim.record, 9), 2.0)
    assert made.role is CandidateRole.WATCHING
    assert not made.wants_to_claim(21.9)
    assert made.wants_to_claim(22.0)


def test_a_claim_that_was_not_answered_is_worth_nothing_when_the_sign_of_life_was_lost_meanwhile() -> None:
    """The process led another group, and was taken for dead: nobody will renew what the claim names."""
    made, sign = Candidate(LeaderRecord(id="me", lease="sign"), LEASE), ProcessLease("sign")
    sign.renewal(0.0)
    sign.written(8)
    made.sign_of_life = sign
    made.observed(None, 0.0)
    claim = made.claim(0.0)
    made.unknown()
    sign.renewal(1.0)
    sign.refused()
    made.observed(SeenRecord(claim.record, 9), 2.0)
    assert made.role is CandidateRole.WATCHING
