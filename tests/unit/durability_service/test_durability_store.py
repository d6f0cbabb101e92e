"""The store on disk against its model: the same operations, a crash after any of them, and the same thing found."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import random
import shutil
import sqlite3

import pytest

from durability_service.core.effects import Apply, BeginFill, CompleteFill, Fill, StoreMarks, StoreOperation
from durability_service.core.messages import Epoch
from durability_service.core.sets.batches import EMPTY, HEAD_BYTES, SampleBatch, pack_buckets, summary, unpack
from durability_service.core.sets.sample_set import Deletion
from durability_service.core.sets.samples import Sample, bucket_of, make_sample
from durability_service.errors import StoreFailed, StoreInUse
from durability_service.storage.store import SampleStore
from durability_service.testing.simulator.store import Generation, StoreModel

NAMES = ("orders", "ports")
BUCKETS = 4


def sample(number: int, topic: str = "a/x") -> Sample:
    return make_sample(
        topic, "t", f"k{number}", timestamp=number, writer=b"w" * 16, number=number, is_delete=number % 7 == 0,
        event=b"e" * (number % 50),
    )  # fmt: skip


def marks(number: int) -> StoreMarks:
    return StoreMarks(Epoch(number, "n1"), (Epoch(1, "n0"),), frozenset({Deletion("a/#", number)}), number)


def repacked(current: Generation, added: list[Sample], removed: list[Sample]) -> dict[int, SampleBatch]:
    """Some of the buckets as they will be when this change was made."""
    left = {**current.samples, **{one.digest: one for one in added}}
    for one in removed:
        left.pop(one.digest, None)
    return {number: batch for number, batch in pack_buckets(left.values(), BUCKETS).items() if number % 3}


def filled(name: str, samples: list[Sample], given: StoreMarks) -> list[StoreOperation]:
    return [BeginFill(name, ("a",), BUCKETS), Fill(name, pack_buckets(samples, BUCKETS)), CompleteFill(name, given)]


def operations(seed: int, count: int) -> list[StoreOperation]:
    """Operations as a service makes them: fills that end or are begun again, changes of complete sets."""
    chance = random.Random(seed)
    made: list[StoreOperation] = []
    model = StoreModel()
    while len(made) < count:
        name = chance.choice(NAMES)
        current = model.current.get(name)
        some = [sample(chance.randrange(200)) for _ in range(chance.randrange(6))]
        choices: list[StoreOperation] = [BeginFill(name, ("a/#", "b"), BUCKETS)]
        if current is not None and current.is_complete:
            gone = list(current.samples.values())[: chance.randrange(3)]
            batches = repacked(current, some, gone) if chance.random() < 0.3 else {}
            choices += [Apply(name, some, gone, chance.choice((None, marks(len(made) + 1))), batches)] * 8
        elif current is not None:
            choices += [Fill(name, pack_buckets(some, BUCKETS)), CompleteFill(name, marks(len(made) + 1))] * 3
        operation = chance.choice(choices)
        model.do(operation)
        made.append(operation)
    return made


def seen(store: SampleStore | StoreModel, buckets: int | None = None) -> dict[str, tuple[object, ...]]:
    """What a start finds: what is in each bucket is what is said of it."""
    restored = store.open() if isinstance(store, StoreModel) else store.restored(buckets)
    found: dict[str, tuple[object, ...]] = {}
    for name, one in restored.items():
        batches = {number: store.read(name, number) for number in one.buckets}
        assert one.buckets == {number: summary(batch.content[:HEAD_BYTES]) for number, batch in batches.items()}
        assert all(
            bucket_of(each.instance, buckets or BUCKETS) == number
            for number, batch in batches.items()
            for each in unpack(batch)
        )
        samples = sorted(each for batch in batches.values() for each in unpack(batch))
        found[name] = (samples, one.marks, tuple(one.filters))
    return found


@pytest.mark.parametrize("seed", range(5))
def test_after_a_crash_at_any_operation_the_last_complete_set_is_found(tmp_path: pathlib.Path, seed: int) -> None:
    done: list[StoreOperation] = []
    with SampleStore(tmp_path / "live" / "store.db") as store:
        for position, operation in enumerate(operations(seed, 30)):
            store.do([operation])
            done.append(operation)
            image = shutil.copytree(store.path.parent, tmp_path / f"crash{position}")
            model = StoreModel()
            for one in done:
                model.do(one)
            with SampleStore(image / "store.db") as found:
                assert seen(found) == seen(model)


def test_a_torn_write_leaves_a_prefix_of_the_operations(tmp_path: pathlib.Path) -> None:
    planned = operations(99, 25)
    model, states = StoreModel(), [seen(StoreModel())]
    with SampleStore(tmp_path / "live" / "store.db") as store:
        for operation in planned:
            store.do([operation])
            model.do(operation)
            copy = StoreModel()
            for one in planned[: planned.index(operation) + 1]:
                copy.do(one)
            states.append(seen(copy))
        image = shutil.copytree(store.path.parent, tmp_path / "image")
    log = image / "store.db-wal"
    whole = log.read_bytes()
    chance = random.Random(1)
    for number in range(40):
        torn = shutil.copytree(image, tmp_path / f"torn{number}")
        (torn / "store.db-wal").write_bytes(whole[: chance.randrange(len(whole))])
        with SampleStore(torn / "store.db") as found:
            assert seen(found) in states


def test_several_operations_are_one_transaction(tmp_path: pathlib.Path) -> None:
    with SampleStore(tmp_path / "store.db") as store:
        with pytest.raises(StoreFailed, match="no generation that is complete"):
            store.do([BeginFill("orders", ("a",), BUCKETS), Apply("orders", [sample(1)], [])])
        assert store.generations() == []


def test_a_set_that_was_set_aside_stays_for_inspection_and_older_ones_go(tmp_path: pathlib.Path) -> None:
    with SampleStore(tmp_path / "store.db") as store:
        for number in range(1, 5):
            store.do(filled("orders", [sample(number)], marks(1)))
        while store.purge():
            pass
        store.purge()
        states = [(one["generation"], one["state"], one["samples"]) for one in store.generations()]
        assert states == [(3, "retired", 1), (4, "complete", 1)]


def test_every_start_is_a_new_life_under_the_same_name(tmp_path: pathlib.Path) -> None:
    lives = []
    for name in ("first", "", ""):
        with SampleStore(tmp_path / "store.db") as store:
            lives.append(store.start_life(name))
    assert {name for name, _ in lives} == {"first"}
    assert [number for _, number in lives] == sorted({number for _, number in lives})


def test_a_snapshot_is_a_store_with_what_was_selected(tmp_path: pathlib.Path) -> None:
    kept, left = sample(1, "a/x"), sample(2, "b")
    with SampleStore(tmp_path / "store.db") as store:
        store.do(filled("orders", [kept, left], marks(3)))
        store.do(filled("ports", [sample(3)], marks(1))[:2])
        path = store.snapshot(tmp_path / "snapshots", ["a/#"])
    assert [one.suffix for one in path.parent.iterdir()] == [".db"]
    with SampleStore(path) as copy:
        assert seen(copy) == {"orders": ([kept], marks(3), ("a",))}


def test_a_store_belongs_to_one_service(tmp_path: pathlib.Path) -> None:
    with SampleStore(tmp_path / "store.db") as store:
        store.do([BeginFill("orders", ("a",), BUCKETS)])
        with pytest.raises(StoreInUse, match="another service"):
            SampleStore(tmp_path / "store.db", busy_timeout_s=0.05)


@pytest.mark.parametrize("name", ["store.db", "store.db-wal"])
@pytest.mark.parametrize("is_replaced", [False, True])
def test_nothing_is_reported_as_durable_in_a_file_that_nobody_can_reach(
    tmp_path: pathlib.Path, name: str, is_replaced: bool
) -> None:
    with SampleStore(tmp_path / "store.db") as store:
        store.do(filled("orders", [sample(1)], marks(1)))
        backup = shutil.copy(tmp_path / name, tmp_path / "backup")
        (tmp_path / name).unlink()
        if is_replaced:
            os.rename(backup, tmp_path / name)
        expected = "was replaced" if is_replaced else "is gone"
        with pytest.raises(StoreFailed, match=f"{name} {expected}"):
            store.do([Apply("orders", [sample(2)], [])])
        with pytest.raises(StoreFailed, match=expected):
            store.purge()


def test_other_files_are_refused_and_left_alone(tmp_path: pathlib.Path) -> None:
    other = tmp_path / "other.db"
    with contextlib.closing(sqlite3.connect(other)) as database, database:
        database.execute("CREATE TABLE precious (thing)")
    database.close()
    with pytest.raises(StoreFailed, match="not a store of this version"):
        SampleStore(other)
    garbage = tmp_path / "garbage.db"
    garbage.write_bytes(b"this is no database" * 100)
    with pytest.raises(StoreFailed, match="failed"):
        SampleStore(garbage)
    assert garbage.read_bytes().startswith(b"this is no database")


@pytest.mark.parametrize("seed", range(5))
def test_operations_done_together_have_the_same_effect_as_one_by_one(tmp_path: pathlib.Path, seed: int) -> None:
    planned = operations(1000 + seed, 40)
    chance = random.Random(seed)
    model = StoreModel()
    with SampleStore(tmp_path / "store.db") as store:
        start = 0
        while start < len(planned):
            together = planned[start : start + chance.randint(1, 8)]
            start += len(together)
            for one in together:
                model.do(one)
            store.do(together)
        store.close()
    with SampleStore(tmp_path / "store.db") as store:
        assert seen(store) == seen(model)


def test_changes_that_all_buckets_include_are_trimmed(tmp_path: pathlib.Path) -> None:
    current = Generation(("a",), buckets=BUCKETS)
    with SampleStore(tmp_path / "store.db") as store:
        store.do(filled("orders", [], marks(1)))
        longest = 0
        for number in range(1, 60):
            change = Apply("orders", [sample(number)], [])
            current.samples[sample(number).digest] = sample(number)
            whole = pack_buckets(current.samples.values(), BUCKETS)
            turn = number % BUCKETS
            store.do([dataclasses.replace(change, batches={turn: whole.get(turn, EMPTY)})])
            (found,) = store.generations()
            assert isinstance(found["changes"], int)
            longest = max(longest, found["changes"])
            assert found["samples"] == number
        assert 0 < longest < 2 * BUCKETS
    with SampleStore(tmp_path / "store.db") as store:
        assert store.generations()[0]["changes"] == 0, "a start puts changes into their buckets"
        assert seen(store)["orders"][0] == sorted(current.samples.values())


def test_a_damaged_bucket_is_told_and_not_used(tmp_path: pathlib.Path) -> None:
    with SampleStore(tmp_path / "store.db") as store:
        store.do(filled("orders", [sample(1)], marks(1)))
    with contextlib.closing(sqlite3.connect(tmp_path / "store.db")) as database, database:
        database.execute("UPDATE bucket SET content = CAST(substr(content, 1, length(content) - 1) || 'x' AS BLOB)")
    database.close()
    with SampleStore(tmp_path / "store.db") as store:
        (number,) = store.restored()["orders"].buckets
        with pytest.raises(StoreFailed, match="damaged"):
            store.read("orders", number)


@pytest.mark.parametrize("harm", ["a bit", "cut off"])
def test_a_damaged_bucket_is_not_taken_for_an_empty_one(tmp_path: pathlib.Path, harm: str) -> None:
    """It would not be missed: what a set has is what the heads of its buckets say."""
    with SampleStore(tmp_path / "store.db") as store:
        store.do(filled("orders", [sample(1)], marks(1)))
    with contextlib.closing(sqlite3.connect(tmp_path / "store.db")) as database, database:
        ((row, content),) = database.execute("SELECT id, content FROM bucket").fetchall()
        count_at = next(at for at in range(HEAD_BYTES) if content[at : at + 1] == b"\x01" and at > 3)
        damaged = content[:8] if harm == "cut off" else content[:count_at] + b"\x00" + content[count_at + 1 :]
        assert harm == "cut off" or summary(damaged).samples == 0
        database.execute("UPDATE bucket SET content = ? WHERE id = ?", (damaged, row))
    database.close()
    with SampleStore(tmp_path / "store.db") as store, pytest.raises(StoreFailed, match="damaged|too early"):
        store.restored()


def test_without_the_file_of_its_lock_nothing_is_reported_as_durable(tmp_path: pathlib.Path) -> None:
    """Another service can open the store then."""
    with SampleStore(tmp_path / "store.db") as store:
        store.do(filled("orders", [sample(1)], marks(1)))
        (tmp_path / "store.db-lock").unlink()
        with SampleStore(tmp_path / "store.db"), pytest.raises(StoreFailed, match="lock is gone|lock was replaced"):
            store.do([Apply("orders", [sample(2)], [])])


@pytest.mark.parametrize("buckets", [1, 2, 3, 16])
def test_a_set_that_is_kept_in_another_number_of_buckets_is_written_anew(tmp_path: pathlib.Path, buckets: int) -> None:
    samples = [sample(number) for number in range(60)]
    with SampleStore(tmp_path / "store.db") as store:
        store.do([*filled("orders", samples[:50], marks(1)), Apply("orders", samples[50:], samples[:5])])
    for _ in range(2):
        with SampleStore(tmp_path / "store.db") as store:
            assert seen(store, buckets) == {"orders": (sorted(samples[5:]), marks(1), ("a",))}
            assert [one["state"] for one in store.generations()] == ["retired", "complete"]


def test_buckets_that_are_as_they_were_are_kept_without_being_sent(tmp_path: pathlib.Path) -> None:
    samples = [sample(number) for number in range(40)]
    batches = pack_buckets(samples, BUCKETS)
    again = [BeginFill("orders", ("a",), BUCKETS), Fill("orders", {0: batches[0]}, kept=[1, 3])]
    model = StoreModel()
    with SampleStore(tmp_path / "store.db") as store:
        for one in (*filled("orders", samples, marks(1)), *again):
            store.do([one])
            model.do(one)
        assert [store.read("orders", number).count for number in range(BUCKETS)] == [
            batches[number].count for number in range(BUCKETS)
        ], "while it is filled, all else is read where it was"
        store.do([CompleteFill("orders", marks(2))])
        model.do(CompleteFill("orders", marks(2)))
        assert store.restored()["orders"].buckets.keys() == {0, 1, 3}
        assert seen(store) == seen(model)


def test_reading_waits_for_no_transaction(tmp_path: pathlib.Path) -> None:
    with SampleStore(tmp_path / "store.db") as store:
        store.do(filled("orders", [sample(1)], marks(1)))
        (number,) = store.restored()["orders"].buckets
        with store._transaction():
            store._do(Apply("orders", [], [sample(1)], batches={number: EMPTY}))
            assert store.read("orders", number).count == 1, "as it was last durable"
        assert store.read("orders", number).count == 0
