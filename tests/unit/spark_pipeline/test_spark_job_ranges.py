"""How jobs of a group share its events: every event is taken once, whoever takes turns, dies and comes back."""

from __future__ import annotations

import random

import pytest

from pubsub_api.core.errors import UndecodableBody
from pubsub_api.errors import UsageError
from spark_pipeline.core import job_ranges as sharing
from spark_pipeline.core.job_ranges import (
    JOBS_MAX,
    AvailableRanges,
    GroupOrigin,
    Job,
    JobRanges,
    JobTurn,
    QueryPlace,
    Run,
)
from spark_pipeline.core.ranges import LogRange
from spark_pipeline.errors import CheckpointCopied, JobNameTaken

ORIGIN = GroupOrigin(1, 1)


def fresh(shards: int = 4) -> JobRanges:
    return sharing.begin(ORIGIN, [0] * shards, None)


def at(number: int, checkpoint: str = "checkpoint") -> QueryPlace:
    """Where a job is that has planned so many turns."""
    return QueryPlace(JobTurn(number), checkpoint)


def waiting(*ends: int, is_ordered: bool = False, events_max: int | None = None, starts: int = 0) -> AvailableRanges:
    return AvailableRanges(dict.fromkeys(range(len(ends)), starts), dict(enumerate(ends)), is_ordered, events_max)


def take(
    shares: JobRanges, name: str, place: QueryPlace, what: AvailableRanges, run: str = ""
) -> tuple[JobRanges, JobTurn | None]:
    """By a query that runs on and on, or by this run of it."""
    return sharing.take(shares, name, place, what, Run(run or place.checkpoint, has_begun=not run))


def finish(shares: JobRanges, name: str, place: QueryPlace) -> JobRanges:
    return sharing.finish(shares, name, place, Run(place.checkpoint, has_begun=False))


def test_what_one_has_taken_no_other_gets() -> None:
    shares, first = take(fresh(2), "a", at(0), waiting(10, 4))
    assert first == JobTurn(1, (LogRange(0, 0, 10), LogRange(1, 0, 4)))
    shares, nothing = take(shares, "b", at(0), waiting(10, 4))
    assert nothing is None
    shares, second = take(shares, "b", at(0), waiting(12, 4))
    assert second == JobTurn(1, (LogRange(0, 10, 12),))


def test_a_turn_that_was_not_finished_is_offered_again_and_then_never() -> None:
    shares, first = take(fresh(1), "a", at(0), waiting(10))
    again, offered = take(shares, "a", at(0), waiting(20))
    assert offered == first
    assert again is shares
    shares, second = take(shares, "a", at(1), waiting(20))
    assert second == JobTurn(2, (LogRange(0, 10, 20),))
    assert finish(shares, "a", at(1)) is shares
    shares = finish(shares, "a", at(2))
    assert shares.jobs["a"] == Job(2, None, "checkpoint", "checkpoint", 2)
    assert finish(shares, "a", at(2)) is shares


def test_a_name_belongs_to_one_checkpoint_until_it_is_released() -> None:
    shares, _ = take(fresh(1), "a", at(0), waiting(10))
    shares, left = take(shares, "a", at(1), waiting(20))
    assert left is not None
    for number in (0, 2):
        with pytest.raises(JobNameTaken, match="'a' belongs to a job with another checkpoint"):
            take(shares, "a", at(number, "new"), waiting(30))
        with pytest.raises(JobNameTaken):
            finish(shares, "a", at(number, "new"))
    shares = sharing.release(shares, "a")
    assert sharing.release(shares, "a") is shares
    shares, offered = take(shares, "a", at(0, "new"), waiting(30))
    assert offered == left, "what it had in work is offered again"
    shares, following = take(shares, "a", at(left.number, "new"), waiting(30))
    assert following == JobTurn(3, (LogRange(0, 20, 30),)), "it goes on counting"
    with pytest.raises(JobNameTaken):
        finish(shares, "a", at(3))
    with pytest.raises(UsageError, match="no job 'b'; there are: a"):
        sharing.release(shares, "b")


def test_of_two_copies_of_a_checkpoint_that_run_in_turn_the_older_one_is_refused() -> None:
    shares, _ = take(fresh(1), "a", at(0), waiting(10), "original")
    shares = finish(shares, "a", at(1))
    shares, moved = take(shares, "a", at(1), waiting(20), "somewhere else")
    assert moved == JobTurn(2, (LogRange(0, 10, 20),)), "a checkpoint that was moved goes on"
    shares = finish(shares, "a", at(2))
    with pytest.raises(CheckpointCopied, match="is at turn 1, and turn 2 was acknowledged"):
        take(shares, "a", at(1), waiting(30), "original, started again")
    with pytest.raises(CheckpointCopied):
        finish(shares, "a", at(1))
    shares = sharing.release(shares, "a")
    shares, following = take(shares, "a", at(0, "new"), waiting(30), "new")
    assert following == JobTurn(3, (LogRange(0, 20, 30),))


def test_of_two_copies_of_a_checkpoint_that_run_at_once_the_one_that_started_first_is_refused() -> None:
    original, copy = Run("original", has_begun=True), Run("copy", has_begun=True)
    shares, turn = take(fresh(1), "a", at(0), waiting(10), "original")
    shares, offered = take(shares, "a", at(0), waiting(10), "copy")
    assert offered == turn, "it may be a restart: nobody can tell yet"
    with pytest.raises(CheckpointCopied, match="by a query that started after this one"):
        sharing.finish(shares, "a", at(1), original)
    with pytest.raises(CheckpointCopied):
        sharing.take(shares, "a", at(1), waiting(20), original)
    shares, following = sharing.take(shares, "a", at(1), waiting(20), copy)
    assert following == JobTurn(2, (LogRange(0, 10, 20),))


def test_a_turn_that_was_dropped_when_the_group_was_moved_is_no_sign_of_a_copy() -> None:
    shares, _ = take(fresh(1), "a", at(0), waiting(10), "died before the checkpoint had it")
    shares = sharing.begin(GroupOrigin(1, 2), [0], shares)
    _, turn = take(shares, "a", at(0), waiting(10), "started again")
    assert turn == JobTurn(2, (LogRange(0, 0, 10),))


def test_a_job_whose_checkpoint_is_older_than_the_group_goes_on_behind_it() -> None:
    _, turn = take(fresh(1), "a", at(7), waiting(5))
    assert turn == JobTurn(8, (LogRange(0, 0, 5),))


def test_in_order_a_shard_is_with_one_job_until_it_has_finished() -> None:
    shares, _ = take(fresh(2), "a", at(0), waiting(10, 0, is_ordered=True))
    shares, nothing = take(shares, "b", at(0), waiting(20, 0, is_ordered=True))
    assert nothing is None
    shares = finish(shares, "a", at(1))
    shares, turn = take(shares, "b", at(0), waiting(20, 0, is_ordered=True))
    assert turn == JobTurn(1, (LogRange(0, 10, 20),))


def test_in_order_a_busy_job_leaves_shards_to_the_others() -> None:
    shares = fresh(4)
    for name in ("a", "b"):
        shares, _ = take(shares, name, at(0), waiting(0, 0, 0, 0, is_ordered=True))
    shares, first = take(shares, "a", at(0), waiting(5, 9, 7, 1, is_ordered=True))
    shares, second = take(shares, "b", at(0), waiting(5, 9, 7, 1, is_ordered=True))
    assert first is not None
    assert second is not None
    assert [one.shard for one in first.ranges] == [1, 2], "the fullest ones"
    assert [one.shard for one in second.ranges] == [0, 3]


def test_in_order_a_new_shard_waits_until_what_comes_before_it_was_finished() -> None:
    """The log was given shards 2 and 3; what shard 2 has taken over follows offset 10 of shard 0."""
    shares = fresh(2)
    there = waiting(10, 5, 7, 0, is_ordered=True)._replace(after={2: ((0, 10),), 3: ((1, 5),)})
    shares, first = take(shares, "a", at(0), there)
    assert first is not None
    assert {one.shard for one in first.ranges} == {0, 1}
    shares, other = take(shares, "b", at(0), there)
    assert other is None, "taken is not finished"
    shares, second = take(finish(shares, "a", at(1)), "a", at(1), there)
    assert second is not None
    assert second.ranges == (LogRange(2, 0, 7),)


def test_in_a_queue_new_shards_wait_for_nothing() -> None:
    there = waiting(10, 5, 7, 0)._replace(after={2: ((0, 10),), 3: ((1, 5),)})
    _, turn = take(fresh(2), "a", at(0), there)
    assert turn is not None
    assert {one.shard for one in turn.ranges} == {0, 1, 2}


def test_what_retention_dropped_is_counted_and_skipped() -> None:
    shares, turn = take(fresh(1), "a", at(0), waiting(20, starts=15))
    assert turn == JobTurn(1, (LogRange(0, 15, 20),))
    assert shares.expired == 15


def test_a_group_that_was_moved_begins_at_its_positions_and_keeps_names_and_counting() -> None:
    shares, _ = take(fresh(1), "a", at(0), waiting(10))
    shares = sharing.begin(GroupOrigin(1, 2), [3], shares)
    with pytest.raises(JobNameTaken):
        take(shares, "a", at(0, "new"), waiting(10))
    shares, turn = take(shares, "a", at(1), waiting(10))
    assert turn == JobTurn(2, (LogRange(0, 3, 10),))


def test_a_group_that_was_declared_anew_knows_nothing_of_the_older_one() -> None:
    shares, _ = take(fresh(1), "a", at(0), waiting(10))
    assert sharing.begin(GroupOrigin(2, 1), [3], shares) == JobRanges(GroupOrigin(2, 1), {0: 3})


def test_the_number_of_jobs_is_bounded() -> None:
    crowded = JobRanges(ORIGIN, {0: 0}, {f"job-{number}": Job() for number in range(JOBS_MAX)})
    with pytest.raises(UsageError, match="keep their names"):
        take(crowded, "one more", at(0), waiting(10))


def test_records_and_offsets_come_back_as_they_were() -> None:
    shares, turn = take(fresh(3), "a", at(0), waiting(10, 0, 4))
    assert turn is not None
    assert sharing.decode(sharing.encode(shares)) == shares
    place = QueryPlace(turn, "mark")
    assert sharing.place_from_json(sharing.place_to_json(place)) == place
    with pytest.raises(UndecodableBody):
        sharing.decode(b"\xc1")
    with pytest.raises(UsageError, match="not written by a job of a group"):
        sharing.place_from_json({"0": 17})


@pytest.mark.parametrize("is_ordered", [False, True])
@pytest.mark.parametrize("seed", range(30))
def test_every_event_takes_effect_once_whatever_dies(seed: int, is_ordered: bool) -> None:
    """Jobs as Spark runs them: the turn is written to a checkpoint, the batch runs, the batch is noted as done; a job
    may die before or after each of these and start again."""
    chance = random.Random(seed)
    shares, ends = fresh(3), [0, 0, 0]
    planned: dict[str, list[JobTurn]] = {name: [JobTurn(0)] for name in "abc"}
    done: dict[str, int] = dict.fromkeys("abc", 0)
    effects: list[tuple[str, LogRange]] = []
    for step in range(600):
        if step < 400:
            ends[chance.randrange(3)] += chance.randrange(20)
        name = chance.choice("abc")
        last = planned[name][-1]
        if last.number > done[name]:  # Spark runs what was planned before it asks for more
            effects += [(name, one) for one in last.ranges]
            done[name] = last.number
            continue
        shares, turn = take(
            shares,
            name,
            at(last.number, name),
            waiting(*ends, is_ordered=is_ordered, events_max=chance.choice([None, 7])),
        )
        if turn is not None and chance.random() < 0.7:  # else it died before the checkpoint was written
            planned[name].append(turn)
        if chance.random() < 0.3:
            shares = finish(shares, name, at(done[name], name))
    for name in "abcabc":
        for turn in planned[name][-1:]:
            if turn.number > done[name]:
                effects += [(name, one) for one in turn.ranges]
                done[name] = turn.number
        while True:
            shares, turn_left = take(shares, name, at(done[name], name), waiting(*ends, is_ordered=is_ordered))
            if turn_left is None:
                break
            effects += [(name, one) for one in turn_left.ranges]
            done[name] = turn_left.number
    for shard, end in enumerate(ends):
        ranges = [one for _, one in effects if one.shard == shard]
        offsets = [offset for one in ranges for offset in range(one.start, one.end)]
        assert sorted(offsets) == list(range(end)), f"seed {seed}, shard {shard}"
        if is_ordered:
            assert offsets == sorted(offsets), f"seed {seed}, shard {shard}: out of order"
