"""The leader of a ``$queue`` group: hands out the events of each shard in small portions, to members that have room.

A portion is a range of offsets that one member has until it is done.  It walks through the same table as a partition,
and rests on the same leases; what is not done when it comes back goes to the next one.  Everything else is about how
large a portion is.  It should be about `PORTION_S` of work for its member, by what that member did lately; it begins
with one event.  And of what is left, no portion is more than a fair part, so that the last events are spread over all
members.  Should a member be idle all the same, it gets what another one has and has not begun.

What the log cannot give is set aside, so that no member waits for it with the room that it has for others.  A member
reports the damaged range with the portion, and none of it is handed out any more, but for one offset now and then, in
order to see whether it was repaired or given up.

Nothing is stored before a portion is handed out, but for the first one that a member gets of a shard, and for suspects
(`caution`).
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final

from shared_subscriptions.core import messages as m
from shared_subscriptions.core import redelivery
from shared_subscriptions.core.declaration import Wish
from shared_subscriptions.core.events import portion_number
from shared_subscriptions.core.leading.leader import Leader
from shared_subscriptions.core.leading.members import ConnectedMember
from shared_subscriptions.core.leading.partitions import (
    HELD,
    GrantCause,
    GrantStatus,
    Lease,
    Partition,
    PartitionInfo,
    QueuePortion,
)
from shared_subscriptions.core.progress import AcknowledgedOffsets

PORTION_S: Final = 0.02
OFFSETS_MAX: Final = 4096
UNSETTLED_MAX: Final = 1000
"""Portions, and ranges that wait for another attempt, of one shard: they make its record large."""
STEAL_S: Final = 0.05
"""A portion that was handed out this long ago may be taken back for a member that is idle."""
PROBE_S: Final = 1.0
"""How often a damaged range is tried again; with more than `_PROBED_AT_ONCE` of them, less often."""
_PROBED_AT_ONCE: Final = 10
_GROWTH: Final = 4.0
_SHORTEST_S: Final = 0.001


class ShardQueue:
    """What of a shard is to be handed out: all from `cursor` on, and ranges that came back."""

    def __init__(self, base: Partition) -> None:
        self.base = base
        self.out = 0
        """Portions of it that members have."""
        self.cursor = base.done.highest
        self.returned: list[tuple[float, int, int]] = []
        self.damaged: dict[int, tuple[int, float]] = {}
        """First offset of a range that the log cannot give -> its end, and when to try again."""
        for start, end in redelivery.undone(base.done, base.done.low, self.cursor):
            self.give_back(start, end, 0.0)

    def give_back(self, start: int, end: int, due: float) -> None:
        heapq.heappush(self.returned, (due, start, end))

    def waiting(self, limit: int, now: float) -> int:
        """Offsets that can be handed out now."""
        due = sum(end - start for at, start, end in self.returned if at <= now)
        probes = sum(at <= now for _, at in self.damaged.values())
        return due + probes + max(0, limit - self.cursor)

    def next_due(self) -> float:
        returned = self.returned[0][0] if self.returned else float("inf")
        return min((at for _, at in self.damaged.values()), default=returned) if self.damaged else returned

    def set_aside(self, first: int, end: int, now: float) -> None:
        """The log cannot give a range: hand out nothing of it.  What a member has of it may come back later."""
        for start in [start for start, (stop, _) in self.damaged.items() if start < end and first < stop]:
            first, end = min(first, start), max(end, self.damaged.pop(start)[0])
        self.damaged[first] = end, now + PROBE_S * max(1.0, len(self.damaged) / _PROBED_AT_ONCE)
        if first < self.cursor:
            self.cursor = max(self.cursor, end)
        waiting, self.returned = self.returned, []
        for due, start, stop in waiting:
            for begin, until in self.sound(start, stop):
                self.give_back(begin, until, due)

    def sound(self, start: int, end: int) -> Sequence[tuple[int, int]]:
        """The parts of a range that are not damaged, as far as it is known."""
        damaged = sorted((first, stop) for first, (stop, _) in self.damaged.items())
        return redelivery.undone(AcknowledgedOffsets(0, damaged), start, end)

    def probe(self, held: AcknowledgedOffsets, now: float) -> int | None:
        """An offset that is to be tried again, and is with no member."""
        for first, (end, due) in list(self.damaged.items()):
            if due > now:
                continue
            undone = redelivery.undone(self.base.done, first, end)
            if not undone:
                del self.damaged[first]
            for start, stop in undone:
                for begin, _ in redelivery.undone(held, start, stop)[:1]:
                    self.damaged[first] = end, float("inf")
                    return begin
        return None

    def heal(self, offset: int, held: AcknowledgedOffsets, now: float) -> None:
        """A damaged offset could be read: hand out the rest of its range, and try the others soon."""
        for first, (end, _) in [item for item in self.damaged.items() if item[0] <= offset < item[1][0]]:
            del self.damaged[first]
            for start, stop in redelivery.undone(self.base.done, first, end):
                for begin, until in redelivery.undone(held, start, stop):
                    self.give_back(begin, until, now)
        for first, (end, due) in self.damaged.items():
            self.damaged[first] = end, (now if due < float("inf") else due)

    def take(
        self, limit: int, size: int, now: float, attempts_max: int, *, may_be_suspect: bool
    ) -> tuple[int, int, int] | None:
        """Start, end and the count of suspicion of the next portion; None when there is none."""
        self.cursor = max(self.cursor, self.base.done.low)
        while self.returned and self.returned[0][0] <= now:
            _, start, end = heapq.heappop(self.returned)
            for begin, stop in redelivery.undone(self.base.done, start, end)[1:]:
                self.give_back(begin, stop, now)
            begin, stop = next(iter(redelivery.undone(self.base.done, start, end)), (end, end))
            if begin >= stop:
                continue
            until, count = self._cut(begin, stop, size, attempts_max)
            if count and not may_be_suspect:
                self.give_back(begin, stop, now)
                return None
            if until < stop:
                self.give_back(until, stop, now)
            return begin, until, count
        if self.cursor >= limit:
            return None
        start = self.cursor
        until, count = self._cut(start, limit, size, attempts_max)
        if count and not may_be_suspect:
            return None
        self.cursor = until
        return start, until, count

    def _cut(self, start: int, end: int, size: int, attempts_max: int) -> tuple[int, int]:
        until, count = redelivery.piece(self.base.suspects, start, attempts_max)
        end = min(end, start + size)
        return (min(end, until) if until >= 0 else end), count


class QueueLeader(Leader):
    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.portions: dict[int, QueuePortion] = {}
        self.loans = self.portions
        self._queues: dict[int, ShardQueue] = {}
        self._serial = 0
        self._turn = 0

    # -- shards

    def on_partitions(self, infos: Mapping[int, PartitionInfo], now: float) -> None:
        super().on_partitions(infos, now)
        self._look_for_work(now)

    def _load(self, number: int, info: PartitionInfo) -> Partition:
        partition = super()._load(number, info)
        self._queues[number] = ShardQueue(partition)
        return partition

    def _vanish(self, partition: Partition, now: float) -> None:
        self._queues.pop(partition.number, None)
        super()._vanish(partition, now)
        for portion in self._of(partition):
            portion.has_vanished = True
            if portion.move(GrantCause.VANISHED):
                self._say_status(portion, now)

    def _ping(self, message: m.Ping, now: float) -> None:
        super()._ping(message, now)
        if message.ends:
            self.on_log_grown(message.ends, now)

    def on_log_grown(self, ends: Mapping[int, int], now: float) -> None:
        for number, end in ends.items():
            partition = self.partitions.get(number)
            if partition is None:
                self.is_outdated = True
            elif end > partition.info.end:
                partition.info = partition.info._replace(end=end)
        self._look_for_work(now)

    def _look_for_work(self, now: float) -> None:
        if self._waiting(now):
            self._reassign_at = min(self._reassign_at, now)

    def _waiting(self, now: float) -> int:
        return sum(queue.waiting(self._limit_of(queue.base), now) for queue in self._queues.values())

    def _limit_of(self, partition: Partition) -> int:
        until = self.declaration.until_of(partition.number)
        return partition.info.end if until < 0 else min(partition.info.end, until)

    def _of(self, base: Partition) -> list[QueuePortion]:
        return [portion for portion in self.portions.values() if portion.base is base]

    def _held(self, base: Partition) -> AcknowledgedOffsets:
        """What of a shard is with members."""
        held = sorted((portion.start, portion.until) for portion in self._of(base) if not portion.is_returned)
        return AcknowledgedOffsets(0, held)

    def damaged(self) -> dict[int, list[tuple[int, int]]]:
        found = {}
        for number, queue in self._queues.items():
            ranges = ((first, end) for first, (end, _) in sorted(queue.damaged.items()))
            parts = [part for one in ranges for part in redelivery.undone(queue.base.done, *one)]
            if parts:
                found[number] = parts
        return found

    # -- time

    def next_deadline(self) -> float:
        due = min((queue.next_due() for queue in self._queues.values()), default=float("inf"))
        return min(super().next_deadline(), due if due < float("inf") and self._has_room() else float("inf"))

    def poll(self, now: float) -> None:
        if any(queue.next_due() <= now for queue in self._queues.values()) and self._has_room():
            self._reassign_at = min(self._reassign_at, now)
        super().poll(now)

    def _is_ended(self, partition: Partition) -> bool:  # noqa: ARG002
        return False  # there is nothing to hand out from then on, and nothing to take back

    # -- portions that come back

    def _update_progress(self, message: m.UpdateProgress, now: float) -> None:
        super()._update_progress(message, now)
        if message.partition not in self.portions:
            # It was dropped, and a grant of the past has brought it back to life there.
            self._group.send(
                self.members[message.borrower], m.Revoked, partition=message.partition, grant=message.grant
            )

    def _finished(self, partition: Partition, now: float) -> None:
        super()._finished(partition, now)
        portion = self.portions[partition.number]
        self._measure(self.members[portion.owner], portion, now)
        self._return(portion, now)
        self._reassign_at = min(self._reassign_at, now)

    def _measure(self, member: ConnectedMember, portion: QueuePortion, now: float) -> None:
        """How fast the member is, by how long it has had the portion for itself."""
        took_s = max(now - max(portion.granted_at, member.finished_at), _SHORTEST_S)
        handled = portion.until - portion.start - sum(end - start for start, end in portion.undone())
        member.finished_at = now
        if handled:
            rate = handled / took_s
            member.rate = min(0.5 * (rate + (member.rate or rate)), _GROWTH * (member.rate or rate))

    def _return(self, portion: QueuePortion, now: float) -> None:
        """What was not done is free for others, when it is due."""
        queue = self._queues.get(portion.base.number)
        if portion.is_returned or queue is None or portion.generation != portion.base.generation:
            return
        portion.is_returned = True
        for first, end in portion.damaged:
            queue.set_aside(first, min(end, max(self._limit_of(portion.base), portion.until)), now)
        if portion.is_probe and not portion.damaged:
            queue.heal(portion.start, self._held(portion.base), now)
        for start, end in [part for undone in portion.undone() for part in queue.sound(*undone)]:
            delayed = sorted(offset for offset in portion.delays if start <= offset < end)
            for offset in delayed:
                if offset > start:
                    queue.give_back(start, offset, now)
                queue.give_back(offset, offset + 1, now + portion.delays[offset])
                start = offset + 1
            if start < end:
                queue.give_back(start, end, now)

    def _freed(self, partition: Partition, now: float) -> None:
        portion = self.portions.pop(partition.number)
        self._return(portion, now)
        if (queue := self._queues.get(portion.base.number)) is not None:
            queue.out -= 1
        for member in self.members.values():
            member.seen.pop(portion.number, None)
        self._reassign_at = min(self._reassign_at, now)

    # -- handing out

    def _reassign(self, now: float) -> None:
        if self._must_wait(now):
            return
        slots = self._group.slots()
        for portion in list(self.portions.values()):
            if portion.status in HELD and not self._is_rightly_held(portion, slots.values()):
                self._revoke(portion, now)
        self._begin_anew()
        for partition in self.partitions.values():
            self._judge(partition)
        if self.declaration.wish is Wish.PAUSED or self._is_retiring:
            return
        self._hand_out_all(list(slots.values()), now)

    def _is_rightly_held(self, portion: QueuePortion, members: Collection[ConnectedMember]) -> bool:
        return (
            any(member.id == portion.owner for member in members)
            and portion.generation == self.declaration.generation
            and self.declaration.wish is not Wish.PAUSED
            and not self._is_retiring
        )

    def _begin_anew(self) -> None:
        """After a seek: at the new position, as soon as no member has anything from before."""
        for partition in self.partitions.values():
            if partition.generation != self.declaration.generation and not self._of(partition):
                partition.reset(self.declaration.generation, self.declaration.position_of(partition.number))
                partition.expire()
                self._queues[partition.number] = ShardQueue(partition)

    def _loads(self) -> dict[str, int]:
        """Borrower -> portions that it has."""
        loads = dict.fromkeys(self.members, 0)
        for portion in self.portions.values():
            if portion.status is not GrantStatus.REVOKED and portion.owner:
                loads[portion.owner] += 1
        return loads

    def _has_room(self) -> bool:
        loads = self._loads()
        return any(loads[member.id] < member.portions_max for member in self._group.slots().values())

    def _hand_out_all(self, members: Sequence[ConnectedMember], now: float) -> None:
        """Portion by portion, to the member that has the least, as long as there is work and room."""
        loads, waiting = self._loads(), self._waiting(now)
        slots = sum(member.portions_max for member in members)
        heap = [(loads[member.id] / member.portions_max, member.served, member.joined, member) for member in members]
        heapq.heapify(heap)
        while heap and heap[0][0] < 1.0:
            member = heap[0][-1]
            wanted = int(member.rate * 2 * PORTION_S / member.portions_max)
            size = max(1, min(wanted, member.offsets_max or OFFSETS_MAX, OFFSETS_MAX, waiting // (2 * slots)))
            given = self._hand_out(member, size, now)
            if not given and self._has_suspect(member):
                heapq.heappop(heap)  # it has to finish that first; others may go on
                continue
            if not given:
                self._steal(members, loads, now)
                return
            waiting -= given
            loads[member.id] += 1
            heapq.heapreplace(heap, (loads[member.id] / member.portions_max, member.served, member.joined, member))

    def _hand_out(self, member: ConnectedMember, size: int, now: float) -> int:
        """Give a portion of about that size to a member.  Returns its offsets; 0 when there is none."""
        may_be_suspect = not self._has_suspect(member)
        for queue in self._in_turn():
            partition = queue.base
            is_full = queue.out + len(queue.returned) >= UNSETTLED_MAX and queue.next_due() > now
            if is_full or partition.generation != self.declaration.generation:
                continue
            found: tuple[int, int, int] | None
            probed = queue.probe(self._held(partition), now) if queue.damaged and may_be_suspect else None
            if probed is not None:
                _, count = redelivery.piece(partition.suspects, probed, self._settings.attempts_max)
                found = probed, probed + 1, count
            else:
                found = queue.take(
                    self._limit_of(partition), size, now, self._settings.attempts_max, may_be_suspect=may_be_suspect
                )
            if found is not None:
                queue.out += 1
                portion = self._grant_portion(member, partition, *found, now)
                portion.is_probe = probed is not None
                return found[1] - found[0]
        return 0

    def _in_turn(self) -> Iterator[ShardQueue]:
        numbers = sorted(self._queues)
        self._turn += 1
        for place in range(len(numbers)):
            yield self._queues[numbers[(place + self._turn) % len(numbers)]]

    def _grant_portion(
        self, member: ConnectedMember, partition: Partition, start: int, until: int, count: int, now: float
    ) -> QueuePortion:
        self._serial += 1
        member.served = self._serial
        portion = QueuePortion(portion_number(self._serial, partition.number), partition, start, until)
        portion.attempts = {offset: tried for offset, tried in partition.attempts.items() if start <= offset < until}
        portion.count_alone(start, until, count)
        portion.is_suspect = count > 0
        portion.move(GrantCause.GRANT)
        portion.owner = member.id
        portion.grant = self._new_grant()
        portion.granted_at = now
        portion.untold, partition.untold = partition.untold, 0
        self.portions[portion.number] = portion
        is_watched = bool(partition.suspects)
        open_lease = Lease(member.id, 0, -1)
        if is_watched and not any(one.lease == open_lease for one in self._of(partition)):
            partition.leases.discard(open_lease)
        portion.take_lease(Lease(member.id, start, until) if is_watched else open_lease)
        self.counters["portions"] += 1
        if not portion.is_waiting:
            self._say_status(portion, now)
        return portion

    def _steal(self, members: Sequence[ConnectedMember], loads: Mapping[str, int], now: float) -> None:
        """Nothing is left to hand out: for each member that has nothing, take back what another one has not begun.

        The leader does not know which of its portions a member has begun.  One that does not come back at once has
        been, and then the next one is asked for.
        """
        asked = [portion for portion in self.portions.values() if portion.status is GrantStatus.REVOKING]
        idle = sum(not loads[member.id] for member in members)
        idle -= sum(now - portion.revoked_at < STEAL_S for portion in asked)
        found = sorted(
            (portion for portion in self.portions.values() if self._is_divisible(portion, loads)),
            key=lambda portion: -portion.number,
        )
        for portion in found[: max(0, idle)]:
            if portion.status is GrantStatus.GRANTED and now - portion.granted_at >= STEAL_S:
                self.counters["stolen"] += 1
                self._revoke(portion, now)
        if found and any(not loads[member.id] for member in members):
            self._reassign_at = min(self._reassign_at, now + STEAL_S)

    def _is_divisible(self, portion: QueuePortion, loads: Mapping[str, int]) -> bool:
        """Whether it may be that its owner has not begun with all of it."""
        if portion.status not in HELD:
            return False
        return loads[portion.owner] > 1 or sum(end - start for start, end in portion.undone()) > 1
