"""Leases of members: how the times of the protocol follow from each other, and how one question renews many leases."""

from __future__ import annotations

import itertools

import pytest

from shared_subscriptions.core import messages as m
from shared_subscriptions.core.consuming.agent import Agent
from shared_subscriptions.core.consuming.borrower import BorrowerState, Loan
from shared_subscriptions.core.leading.partitions import GrantStatus
from shared_subscriptions.core.settings import BorrowerSettings, LeaseSettings
from tests.unit.shared_subscriptions.test_groups_core import LEASE, borrower, leader


@pytest.mark.parametrize(
    "lease", [LeaseSettings(), LEASE, LeaseSettings(0.2, 0.4), LeaseSettings(600.0, 1200.0)], ids=str
)
def test_who_holds_something_stops_before_others_take_it_and_has_several_tries_to_renew_it(
    lease: LeaseSettings,
) -> None:
    assert lease.holder_lease_s < lease.member_lease_s
    assert lease.leader_hold_s + lease.member_lease_s == pytest.approx(lease.claim_time_s)
    assert 3 * lease.ping_s < lease.holder_lease_s
    assert 3 * lease.beat_s < lease.leader_hold_s
    assert 10 * lease.watch_s < lease.claim_time_s


# -- at the leader


def test_a_member_whose_lease_has_ended_is_not_renewed_with_the_others() -> None:
    made = leader(GrantStatus.GRANTED)
    assert made.hear_of("b", 9.9)
    assert not made.hear_of("b", 19.9)
    assert made.members["b"].expires == 19.9


def test_who_was_expelled_or_is_not_known_is_not_renewed_with_the_others() -> None:
    made = leader(GrantStatus.GRANTED)
    made.members["b"].is_expelled = True
    assert not made.hear_of("b", 1.0)
    assert not made.hear_of("nobody", 1.0)


def test_a_leader_renews_nothing_when_its_own_time_is_over_and_goes_on_when_it_was_renewed() -> None:
    renewed_at = -5.0
    made = leader(GrantStatus.GRANTED, renewed_at=lambda: renewed_at)
    assert not made.is_silent(4.9)
    assert made.is_silent(5.0)
    assert not made.hear_of("b", 5.0)
    renewed_at = 0.0
    assert not made.is_silent(9.9)
    assert made.hear_of("b", 9.9)
    made.fall_silent("test", is_final=False)
    assert made.is_silent(0.0)
    assert not made.hear_of("b", 9.9)


# -- at the member


def test_a_lease_that_was_renewed_with_others_counts_from_the_question() -> None:
    made = borrower(BorrowerState.CONNECTED, Loan.GRANTED)
    made.on_heard_of(5.0, 6.0)
    assert made.may_deliver(1, 12.9)
    assert not made.may_deliver(1, 13.0)
    made.on_heard_of(1.0, 7.0)  # an answer that took longer takes nothing back
    assert made.may_deliver(1, 12.9)


def test_who_has_no_leader_gets_no_lease_with_the_others() -> None:
    made = borrower(BorrowerState.CONNECTING)
    due = made.next_deadline()
    made.on_heard_of(5.0, 6.0)
    assert made.next_deadline() == due


def test_the_end_of_a_lease_and_of_the_time_to_give_back_are_noticed_in_time() -> None:
    made = borrower(BorrowerState.CONNECTED)
    made.on_heard_of(0.0, 100.0)  # so nothing is to be asked for long
    assert made.next_deadline() == 8.0
    made = borrower(BorrowerState.CONNECTED, Loan.REVOKING)
    made.on_heard_of(100.0, 100.0)
    assert made.next_deadline() == BorrowerSettings().revoke_timeout_s


def agent() -> Agent:
    """Two subscriptions, both of which have a lease from 0.0 on."""
    numbers = itertools.count(1)
    made = Agent(BorrowerSettings(), lambda: f"b{next(numbers)}")
    for number in (1, 2):
        made.subscribe(number, 0.0)
    made.poll(0.0)
    said, _ = made.take(0.0)
    assert [(number, type(message)) for number, message in said] == [(1, m.Connect), (2, m.Connect)]
    for number, message in said:
        answer = m.ConnectResponse(borrower=message.borrower, seq=1, epoch=7, answers=message.seq, lease_s=8.0)
        made.on_message(number, answer, 0.0)
    made.take(0.0)
    return made


@pytest.mark.parametrize("others", [["b1"], ["b2"]])
def test_who_was_not_renewed_with_the_others_asks_when_its_own_time_comes(others: list[str]) -> None:
    made = agent()
    due = made.next_deadline()
    assert due == BorrowerSettings().ping_s
    made.on_heard_of(["nobody", *others], 0.9, 0.9)
    assert made.next_deadline() == due
    made.poll(due)
    said, _ = made.take(due)
    assert [message.borrower for _, message in said] == [one for one in ("b1", "b2") if one not in others]
    assert made.next_deadline() == due + BorrowerSettings().ping_s


def test_while_all_are_renewed_nobody_has_to_be_looked_at() -> None:
    made = agent()
    for now in range(1, 20):
        made.on_heard_of(["b1", "b2"], now - 0.1, now - 0.1)
        assert made.next_deadline() > now
    assert made.is_connected(1)


def test_all_say_goodbye() -> None:
    made = agent()
    made.disconnect()
    said, _ = made.take(0.0)
    assert [type(message) for _, message in said] == [m.Disconnect, m.Disconnect]
    assert made.take(0.0) == ([], [])
