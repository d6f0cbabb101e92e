"""The election in virtual time: skewed clocks, slow and lost calls, processes that stand still.  Never two leaders."""

from __future__ import annotations

import copy
import heapq
import itertools
import random
from collections.abc import Callable
from typing import Any

import pytest

from nb_api.core.election import HOLDER_PART, RENEWALS_PER_LEASE, DatabaseCall, ElectionCore

LEASE_S = 10.0


class Store:
    """One object with compare-and-set, as a database keeps it."""

    def __init__(self, chance: random.Random | None = None) -> None:
        """With ``chance`` a version is never given twice, as in `nb_api.revisions`."""
        self.version: int | None = None
        self.value: Any = None
        self.deleted_version: int | None = None
        self._chance = chance
        self._revisions = itertools.count(1)

    def lose(self) -> None:
        """Everything, and begin with the lowest versions again."""
        self.version = self.value = self.deleted_version = None
        self._revisions = itertools.count(1)

    def backup(self) -> Store:
        return copy.deepcopy(self)

    def restore(self, backup: Store) -> None:
        vars(self).update(vars(copy.deepcopy(backup)) | {"_chance": self._chance})

    def do(self, call: DatabaseCall) -> int | None:
        """The new version, None for a refusal."""
        exists = self.version is not None
        is_allowed = not exists if call.kind == "create" else exists and call.expected_version == self.version
        if not is_allowed:
            return None
        revision = next(self._revisions)
        if self._chance is not None:
            revision = (revision << 20) + self._chance.randrange(1 << 20)
        self.version, self.value = (None, None) if call.kind == "delete" else (revision, call.value)
        self.deleted_version = revision if call.kind == "delete" else None
        return revision


def answer(core: ElectionCore, store: Store, call: DatabaseCall, now: float) -> None:
    """Carry out a call at once and tell the core."""
    if call.kind == "look":
        core.found(store.version, store.value, now, store.deleted_version)
    elif (version := store.do(call)) is not None:
        core.written(version, now)
    else:
        core.refused(now)


def run(core: ElectionCore, store: Store, start: float, end: float) -> None:
    """All calls of one candidate, answered at once, from ``start`` to ``end`` on its clock."""
    now = start
    while now <= end and not core.is_gone:
        if call := core.next_call(now):
            answer(core, store, call, now)
        else:
            now = max(core.due(now), now + 0.001)


def candidate(name: str) -> ElectionCore:
    return ElectionCore(name, name, LEASE_S)


def test_a_lease_of_the_same_place_is_that_of_a_former_life_and_taken_over_at_once() -> None:
    store = Store()
    killed = ElectionCore("a", "first life", LEASE_S, place="lock-1")
    run(killed, store, 0, 1)
    assert killed.is_leader(1)
    second = ElectionCore("a", "second life", LEASE_S, place="lock-1")
    run(second, store, 1, 1.001)
    assert second.is_leader(1.001)
    assert second.token(1.001) != killed.token(1)


@pytest.mark.parametrize("place", ["", "lock-2"])
def test_a_lease_of_another_place_is_waited_for(place: str) -> None:
    store = Store()
    run(ElectionCore("a", "first life", LEASE_S, place=place), store, 0, 1)
    other = ElectionCore("a", "clone", LEASE_S, place="lock-1" if place else "")
    run(other, store, 1, 1 + LEASE_S / 2)
    assert not other.is_leader(1 + LEASE_S / 2)


class TestOneCandidate:
    def test_it_leads_and_goes_on_leading(self) -> None:
        core, store = candidate("a"), Store()
        run(core, store, 0, 100)
        assert core.is_leader(100)
        assert core.leader == "a"
        assert core.token(100) == 1
        assert store.version is not None
        assert store.version >= 100 / LEASE_S * RENEWALS_PER_LEASE - 2

    def test_it_does_not_lead_before_it_is_told_so(self) -> None:
        core = candidate("a")
        assert not core.is_leader(0)
        assert core.next_call(0) == DatabaseCall("look")
        assert core.next_call(0) is None
        core.found(None, None, 0)
        call = core.next_call(0)
        assert call is not None
        assert call.kind == "create"
        assert not core.is_leader(0)

    def test_its_lease_counts_from_before_the_call(self) -> None:
        core = candidate("a")
        core.next_call(0)
        core.found(None, None, 0)
        core.next_call(1)
        core.written(7, 5)
        assert core.is_leader(1 + HOLDER_PART * LEASE_S - 0.01)
        assert not core.is_leader(1 + HOLDER_PART * LEASE_S)

    def test_an_answer_that_comes_after_the_lease_gives_nothing(self) -> None:
        core, store = candidate("a"), Store()
        core.next_call(0)
        core.found(None, None, 0)
        call = core.next_call(0)
        assert call is not None
        version = store.do(call)
        assert version is not None
        core.written(version, LEASE_S)
        assert not core.is_leader(LEASE_S)
        run(core, store, LEASE_S, LEASE_S + 1)  # but it is still ours, so it can be won at once
        assert core.token(LEASE_S + 1) == version + 1

    def test_without_renewal_it_stops_to_lead(self) -> None:
        core, store = candidate("a"), Store()
        run(core, store, 0, 1)
        now = 1.0
        while now < 2 * LEASE_S:
            if core.next_call(now):
                core.failed(now)
            now += 0.1
        assert not core.is_leader(now)
        assert core.token(now) is None
        run(core, store, now, now + 1)
        assert core.token(now + 1) == store.version != 1

    def test_a_renewal_whose_answer_was_lost_is_recognised(self) -> None:
        core, store = candidate("a"), Store()
        run(core, store, 0, 1)
        begun = core.due(1)
        call = core.next_call(begun)
        assert call is not None
        store.do(call)
        core.failed(begun + 1)
        run(core, store, begun + 1, begun + 2)
        assert core.token(begun + 2) == 1
        assert core.is_leader(begun + HOLDER_PART * LEASE_S - 0.01)

    def test_a_lease_that_was_taken_away_ends_at_the_next_renewal(self) -> None:
        core, store = candidate("a"), Store()
        run(core, store, 0, 1)
        assert store.do(DatabaseCall("set", value={"holder": "admin", "mark": "x"}, expected_version=store.version))
        run(core, store, 1, LEASE_S / 2)
        assert not core.is_leader(LEASE_S / 2)
        assert core.leader == "admin"

    def test_a_renewal_that_is_refused_ends_the_lead_at_once(self) -> None:
        core, store = candidate("a"), Store()
        run(core, store, 0, 1)
        now = core.due(1)
        call = core.next_call(now)
        assert call is not None
        assert call.kind == "set"
        core.refused(now)
        assert not core.is_leader(now)

    def test_an_attempt_that_is_carried_out_after_a_later_one_began_counts_from_when_it_began(self) -> None:
        core, store = candidate("a"), Store()
        run(core, store, 0, 0)
        late: list[tuple[float, DatabaseCall]] = []
        now = 0.0
        while len(late) < 2:
            now = core.due(now)
            call = core.next_call(now)
            assert call is not None
            if call.kind == "look":
                answer(core, store, call, now)
            else:
                late.append((now, call))
                core.failed(now)
        begun, first = late[0]
        assert store.do(first) is not None
        now = core.due(now)
        call = core.next_call(now)
        assert call == DatabaseCall("look")
        answer(core, store, call, now)
        assert core.lead_ends(now) == begun + HOLDER_PART * LEASE_S

    def test_a_lease_of_its_own_from_an_attempt_that_it_has_forgotten_must_be_won_again(self) -> None:
        core, store = candidate("a"), Store()
        run(core, store, 0, 0)
        now, forgotten = 0.0, 2  # the first that is not answered
        for _ in range(40):
            now = core.due(now)
            if (call := core.next_call(now)) == DatabaseCall("look"):
                core.found(store.version, store.value, now)
            else:
                core.failed(now)
        while core.next_call(now) != DatabaseCall("look"):
            core.failed(now)
            now = core.due(now)
        core.found(77, {**store.value, "attempt": forgotten}, now)
        assert not core.is_leader(now)
        call = core.next_call(now)
        assert call is not None
        assert (call.kind, call.expected_version) == ("set", 77)

    def test_a_lease_that_was_deleted_is_won_again(self) -> None:
        core, store = candidate("a"), Store()
        run(core, store, 0, 1)
        assert store.do(DatabaseCall("delete", expected_version=store.version))
        run(core, store, 1, LEASE_S)
        assert core.token(LEASE_S) not in (None, 1)

    @pytest.mark.parametrize("value", [None, 7, "x", {}, {"mark": None}, {"holder": 1, "mark": [], "attempt": "x"}])
    def test_nonsense_in_the_lease_is_somebody_elses(self, value: Any) -> None:
        core, store = candidate("a"), Store()
        store.do(DatabaseCall("create", value=value))
        run(core, store, 0, LEASE_S - 0.1)
        assert not core.is_leader(LEASE_S - 0.1)
        run(core, store, LEASE_S - 0.1, 2 * LEASE_S)
        assert core.is_leader(2 * LEASE_S)


class TestTwoCandidates:
    def test_the_second_waits_for_a_whole_lease_without_progress(self) -> None:
        first, second, store = candidate("a"), candidate("b"), Store()
        run(first, store, 0, 1)
        seen = 500.0  # its clock shows something else
        run(second, store, seen, seen + LEASE_S - 0.1)
        assert not second.is_leader(seen + LEASE_S - 0.1)
        assert second.leader == "a"
        run(second, store, seen + LEASE_S - 0.1, seen + 2 * LEASE_S)
        assert second.is_leader(seen + 2 * LEASE_S)

    def test_progress_is_respected_for_ever(self) -> None:
        first, second, store = candidate("a"), candidate("b"), Store()
        for turn in range(100):
            run(first, store, turn, turn + 1)
            run(second, store, turn, turn + 1)
        assert first.token(100) == 1
        assert not second.is_leader(100)

    @pytest.mark.parametrize("own_s", [LEASE_S, 8 * LEASE_S])
    def test_a_leader_is_judged_by_the_longer_lease_of_the_two(self, own_s: float) -> None:
        """A rolling change of the option gives two candidates different leases."""
        first, second, store = ElectionCore("a", "a", 8 * LEASE_S), ElectionCore("b", "b", own_s), Store()
        run(first, store, 0, 0)
        now = 0.0
        while first.is_leader(now):
            run(second, store, now, now + 1)
            assert not second.is_leader(now + 1) or not first.is_leader(now + 1)
            now += 1
        assert now == pytest.approx(HOLDER_PART * 8 * LEASE_S, abs=1)
        run(second, store, now, 10 * LEASE_S)
        assert second.is_leader(10 * LEASE_S)

    def test_a_short_lease_is_not_cut_short_by_a_candidate_with_a_shorter_one(self) -> None:
        first, second, store = candidate("a"), ElectionCore("b", "b", LEASE_S / 8), Store()
        for turn in range(100):
            run(first, store, turn, turn + 1)
            run(second, store, turn, turn + 1)
        assert first.token(100) == 1

    @pytest.mark.parametrize("stated", [None, "x", [], -1, float("nan"), 1e9])
    def test_a_lease_that_no_candidate_can_have_is_not_waited_for(self, stated: Any) -> None:
        core, store = candidate("a"), Store()
        store.do(DatabaseCall("create", value={"holder": "z", "mark": "z", "attempt": 1, "lease": stated}))
        run(core, store, 0, 2 * LEASE_S)
        assert core.is_leader(2 * LEASE_S)

    def test_who_resigns_is_followed_at_once(self) -> None:
        first, second, store = candidate("a"), candidate("b"), Store()
        run(first, store, 0, 1)
        run(second, store, 0, 1)
        first.resign()
        assert not first.is_leader(1)
        run(first, store, 1, 2)
        assert first.is_gone
        assert store.version is None
        run(second, store, 2, 2 + LEASE_S / RENEWALS_PER_LEASE)
        assert second.is_leader(2 + LEASE_S / RENEWALS_PER_LEASE)

    def test_who_resigns_without_leading_leaves_the_leader_alone(self) -> None:
        first, second, store = candidate("a"), candidate("b"), Store()
        run(first, store, 0, 1)
        run(second, store, 0, 1)
        second.resign()
        run(second, store, 1, 2)
        assert second.is_gone
        assert store.version == 1

    @pytest.mark.parametrize("is_carried_out", [True, False])
    def test_resigning_while_a_renewal_is_under_way(self, is_carried_out: bool) -> None:
        core, store = candidate("a"), Store()
        run(core, store, 0, 1)
        now = core.due(1)
        call = core.next_call(now)
        assert call is not None
        core.resign()
        if is_carried_out:
            answer(core, store, call, now)
        else:
            store.do(call)
            core.failed(now)
        run(core, store, now, now + LEASE_S)
        assert core.is_gone
        assert store.version is None


class TestAHistoryThatIsLost:
    """The store is put back to a backup, or has lost everything, while a candidate leads."""

    def test_a_lease_that_vanished_is_waited_for(self) -> None:
        first, second, store = candidate("a"), candidate("b"), Store()
        run(first, store, 0, 20)
        run(second, store, 20, 20.1)
        store.lose()
        run(second, store, 20.1, 20 + LEASE_S)
        assert first.is_leader(20.1)
        assert not second.is_leader(20 + LEASE_S)
        run(second, store, 20 + LEASE_S, 20 + 2 * LEASE_S)
        assert second.is_leader(20 + 2 * LEASE_S)

    def test_a_lease_that_was_given_back_is_not(self) -> None:
        first, second, store = candidate("a"), candidate("b"), Store()
        run(first, store, 0, 1)
        run(second, store, 1, 1.1)
        first.resign()
        run(first, store, 1.2, 1.3)
        run(second, store, 1.4, 1.4 + LEASE_S / RENEWALS_PER_LEASE)
        assert second.is_leader(1.4 + LEASE_S / RENEWALS_PER_LEASE)

    def test_a_lease_that_was_gained_after_another_is_not_one_of_the_past(self) -> None:
        first, second, store = candidate("a"), candidate("b"), Store()
        run(first, store, 0, 1)
        run(second, store, 1, 1.1)
        first.resign()
        run(first, store, 1.2, 1.3)
        while (call := second.next_call(4)) is not None and call.kind == "look":
            answer(second, store, call, 4)
        assert call is not None
        store.do(call)
        second.failed(4)  # and the process stands still for longer than the lease
        run(second, store, 20, 20.001)
        assert second.is_leader(20.001)

    @pytest.mark.parametrize("is_own", [True, False])
    def test_a_lease_of_the_past_is_waited_for(self, is_own: bool) -> None:
        first, second, store = candidate("a"), candidate("b"), Store()
        run(first, store, 0, 10)
        past = store.backup()
        run(second, store, 10, 30)
        assert second.is_leader(30)
        run(first, store, 30, 30.1)
        store.restore(past)
        third = first if is_own else candidate("c")
        run(third, store, 30.2, 30 + LEASE_S)
        assert second.is_leader(30.2)
        assert not third.is_leader(30 + LEASE_S)
        run(third, store, 30 + LEASE_S, 31 + 2 * LEASE_S)
        assert third.is_leader(31 + 2 * LEASE_S)

    def test_tokens_go_on_rising(self) -> None:
        first, second, store = candidate("a"), candidate("b"), Store(random.Random(1))
        run(first, store, 0, 200)
        run(second, store, 200, 240)
        before = second.token(240)
        store.lose()
        run(first, store, 240, 270)
        again = first.token(270)
        assert before is not None
        assert again is not None
        assert again > before
        newcomer = candidate("c")
        run(newcomer, store, 270, 270 + 2 * LEASE_S)
        later = newcomer.token(270 + 2 * LEASE_S)
        assert later is not None
        assert later > again
        assert first.token(270) == again


class Node:
    """A candidate with a clock of its own, in a process that can stand still."""

    def __init__(self, name: str, chance: random.Random) -> None:
        self.core = candidate(name)
        self.offset = chance.uniform(0, 1e6)
        self.speed = chance.uniform(0.96, 1.04)
        self.stands_until = 0.0

    def clock(self, time: float) -> float:
        return self.offset + self.speed * time


class World:
    """True time, one store, and everything that can go wrong on the way to it."""

    def __init__(self, seed: int, nodes: int) -> None:
        self.chance = random.Random(seed)
        self.store = Store(random.Random(seed))
        self.nodes = [Node(f"n{number}", self.chance) for number in range(nodes)]
        self.time = 0.0
        self.trouble = 1.0
        self.tokens: list[int] = []
        self.are_tokens_known = True
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        for node in self.nodes:
            self.at(0, lambda node=node: self.wake(node))  # type: ignore[misc]

    def at(self, time: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._events, (time, next(self._numbers), action))

    def run(self, end: float) -> None:
        while self._events and self._events[0][0] <= end:
            time, _, action = heapq.heappop(self._events)
            self._check_until(time)
            action()
            self._check_until(time)
        self._check_until(end)

    def leaders(self) -> list[Node]:
        return [node for node in self.nodes if node.core.is_leader(node.clock(self.time))]

    def wake(self, node: Node) -> None:
        if self.time < node.stands_until:
            self.at(node.stands_until, lambda: self.wake(node))
            return
        now = node.clock(self.time)
        call = node.core.next_call(now)
        if call is not None:
            self._send(node, call)
        elif not node.core.is_gone:
            pause = max(0.0, node.core.due(now) - now) / node.speed
            self.at(self.time + max(pause, 0.01), lambda: self.wake(node))

    def _send(self, node: Node, call: DatabaseCall) -> None:
        there, back = (self._delay() for _ in range(2))
        is_lost, is_unanswered = (self.chance.random() < 0.1 * self.trouble for _ in range(2))

        def arrive() -> None:
            if is_lost:
                outcome: Callable[[float], None] = node.core.failed
            elif call.kind == "look":
                found = self.store.version, self.store.value, self.store.deleted_version
                outcome = lambda now: node.core.found(*found[:2], now, found[2])  # noqa: E731
            else:
                done = self.store.do(call)
                outcome = node.core.refused if done is None else (lambda now: node.core.written(done, now))
            self.at(self.time + back, lambda: self._return(node, node.core.failed if is_unanswered else outcome))

        self.at(self.time + there, arrive)

    def _return(self, node: Node, outcome: Callable[[float], None]) -> None:
        if self.time < node.stands_until:
            self.at(node.stands_until, lambda: self._return(node, outcome))
            return
        if self.chance.random() < 0.05 * self.trouble:
            node.stands_until = self.time + self.chance.uniform(0, 3 * LEASE_S)
        outcome(node.clock(self.time))
        self.wake(node)

    def _delay(self) -> float:
        slow = self.chance.random() < 0.1 * self.trouble
        return self.chance.uniform(0, 1.5 * LEASE_S) if slow else self.chance.uniform(0, 0.05)

    def _check_until(self, time: float) -> None:
        """Between two events only clocks change, so leads can only end."""
        self.time = max(self.time, time)
        leading = self.leaders()
        assert len(leading) <= 1, f"{len(leading)} leaders at {self.time}"
        for node in leading:
            token = node.core.token(node.clock(self.time))
            assert token is not None
            if not self.tokens or self.tokens[-1] != token:
                is_higher = not self.tokens or token > self.tokens[-1]
                assert is_higher or not self.are_tokens_known, f"token {token} after {self.tokens[-1]}"
                self.tokens.append(token)


@pytest.mark.parametrize(
    "seed", [*range(20), *(pytest.param(seed, marks=pytest.mark.chaos) for seed in range(20, 200))]
)
def test_there_are_never_two_leaders_and_in_the_end_there_is_one(seed: int) -> None:
    world = World(seed, nodes=2 + seed % 4)
    world.run(600)
    assert world.tokens, "nobody ever led"
    world.trouble = 0.0
    world.run(600 + 8 * LEASE_S)
    assert len(world.leaders()) == 1
    settled = world.tokens[-1]
    world.run(1200)
    assert world.tokens[-1] == settled, "a leader without trouble was replaced"


@pytest.mark.parametrize("seed", [*range(8), *(pytest.param(seed, marks=pytest.mark.chaos) for seed in range(8, 200))])
def test_there_are_never_two_leaders_when_a_backup_is_put_back(seed: int) -> None:
    world = World(seed, nodes=2 + seed % 4)
    backups = [Store()]
    for number in range(1, 60):
        world.at(10 * number - 0.5, lambda: backups.append(world.store.backup()))
        if number % 6 == 0:
            world.at(10 * number, lambda: world.store.restore(world.chance.choice(backups[-18:-6] + backups[:1])))
    world.are_tokens_known = False  # a process that stood still does not know which tokens there were
    world.run(640)
    world.trouble = 0.0
    world.run(640 + 8 * LEASE_S)
    assert len(world.leaders()) == 1


def test_the_simulation_has_teeth() -> None:
    """With a lease that the holder counts from the answer, and longer than the others do, there are two leaders."""

    class Careless(ElectionCore):
        def is_leader(self, now: float) -> bool:
            return super().is_leader(now - LEASE_S)

    def has_two(seed: int) -> bool:
        world = World(seed, nodes=3)
        for node in world.nodes:
            node.core = Careless(str(node), str(node), LEASE_S)
        try:
            world.run(600)
        except AssertionError:
            return True
        return False

    assert any(has_two(seed) for seed in range(10))
