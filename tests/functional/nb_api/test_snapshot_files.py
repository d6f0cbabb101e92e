"""A full resync from files: the copy equals the database, and nothing wrong is ever taken from a file."""

from __future__ import annotations

import dataclasses
import itertools
import pathlib
import shutil
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet
import pytest

from nb_api import Created, LocalCache, NbApi, Resynced
from nb_api.cache.snapshot_files import (
    CORRECTIONS,
    MANIFEST,
    OBJECTS,
    Manifest,
    complete,
    read_manifest,
    write_manifest,
)
from nb_api.cache.snapshot_source import Doubt, SnapshotSource, SourceSnapshot, Take
from nb_api.errors import SourceUnavailable
from pubsub_api import Event
from pubsub_api.errors import DriverNotFound, InvalidConfig
from tests.helpers.nb_nodes import WriterNode
from tests.helpers.nb_tools import memory_bus, open_nb, sqlite_url
from tests.helpers.servers import RedisServer
from tests.helpers.waiting import wait_until

WAIT_S = 60.0
TABLES = ("port", "net")


@dataclasses.dataclass
class World:
    """A database with a writer, and a directory for snapshots of it."""

    url: str
    bus: str | None
    folder: pathlib.Path
    nb: NbApi
    opened: list[NbApi | LocalCache] = dataclasses.field(default_factory=list)

    def cache(self, *, options: dict[str, Any] | None = None, **arguments: Any) -> LocalCache:
        settings = {"resync_source": "snapshot", "snapshot_directory": str(self.folder), **(options or {})}
        nb = open_nb(self.url, self.bus, cache=settings)
        self.opened.append(nb)
        cache = LocalCache(nb, **arguments)
        self.opened.append(cache)
        cache.wait_synced(timeout_s=WAIT_S)
        return cache

    def wait_equal(self, cache: LocalCache, topics: list[str] | None = None) -> None:
        for table in TABLES:
            wait_until(
                lambda table=table: cache.get_all(table) == self.nb.get_all(table, topics=topics),  # type: ignore[misc]
                WAIT_S, f"the copy of {table} to be equal",
            )  # fmt: skip

    def fill(self) -> None:
        for number in range(20):
            self.nb.create("port", f"p{number}", {"n": number}, topic=f"tenant-{number % 2}/port")
        self.nb.create("net", "n1", None, topic="tenant-0/net")

    def change(self) -> None:
        """One change of each sort."""
        self.nb.update("port", "p1", {"n": "new"})
        self.nb.update("port", "p2", {"n": "moved"}, topic="tenant-1/port")
        self.nb.delete("port", "p3")
        self.nb.create("port", "late", 1, topic="tenant-0/port")

    def close(self) -> None:
        for one in reversed(self.opened):
            one.close()
        self.nb.close()


@pytest.fixture(params=["sqlite-feed", "sqlite-bus", "redis-bus"])
def world(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> Iterator[World]:
    db, follows = request.param.split("-")
    url = sqlite_url(tmp_path)
    if db == "redis":
        server: RedisServer = request.getfixturevalue("redis_server")
        url = server.new_prefix()
    bus = memory_bus() if follows == "bus" else None
    world = World(url, bus, tmp_path / "snapshots", open_nb(url, bus))
    yield world
    world.close()


@pytest.fixture
def sqlite_world(tmp_path: pathlib.Path) -> Iterator[World]:
    world = World(sqlite_url(tmp_path), None, tmp_path / "snapshots", open_nb(sqlite_url(tmp_path)))
    yield world
    world.close()


def write_compacted(folder: pathlib.Path, rows: list[tuple[str, str, str, Any, int, str]]) -> None:
    """What ``heliograph pipeline compact`` leaves: objects in several files, and a manifest that proves nothing."""
    (folder / OBJECTS).mkdir(parents=True)
    for number, row in enumerate(rows):
        table, key, topic, value, version, action = row
        columns = {
            "table": [table], "key": [key], "topic": [topic], "value": [msgspec.msgpack.encode(value)],
            "version": [version], "action": [action], "shard": [0],
        }  # fmt: skip
        pyarrow.parquet.write_table(pa.table(columns), folder / OBJECTS / f"part-{number}.zstd.parquet")
    deleted = sum(row[5] == "delete" for row in rows)
    write_manifest(folder, Manifest(objects=len(rows) - deleted, tombstones=deleted, version=99, offsets={"0": 7}))


# -- what is right


def test_a_cache_loads_files_and_reads_only_the_changes_after_them(world: World) -> None:
    world.fill()
    manifest = complete(world.folder / "first", world.nb.db)
    assert manifest.objects == 21
    assert manifest.revision
    world.change()
    told: list[Any] = []
    cache = world.cache(on_changes=told.extend)
    world.wait_equal(cache)
    syncs = cache.statistics().syncs
    assert (syncs.snapshots, syncs.from_source, syncs.source_failures) == (0, 1, 0)
    assert 4 <= syncs.missed_changes < 21
    resyncs = [one for one in told if isinstance(one, Resynced)]
    assert [one.kind for one in resyncs[:2]] == ["snapshot", "delta"]
    assert resyncs[0].revision == manifest.revision
    world.nb.delete("port", "p1")  # and it goes on
    world.wait_equal(cache)


def test_selected_topics_and_tables_are_all_that_is_loaded(world: World) -> None:
    world.fill()
    complete(world.folder, world.nb.db)  # a snapshot itself is as good as a directory of them
    world.change()
    cache = world.cache(topics=["tenant-1/#"])
    world.wait_equal(cache, ["tenant-1/#"])
    assert cache.statistics().syncs.from_source == 1
    ports = world.cache(tables=["port"])
    assert ports.get_all("port") == world.nb.get_all("port")
    assert ports.tables == ["port"]


def test_what_was_compacted_from_a_log_is_corrected_by_the_database(sqlite_world: World) -> None:
    """A log that missed a change, a delete and a create, began late, and has one half of a move."""
    world = sqlite_world
    world.fill()
    world.change()
    versions = {found.key: found.version for found in world.nb.get_all("port")}
    write_compacted(
        world.folder,
        [
            ("port", "p0", "tenant-0/port", {"n": 0}, versions["p0"], "create"),
            ("port", "p1", "tenant-1/port", {"n": 1}, 2, "create"),
            ("port", "p2", "tenant-0/port", {"moved_to": "tenant-1/port"}, versions["p2"], "delete"),
            ("port", "p3", "tenant-1/port", {"n": 3}, 4, "create"),
            ("port", "gone", "tenant-1/port", None, 3, "delete"),
        ],
    )
    manifest = complete(world.folder, world.nb.db)
    assert manifest.objects == 21
    assert manifest.offsets == {"0": 7}
    corrections = pyarrow.parquet.read_table(world.folder / CORRECTIONS).to_pylist()
    assert {row["key"]: row["action"] for row in corrections}["p3"] == "delete"
    assert "p0" not in {row["key"] for row in corrections}
    cache = world.cache()
    world.wait_equal(cache)
    assert cache.statistics().syncs.from_source == 1


def test_the_newest_of_several_snapshots_is_taken(sqlite_world: World) -> None:
    world = sqlite_world
    world.fill()
    complete(world.folder / "b", world.nb.db)
    world.change()
    complete(world.folder / "a", world.nb.db)
    (world.folder / "c").mkdir()
    cache = world.cache()
    assert cache.statistics().syncs.from_source == 1
    assert cache.statistics().syncs.missed_changes == 0


def test_a_delta_still_comes_first(sqlite_world: World) -> None:
    """What can be had change by change is not read whole, wherever that whole would come from."""
    world = sqlite_world
    world.fill()
    complete(world.folder, world.nb.db)
    cache = world.cache()
    cache.need_delta("a test")
    world.change()
    world.wait_equal(cache)
    wait_until(lambda: cache.statistics().syncs.deltas >= 1, WAIT_S, "the delta")
    assert cache.statistics().syncs.from_source == 1


def test_a_full_resync_of_a_copy_that_is_not_empty_tells_exactly_the_differences(sqlite_world: World) -> None:
    world = sqlite_world
    world.fill()
    complete(world.folder / "1", world.nb.db)
    told: list[Any] = []
    with open_nb(world.url, cache={"resync_source": "snapshot", "snapshot_directory": str(world.folder)}) as nb:
        cache = LocalCache(nb, on_changes=told.extend)
        cache.wait_synced(timeout_s=WAIT_S)
        told.clear()
        world.change()
        world.nb.delete("port", "p5")
        complete(world.folder / "2", world.nb.db)
        cache.need_snapshot("a test", is_awaited=True)
        world.wait_equal(cache)
        wait_until(lambda: cache.statistics().syncs.from_source == 2, WAIT_S, "the second snapshot")
        cache.close()
    kinds = sorted(f"{type(one).__name__} {one.object.key}" for one in told if not isinstance(one, Resynced))
    assert kinds == ["Created late", "Deleted p3", "Deleted p5", "Updated p1", "Updated p2"]


def test_snapshots_that_are_taken_and_loaded_amid_writes_lead_to_the_same_copy(world: World) -> None:
    with WriterNode(world.url, None, seed=5) as writer:
        writer.start_flood()
        caches = []
        for number in range(3):
            goal = world.nb.db.revision() + 30
            wait_until(lambda goal=goal: world.nb.db.revision() >= goal, WAIT_S, "some writes")  # type: ignore[misc]
            complete(world.folder / str(number), world.nb.db)
            caches.append(world.cache(tables=TABLES))
        writer.kill()
    for cache in caches:
        cache.need_delta("the writer told nobody")
        world.wait_equal(cache)
    assert sum(cache.statistics().syncs.from_source for cache in caches) == 3


# -- what is wrong


def tear(folder: pathlib.Path) -> None:
    path = next((folder / CORRECTIONS).glob("*.parquet"))
    path.write_bytes(path.read_bytes()[:-40])


def flip(folder: pathlib.Path) -> None:
    path = next((folder / CORRECTIONS).glob("*.parquet"))
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 0x10
    path.write_bytes(data)


def lose(folder: pathlib.Path) -> None:
    shutil.rmtree(folder / CORRECTIONS)


def tear_manifest(folder: pathlib.Path) -> None:
    (folder / MANIFEST).write_bytes((folder / MANIFEST).read_bytes()[:-9])


def never_finish(folder: pathlib.Path) -> None:
    (folder / MANIFEST).unlink()


def prove_nothing(folder: pathlib.Path) -> None:
    write_manifest(folder, msgspec.structs.replace(read_manifest(folder), revision=0))


def be_of_the_future(folder: pathlib.Path) -> None:
    manifest = read_manifest(folder)
    write_manifest(folder, msgspec.structs.replace(manifest, revision=manifest.revision + 1_000_000))


def have_another_format(folder: pathlib.Path) -> None:
    write_manifest(folder, msgspec.structs.replace(read_manifest(folder), format=2))


@pytest.mark.parametrize(
    "damage",
    [
        tear,
        flip,
        lose,
        tear_manifest,
        never_finish,
        prove_nothing,
        be_of_the_future,
        have_another_format,
        shutil.rmtree,
    ],
)
def test_a_snapshot_that_cannot_be_trusted_is_not_used(sqlite_world: World, damage: Any) -> None:
    world = sqlite_world
    world.fill()
    complete(world.folder, world.nb.db)
    damage(world.folder)
    cache = world.cache()
    world.wait_equal(cache)
    syncs = cache.statistics().syncs
    assert (syncs.snapshots, syncs.from_source, syncs.source_failures) == (1, 0, 1)


def test_a_snapshot_so_old_that_the_changes_after_it_are_gone_is_not_used(world: World) -> None:
    world.fill()
    complete(world.folder, world.nb.db)
    world.change()
    world.nb.flush(timeout_s=WAIT_S)
    world.nb.db.compact(keep_changes=1, keep_tombstones_s=0.0)
    cache = world.cache()
    world.wait_equal(cache)
    syncs = cache.statistics().syncs
    assert (syncs.snapshots, syncs.from_source, syncs.source_failures) == (1, 0, 1)


def test_a_snapshot_with_too_many_changes_after_it_is_not_used(
    sqlite_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nb_api.cache.reading.sync.DELTA_CHANGES_MAX", 2)
    world = sqlite_world
    world.fill()
    complete(world.folder, world.nb.db)
    world.change()
    cache = world.cache()
    world.wait_equal(cache)
    syncs = cache.statistics().syncs
    assert (syncs.snapshots, syncs.from_source, syncs.source_failures) == (1, 0, 1)


def test_a_snapshot_is_not_used_when_the_database_went_back(sqlite_world: World) -> None:
    world = sqlite_world
    world.fill()
    complete(world.folder, world.nb.db)
    cache = world.cache()
    cache.need_snapshot("a test", is_awaited=True, is_replacing=True)
    wait_until(lambda: cache.statistics().syncs.snapshots == 1, WAIT_S, "a snapshot of the database")
    assert cache.statistics().syncs.from_source == 1


def test_a_file_that_is_not_in_the_manifest_is_no_part_of_a_snapshot(sqlite_world: World) -> None:
    world = sqlite_world
    world.fill()
    complete(world.folder, world.nb.db)
    write_compacted(world.folder / "other", [("port", "ghost", "tenant-0/port", None, 1, "create")])
    shutil.copytree(world.folder / "other" / OBJECTS, world.folder / OBJECTS)
    cache = world.cache()
    assert cache.statistics().syncs.from_source == 1
    assert cache.get_all("port") == world.nb.get_all("port")


def test_a_snapshot_of_another_database_is_not_completed(sqlite_world: World) -> None:
    world = sqlite_world
    world.fill()
    never = world.nb.get("port", "p0").version + 1
    write_compacted(world.folder, [("port", "p0", "tenant-0/port", None, never, "set")])
    with pytest.raises(SourceUnavailable, match="another database"):
        complete(world.folder, world.nb.db)
    assert not read_manifest(world.folder).revision


def test_what_is_complete_is_not_completed_again(sqlite_world: World) -> None:
    complete(sqlite_world.folder, sqlite_world.nb.db)
    with pytest.raises(SourceUnavailable, match="already"):
        complete(sqlite_world.folder, sqlite_world.nb.db)


def test_what_can_never_work_is_refused_at_once(sqlite_world: World) -> None:
    with pytest.raises(InvalidConfig, match="snapshot_directory"):
        LocalCache(sqlite_world.nb, resync_source="snapshot")
    with pytest.raises(DriverNotFound, match="durability, snapshot"):
        LocalCache(sqlite_world.nb, resync_source="tape")


class _Wrong(SnapshotSource, SourceSnapshot):
    """A source of somebody else, whose last value nobody can read."""

    def __init__(self, nb: NbApi, value: Any) -> None:
        super().__init__(nb.conf, None)
        self._objects = nb.get_all("port")
        self._value = value
        self._revision = nb.db.revision()

    @property
    def revision(self) -> int:
        return self._revision

    def open(self, tables: Sequence[str] | None, topics: Sequence[str]) -> SourceSnapshot:
        return self

    def read(self, take: Take) -> Sequence[Doubt]:
        rows = [Event(action="set", **msgspec.structs.asdict(one)) for one in self._objects]
        rows[-1].value = self._value
        take(rows)
        return ()

    def close(self) -> None:
        """Nothing is held."""


_CYCLE: list[Any] = []
_CYCLE.append(_CYCLE)


@pytest.mark.parametrize("value", [object(), "\ud800", 2**64, _CYCLE], ids=["object", "surrogate", "int", "cycle"])
def test_a_source_whose_values_have_no_form_is_not_used(sqlite_world: World, value: Any) -> None:
    for key in ("a", "b"):
        sqlite_world.nb.create("port", key, {"key": key}, topic="t")
    with LocalCache(sqlite_world.nb, resync_source=_Wrong(sqlite_world.nb, value)) as cache:
        told = list(itertools.islice(cache.changes(timeout_s=WAIT_S), 3))
        assert sorted(one.object.key for one in told if isinstance(one, Created)) == ["a", "b"]
        assert cache.get_all("port") == sqlite_world.nb.get_all("port")
        assert cache.statistics().syncs.source_failures == 1
