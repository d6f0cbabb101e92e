"""Snapshots in files, as a resync source: one reading of the database serves any number of controllers.

A snapshot is a directory::

    manifest.json    what it covers; written last, so a directory without one is no snapshot
    objects/         the newest event of every object, in Parquet: what ``heliograph pipeline compact`` makes of a log
    corrections/     the same, for objects of which ``objects`` is not right; written by `complete`

A log knows what was recorded, not whether that is everything: so what was compacted from one proves no revision.
`complete` compares it with the database, writes down the differences, and then it does.  Every file is in the manifest
with its size and digest, and a cache takes nothing from a snapshot of which a byte is missing or different.

Needs pyarrow, ``heliograph[log]``; no Java.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import msgspec
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet
from oslo_config import cfg

from nb_api.cache.snapshot_source import Doubt, SnapshotSource, SourceSnapshot, Take
from nb_api.core.checks import TopicSelection
from nb_api.core.own_tables import is_own
from nb_api.db_api import DbApi, DbObject
from nb_api.errors import SourceUnavailable
from nb_api.notify_config import CACHE_GROUP
from pubsub_api import Session
from pubsub_api.core.events import Event
from pubsub_api.errors import InvalidConfig
from pubsub_api.runtime.files import GROUP_READS, make_directory, make_private, replace_private

FORMAT = 1
MANIFEST = "manifest.json"
OBJECTS = "objects"
CORRECTIONS = "corrections"
DELETE: Literal["delete"] = "delete"
_PORTION = 10_000
_COLUMNS = ("table", "key", "topic", "value", "version", "action")
_SCHEMA = pa.schema(
    [("table", pa.string()), ("key", pa.string()), ("topic", pa.string()), ("value", pa.binary()),
     ("version", pa.int64()), ("action", pa.string())]
)  # fmt: skip
_Name = tuple[str, str]

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode


class FileMark(msgspec.Struct, frozen=True):
    """What a file must be."""

    size: int
    digest: str
    """BLAKE2b, hexadecimal."""


class Manifest(msgspec.Struct, frozen=True):
    objects: int
    tombstones: int
    version: int
    """The newest version in it, 0 when it is empty."""
    offsets: dict[str, int]
    """Shard of the log -> the offset to go on at; empty when the events are from several logs."""
    format: int = FORMAT
    revision: int = 0
    """Every change of the database up to this revision is in.  0: not known."""
    log: str = ""
    """Identity of the log that the offsets belong to; empty when it is not known."""
    files: dict[str, FileMark] = {}
    """Path in the directory -> what it must be; empty while the revision is not known."""


def read_manifest(directory: str | os.PathLike[str]) -> Manifest:
    """Raises SourceUnavailable when there is none, or one of another release."""
    try:
        manifest = msgspec.json.decode(pathlib.Path(directory, MANIFEST).read_bytes(), type=Manifest)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise SourceUnavailable(f"{directory} is not a finished snapshot: {error}") from error
    if manifest.format != FORMAT:
        raise SourceUnavailable(f"{directory} has format {manifest.format}; this release reads {FORMAT}")
    return manifest


def write_manifest(directory: str | os.PathLike[str], manifest: Manifest) -> None:
    """It appears whole or not at all."""
    replace_private(pathlib.Path(directory, MANIFEST), msgspec.json.encode(manifest), mode=GROUP_READS)


# -- completing


def is_complete(directory: str | os.PathLike[str]) -> bool:
    """Whether `complete` was done already, and would be refused.  Makes nothing."""
    try:
        return bool(read_manifest(directory).files)
    except SourceUnavailable:
        return False


def complete(directory: str | os.PathLike[str], db: DbApi) -> Manifest:
    """Make a snapshot prove the present revision of the database.  Blocks while all objects are read once.

    A directory that is empty or does not exist becomes a snapshot of the database.  The names of all objects are held
    in memory meanwhile.  Raises SourceUnavailable when the directory is no snapshot, is complete already, or is that
    of another database; DbError.
    """
    folder = pathlib.Path(directory)
    manifest = _to_complete(folder)
    rows = _rows(sorted((folder / OBJECTS).glob("*.parquet")), with_values=False)
    known = {(table, key): (version, topic, action) for table, key, topic, _, version, action in rows}
    path = make_directory(folder / CORRECTIONS, mode=GROUP_READS) / "corrections.parquet"
    make_private(path, mode=GROUP_READS)
    objects = tombstones = 0
    with db.snapshot() as snapshot, pyarrow.parquet.ParquetWriter(path, _SCHEMA, compression="zstd") as writer:
        portion: list[tuple[Any, ...]] = []
        revision = snapshot.revision
        for row in snapshot:
            if is_own(row.table):
                continue
            objects += 1
            if _differs(row, known.pop((row.table, row.key), None), revision, folder):
                portion.append((row.table, row.key, row.topic, _encode(row.value), row.version, "set"))
            if len(portion) >= _PORTION:
                _write(writer, portion)
        for (table, key), (version, topic, action) in known.items():
            if action != DELETE and version <= revision:  # gone by then
                portion.append((table, key, topic, None, revision, DELETE))
                tombstones += 1
            if len(portion) >= _PORTION:
                _write(writer, portion)
        _write(writer, portion)
    manifest = msgspec.structs.replace(
        manifest, objects=objects, tombstones=manifest.tombstones + tombstones, revision=revision,
        version=max(manifest.version, revision), files=_marks(folder),
    )  # fmt: skip
    write_manifest(folder, manifest)
    return manifest


def _to_complete(folder: pathlib.Path) -> Manifest:
    make_directory(folder, mode=GROUP_READS)
    if not any(folder.iterdir()):
        return Manifest(objects=0, tombstones=0, version=0, offsets={})
    manifest = read_manifest(folder)
    if manifest.files:
        raise SourceUnavailable(f"{folder} proves revision {manifest.revision} already: make a new snapshot")
    return manifest


def _differs(row: DbObject, known: tuple[int, str, str] | None, revision: int, folder: pathlib.Path) -> bool:
    """Whether what is known of an object is not what the database says.  Raises SourceUnavailable."""
    if known is None:
        return True
    version, topic, action = known
    if row.version < version <= revision:
        raise SourceUnavailable(
            f"{folder} has version {version} of {row.table} {row.key!r}, which the database, at revision {revision}, "
            f"has never seen: it is of another database, or this one went back"
        )
    # Of one version, when the object moved: the half that left is recorded, too.
    return version < row.version or (version == row.version and (topic != row.topic or action == DELETE))


def _write(writer: pyarrow.parquet.ParquetWriter, portion: list[tuple[Any, ...]]) -> None:
    if portion:
        columns = [
            pa.array(column, field.type) for column, field in zip(zip(*portion, strict=True), _SCHEMA, strict=True)
        ]
        writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=_SCHEMA))
        portion.clear()


def _marks(folder: pathlib.Path) -> dict[str, FileMark]:
    paths = sorted(path for part in (OBJECTS, CORRECTIONS) for path in (folder / part).glob("*.parquet"))
    marks = {}
    for path in paths:
        with open(path, "rb") as file:
            os.fsync(file.fileno())
        marks[path.relative_to(folder).as_posix()] = FileMark(path.stat().st_size, _digest(path))
    return marks


def _digest(path: pathlib.Path) -> str:
    digest = hashlib.blake2b(digest_size=32)
    with open(path, "rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


# -- reading


def _rows(paths: Sequence[pathlib.Path], *, with_values: bool) -> Iterator[tuple[Any, ...]]:
    """The rows of Parquet files, in the order of `_COLUMNS`.  Raises SourceUnavailable."""
    if not paths:
        return
    names = [name for name in _COLUMNS if with_values or name != "value"]
    try:
        files = pyarrow.dataset.dataset(list(map(str, paths)), format="parquet")
        for batch in files.to_batches(columns=names, batch_size=_PORTION):
            columns = {name: batch.column(name).to_pylist() for name in names}
            columns.setdefault("value", [None] * batch.num_rows)
            yield from zip(*(columns[name] for name in _COLUMNS), strict=True)
    except (pa.ArrowException, OSError, KeyError) as error:
        raise SourceUnavailable(f"{paths[0].parent} cannot be read: {error}") from error


def read_events(directory: str | os.PathLike[str]) -> Iterator[Event]:
    """What a snapshot has of each object, as ``set`` or ``delete``, in no order.  Raises SourceUnavailable.

    The files are not compared with the manifest, but nothing that lies there besides is read.
    """
    folder = pathlib.Path(directory)
    manifest = read_manifest(folder)
    named = [folder / name for name in sorted(manifest.files)] or sorted((folder / OBJECTS).glob("*.parquet"))
    corrected: set[_Name] = set()
    for part in (CORRECTIONS, OBJECTS):
        for row in _rows([path for path in named if path.parent.name == part], with_values=True):
            table, key, topic, value, version, action = row
            if part == CORRECTIONS:
                corrected.add((table, key))
            elif (table, key) in corrected:
                continue
            yield Event(
                table=table, key=key, topic=topic, version=version, value=_value(value, folder),
                action=DELETE if action == DELETE else "set",
            )  # fmt: skip


class FileSnapshot(SourceSnapshot):
    """A snapshot whose files are as they must be."""

    def __init__(self, folder: pathlib.Path, manifest: Manifest, selection: TopicSelection) -> None:
        """Raises SourceUnavailable."""
        self._folder = folder
        self._manifest = manifest
        self._selection = selection
        for name, mark in manifest.files.items():
            _check_file(folder / name, mark)

    @property
    def revision(self) -> int:
        return self._manifest.revision

    def read(self, take: Take) -> Sequence[Doubt]:
        selects = self._selection.selects
        wanted = (event for event in read_events(self._folder) if event.version and selects(event.table, event.topic))
        while portion := list(itertools.islice(wanted, _PORTION)):
            take(portion)
        return ()

    def close(self) -> None:
        """Nothing is held."""


def _value(encoded: bytes | None, folder: pathlib.Path) -> Any:
    try:
        return None if encoded is None else _decode(encoded)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise SourceUnavailable(f"{folder} has a value that is no msgpack: {error}") from error


def _check_file(path: pathlib.Path, mark: FileMark) -> None:
    try:
        is_right = path.stat().st_size == mark.size and _digest(path) == mark.digest
    except OSError as error:
        raise SourceUnavailable(f"{path} cannot be read: {error}") from error
    if not is_right:
        raise SourceUnavailable(f"{path} is not as it was written: torn, or changed since")


class SnapshotFiles(SnapshotSource):
    """``[local_cache] snapshot_directory``: a snapshot, or a directory with several, of which the newest is taken."""

    def __init__(self, conf: cfg.ConfigOpts, session: Session | None) -> None:
        super().__init__(conf, session)
        directory = conf[CACHE_GROUP].snapshot_directory
        if not directory:
            raise InvalidConfig("resync_source = snapshot needs [local_cache] snapshot_directory")
        self._folder = pathlib.Path(directory)

    def open(self, tables: Sequence[str] | None, topics: Sequence[str]) -> SourceSnapshot:
        folder = self._newest()
        return FileSnapshot(folder, read_manifest(folder), TopicSelection(tables, topics))

    def _newest(self) -> pathlib.Path:
        """By the revision it proves: clocks and names say nothing.  Raises SourceUnavailable."""
        if (self._folder / MANIFEST).exists():
            return self._folder
        try:
            found = [path.parent for path in self._folder.glob(f"*/{MANIFEST}")]
        except OSError as error:
            raise SourceUnavailable(f"{self._folder} cannot be read: {error}") from error
        if not found:
            raise SourceUnavailable(f"there is no snapshot in {self._folder}")
        return max(found, key=_proven)

    def close(self) -> None:
        """Nothing is held."""


def _proven(folder: pathlib.Path) -> int:
    try:
        return read_manifest(folder).revision
    except SourceUnavailable:
        return -1
