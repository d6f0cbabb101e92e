"""Sets on disk: the same as sets in memory, whatever is in memory of them, and never more of it than the limit says."""

from __future__ import annotations

import dataclasses
import random

import pytest

from durability_service.core.effects import Apply, Fill, Live, StoreMarks, StoreOperation
from durability_service.core.keeping.holding import Holding
from durability_service.core.namespaces import Kind, NameSpace, NamespacePolicy
from durability_service.core.sets.batches import pack, pack_buckets, unpack
from durability_service.core.sets.sample_set import Deletion, SampleSet
from durability_service.core.sets.samples import DIGEST_MODULUS, Sample, bucket_of, digest_value, make_sample
from durability_service.core.sets.stored_buckets import BucketMemory
from durability_service.core.settings import ServiceSettings, TopicRules
from durability_service.protocol import HISTORY, Ask
from durability_service.serving import answers
from durability_service.serving.answers import page
from durability_service.testing.simulator.nodes import EPOCH_NS, SimNode
from durability_service.testing.simulator.store import StoreModel
from pubsub_api.core.errors import UndecodableBody
from tests.unit.durability_service.test_durability_core import LONG_S, SPACE, Rig

BUCKETS = 8
DEPTH = 2
RULES = TopicRules(default_depth=DEPTH, kinds=(("memory", Kind.TRANSIENT),))


def sample(number: int, topic: str = "a", *, key: str | None = None, is_delete: bool = False) -> Sample:
    return make_sample(
        topic, "t", key or f"k{number}", timestamp=number, writer=bytes(16), number=number, is_delete=is_delete,
        event=b"e" * (number % 40),
    )  # fmt: skip


class Service:
    """A holding and its disk, which does what it is told some time later."""

    def __init__(
        self, seed: int = 0, *, hot_bytes: int = 0, rules: TopicRules = RULES, disk: StoreModel | None = None
    ) -> None:
        self.chance = random.Random(seed)
        self.disk = disk or StoreModel()
        self.memory = BucketMemory(hot_bytes, self.disk)
        self._under_way: list[tuple[StoreOperation, object]] = []
        self._settings = ServiceSettings(node="n", buckets=BUCKETS, repack_changes=10, rules=rules)
        self.held = self._open()
        if disk is None:
            self.do(self.held.stored.whole(StoreMarks()))
        self.set = self.held.set

    def _open(self) -> Holding:
        return Holding(
            self._settings, NameSpace("all", frozenset({"#"})), NamespacePolicy(), self.disk.open().get("all"), 0.0,
            self.memory,
        )  # fmt: skip

    def do(self, operations: list[StoreOperation]) -> None:
        self._under_way += [(one, self.held.stored.when_durable([one])) for one in operations]

    def disk_does(self, count: int) -> None:
        for operation, durable in self._under_way[:count]:
            self.disk.do(operation)
            assert callable(durable)
            durable()
        del self._under_way[:count]

    def settle(self) -> None:
        self.disk_does(len(self._under_way))
        self.memory.trim()
        self.memory.trim()

    def add(self, *samples: Sample) -> None:
        self.do(self.held.change(*self.held.add(samples)))


@pytest.mark.parametrize("hot_bytes", [0, 20_000, 10**9], ids=["nothing is hot", "some is", "all is"])
@pytest.mark.parametrize("seed", range(10))
def test_a_set_on_disk_is_the_same_as_one_in_memory(seed: int, hot_bytes: int) -> None:
    service = Service(seed, hot_bytes=hot_bytes)
    chance = service.chance
    plain = SampleSet(BUCKETS, lambda _topic: DEPTH)
    for number in range(1, 300):
        one = sample(
            number, chance.choice(("a", "b", "memory")), key=chance.choice("uvwxyz"), is_delete=chance.random() < 0.2
        )
        plain.add(one)
        service.add(one)
        if chance.random() < 0.03:
            deletion = Deletion(chance.choice("ab"), number - chance.randrange(20))
            plain.delete(deletion)
            service.set.delete(deletion)
            while service.set.is_cleaning:
                service.do(service.held.change(removed=service.held.stored.of(service.set.clean_some(3))))
        if chance.random() < 0.1:
            bucket = chance.randrange(BUCKETS)
            gone = service.set.sweep(bucket, number - 50)
            assert sorted(plain.sweep(bucket, number - 50)) == sorted(gone)
            service.do(service.held.change(removed=service.held.stored.of(gone)))
        service.disk_does(chance.randrange(3))
        service.set.pack_idle(number, 0.0, samples_max=4)
    assert sorted(plain) == sorted(service.set)
    assert (plain.digest, plain.digests(), plain.count) == (
        service.set.digest, service.set.digests(), service.set.count,
    )  # fmt: skip
    for number in range(BUCKETS):
        assert dict(service.set.bucket(number)) == dict(plain.bucket(number))
        assert sorted(unpack(service.set.batch(number))) == sorted(unpack(plain.batch(number)))
    service.settle()
    on_disk = sorted(service.disk.current["all"].samples.values())
    assert on_disk == sorted(service.held.stored.of(list(plain)))
    again = Service(hot_bytes=hot_bytes, disk=service.disk)
    assert sorted(again.set) == on_disk
    assert again.set.count == len(on_disk)


def test_memory_is_bounded_however_large_the_set_is() -> None:
    limit = 60_000
    service = Service(hot_bytes=limit, rules=TopicRules())
    service.settle()
    most = 0
    for number in range(1, 2000):
        service.add(sample(number, key=f"k{number % 1000}"))
        service.disk_does(1)
        most = max(most, service.memory.rows_bytes + service.memory.changes_bytes)
    spread_out = 1000 * 1000
    one_bucket = spread_out // BUCKETS
    assert most < spread_out / 2
    service.settle()
    for number in range(BUCKETS):
        assert service.set.bucket(number)
        assert service.memory.rows_bytes + service.memory.changes_bytes < limit + one_bucket
    assert service.memory.reads


def test_nothing_is_given_up_before_it_is_durable() -> None:
    service = Service(rules=TopicRules())
    batches = pack_buckets(map(sample, range(1, 50)), BUCKETS)
    assert all(service.set.adopt(number, batch) for number, batch in batches.items())
    service.do(service.held.change(adopted=service.set.filled()))
    service.memory.trim()
    assert service.memory.pinned_bytes == service.memory.rows_bytes > 0
    assert service.set.count == len(list(service.set)) == 49, "there is nothing on disk yet"
    service.settle()
    assert (service.memory.pinned_bytes, service.memory.rows_bytes) == (0, 0)
    assert service.set.count == len(list(service.set)) == 49
    assert service.memory.reads


def test_a_set_that_is_given_up_for_another_takes_no_memory() -> None:
    service = Service(hot_bytes=10**6)
    service.add(*map(sample, range(1, 50)), sample(50, "memory"))
    service.set.clear()
    assert (service.set.count, service.set.filled(), service.set.digest) == (0, [], bytes(16))
    assert (service.memory.rows_bytes, service.memory.changes_bytes, service.memory.pinned_bytes) == (0, 0, 0)


def test_changes_that_are_in_their_buckets_leave_memory() -> None:
    service = Service(hot_bytes=10**6, rules=TopicRules())
    for number in range(1, 200):
        service.add(sample(number, key=f"k{number % 20}"))
    service.settle()
    assert service.memory.changes_bytes < 50 * 1000
    written = 0
    while service.held.stored.set.filled() and any(not service.set.is_written(number) for number in range(BUCKETS)):
        service.add(sample(1000 + written, key="k1"))
        service.settle()
        written += 1
        assert written < 1000
    assert service.memory.changes_bytes == 0


def test_buckets_are_packed_anew_in_turn_with_what_the_set_holds() -> None:
    service = Service(hot_bytes=10**6, rules=TopicRules())
    seen: list[int] = []
    for number in range(1, 400):
        added, removed = service.held.add([sample(number, key=f"k{number % 40}")])
        operations = service.held.change(added, removed)
        (operation,) = operations
        assert isinstance(operation, Apply)
        for bucket, batch in operation.batches.items():
            assert sorted(unpack(batch)) == sorted(
                one for one in service.held.set if bucket_of(one.instance, BUCKETS) == bucket
            )
            seen.append(bucket)
        service.do(operations)
        service.settle()
    assert sorted(seen[:BUCKETS]) == list(range(BUCKETS)), "each has its turn"


def test_a_new_generation_takes_over_what_is_on_disk_without_reading_it() -> None:
    service = Service(rules=TopicRules(), hot_bytes=10**5)
    service.add(*map(sample, range(1, 100)))
    service.do(service.held.stored.whole(StoreMarks()))
    service.settle()
    service.memory.bytes_max = 4000
    service.settle()
    service.add(sample(200, key="k1"))
    service.settle()
    service.memory.trim()
    reads = service.memory.reads
    operations = service.held.stored.whole(StoreMarks())
    fills = [one for one in operations if isinstance(one, Fill)]
    written = [number for one in fills for number in one.batches]
    assert written == [bucket_of(("a", "t", "k1"), BUCKETS)]
    assert sorted(number for one in fills for number in one.kept) == sorted({*service.set.filled()}.difference(written))
    assert service.memory.reads <= reads + 1
    service.do(operations)
    service.settle()
    assert sorted(service.disk.current["all"].samples.values()) == sorted(service.set)


def test_a_bucket_that_became_empty_is_not_looked_for_in_a_new_generation() -> None:
    service = Service(rules=TopicRules())
    service.add(sample(1))
    service.do(service.held.stored.whole(StoreMarks()))
    service.settle()
    instance = sample(1).instance
    service.set.put(instance, ())
    service.do(service.held.stored.whole(StoreMarks()))
    service.settle()
    assert service.set.get(instance) == ()
    service.add(sample(2, key="k1"))
    assert [one.number for one in service.set] == [2]


def test_what_is_not_kept_on_disk_any_more_leaves_the_disk_only() -> None:
    """The rules were others in an earlier run."""
    before = Service(rules=TopicRules())
    before.add(*(sample(number, topic) for number in range(1, 30) for topic in ("a", "memory")))
    before.settle()
    service = Service(disk=before.disk)
    service.set.put(sample(1, "memory").instance, ())
    for number in range(100, 400):
        service.add(sample(number, key=f"k{number % 20}"))
        service.settle()
    held = sorted(service.set)
    assert len(held) == service.set.count
    assert sum(digest_value(one.digest) for one in held) % DIGEST_MODULUS == digest_value(service.set.digest)
    assert len([one for one in held if one.topic == "memory"]) == 28
    assert {one.topic for one in Service(disk=service.disk).set} == {"a"}


def test_what_is_never_on_disk_does_not_have_buckets_written() -> None:
    service = Service(hot_bytes=100_000)
    service.add(*(sample(number, "memory") for number in range(1, 300)))
    written = 0
    for number in range(1000, 1300):
        operations = service.held.change(*service.held.add([sample(number, key=f"k{number % 200}")]))
        written += sum(len(one.batches) for one in operations if isinstance(one, Apply))
        service.do(operations)
        service.settle()
    assert written < 100


def test_a_deletion_is_not_forgotten_before_what_it_covers_is_gone() -> None:
    """As when a service was stopped soon after the deletion, and started when that was older than any is remembered."""
    service = Service(rules=TopicRules())
    service.add(*map(sample, range(1, 50)))
    service.settle()
    service.set.delete(Deletion("#", 100))
    service.set.sweep(0, 1000)
    while service.set.is_cleaning:
        service.set.clean_some(1)
        service.set.sweep(0, 1000)
    assert service.set.count == 0
    service.set.sweep(0, 1000)
    assert not service.set.deletions


def test_deletions_that_come_faster_than_buckets_are_cleaned_do_not_keep_a_bucket_waiting() -> None:
    service = Service(rules=TopicRules())
    service.add(*map(sample, range(1, 50)), *(sample(number, "stays") for number in range(1, 50)))
    for number in range(BUCKETS):
        service.set.delete(Deletion("a", 100 + number))
        service.set.clean_some(1)
    assert {one.topic for one in service.set} == {"stays"}


@pytest.mark.parametrize("order", [1, -1])
def test_of_the_deletions_of_a_filter_the_newest_is_remembered(order: int) -> None:
    """All of a day would not fit into the message that ends an alignment, nor into a page of history."""
    found, expected = SampleSet(BUCKETS, lambda _: 1), SampleSet(BUCKETS, lambda _: 1)
    for number in range(1, 5000)[::order]:
        found.delete(Deletion("a", number))
    expected.delete(Deletion("a", 4999))
    assert (found.deletions, found.digest) == (expected.deletions, expected.digest)
    found.sweep(0, 5000)
    assert (found.deletions, found.digest) == (frozenset(), bytes(len(found.digest)))


def test_what_is_deleted_is_the_same_however_many_deletions_there_are() -> None:
    """The newest for each topic is remembered."""
    chance = random.Random(1)
    service = Service(rules=TopicRules())
    for number in range(60):
        service.set.delete(Deletion(chance.choice(["a/+", "a/x", "b/#", "c"]), chance.randrange(100)))
        if number % 20 == 19:
            service.set.sweep(0, 0 if service.set.is_cleaning else number)
        for topic in ("a/x", "a/y", "b", "c", "d"):
            one = sample(chance.randrange(100), topic)
            assert service.set.is_deleted(one) == any(found.covers(one) for found in service.set.deletions)


def test_a_start_does_not_look_again_for_what_was_deleted_and_is_gone() -> None:
    rig, node, _ = a_cold_service()
    held = rig.held("a")
    held.delete([Deletion("b/#", EPOCH_NS)])
    rig.run()
    assert not held.set.is_cleaning
    assert node.core is not None
    node.core.keepers[held.name].upkeep.renew()
    rig.run()
    again = Holding(
        ServiceSettings(node="a", buckets=held.set.bucket_count), SPACE, NamespacePolicy(),
        node.disk.open()[held.name], 0.0, BucketMemory(0, node.disk),
    )  # fmt: skip
    assert again.set.deletions == held.set.deletions
    assert not again.set.is_cleaning


def test_a_row_that_is_not_what_was_written_is_found_when_it_is_read() -> None:
    service = Service(rules=TopicRules())
    service.add(*map(sample, range(1, 50)))
    service.do(service.held.stored.whole(StoreMarks()))
    service.settle()
    number = service.set.filled()[0]
    rows = service.disk.current["all"].rows
    rows[number] = pack(unpack(rows[number])[1:])
    with pytest.raises(UndecodableBody, match="not what was written"):
        service.set.bucket(number)


def test_data_that_was_persistent_in_an_earlier_run_is_taken_into_memory() -> None:
    service = Service(rules=TopicRules())
    service.add(*map(sample, range(1, 50)))
    service.settle()
    held = Holding(
        ServiceSettings(node="n", buckets=BUCKETS), NameSpace("all", frozenset({"#"})),
        NamespacePolicy(durability=Kind.TRANSIENT), service.disk.open()["all"], 0.0,
        BucketMemory(0, service.disk),
    )  # fmt: skip
    assert sorted(held.set) == sorted(service.set)


def test_what_a_deletion_covers_is_not_given_away_before_it_is_gone() -> None:
    rig = Rig()
    node = rig.add("a")
    rig.start()
    rig.write("a", *"uvwxyz")
    core = node.core
    assert core is not None
    held = rig.held("a")
    held.delete([Deletion("#", core.stamp())])
    assert (held.set.is_cleaning, held.set.count) == (True, 6)
    ask = Ask(id=1, durability=HISTORY, topics=["#"], name_space=held.name)
    found = page(core, ask, 10_000, EPOCH_NS)
    assert found is not None
    assert found.samples == []
    assert [held.set.given(number).count for number in held.set.filled()] == [0] * len(held.set.filled())
    rig.run()
    assert (held.set.is_cleaning, held.set.count) == (False, 0)


def deleting(rig: Rig, name: str, *, topic: str = "b") -> None:
    """History is deleted so often from now on that a set is never cleaned of all of it."""
    core = rig.nodes[name].core
    if core is not None:
        core.keepers[SPACE.name].delete([Deletion(topic, rig.nodes[name].wall_ns())])
        rig.world.after(0.003, lambda: deleting(rig, name, topic=topic))


def test_a_service_that_starts_is_given_the_set_while_history_is_deleted_again_and_again() -> None:
    rig = Rig()
    rig.add("a", clean_buckets=1)
    rig.add("b")
    rig.start("a")
    rig.write("a", *"uvwxyz", *map(str, range(10)))
    deleting(rig, "a", topic="a/y")
    rig.write("a", "gone", topic="a/y")
    rig.start("b")
    assert rig.held("a").set.is_cleaning
    assert (rig.held("b").is_complete, rig.keys("b")) == (True, "0123456789uvwxyz")


def test_a_master_takes_over_while_history_is_deleted_again_and_again() -> None:
    rig = Rig()
    rig.add("a", clean_buckets=1)
    rig.add("z")
    rig.start()
    rig.write("a", *"uvwxyz", *map(str, range(10)))
    deleting(rig, "a")
    rig.nodes["z"].stop()
    rig.run()
    held = rig.held("a")
    assert (held.set.is_cleaning, held.master, held.epoch.master) == (True, "a", "a")


def test_sides_of_a_split_are_joined_while_history_is_deleted_again_and_again() -> None:
    rig = Rig()
    for name in "az":
        rig.add(name, clean_buckets=1)
    rig.start()
    rig.write("a", *map(str, range(10)))
    rig.split("a")
    rig.write("a", "x")
    rig.write("z", "y")
    for name in "az":
        deleting(rig, name)
    rig.heal()
    rig.run(2 * LONG_S)
    assert rig.held("a").set.is_cleaning
    assert [rig.keys(name) for name in "az"] == ["0123456789xy"] * 2


def a_cold_service() -> tuple[Rig, SimNode, list[Sample]]:
    """A service whose samples are all on disk, and samples that change each of them."""
    rig = Rig()
    node = rig.add("a", hot_bytes=0)
    rig.start()
    for _ in range(2):
        samples = [rig.writers["a"].sample("a/x", f"k{number}", is_delete=False) for number in range(200)]
        for one in samples:
            rig.oracle.wrote(one)
        if not rig.held("a").set.count:
            node.feed(Live(samples, node.new_token(samples[0])))
            rig.run()
    return rig, node, samples


def test_live_samples_for_buckets_on_disk_are_filed_some_at_a_time_and_acknowledged_together() -> None:
    rig, node, samples = a_cold_service()
    before = rig.oracle.acknowledgements
    node.feed(Live(samples, node.new_token(samples[0])))
    core = node.core
    assert core is not None
    is_filing = [core.is_filing]
    assert 0 < len([one for one in samples if one in rig.held("a").set]) < len(samples)
    assert rig.oracle.acknowledgements == before
    rig.run(1.0)
    is_filing.append(core.is_filing)
    assert is_filing == [True, False]
    assert sorted(rig.held("a").set) == sorted(samples)
    assert rig.oracle.acknowledgements == before + 1


def test_who_stops_files_what_waits() -> None:
    rig, node, samples = a_cold_service()
    node.feed(Live(samples, node.new_token(samples[0])))
    node.stop()
    assert sorted(node.disk.current[SPACE.name].samples.values()) == sorted(samples)


def test_a_page_reads_so_many_buckets_and_the_next_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "_READS_MAX", 2)
    rig, node, _ = a_cold_service()
    core = node.core
    assert core is not None
    ask = Ask(id=1, durability=HISTORY, topics=["a/x"], name_space=SPACE.name)
    found: list[Sample] = []
    digests: dict[int, bytes] = {}
    pages = 0
    while ask.bucket >= 0:
        one = page(core, ask, 1_000_000, EPOCH_NS)
        assert one is not None
        found += one.samples
        digests |= one.digests
        ask.bucket, ask.after = one.bucket, one.after
        pages += 1
    assert pages == BUCKETS // 2
    assert sorted(found) == sorted(rig.held("a").set)
    assert digests == rig.held("a").set.digests()


def test_what_comes_by_alignment_is_written_many_buckets_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig()
    source, other = (rig.add(name, chunk_bytes=2000, window_chunks=16) for name in "ab")
    rig.start("a")
    samples = [rig.writers["a"].sample("a/x", f"k{number}", is_delete=False) for number in range(200)]
    for one in samples:
        rig.oracle.wrote(one)
    source.feed(Live(samples, source.new_token(samples[0])))
    rig.run()
    written: list[StoreOperation] = []
    do = other.disk.do
    monkeypatch.setattr(other.disk, "do", lambda operation: (written.append(operation), do(operation)))
    rig.start("b")
    assert sorted(rig.held("b").set) == sorted(samples) == sorted(other.disk.current[SPACE.name].samples.values())
    fills = [one.batches for one in written if isinstance(one, Fill)]
    assert (sum(map(len, fills)), len(fills) <= BUCKETS // 2) == (BUCKETS, True)


def test_without_a_store_nothing_is_read() -> None:
    held = Holding(
        dataclasses.replace(ServiceSettings(node="n"), buckets=BUCKETS), NameSpace("all", frozenset({"#"})),
        NamespacePolicy(durability=Kind.TRANSIENT), None, 0.0, BucketMemory(0),
    )  # fmt: skip
    held.add(list(map(sample, range(1, 50))))
    assert len(list(held.set)) == 49
