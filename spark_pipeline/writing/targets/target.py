"""What every target is, and what a batch is on its way to one."""

from __future__ import annotations

import abc
import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, TypeVar

import msgspec

from pubsub_api.core.frame import GUID_BYTES
from pubsub_api.errors import InvalidEvent
from spark_pipeline.errors import CheckpointCopied, JobNameTaken
from spark_pipeline.writing import staged_files
from spark_pipeline.writing.staged_files import StagedPortion

T = TypeVar("T")


class MicroBatch(NamedTuple):
    """One micro-batch of a query."""

    query: str
    """The name that the user gave it."""
    checkpoint: str
    """The mark of its checkpoint: Spark's own id of the query, which is kept there and nowhere else."""
    number: int
    mark: str = ""
    """What Spark planned for it (`spark_pipeline.reading.checkpoints.batch_mark`); empty where that cannot be read."""

    @property
    def guid(self) -> bytes:
        """The publisher under which its events are known: the same each time it runs, and never another batch's."""
        text = f"{self.query}\0{self.checkpoint}\0{self.number}"
        return hashlib.blake2b(text.encode(), digest_size=GUID_BYTES).digest()


class Ledger(msgspec.Struct, frozen=True):
    """Where a query stands."""

    delivered: int = -1
    """The last batch that took effect."""
    underway: int = -1
    """The batch whose files are named, -1 when there is none."""
    files: tuple[str, ...] = ()
    done: int = 0
    """Events of the batch underway that took effect, where that is known."""
    checkpoint: str = ""
    """The mark of the checkpoint that the numbers of batches belong to."""
    mark: str = ""
    """The mark of the batch underway, or else of the last one that took effect."""

    def begin(self, batch: MicroBatch, names: Sequence[str]) -> Ledger | None:
        """The ledger with a batch underway: the one given, or the one that was named before and did not end.

        None when the batch has taken effect.  Raises JobNameTaken when the name belongs to another checkpoint, whose
        batches have the same numbers and other rows, and CheckpointCopied when Spark would not come with this number.
        """
        if self == Ledger():
            return Ledger(underway=batch.number, files=tuple(names), checkpoint=batch.checkpoint, mark=batch.mark)
        if self.checkpoint != batch.checkpoint:
            raise JobNameTaken(
                f"the name of query {batch.query!r} belongs to another checkpoint, which has delivered up to batch "
                f"{self.delivered}: nothing was written. Give each query a name of its own; when that checkpoint is "
                "gone for good, choose a new name, and what the new checkpoint reads is written, all of it"
            )
        reached = self.delivered if self.underway < 0 else self.underway
        if batch.number == reached:
            self._check_same(batch)
            return self if self.underway >= 0 else None
        if batch.number < reached or self.underway >= 0:
            raise CheckpointCopied(
                f"query {batch.query!r} comes with batch {batch.number}, and this target knows batch {reached} of the "
                "same checkpoint: there is a copy of it, or this is an old one. Go on from the newest, or start with a "
                "new checkpoint and a new name"
            )
        return Ledger(self.delivered, batch.number, tuple(names), checkpoint=batch.checkpoint, mark=batch.mark)

    def _check_same(self, batch: MicroBatch) -> None:
        """Raises CheckpointCopied when a batch has the number of the one that is known, and is not that one."""
        if self.mark and batch.mark and self.mark != batch.mark:
            raise CheckpointCopied(
                f"query {batch.query!r} comes with another batch {batch.number} than the one that this target knows: "
                "there is a copy of its checkpoint, which has gone on. Nothing was written. Go on from that one, or "
                "start with a new checkpoint and a new name"
            )

    def end(self) -> Ledger:
        """The ledger when the batch underway has taken effect."""
        return Ledger(delivered=self.underway, checkpoint=self.checkpoint, mark=self.mark)


class Target(abc.ABC):
    """Where rows go.  Travels to the workers; used in the commit, on the driver."""

    event_bytes_max: int
    """The largest event, encoded, that it takes."""

    def __init__(self, url: str, directory: str) -> None:
        """``directory`` is where tasks stage files.  Raises UsageError, NotSupported for a target that cannot be
        used."""
        self.url = url
        self.directory = directory

    def check_row(self, table: str, key: str, size: int) -> None:
        """Raises InvalidEvent for a row that the target would never take: asked by the tasks, because a batch that was
        named is what it is."""
        if size > self.event_bytes_max:
            raise InvalidEvent(
                f"event {table}/{key} takes {size} bytes, and the target takes at most {self.event_bytes_max}"
            )

    @abc.abstractmethod
    def deliver(self, batch: MicroBatch, names: Sequence[str], *, is_only: bool = False) -> None:
        """Let the files of a batch take effect, once.  ``is_only``: the query has no other batch, so its ledger may go
        when this is done.  Raises JobNameTaken, CheckpointCopied, PipelineError and what the target raises; after the
        latter two it may be tried again."""

    @abc.abstractmethod
    def named(self) -> set[str]:
        """Files that some query's ledger names."""

    def portions(self, ledger: Ledger) -> Iterator[StagedPortion]:
        """What the tasks staged for the batch underway, in order."""
        return itertools.chain.from_iterable(staged_files.read_staged(self.directory, name) for name in ledger.files)

    def discard(self, ledger: Ledger | None, names: Sequence[str]) -> None:
        """Remove the files of a batch that took effect, and those of attempts that died long ago."""
        staged_files.discard(self.directory, {*(ledger.files if ledger else ()), *names})
        left = staged_files.forgotten(self.directory)
        if left:
            staged_files.discard(self.directory, set(left) - self.named())


def in_chunks(items: Iterable[T], size: Callable[[T], int], *, count_max: int, bytes_max: int) -> Iterator[list[T]]:
    """The items in lists of at most that many and that large; a larger one is alone."""
    together: list[T] = []
    total = 0
    for item in items:
        if together and (len(together) == count_max or total + size(item) > bytes_max):
            yield together
            together, total = [], 0
        together.append(item)
        total += size(item)
    if together:
        yield together
