"""Which process leads a group: candidates, the sign of life of a process, and writes whose outcome is not known."""

from __future__ import annotations

import math

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


def watching(found: SeenRecord | None, now: float = 0.0) -> Candidate:
    made = Candidate(LeaderRecord(id="me"), LEASE)
    made.observed(found, now)
    return made


def with_sign(version: int, lease_version: int) -> SeenRecord:
    return SeenRecord(LeaderRecord(id="other", lease="sign of other"), version, lease_version)


def test_no_candidate_claims_before_its_first_look() -> None:
    made = Candidate(LeaderRecord(id="me"), LEASE)
    assert not made.wants_to_claim(1e9)
    made.observed(None, 0.0)
    assert made.wants_to_claim(1e9)


def test_looking_again_and_again_does_not_put_the_claim_off() -> None:
    made = watching(with_sign(5, 3))
    for now in range(1, 20):
        made.observed(with_sign(5, 3), float(now))
        assert not made.wants_to_claim(now)
    assert made.wants_to_claim(20.0)


@pytest.mark.parametrize("news", [with_sign(6, 3), with_sign(4, 3), with_sign(5, 4), with_sign(5, 2)])
def test_every_change_of_the_record_or_of_the_sign_is_a_sign_of_life(news: SeenRecord) -> None:
    made = watching(with_sign(5, 3))
    made.observed(news, 19.0)
    assert not made.wants_to_claim(38.9)
    assert made.wants_to_claim(39.0)
    claim = made.claim(39.0)
    assert claim.expected == news.version
    assert claim.overthrows == ("sign of other", news.lease_version), "what was seen last, and nothing newer"


def test_a_sign_that_is_gone_is_none_and_there_is_nothing_to_overthrow() -> None:
    made = watching(with_sign(5, 3))
    made.observed(with_sign(5, 0), 19.0)
    assert made.wants_to_claim(20.0)
    assert made.claim(20.0).overthrows is None


def test_who_resigned_is_known_to_its_successor_and_whose_time_ran_out_is_not() -> None:
    vacant = SeenRecord(LeaderRecord(id="other", is_vacant=True, leases=("b1",)), 5)
    made = watching(vacant)
    claim = made.claim(0.0)
    assert made.predecessor == vacant.record
    assert claim.overthrows is None
    made.observed(seen("third", 6), 1.0)
    made.claim(21.0)
    assert made.predecessor is None


@pytest.mark.parametrize("found", [None, seen("me", 8), seen("me", 10)])
def test_a_leader_whose_record_is_not_as_it_wrote_it_is_deposed_and_watches_anew(found: SeenRecord | None) -> None:
    made, _, _ = leading()
    made.observed(found, 100.0)
    assert made.role is CandidateRole.WATCHING
    assert made.wants_to_claim(100.0) == (found is None)
    assert made.wants_to_claim(120.0)


def test_who_was_refused_looks_first_and_has_a_new_epoch_when_it_leads_again() -> None:
    made, _, _ = leading()
    made.renewal(1.0)
    made.refused()
    assert (made.role, made.leader) == (CandidateRole.WATCHING, None)
    assert not made.wants_to_claim(1e9)
    made.observed(seen("me", 9), 2.0)  # a version that it knows, but the time counts from this look
    assert not made.wants_to_claim(21.9)
    made.observed(None, 22.0)
    assert made.claim(22.0).expected == 0
    made.written(30)
    assert (made.epoch, made.renewed_at) == (30, 22.0)


def test_who_resigned_leads_no_more_and_leaves_the_leases_to_others() -> None:
    made, _, _ = leading()
    claim = made.resignation(("b1", "b2"), 1.0)
    assert (claim.record.is_vacant, claim.record.leases, claim.expected) == (True, ("b1", "b2"), 9)
    made.written(10)
    for found in (seen("other", 11), None):
        made.observed(found, 2.0)
        assert (made.role, made.leader) == (CandidateRole.RETIRED, None)
        assert not made.wants_to_claim(1e9)


@pytest.mark.parametrize("is_answered", [True, False])
def test_who_resigned_is_retired_also_when_it_was_not_told_so(is_answered: bool) -> None:
    made, _, _ = leading()
    claim = made.resignation((), 1.0)
    if is_answered:
        made.written(10)
    else:
        made.unknown()
        made.observed(SeenRecord(claim.record, 10), 2.0)
    assert made.role is CandidateRole.RETIRED


def test_a_renewal_of_unknown_outcome_keeps_the_office_and_counts_from_when_it_began_if_it_was_written() -> None:
    for is_written, renewed_at in ((True, 5.0), (False, 0.0)):
        made, _, claim = leading()
        renewal = made.renewal(5.0)
        assert renewal.record != claim.record, "otherwise nobody could tell them apart"
        made.unknown()
        assert made.role is CandidateRole.UNCERTAIN
        assert made.renewed_at == 0.0
        made.observed(SeenRecord(renewal.record, 10) if is_written else SeenRecord(claim.record, 9), 6.0)
        assert (made.role, made.epoch, made.renewed_at) == (CandidateRole.LEADING, 9, renewed_at)
        assert made.leader == (renewal.record if is_written else claim.record)
        assert made.renewal(7.0).expected == (10 if is_written else 9)


def test_a_renewal_of_unknown_outcome_that_was_overtaken_ends_the_office() -> None:
    made, _, _ = leading()
    made.renewal(5.0)
    made.unknown()
    made.observed(seen("other", 12), 6.0)
    assert made.role is CandidateRole.WATCHING
    assert not made.wants_to_claim(25.9)


def test_a_claim_that_was_not_written_is_made_again_only_when_its_time_comes() -> None:
    made = watching(seen("other", 5))
    made.claim(20.0)
    made.unknown()
    made.observed(seen("other", 5), 21.0)
    assert made.role is CandidateRole.WATCHING
    assert not made.wants_to_claim(40.9)
    assert made.wants_to_claim(41.0)


# -- the sign of life of a process


def test_every_sign_of_life_differs_and_expects_the_one_before() -> None:
    sign = ProcessLease("sign")
    name, first, expected = sign.renewal(1.0)
    assert (name, expected, sign.version, sign.renewed_at) == ("sign", 0, 0, -math.inf)
    sign.written(5)
    _, second, expected = sign.renewal(2.0)
    assert first != second
    assert (expected, sign.version, sign.renewed_at) == (5, 5, 1.0)


@pytest.mark.parametrize(
    ("is_own", "version", "is_lost", "renewed_at"),
    [
        pytest.param(True, 6, False, 2.0, id="it was written"),
        pytest.param(False, 5, False, 1.0, id="it was not written"),
        pytest.param(False, 7, True, 1.0, id="another process wrote"),
        pytest.param(False, 0, True, 1.0, id="another process deleted it"),
    ],
)
def test_a_sign_of_life_of_unknown_outcome_is_settled_by_reading(
    is_own: bool, version: int, is_lost: bool, renewed_at: float
) -> None:
    sign = ProcessLease("sign")
    sign.renewal(1.0)
    sign.written(5)
    _, value, _ = sign.renewal(2.0)
    sign.unknown()
    assert sign.is_uncertain
    sign.observed(value if is_own else b"of another" if version else None, version)
    assert (sign.is_uncertain, sign.is_lost, sign.renewed_at) == (False, is_lost, renewed_at)
    if not is_lost:
        assert sign.renewal(3.0)[2] == version


def test_a_sign_of_life_that_is_refused_is_lost() -> None:
    sign = ProcessLease("sign")
    sign.renewal(1.0)
    sign.written(5)
    sign.renewal(2.0)
    sign.refused()
    assert sign.is_lost
