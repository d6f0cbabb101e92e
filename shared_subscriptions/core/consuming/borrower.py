"""One subscription's side of the protocol: it finds the leader, holds a lease, and borrows partitions.

Theory of operation.  A borrower lives once: connecting, connected, unsubscribing, gone.  Whatever goes wrong, it
resets: it loses all partitions, says so, and the agent makes another one with another identity, which the leader has
never seen.  So no state is ever repaired, only left.

A partition is delivered only while the borrower is connected, the partition is granted and the lease runs.  The lease
counts from the moment at which the question was *sent* that the leader answered, so it ends here before it ends there.

Everything that the two tables below do not name is ignored, and a test goes through every pair.
"""

from __future__ import annotations

import dataclasses
import enum
from collections import OrderedDict
from collections.abc import Mapping
from typing import Final

from shared_subscriptions.core import messages as m
from shared_subscriptions.core.events import is_portion
from shared_subscriptions.core.progress import GroupProgress
from shared_subscriptions.core.settings import BorrowerSettings

_PINGS_PER_LEASE = 4


class BorrowerState(enum.Enum):
    CONNECTING = "connecting"
    CONNECTED = "connected"
    UNSUBSCRIBING = "unsubscribing"
    GONE = "gone"


class Loan(enum.Enum):
    """The state of one partition.  Absent is not a state: the partition is not in the table."""

    GRANTED = "granted"
    REVOKING = "revoking"


IGNORE: Final = "_ignore"

REACTIONS: Final[dict[tuple[BorrowerState, type[m.ToBorrower]], str]] = {
    (BorrowerState.CONNECTING, m.ConnectResponse): "_connected",
    (BorrowerState.CONNECTING, m.PingResponse): IGNORE,
    (BorrowerState.CONNECTING, m.Grant): IGNORE,  # overtook the response; it will be sent again
    (BorrowerState.CONNECTING, m.Revoke): IGNORE,
    (BorrowerState.CONNECTING, m.Revoked): IGNORE,
    (BorrowerState.CONNECTING, m.Invalidate): "_invalidated",
    (BorrowerState.CONNECTED, m.ConnectResponse): "_renewed",
    (BorrowerState.CONNECTED, m.PingResponse): "_renewed",
    (BorrowerState.CONNECTED, m.Grant): "_granted",
    (BorrowerState.CONNECTED, m.Revoke): "_revoke",
    (BorrowerState.CONNECTED, m.Revoked): "_revoked",
    (BorrowerState.CONNECTED, m.Invalidate): "_invalidated",
    (BorrowerState.UNSUBSCRIBING, m.ConnectResponse): "_renewed",
    (BorrowerState.UNSUBSCRIBING, m.PingResponse): "_renewed",
    (BorrowerState.UNSUBSCRIBING, m.Grant): IGNORE,
    (BorrowerState.UNSUBSCRIBING, m.Revoke): IGNORE,
    (BorrowerState.UNSUBSCRIBING, m.Revoked): IGNORE,
    (BorrowerState.UNSUBSCRIBING, m.Invalidate): "_invalidated",
    **{(BorrowerState.GONE, kind): IGNORE for kind in m.TO_BORROWER},
}

LOAN_REACTIONS: Final[dict[tuple[Loan | None, type[m.ToBorrower]], Loan | None]] = {
    (None, m.Grant): Loan.GRANTED,
    (None, m.Revoke): None,  # already given back: answered with what the leader waits for
    (None, m.Revoked): None,
    (Loan.GRANTED, m.Grant): Loan.GRANTED,
    (Loan.GRANTED, m.Revoke): Loan.REVOKING,
    (Loan.GRANTED, m.Revoked): None,
    (Loan.REVOKING, m.Grant): Loan.REVOKING,
    (Loan.REVOKING, m.Revoke): Loan.REVOKING,
    (Loan.REVOKING, m.Revoked): None,
}


@dataclasses.dataclass(frozen=True)
class Granted:
    """Deliver the partition from here on, under this grant."""

    partition: int
    grant: int
    progress: GroupProgress
    until: int
    expired: int = 0
    """Offsets that retention dropped while the partition had no owner."""


@dataclasses.dataclass(frozen=True)
class Revoking:
    """Deliver nothing new of the partition, and report when nothing of it is with the user any more."""

    partition: int


@dataclasses.dataclass(frozen=True)
class Lost:
    """Forget the partition: another member has it, or will have it soon."""

    partition: int


@dataclasses.dataclass(frozen=True)
class Reset:
    """This borrower is gone, and another one should begin anew; unless ``is_final``: there is no group any more."""

    reason: str
    is_final: bool = False


@dataclasses.dataclass(frozen=True)
class Stopped:
    """This borrower is gone, as it was asked to."""


SessionEvent = Granted | Revoking | Lost | Reset | Stopped

_QUESTIONS_KEPT = 16
_DROPPED_KEPT = 1000


@dataclasses.dataclass
class _Borrowed:
    grant: int
    progress: GroupProgress
    loan: Loan = Loan.GRANTED
    finished: bool = False
    give_up_at: float = float("inf")


class Borrower:
    """Sans-IO and not thread-safe.  After each call take `messages` and `events`."""

    def __init__(
        self,
        id: str,
        settings: BorrowerSettings,
        *,
        now: float,
        name: str = "",
        former: str = "",
        portions: int = 1,
        offsets: int = 0,
    ) -> None:
        self.id = id
        self.state = BorrowerState.CONNECTING
        self.messages: list[m.ToLeader] = []
        self.events: list[SessionEvent] = []
        self.ignored = 0
        """Messages that came too late, twice, or in a state that has no use for them."""
        self._settings = settings
        self._name = name
        self.former = former
        """The borrower that it replaces, after a reset."""
        self._portions, self._offsets = portions, offsets
        self._dropped: OrderedDict[int, None] = OrderedDict()
        """Portions that are over: whatever comes about one of them is late."""
        self._seq = 0
        self._seen: dict[int, int] = {}
        self._epoch = 0
        self._lease_s = 0.0
        self._lease_end = 0.0
        self._asked: OrderedDict[int, float] = OrderedDict()
        self._partitions: dict[int, _Borrowed] = {}
        self._ending: set[int] = set()
        """Those that are to be given back by some time."""
        self._timer = now
        self._give_up_at = float("inf")

    # -- what the session asks

    def may_deliver(self, partition: int, now: float) -> bool:
        """The fence at delivery: asked before every batch."""
        borrowed = self._partitions.get(partition)
        return (
            borrowed is not None
            and borrowed.loan is Loan.GRANTED
            and self.state is BorrowerState.CONNECTED
            and now < self._lease_end
        )

    @property
    def lease_end(self) -> float:
        return self._lease_end if self.state is BorrowerState.CONNECTED else 0.0

    @property
    def partitions(self) -> dict[int, Loan]:
        return {partition: borrowed.loan for partition, borrowed in self._partitions.items()}

    def next_deadline(self) -> float:
        if self.state is BorrowerState.GONE:
            return float("inf")
        due = min(self._timer, self._give_up_at)
        if self._ending:
            due = min(due, *(self._partitions[number].give_up_at for number in self._ending))
        return due if self.state is BorrowerState.CONNECTING else min(due, self._lease_end)

    # -- what the session says

    def on_log_grown(self, ends: Mapping[int, int], now: float) -> None:
        """Shards have grown, and this member of a queue has nothing to do: let the leader know at once."""
        if self.state is BorrowerState.CONNECTED:
            self._ask(m.Ping(borrower=self.id, seq=self._next(), ends=dict(ends)), now)

    @property
    def ping_s(self) -> float:
        """How often the leader should hear of this borrower.  Its promise counts, which may be shorter than what is
        configured here."""
        return min(self._settings.ping_s, self._lease_s / _PINGS_PER_LEASE or float("inf"))

    def on_heard_of(self, asked_at: float, now: float) -> None:
        """The leader has heard from this process, by a question that was sent at ``asked_at``, that the borrower lives.

        Only for a question that followed a message of this borrower on the same connection.
        """
        if self.state in (BorrowerState.CONNECTED, BorrowerState.UNSUBSCRIBING):
            self._lease_end = max(self._lease_end, asked_at + self._lease_s)
            self._timer = max(self._timer, now + 2 * self.ping_s)

    def on_partition_progress(
        self, partition: int, progress: GroupProgress, *, is_settled: bool, is_complete: bool = False
    ) -> None:
        """How far a partition is; ``is_settled`` when nothing of it is with the user, ``is_complete`` when nothing of
        it is left to do either."""
        borrowed = self._partitions.get(partition)
        if borrowed is None or self.state is BorrowerState.GONE:
            return
        borrowed.progress = progress
        borrowed.finished = borrowed.finished or (is_settled and (is_complete or self._is_ending(borrowed)))
        self._report(partition, borrowed)
        if self.state is BorrowerState.UNSUBSCRIBING:
            self._leave_if_finished()

    def on_unsubscribe(self, now: float) -> None:
        """Give everything back in good order, then stop."""
        if self.state is BorrowerState.CONNECTED:
            self.state = BorrowerState.UNSUBSCRIBING
            self._give_up_at = now + self._settings.unsubscribe_timeout_s
            self.events += [
                Revoking(partition) for partition, item in self._partitions.items() if item.loan is Loan.GRANTED
            ]
            self._leave_if_finished()
        elif self.state is BorrowerState.CONNECTING:
            self._leave()

    def on_disconnect(self) -> None:
        """Give everything back at once, with the progress that was reported last, and stop."""
        if self.state is not BorrowerState.GONE:
            self._leave()

    def on_leader_changed(self, now: float) -> None:
        """The registry names another leader than before."""
        if self.state is BorrowerState.CONNECTING:
            self._timer = now
            self.poll(now)

    # -- time

    def is_giving_up(self, now: float) -> bool:
        return self.state is BorrowerState.UNSUBSCRIBING and now >= self._give_up_at

    def poll(self, now: float) -> None:
        if self.state is BorrowerState.GONE:
            return
        if self.state is not BorrowerState.CONNECTING and now >= self._lease_end:
            self._reset("the lease ended: the leader did not answer in time")
        elif now >= self._give_up_at:
            self._leave()
        else:
            self._give_up_revoked(now)
            if now >= self._timer:
                self._on_timer(now)

    def _on_timer(self, now: float) -> None:
        if self.state is BorrowerState.CONNECTING:
            self._timer = now + self._settings.find_leader_s
            self._ask(
                m.Connect(
                    borrower=self.id,
                    seq=self._next(),
                    name=self._name,
                    former=self.former,
                    portions=self._portions,
                    offsets=self._offsets,
                ),
                now,
            )
            return
        self._timer = now + self.ping_s
        self._ask(m.Ping(borrower=self.id, seq=self._next()), now)
        for partition, borrowed in self._partitions.items():
            self._report(partition, borrowed)  # whatever report was lost is made up for here

    def _give_up_revoked(self, now: float) -> None:
        for partition in sorted(self._ending):
            borrowed = self._partitions[partition]
            if now >= borrowed.give_up_at:
                self._ending.discard(partition)
                borrowed.finished = True
                self._report(partition, borrowed)

    # -- what the leader says

    def on_message(self, message: m.ToBorrower, now: float) -> None:
        """Any message in any state is handled; what makes no sense is counted in `ignored`."""
        reaction = REACTIONS[self.state, type(message)]
        if reaction == IGNORE or (self.state is not BorrowerState.CONNECTING and not self._is_current(message)):
            self.ignored += 1
            return
        self._seen[m.concern(message)] = message.seq
        getattr(self, reaction)(message, now)

    def _is_current(self, message: m.ToBorrower) -> bool:
        if isinstance(message, m.Invalidate) and message.epoch > self._epoch:
            return True  # a younger leader, which has never heard of us: ours is deposed
        return message.epoch == self._epoch and message.seq > self._seen.get(m.concern(message), 0)

    def _connected(self, message: m.ConnectResponse, now: float) -> None:
        asked_at = self._asked.get(message.answers)
        if asked_at is None:
            self.ignored += 1
            return
        self._epoch = message.epoch
        self._lease_s = message.lease_s
        self.state = BorrowerState.CONNECTED
        self._timer = now
        self._lease_end = asked_at + self._lease_s
        self.poll(now)

    def _renewed(self, message: m.ConnectResponse | m.PingResponse, now: float) -> None:
        asked_at = self._asked.get(message.answers)
        if asked_at is not None:
            self._lease_end = max(self._lease_end, asked_at + self._lease_s)
        self.poll(now)

    def _granted(self, message: m.Grant, _now: float) -> None:
        if message.partition in self._dropped:
            self.ignored += 1
            return
        borrowed = self._partitions.get(message.partition)
        if borrowed is not None and borrowed.grant != message.grant:
            self._reset("a partition was granted that is still held under another grant")
            return
        after = LOAN_REACTIONS[borrowed.loan if borrowed else None, m.Grant]
        if borrowed is None:
            assert after is Loan.GRANTED
            borrowed = self._partitions[message.partition] = _Borrowed(message.grant, message.progress)
            self.events.append(
                Granted(message.partition, message.grant, message.progress, message.until, message.expired)
            )
        self._report(message.partition, borrowed)

    def _revoke(self, message: m.Revoke, now: float) -> None:
        borrowed = self._partitions.get(message.partition)
        if borrowed is None or borrowed.grant != message.grant:
            # Granted and revoked before the grant arrived: nothing was delivered, and the progress is the leader's own.
            self._send(
                m.UpdateProgress(
                    borrower=self.id, seq=self._next(), partition=message.partition, grant=message.grant,
                    progress=GroupProgress(generation=-1), finished=True,
                )
            )  # fmt: skip
            return
        if borrowed.loan is Loan.GRANTED:
            borrowed.loan = Loan.REVOKING
            if not is_portion(message.partition):  # no member waits for what is left of a portion
                borrowed.give_up_at = now + self._settings.revoke_timeout_s
                self._ending.add(message.partition)
            self.events.append(Revoking(message.partition))
        self._report(message.partition, borrowed)

    def _revoked(self, message: m.Revoked, _now: float) -> None:
        borrowed = self._partitions.get(message.partition)
        if borrowed is not None and borrowed.grant == message.grant:
            del self._partitions[message.partition]
            self._ending.discard(message.partition)
            self.events.append(Lost(message.partition))
        if is_portion(message.partition):
            self._drop(message.partition)
        self._send(
            m.RevokeFinished(borrower=self.id, seq=self._next(), partition=message.partition, grant=message.grant)
        )  # also for an unknown partition: the first one was lost

    def _invalidated(self, message: m.Invalidate, _now: float) -> None:
        self._reset(message.reason or "invalidated by the leader", is_final=message.is_final)

    # -- helpers

    def _is_ending(self, borrowed: _Borrowed) -> bool:
        return borrowed.loan is Loan.REVOKING or self.state is BorrowerState.UNSUBSCRIBING

    def _next(self) -> int:
        self._seq += 1
        return self._seq

    def _send(self, message: m.ToLeader) -> None:
        self.messages.append(message)

    def _ask(self, message: m.Connect | m.Ping, now: float) -> None:
        """Send something that the leader answers with a lease."""
        self._asked[message.seq] = now
        if len(self._asked) > _QUESTIONS_KEPT:
            self._asked.popitem(last=False)
        self._send(message)

    def _report(self, partition: int, borrowed: _Borrowed) -> None:
        self._send(
            m.UpdateProgress(
                borrower=self.id, seq=self._next(), partition=partition, grant=borrowed.grant,
                progress=borrowed.progress, finished=borrowed.finished,
            )
        )  # fmt: skip

    def _drop(self, portion: int) -> None:
        self._seen.pop(portion, None)
        self._dropped[portion] = None
        if len(self._dropped) > _DROPPED_KEPT:
            self._dropped.popitem(last=False)

    def _leave_if_finished(self) -> None:
        if all(borrowed.finished for borrowed in self._partitions.values()):
            self._leave()

    def _leave(self) -> None:
        progresses = tuple((partition, item.grant, item.progress) for partition, item in self._partitions.items())
        self._send(m.Disconnect(borrower=self.id, seq=self._next(), progresses=progresses))
        self._drop_partitions()
        self.state = BorrowerState.GONE
        self.events.append(Stopped())

    def _reset(self, reason: str, *, is_final: bool = False) -> None:
        was_unsubscribing = self.state is BorrowerState.UNSUBSCRIBING
        self._drop_partitions()
        self.state = BorrowerState.GONE
        self.events.append(Stopped() if was_unsubscribing else Reset(reason, is_final))

    def _drop_partitions(self) -> None:
        self.events += [Lost(partition) for partition in self._partitions]
        self._partitions.clear()
        self._ending.clear()
