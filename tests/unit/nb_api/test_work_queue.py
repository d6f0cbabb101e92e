"""Which key is worked on next: never two workers on one, nothing lost, nothing more often than is wanted."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from nb_api.controller.core.keys import Key, RequeueAfter, RetryPauses
from nb_api.controller.core.work_queue import INTERVAL_GROWTH_MAX, QueueSettings, WorkQueue
from pubsub_api.errors import UsageError

A, B, C = Key("port", "a"), Key("port", "b"), Key("port", "c")


def opened(*, jitter: float = 1.0, interval_min_s: float = 0.0, **arguments: Any) -> WorkQueue:
    queue = WorkQueue(QueueSettings(interval_min_s=interval_min_s, **arguments), jitter=lambda: jitter)
    queue.open()
    return queue


def taken(queue: WorkQueue, now: float) -> Key | None:
    found = queue.take(now)
    return None if found is None else found.key


def test_a_key_that_waits_is_not_added_again() -> None:
    queue = opened()
    for _ in range(1000):
        queue.add(A, 0.0)
    assert taken(queue, 1.0) == A
    queue.done(A, 2.0)
    assert taken(queue, 3.0) is None
    assert queue.counters.merged == 999
    assert queue.tidy(3.0) == 0


def test_changes_during_a_run_are_one_more_run() -> None:
    queue = opened()
    queue.add(A, 0.0)
    assert taken(queue, 0.0) == A
    for _ in range(5):
        queue.add(A, 1.0)
        assert taken(queue, 1.0) is None  # never two workers
    queue.done(A, 2.0)
    assert taken(queue, 2.0) == A
    queue.done(A, 3.0)
    assert taken(queue, 9.0) is None


def test_what_is_put_back_has_not_run_and_waits_until_it_is_resumed() -> None:
    queue = opened()
    queue.add(A, 0.0)
    assert taken(queue, 0.0) == A
    queue.put_back(A, 0.0)
    assert taken(queue, 100.0) is None
    assert not queue.is_idle
    assert queue.counters.runs == 0
    assert queue.resume(A, 100.0)
    assert taken(queue, 100.0) == A
    assert not queue.resume(A, 100.0)  # it has begun
    queue.add(A, 101.0)
    queue.put_back(A, 101.0)
    assert taken(queue, 101.0) == A  # wanted meanwhile
    queue.add(A, 102.0)
    queue.merge(A)
    queue.done(A, 102.0)
    assert taken(queue, 200.0) is None
    assert queue.counters.runs == 1
    assert not queue.resume(B, 200.0)


def test_a_change_cancels_a_later_time() -> None:
    queue = opened()
    queue.add_after(A, 10.0, 0.0)
    queue.add(A, 1.0)
    assert taken(queue, 1.0) == A
    queue.done(A, 1.0)
    assert taken(queue, 100.0) is None


def test_a_change_during_a_run_cancels_the_time_that_was_asked_for_then() -> None:
    queue = opened()
    queue.add(A, 0.0)
    assert taken(queue, 0.0) == A
    queue.add_after(A, 5.0, 0.0)
    queue.add(A, 1.0)
    queue.done(A, 1.0, again_after_s=5.0)
    assert taken(queue, 1.0) == A
    queue.done(A, 1.0)
    assert taken(queue, 100.0) is None


@pytest.mark.parametrize("delays", [(3.0, 7.0), (7.0, 3.0)])
def test_the_earlier_time_wins(delays: tuple[float, float]) -> None:
    queue = opened()
    for delay in delays:
        queue.add_after(A, delay, 0.0)
    assert taken(queue, 2.9) is None
    assert queue.next_at(2.9) <= 3.0
    assert taken(queue, 3.0) == A
    queue.done(A, 3.0)
    assert taken(queue, 100.0) is None


def test_a_time_that_comes_up_during_a_run_is_one_more_run() -> None:
    queue = opened()
    queue.add(A, 0.0)
    assert taken(queue, 0.0) == A
    queue.add_after(A, 1.0, 0.0)
    assert taken(queue, 2.0) is None
    queue.done(A, 2.0)
    assert taken(queue, 2.0) == A


def test_a_time_that_comes_up_after_a_run_is_kept() -> None:
    queue = opened()
    queue.add(A, 0.0)
    assert taken(queue, 0.0) == A
    queue.add_after(A, 5.0, 0.0)
    queue.done(A, 1.0)
    assert taken(queue, 4.0) is None
    assert taken(queue, 5.0) == A


def test_failures_come_back_after_pauses_that_grow_up_to_a_bound() -> None:
    queue = opened(retries=RetryPauses(1.0, 5.0))
    queue.add(A, 0.0)
    now, pauses = 0.0, []
    for attempt in range(1, 7):
        found = queue.take(now)
        assert found is not None
        assert found.attempt == attempt
        pauses.append(queue.fail(A, now))
        assert queue.take(now + pauses[-1] - 0.01) is None
        now += pauses[-1]
    assert pauses == [1.0, 2.0, 4.0, 5.0, 5.0, 5.0]
    assert queue.counters.retries == 5


def test_pauses_are_dispersed_and_never_longer_than_the_bound() -> None:
    for jitter in (0.0, 0.3, 1.0):
        queue = opened(jitter=jitter, retries=RetryPauses(1.0, 5.0))
        queue.add(A, 0.0)
        queue.take(0.0)
        assert queue.fail(A, 0.0) == 0.5 + 0.5 * jitter


def test_a_thousand_failures_do_no_harm() -> None:
    queue = opened(retries=RetryPauses(0.001, 1.0))
    queue.add(A, 0.0)
    for now in range(1, 1001):
        assert taken(queue, float(now)) == A
        assert queue.fail(A, float(now)) <= 1.0


def test_a_change_during_a_pause_runs_at_once_and_once() -> None:
    queue = opened(retries=RetryPauses(10.0, 10.0))
    queue.add(A, 0.0)
    queue.take(0.0)
    queue.fail(A, 0.0)
    queue.add(A, 1.0)
    found = queue.take(1.0)
    assert found is not None
    assert found.attempt == 2
    queue.done(A, 1.0)
    assert taken(queue, 100.0) is None


def test_success_and_a_wanted_time_forget_failures() -> None:
    for again_after_s in (None, 1.0):
        queue = opened(retries=RetryPauses(1.0, 60.0))
        queue.add(A, 0.0)
        for now in (0.0, 1.0):
            assert taken(queue, now) == A
            queue.fail(A, now)
        assert taken(queue, 10.0) == A
        queue.done(A, 10.0, again_after_s=again_after_s)
        queue.add(A, 20.0)
        found = queue.take(20.0)
        assert found is not None
        assert found.attempt == 1
        assert queue.fail(A, 20.0) == 1.0


def test_keys_that_failed_and_then_succeeded_leave_nothing_behind() -> None:
    queue = opened(retries=RetryPauses(1.0, 60.0))
    keys = [Key("port", f"gone-{number}") for number in range(100)]
    for key in keys:
        queue.add(key, 0.0)
        assert taken(queue, 0.0) == key
        queue.fail(key, 0.0)
    for _ in keys:
        found = taken(queue, 100.0)
        assert found is not None
        queue.done(found, 100.0)
    assert queue.tidy(1000.0) == 0


def test_who_gives_up_is_left_alone_until_a_change() -> None:
    queue = opened()
    queue.add(A, 0.0)
    queue.take(0.0)
    queue.give_up(A, 0.0)
    assert taken(queue, 1000.0) is None
    assert queue.is_idle
    assert queue.tidy(1000.0) == 0
    queue.add(A, 1001.0)
    assert taken(queue, 1001.0) == A


def test_a_failure_does_not_hold_up_other_keys() -> None:
    queue = opened()
    for key in (A, B):
        queue.add(key, 0.0)
    assert taken(queue, 0.0) == A
    queue.fail(A, 0.0)
    assert taken(queue, 0.0) == B


def test_nothing_is_given_out_before_it_is_open_nor_after_it_is_closed() -> None:
    queue = WorkQueue(QueueSettings(), jitter=lambda: 1.0)
    queue.add(A, 0.0)
    queue.add(B, 0.0)
    assert taken(queue, 1.0) is None
    assert queue.next_at(1.0) == math.inf
    queue.open()
    assert taken(queue, 1.0) == A
    queue.close()
    assert taken(queue, 1.0) is None
    assert queue.next_at(1.0) == math.inf
    queue.done(A, 2.0)


def test_a_key_that_changes_all_the_time_runs_less_and_less_often() -> None:
    queue = opened(interval_min_s=1.0)
    runs = []
    for step in range(120):
        now = step / 2
        queue.add(A, now)
        if queue.take(now) is not None:
            runs.append(now)
            queue.done(A, now)
    assert runs == [0, 1, 3, 7, 15, 25, 35, 45, 55]
    assert taken(queue, 65.0) == A  # the last change is not lost
    queue.done(A, 65.0)
    assert queue.tidy(75.0) == 0
    queue.add(A, 75.0)  # after a quiet interval it is as at first
    assert taken(queue, 75.0) == A
    queue.done(A, 75.0)
    queue.add(A, 75.5)
    assert taken(queue, 76.0) == A


def test_the_interval_concerns_one_key_and_no_other() -> None:
    queue = opened(interval_min_s=1.0)
    queue.add(A, 0.0)
    assert taken(queue, 0.0) == A
    queue.done(A, 0.0)
    queue.add(A, 0.5)
    queue.add(B, 0.5)
    assert taken(queue, 0.5) == B
    assert taken(queue, 0.5) is None
    assert queue.next_at(0.5) == 1.0
    assert taken(queue, 1.0) == A


def test_a_limit_of_runs_per_second_holds_for_all_keys_together() -> None:
    queue = opened(runs_per_s_max=10.0)
    keys = [Key("port", str(number)) for number in range(100)]
    for key in keys:
        queue.add(key, 0.0)
    now, runs = 0.0, 0
    while now <= 3.0:
        while (found := queue.take(now)) is not None:
            queue.done(found.key, now)
            runs += 1
        now = queue.next_at(now)
    assert 39 <= runs <= 41  # ten at once, and ten a second


def test_changes_go_before_the_bulk_and_the_bulk_is_not_left_out() -> None:
    queue = opened()
    bulk = [Key("port", f"bulk-{number}") for number in range(30)]
    for key in bulk:
        queue.add(key, 0.0, is_bulk=True)
    order = []
    for number in range(100):  # under a load of changes that never ends
        queue.add(Key("port", f"change-{number}"), 1.0)
        found = queue.take(1.0)
        assert found is not None
        order.append(found.key.key)
        queue.done(found.key, 1.0)
    assert order[0] == "change-0"
    assert sum(name.startswith("bulk") for name in order) == 25


def test_a_change_takes_a_key_out_of_the_bulk() -> None:
    queue = opened()
    for key in (B, C, A):
        queue.add(key, 0.0, is_bulk=True)
    queue.add(A, 0.0)
    assert [taken(queue, 0.0) for _ in range(4)] == [A, B, C, None]


def test_ages_and_numbers() -> None:
    queue = opened()
    queue.add(A, 1.0)
    queue.add(B, 3.0)
    queue.add_after(C, 50.0, 3.0)
    assert (queue.ready, queue.running, queue.waiting) == (2, 0, 1)
    assert queue.oldest_ready_s(5.0) == 4.0
    found = queue.take(5.0)
    assert found is not None
    assert found.waited_s == 4.0
    assert (queue.ready, queue.running, queue.waiting) == (1, 1, 1)
    assert queue.oldest_ready_s(5.0) == 2.0
    assert not queue.is_idle
    assert taken(queue, 5.0) == B
    queue.done(A, 5.0)
    queue.done(B, 5.0)
    assert queue.is_idle  # what waits for a time that was asked for does not count


def test_times_that_were_put_off_do_not_pile_up() -> None:
    queue = opened()
    for _ in range(10_000):
        queue.add(A, 0.0)
        assert taken(queue, 0.0) == A
        queue.done(A, 0.0, again_after_s=3600.0)
    assert len(queue._times) < 200


def test_arguments_that_cannot_be_meant_are_refused() -> None:
    for first_s, max_s in ((0.0, 1.0), (2.0, 1.0), (math.nan, 1.0)):
        with pytest.raises(UsageError):
            RetryPauses(first_s, max_s)
    with pytest.raises(UsageError):
        RequeueAfter(-1.0)


# -- a model


@dataclasses.dataclass
class Wanted:
    """What the plainest implementation knows of a key."""

    due: float = math.inf
    """When it is to run; infinity when it is not wanted."""
    is_running: bool = False
    is_wanted_again: bool = False
    rest_until: float = -math.inf
    is_early: bool = False
    growth: int = 1
    failures: int = 0


class QueueMachine(RuleBasedStateMachine):
    """Every take is what a table of times allows: some key that is due when there is one, and else none."""

    keys = st.sampled_from([Key("t", str(number)) for number in range(4)])
    delays = st.sampled_from([0.0, 0.1, 0.5, 1.0, 3.0])

    @initialize(interval_s=st.sampled_from([0.0, 0.5]))
    def begin(self, interval_s: float) -> None:
        self.now = 0.0
        self.interval_s = interval_s
        self.queue = opened(interval_min_s=interval_s, retries=RetryPauses(0.4, 2.0))
        self.model: dict[Key, Wanted] = {}

    def known(self, key: Key) -> Wanted:
        return self.model.setdefault(key, Wanted())

    @rule(key=keys, is_bulk=st.booleans())
    def add(self, key: Key, is_bulk: bool) -> None:
        self.queue.add(key, self.now, is_bulk=is_bulk)
        known = self.known(key)
        if known.is_running:
            known.is_wanted_again, known.is_early, known.due = True, True, math.inf
        else:
            known.is_early |= self.now < known.rest_until and known.due > self.now
            known.due = min(known.due, max(self.now, known.rest_until))

    @rule(key=keys, delay=delays)
    def add_after(self, key: Key, delay: float) -> None:
        self.queue.add_after(key, delay, self.now)
        known = self.known(key)
        if known.is_running:
            if not known.is_wanted_again:
                known.due = min(known.due, self.now + delay)
        else:
            known.due = min(known.due, max(self.now + delay, known.rest_until))

    @rule(dropped=st.sets(keys))
    def drop(self, dropped: set[Key]) -> None:
        self.queue.drop(dropped.__contains__)
        for key in dropped & self.model.keys():
            if not self.model[key].is_running:
                del self.model[key]

    @rule(passed=delays)
    def pass_time(self, passed: float) -> None:
        self.now += passed

    @rule()
    def take(self) -> None:
        found = self.queue.take(self.now)
        due = {key for key, known in self.model.items() if known.due <= self.now and not known.is_running}
        if found is None:
            assert not due
            return
        assert found.key in due
        known = self.model[found.key]
        assert found.attempt == known.failures + 1
        assert found.waited_s >= 0
        known.is_running, known.due = True, math.inf

    @precondition(lambda self: any(known.is_running for known in self.model.values()))
    @rule(data=st.data(), how=st.sampled_from(["done", "again", "fail", "give up"]), after=delays)
    def end(self, data: st.DataObject, how: str, after: float) -> None:
        key = data.draw(st.sampled_from([key for key, known in self.model.items() if known.is_running]))
        known = self.model[key]
        due = math.inf
        if how == "fail":
            due = self.now + self.queue.fail(key, self.now)
            known.failures += 1
        else:
            known.failures = 0
            if how == "give up":
                self.queue.give_up(key, self.now)
            else:
                self.queue.done(key, self.now, again_after_s=after if how == "again" else None)
                due = self.now + after if how == "again" else math.inf
        asked, known.due = known.due, math.inf
        known.is_running = False
        known.growth = min(2 * known.growth, INTERVAL_GROWTH_MAX) if known.is_early else 1
        known.is_early = False
        known.rest_until = self.now + self.interval_s * known.growth
        if known.is_wanted_again:
            due, known.is_wanted_again = self.now, False
        if min(due, asked) < math.inf:
            known.due = max(min(due, asked), known.rest_until)

    @invariant()
    def counts_are_right(self) -> None:
        if not hasattr(self, "queue"):
            return
        running = sum(known.is_running for known in self.model.values())
        wanted = sum(known.due < math.inf and not known.is_running for known in self.model.values())
        assert self.queue.running == running
        assert self.queue.ready + self.queue.waiting == wanted
        nearest = min((known.due for known in self.model.values() if not known.is_running), default=math.inf)
        assert self.queue.next_at(self.now) <= max(nearest, self.now)

    def teardown(self) -> None:
        """Whatever happened: when all runs succeed and nothing comes any more, everything ends and leaves nothing."""
        if not hasattr(self, "queue"):
            return
        for key, known in self.model.items():
            if known.is_running:
                self.queue.done(key, self.now)
        for _ in range(100):
            self.now += 1.0
            while (found := self.queue.take(self.now)) is not None:
                self.queue.done(found.key, self.now)
        assert self.queue.tidy(self.now + self.interval_s * INTERVAL_GROWTH_MAX) == 0
        assert self.queue.is_idle
        assert (self.queue.ready, self.queue.running, self.queue.waiting) == (0, 0, 0)


TestAnyOrder = QueueMachine.TestCase
TestAnyOrder.settings = settings(max_examples=50, stateful_step_count=40)
