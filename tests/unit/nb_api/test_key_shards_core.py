"""Shards of keys in virtual time: crashes, processes that stand still, clocks that differ, calls that are lost or late.

Never two processes that may begin a run in one shard, never two runs in one shard that both had it all the time, and
every shard is held soon when a process lives.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from nb_api.core.election import HOLDER_PART, DatabaseCall
from nb_api.core.key_shards import KeyShardsCore, ShardRecord, ShardRun, shard_of, share_of

LEASE_S = 10.0
COUNT = 6


class Store:
    """Records with compare-and-set, as a database keeps them."""

    def __init__(self) -> None:
        self.records: dict[str, ShardRecord] = {}
        self._revisions = itertools.count(1)

    def do(self, call: DatabaseCall) -> int | None:
        """The new version, None for a refusal."""
        found = self.records.get(call.key)
        is_allowed = found is None if call.kind == "create" else found and found.version == call.expected_version
        if not is_allowed:
            return None
        revision = next(self._revisions)
        if call.kind == "delete":
            del self.records[call.key]
        else:
            self.records[call.key] = ShardRecord(revision, call.value)
        return revision


def answer(core: KeyShardsCore, store: Store, call: DatabaseCall, now: float) -> None:
    """Carry out a call at once and tell the core."""
    if call.kind == "look":
        core.found(dict(store.records), now)
    elif (version := store.do(call)) is not None:
        core.written(version, now)
    else:
        core.refused(now)


def run(store: Store, start: float, end: float, *cores: KeyShardsCore) -> None:
    """All calls of some processes, answered at once."""
    now = start
    while now <= end:
        for core in cores:
            while call := core.next_call(now):
                answer(core, store, call, now)
        now = min((max(core.due(now), now + 0.001) for core in cores if not core.is_gone), default=end + 1)


def process(name: str, count: int = COUNT) -> KeyShardsCore:
    return KeyShardsCore(name, name, count, LEASE_S)


def begun(core: KeyShardsCore, shard: int, now: float) -> ShardRun:
    made = core.begin_run(shard, now)
    assert made is not None
    return made


def test_a_key_is_in_the_same_shard_everywhere() -> None:
    assert [shard_of("port", f"p{number}", 16) for number in range(6)] == [4, 2, 8, 14, 13, 11]
    assert shard_of("port", "zürich", 1024) == shard_of("port", "zürich", 1024)
    assert len({shard_of("port", f"p{number}", 16) for number in range(200)}) == 16


def test_those_who_hold_most_keep_the_larger_share() -> None:
    held = {"a": 1, "b": 3, "c": 0}
    assert {mark: share_of(mark, held, 4) for mark in held} == {"a": 1, "b": 2, "c": 1}
    assert share_of("stranger", held, 4) == 0


class TestOneProcess:
    def test_it_holds_every_shard_and_keeps_it(self) -> None:
        core, store = process("a"), Store()
        run(store, 0, 100, core)
        tokens = core.tokens()
        assert sorted(tokens) == list(range(COUNT))
        assert core.is_lasting(100)
        run(store, 100, 200, core)
        assert core.tokens() == tokens
        assert core.counters.lapses == core.counters.losses == 0

    def test_nothing_begins_before_a_claim_is_known_to_be_written(self) -> None:
        core, store = process("a"), Store()
        while not core.tokens():
            assert core.begin_run(0, 0) is None
            call = core.next_call(0)
            assert call is not None
            answer(core, store, call, 0)

    def test_a_process_that_stood_still_notices_before_it_begins_a_run(self) -> None:
        core, store = process("a"), Store()
        run(store, 0, 1, core)
        going_on = begun(core, 0, 1)
        late = 1 + 2 * LEASE_S
        assert core.begin_run(1, late) is None
        assert not core.is_held(going_on, late)
        assert core.counters.lapses == 1
        run(store, late, late + 1, core)  # nobody has ended it: it has all its shards still
        assert core.is_held(going_on, late + 1)
        assert core.begin_run(1, late + 1) is not None
        assert not core.end_run(going_on, late + 1)  # but it was not so all the time
        assert core.counters.lapses == 1
        assert core.counters.losses == 0

    def test_the_lease_counts_from_before_the_call(self) -> None:
        core, store = process("a"), Store()
        run(store, 0, 0, core)
        now, call = 0.0, None
        while call is None or call.kind != "set":
            if call is not None:
                answer(core, store, call, now)
            now = core.due(now)
            call = core.next_call(now)
        version = store.do(call)
        assert version is not None
        core.written(version, now + 5)
        assert core.is_lasting(now + HOLDER_PART * LEASE_S - 0.01)
        assert not core.is_lasting(now + HOLDER_PART * LEASE_S)

    @pytest.mark.parametrize("is_carried_out", [True, False])
    def test_every_answer_may_be_lost(self, is_carried_out: bool) -> None:
        core, store, now = process("a"), Store(), 0.0
        lost: Counter[str] = Counter()
        while now < LEASE_S:
            call = core.next_call(now)
            if call is None:
                now = max(core.due(now), now + 0.001)
            elif call.kind != "look" and not lost[call.key]:
                lost[call.key] += 1
                if is_carried_out:
                    store.do(call)
                core.failed(now)
            else:
                answer(core, store, call, now)
        assert len(core.tokens()) == COUNT
        assert {shard: store.records[f"{COUNT}/{shard}"].version for shard in range(COUNT)} == core.tokens()

    @pytest.mark.parametrize("value", [None, 7, {}, {"mark": []}, {"count": "x", "since": "y", "attempt": []}])
    def test_nonsense_among_the_records_is_ended_and_taken_over(self, value: Any) -> None:
        core, store = process("a"), Store()
        store.do(DatabaseCall("create", "member/x", value))
        store.do(DatabaseCall("create", f"{COUNT}/0", value))
        store.do(DatabaseCall("create", "99/0", value))
        run(store, 0, 3 * LEASE_S, core)
        assert len(core.tokens()) == COUNT
        assert len(store.records) == COUNT + 1


class TestSeveralProcesses:
    def test_a_second_one_gets_its_share_when_the_runs_there_have_ended(self) -> None:
        first, second, store = process("a"), process("b"), Store()
        run(store, 0, 1, first)
        runs = [begun(first, shard, 1) for shard in range(COUNT)]
        run(store, 1, LEASE_S, first, second)
        assert second.tokens() == {}
        ending = [one for one in runs if first.is_foreign(one.shard)]
        assert len(ending) == COUNT // 2
        assert all(first.begin_run(one.shard, LEASE_S) is None for one in ending)
        assert all(first.is_held(one, LEASE_S) for one in ending)
        assert all(first.end_run(one, LEASE_S) for one in ending)
        run(store, LEASE_S, 2 * LEASE_S, first, second)
        assert sorted(second.tokens()) == sorted(one.shard for one in ending)
        assert all(second.tokens()[one.shard] > one.token for one in ending)
        assert first.counters.releases == COUNT // 2

    def test_the_shards_of_one_that_was_killed_are_taken_over_after_its_lease(self) -> None:
        killed, other, store = process("a"), process("b"), Store()
        run(store, 0, LEASE_S, killed, other)
        run(store, LEASE_S, 2 * LEASE_S - 0.1, other)
        assert len(other.tokens()) == COUNT // 2
        run(store, 2 * LEASE_S - 0.1, 3 * LEASE_S, other)
        assert len(other.tokens()) == COUNT
        assert other.counters.ended == 1

    def test_one_that_was_ended_begins_another_life_without_shards(self) -> None:
        frozen, other, store = process("a"), process("b"), Store()
        run(store, 0, LEASE_S, frozen, other)
        shard = min(frozen.tokens())
        going_on = begun(frozen, shard, LEASE_S)
        run(store, LEASE_S, 3 * LEASE_S, other)
        assert frozen.begin_run(shard, 3 * LEASE_S) is None
        run(store, 3 * LEASE_S, 5 * LEASE_S, frozen, other)
        assert frozen.counters.losses == COUNT // 2
        assert len(frozen.tokens()) == len(other.tokens()) == COUNT // 2
        assert not frozen.end_run(going_on, 5 * LEASE_S)

    def test_an_outage_that_stops_all_moves_nothing(self) -> None:
        first, second, store = process("a"), process("b"), Store()
        run(store, 0, LEASE_S, first, second)
        before = first.tokens(), second.tokens()
        run(store, 6 * LEASE_S, 8 * LEASE_S, second, first)
        assert (first.tokens(), second.tokens()) == before

    def test_each_is_judged_by_the_lease_that_it_counts_itself(self) -> None:
        """A rolling change of the option gives two processes different leases."""
        slow, quick, store = KeyShardsCore("a", "a", COUNT, 8 * LEASE_S), process("b"), Store()
        run(store, 0, 1, slow)
        for now in range(1, 200):
            run(store, now, now + 1, slow, quick)
            assert not slow.tokens().keys() & quick.tokens().keys()
        assert quick.counters.ended == slow.counters.ended == slow.counters.lapses == quick.counters.lapses == 0
        assert len(slow.tokens()) == len(quick.tokens()) == COUNT // 2
        run(store, 200, 200 + 10 * LEASE_S, quick)
        assert len(quick.tokens()) == COUNT

    def test_after_a_backup_was_put_back_no_token_is_lower_than_before(self) -> None:
        first, second, store = process("a"), process("b"), Store()
        run(store, 0, LEASE_S, first)
        backup = dict(store.records)
        run(store, LEASE_S, 2 * LEASE_S, first, second)
        assert len(second.tokens()) == COUNT // 2
        second.leave()
        run(store, 2 * LEASE_S, 3 * LEASE_S, first, second)
        before = first.tokens()
        store.records = dict(backup)
        run(store, 3 * LEASE_S, 6 * LEASE_S, first)
        assert len(first.tokens()) == COUNT
        assert [shard for shard, token in first.tokens().items() if token < before[shard]] == []

    def test_who_leaves_gives_up_each_shard_when_its_runs_have_ended(self) -> None:
        first, second, store = process("a"), process("b"), Store()
        run(store, 0, LEASE_S, first, second)
        shard = min(first.tokens())
        going_on = begun(first, shard, LEASE_S)
        first.leave()
        assert first.tokens() == {}
        run(store, LEASE_S, 2 * LEASE_S, first, second)
        assert not first.is_gone
        assert sorted(second.tokens()) == sorted(set(range(COUNT)) - {shard})
        assert first.end_run(going_on, 2 * LEASE_S)
        run(store, 2 * LEASE_S, 3 * LEASE_S, first, second)
        assert first.is_gone
        assert len(second.tokens()) == COUNT

    def test_one_with_another_count_waits_until_the_others_have_left(self) -> None:
        first, second, store = process("a"), process("b", count=COUNT + 1), Store()
        run(store, 0, LEASE_S, second)
        run(store, LEASE_S, 3 * LEASE_S, first, second)
        assert first.is_deferring
        assert first.tokens() == {}
        assert len(second.tokens()) == COUNT + 1
        second.leave()
        run(store, 3 * LEASE_S, 5 * LEASE_S, first, second)
        assert second.is_gone
        assert len(first.tokens()) == COUNT
        assert not first.is_deferring


class Node:
    """A process with a clock of its own, which can stand still, and that makes runs."""

    def __init__(self, name: str, chance: random.Random, count: int) -> None:
        self.core = process(name, count)
        self.offset = chance.uniform(0, 1e6)
        self.speed = chance.uniform(0.96, 1.04)
        self.stands_until = 0.0
        self.is_dead = False
        self.runs: list[ShardRun] = []

    def clock(self, time: float) -> float:
        return self.offset + self.speed * time


class World:
    """True time, one store, and everything that can go wrong."""

    def __init__(self, seed: int, *, counts: tuple[int, ...] = (COUNT,)) -> None:
        self.chance = random.Random(seed)
        self.counts = counts
        self.store = Store()
        self.nodes: list[Node] = []
        self.time = 0.0
        self.trouble = 1.0
        self.begun = 0
        self.tokens: dict[tuple[int, int], int] = {}
        """The newest token that was seen, of each count and shard."""
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._names = itertools.count()
        for _ in range(2 + seed % 3):
            self.start()

    def start(self) -> None:
        node = Node(f"n{next(self._names)}", self.chance, self.chance.choice(self.counts))
        self.nodes.append(node)
        self.at(self.time, lambda: self.wake(node))
        self.at(self.time, lambda: self.work(node))

    def at(self, time: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._events, (time, next(self._numbers), action))

    def run(self, end: float) -> None:
        while self._events and self._events[0][0] <= end:
            self.time, _, action = heapq.heappop(self._events)
            self._check()
            action()
            self._check()
        self.time = end
        self._check()

    def alive(self) -> list[Node]:
        return [node for node in self.nodes if not node.core.is_gone]

    def is_away(self, node: Node, again: Callable[[], None]) -> bool:
        if not node.is_dead and self.time < node.stands_until:
            self.at(node.stands_until, again)
        return node.is_dead or self.time < node.stands_until

    def wake(self, node: Node) -> None:
        if self.is_away(node, lambda: self.wake(node)):
            return
        now = node.clock(self.time)
        call = node.core.next_call(now)
        if call is not None:
            self._send(node, call)
        elif not node.core.is_gone:
            pause = min(max(0.0, node.core.due(now) - now) / node.speed, 1.0)  # a run may end meanwhile
            self.at(self.time + max(pause, 0.01), lambda: self.wake(node))

    def work(self, node: Node) -> None:
        """Begin a run somewhere, and end it later, perhaps much later."""
        if self.is_away(node, lambda: self.work(node)):
            return
        made = node.core.begin_run(self.chance.randrange(node.core.count), node.clock(self.time))
        if made is not None:
            self.begun += 1
            self._check_begin(node, made)
            node.runs.append(made)
            takes = self.chance.expovariate(0.2) if self.chance.random() < 0.4 else self.chance.uniform(0, 0.5)
            self.at(self.time + takes, lambda: self.finish(node, made))
        self._have_trouble(node)
        self.at(self.time + self.chance.uniform(0, 2), lambda: self.work(node))

    def finish(self, node: Node, made: ShardRun) -> None:
        if not self.is_away(node, lambda: self.finish(node, made)):
            node.runs.remove(made)
            node.core.end_run(made, node.clock(self.time))

    def _have_trouble(self, node: Node) -> None:
        fate = self.chance.random() / self.trouble if self.trouble else 1.0
        if fate < 0.01:
            node.stands_until = self.time + self.chance.uniform(0, 3 * LEASE_S)
        elif fate < 0.015:
            node.is_dead = True
            self.nodes.remove(node)
        elif fate < 0.02:
            node.core.leave()
        if fate < 0.02 and len(self.alive()) < 2 + self.chance.randrange(3):
            self.start()

    def _send(self, node: Node, call: DatabaseCall) -> None:
        there, back = (self._delay() for _ in range(2))
        is_lost, is_unanswered = (self.chance.random() < 0.05 * self.trouble for _ in range(2))
        core = node.core

        def arrive() -> None:
            if is_lost:
                outcome: Callable[[float], None] = core.failed
            elif call.kind == "look":
                records = dict(self.store.records)
                outcome = lambda now: core.found(records, now)  # noqa: E731
            else:
                done = self.store.do(call)
                outcome = core.refused if done is None else (lambda now: core.written(done, now))
            self.at(self.time + back, lambda: self._return(node, core.failed if is_unanswered else outcome))

        if is_lost or self.chance.random() >= 0.03 * self.trouble:
            self.at(self.time + there, arrive)
        else:  # given up by the process, and carried out much later
            self.at(self.time + there, lambda: self._return(node, core.failed))
            if call.kind != "look":
                self.at(self.time + self.chance.uniform(0, 3 * LEASE_S), lambda: self.store.do(call) and None)

    def _return(self, node: Node, outcome: Callable[[float], None]) -> None:
        if not self.is_away(node, lambda: self._return(node, outcome)):
            outcome(node.clock(self.time))
            self.wake(node)

    def _delay(self) -> float:
        slow = self.chance.random() < 0.05 * self.trouble
        return self.chance.uniform(0, 1.5 * LEASE_S) if slow else self.chance.uniform(0, 0.05)

    def _check_begin(self, node: Node, made: ShardRun) -> None:
        """Runs that still go on in that shard elsewhere are those of processes whose lease was over meanwhile."""
        for other in self.nodes:
            core, now = other.core, other.clock(self.time)
            if other is not node and core.count == node.core.count:
                is_lasting = core.is_lasting(now)
                assert not (is_lasting and made.shard in core.tokens()), f"begun elsewhere at {self.time}: {made}"
                for going_on in other.runs:
                    is_known = going_on.shard != made.shard or going_on.lapses < core.counters.lapses
                    assert is_known, f"{going_on} goes on, and {made} was begun at {self.time}"

    def _check(self) -> None:
        """Between two events only clocks change, so leases can only end."""
        holders: dict[tuple[int, int], str] = {}
        working: Counter[tuple[int, int]] = Counter()
        counts: set[int] = set()
        for number, node in enumerate(self.nodes):
            core, now = node.core, node.clock(self.time)
            if core.is_gone:
                continue
            if core.is_lasting(now):
                for shard, token in core.tokens().items():
                    where = (core.count, shard)
                    assert where not in holders, f"{where} is held by {number} and {holders[where]} at {self.time}"
                    holders[where] = str(number)
                    counts.add(core.count)
                    assert token >= self.tokens.get(where, 0), f"an old token of {where} at {self.time}"
                    self.tokens[where] = token
            lasting = {(core.count, one.shard) for one in node.runs if core.is_held(one, now)}
            working.update(lasting)
            counts.update({core.count for _ in lasting})
        assert max(working.values(), default=0) <= 1, f"two work in one shard at {self.time}: {working}"
        assert len(counts) <= 1, f"keys are in shards of {counts} at {self.time}"


@pytest.mark.parametrize("seed", [*range(6), *(pytest.param(seed, marks=pytest.mark.chaos) for seed in range(6, 100))])
def test_no_shard_has_two_holders_and_in_the_end_each_has_one(seed: int) -> None:
    world = World(seed, counts=(COUNT,) if seed % 4 else (COUNT, COUNT + 1))
    world.run(250)
    assert world.begun > 50, "hardly a run was begun"
    world.trouble = 0.0
    world.start()
    world.run(250 + 12 * LEASE_S)
    alive = world.alive()
    sizes = [len(node.core.tokens()) for node in alive if not node.core.is_deferring]
    assert sum(sizes) in world.counts, f"not every shard is held: {sizes}"
    assert max(sizes) - min(sizes) <= 1, f"not shared equally: {sizes}"
