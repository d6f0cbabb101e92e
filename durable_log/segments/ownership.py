"""Whose the sealed segments in a directory, or under a prefix of an object store, are.

A small content ``.log.json`` there says to which log they belong.  A place of another log is refused, and so is one
that has more than the log knows of: the store was emptied, an older copy of it was restored, or two logs were given one
place.  A process that went on would use offsets again that the segments have already, and never find these again.

Two copies of one store have one identity.  So the content also has a token, made by chance before each change of the
place, and the store has the same: a store that has another one is not the store that changed the place last.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from durable_log.errors import LogCorrupt, SegmentsRefused
from durable_log.segments.store import SegmentStore, Version
from durable_log.storage.identity import Lineage

MARK = ".log.json"
MOVED = ".moved-frames"
"""Frames that a repair has yet to append; there as long as it runs, or when it died."""
_FORMAT = 1
_WAYS_OUT = (
    "If the store was lost or is an older copy, restore the right one, or let 'heliograph log repair' list the files "
    "again; else name another [log] segment_directory. Nothing was changed"
)

Ends = Callable[[], dict[int, int]]
"""Where each shard of the log ends."""


class _Mark(msgspec.Struct):
    format: int
    identity: str
    shards: int
    """How many the log has: one that is made anew for these segments has to have as many."""
    ancestors: list[str]
    token: str = ""
    """Of the last change of the directory; the store that made it has the same."""
    next_token: str = ""
    """That the store has instead, if the process that changed the directory died before it could say that the store has
    it."""


def check_owner(store: SegmentStore, lineage: Lineage, listed: Callable[[], int]) -> None:
    """Raises SegmentsRefused when the directory belongs to another log, or is empty although the manifest has as many
    segments as ``listed`` says.  One without a mark belongs to its files."""
    mark = read_mark(store)
    if mark is not None:
        owners = [] if lineage.owns(mark.identity) else [mark.identity]
    else:
        found = {name.log for _, name, _ in store.published()}
        owners = sorted(name for name in found if not lineage.owns(name))
        check_not_empty(store, lineage, listed)
    if owners:
        raise SegmentsRefused(
            f"{store.place} has the segments of the log {', '.join(owners)}, and this is the log {lineage.identity}. "
            f"{_WAYS_OUT}",
            identity=lineage.identity, found=owners[0],
        )  # fmt: skip


def check_not_empty(store: SegmentStore, lineage: Lineage, listed: Callable[[], int]) -> None:
    """Raises SegmentsRefused when there is nothing, although the manifest has as many segments as ``listed`` says."""
    if read_mark(store) is not None or next(iter(store.published()), None) is not None:
        return
    # The mark is there before the first segment is listed, so it is looked for once more.
    if (count := listed()) and read_mark(store) is None:
        raise SegmentsRefused(
            f"{store.place} is empty, and the log {lineage.identity} has {count} sealed segments: they are in another "
            "place, or what is there is not mounted. Name that one as [log] segment_directory, or copy all that it "
            f"has, {MARK} too; only if it is lost let 'heliograph log repair --give-up-damaged' go on without it. "
            "Nothing was changed",
            identity=lineage.identity, found="",
        )  # fmt: skip


def check_not_newer(store: SegmentStore, lineage: Lineage, ends: Ends) -> None:
    """Raises SegmentsRefused when the directory has offsets that the log has never reached."""
    found = [(shard, name) for shard, name, _ in store.published() if lineage.owns(name.log)]
    known = ends() if found else {}
    for shard, name in found:
        if name.end > known.get(shard, 0):
            raise SegmentsRefused(
                f"{store.place} is of a later state of the log {lineage.identity} than its store: shard {shard} has "
                f"segments up to offset {name.end} of the log {name.log}..., and ends at {known.get(shard, 0)} in the "
                f"store. {_WAYS_OUT}",
                identity=lineage.identity, found=lineage.identity,
            )  # fmt: skip


def check_last(store: SegmentStore, lineage: Lineage, token: Callable[[], str]) -> None:
    """Raises SegmentsRefused when another store than the one that has this token changed the place last."""
    while not is_last(mark := read_mark(store), token()):
        if mark == read_mark(store):  # else another process of this log changes it just now
            refuse_unless_last(store, lineage, mark, token())


def refuse_unless_last(store: SegmentStore, lineage: Lineage, mark: _Mark | None, token: str) -> None:
    """The same, of what was read."""
    if not is_last(mark, token):
        raise SegmentsRefused(
            f"{store.place} was changed last by another copy of the store of the log {lineage.identity}: either two "
            f"copies of it are in use, and one of them must not be, or this one is older than the place. {_WAYS_OUT}",
            identity=lineage.identity, found=lineage.identity,
        )  # fmt: skip


def is_last(mark: _Mark | None, token: str) -> bool:
    """Whether the store that has this token changed the directory last."""
    if mark is None or not mark.token:
        return True
    return token == mark.token or (token == mark.next_token != "")


def read_mark(store: SegmentStore) -> _Mark | None:
    """Raises LogCorrupt when it cannot be understood, LogUnavailable."""
    return stored_mark(store)[0]


def stored_mark(store: SegmentStore) -> tuple[_Mark | None, Version]:
    """The same, with what `write_mark` has to replace."""
    path = f"{store.place}/{MARK}"
    try:
        found = store.read(MARK)
        if found is None:
            return None, None
        mark = msgspec.json.decode(found[0], type=_Mark)
    except (OSError, msgspec.MsgspecError) as error:
        raise LogCorrupt(f"{path}, which says whose segments these are, cannot be read: {error}") from error
    if mark.format != _FORMAT:
        raise LogCorrupt(f"{path} has format {mark.format}; this release reads {_FORMAT}")
    return mark, found[1]


def write_mark(
    store: SegmentStore, lineage: Lineage, shards: int, former: Version, token: str, next_token: str = ""
) -> Version:
    """Say, durably, whose segments they are.  Call it with the lock held.  Raises LogUnavailable when another process
    has said something else since ``former``."""
    mark = _Mark(_FORMAT, lineage.identity, shards, sorted(lineage.ancestors), token, next_token)
    return store.write(MARK, msgspec.json.encode(mark), former)


def keep_frames(store: SegmentStore, frames: list[bytes]) -> None:
    """Keep frames that are about to leave the store, durably, with those of a repair that died before."""
    if frames:
        former, version = _kept(store)
        store.write(MOVED, msgspec.msgpack.encode([*former, *frames]), version)


def kept_frames(store: SegmentStore) -> list[bytes]:
    """What `keep_frames` has kept.  Raises LogCorrupt when it cannot be read."""
    return _kept(store)[0]


def _kept(store: SegmentStore) -> tuple[list[bytes], Version]:
    try:
        found = store.read(MOVED)
        return ([], None) if found is None else (msgspec.msgpack.decode(found[0], type=list[bytes]), found[1])
    except (OSError, msgspec.MsgspecError) as error:
        raise LogCorrupt(
            f"{store.place}/{MOVED}, with frames that a repair has to append, cannot be read: {error}"
        ) from error
