"""What a member remembers of a partition that it has lost, and when that counts."""

from __future__ import annotations

import itertools

import pytest

from pubsub_api.core.events import GroupEvent
from shared_subscriptions.core import messages as m
from shared_subscriptions.core.consuming.handler import Handler, LoanState
from shared_subscriptions.core.progress import GroupProgress
from shared_subscriptions.core.settings import BorrowerSettings, DeliverySettings

NUMBER, PARTITION = 1, 3


class Life:
    """A member of one subscription, and the leaders that it meets."""

    def __init__(self) -> None:
        ids = (str(number) for number in itertools.count())
        self.handler = Handler(BorrowerSettings(), DeliverySettings(), lambda: next(ids))
        self.handler.subscribe(NUMBER, is_ordered=True, now=0.0)
        self._seq = itertools.count(1)
        self._epoch = itertools.count(1)

    def lend(self, progress: GroupProgress) -> LoanState:
        """A new leader grants the partition; what came before is lost."""
        epoch, borrower = next(self._epoch), self._borrower()
        if self.handler.agent.is_connected(NUMBER):
            self._hear(m.Invalidate(borrower=borrower, seq=next(self._seq), epoch=epoch))
            borrower = self._borrower()
        self.handler.poll(0.0)
        connect = [one for _, one in self.handler.take_messages(0.0) if isinstance(one, m.Connect)][-1]
        self._hear(
            m.ConnectResponse(borrower=borrower, seq=next(self._seq), epoch=epoch, answers=connect.seq, lease_s=9.0)
        )
        seq = next(self._seq)
        self._hear(
            m.Grant(borrower=borrower, seq=seq, epoch=epoch, partition=PARTITION, grant=epoch, progress=progress)
        )
        (loan,) = self.handler.loans
        return loan

    def _borrower(self) -> str:
        found = self.handler.agent.borrower(NUMBER)
        assert found is not None
        return found.id

    def _hear(self, message: m.ToBorrower) -> None:
        self.handler.on_message(NUMBER, message, 0.0)


def handle(loan: LoanState, end: int) -> list[int]:
    """Read up to an offset and acknowledge all of it; returns what was delivered."""
    events = [
        GroupEvent(topic="t", table="", key="k", action="set", offset=offset)
        for offset in range(loan.delivery.next_offset, end)
    ]
    loan.delivery.offer(events)
    batch = loan.delivery.take(0.0, end, is_exclusive=False)
    loan.delivery.settle(batch)
    return [event.offset for event in batch]


@pytest.mark.parametrize(("proven", "low"), [(10, 10), (7, 7), (0, 2)])
def test_what_was_acknowledged_counts_as_far_as_the_log_proves_to_be_the_same(proven: int, low: int) -> None:
    life = Life()
    first = life.lend(GroupProgress())
    life.handler.begin(first, 0)
    handle(first, 10)
    again = life.lend(GroupProgress(low=2))
    assert again.delivery.next_offset == 2
    life.handler.begin(again, proven)
    assert again.delivery.next_offset == again.delivery.progress().low == low


def test_what_only_a_former_leader_knew_is_not_remembered() -> None:
    """Its progress may be that of a later state of the log."""
    life = Life()
    first = life.lend(GroupProgress(low=6))
    life.handler.begin(first, 0)
    handle(first, 10)
    again = life.lend(GroupProgress(low=2))
    life.handler.begin(again, 10)
    assert again.delivery.progress() == GroupProgress(low=2, ranges=((6, 10),))


def test_what_was_not_begun_goes_on_remembering() -> None:
    life = Life()
    first = life.lend(GroupProgress())
    life.handler.begin(first, 0)
    handle(first, 10)
    life.lend(GroupProgress())
    again = life.lend(GroupProgress())
    life.handler.begin(again, 10)
    assert again.delivery.next_offset == 10


@pytest.mark.parametrize("is_lost", [False, True])
def test_what_is_void_never_counts(is_lost: bool) -> None:
    life = Life()
    loan = life.lend(GroupProgress())
    life.handler.begin(loan, 0)
    handle(loan, 10)
    if is_lost:
        life.lend(GroupProgress())
    assert life.handler.void(lambda _number, partition: partition == PARTITION + 1) == []
    assert life.handler.void(lambda _number, partition: partition == PARTITION) == [loan]
    again = life.lend(GroupProgress(low=4))
    life.handler.begin(again, 10)
    assert handle(again, 10) == [4, 5, 6, 7, 8, 9]
