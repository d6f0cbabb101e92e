"""What every target is, and what a batch is on its way to one."""

from __future__ import annotations

import abc
import hashlib
import itertools
from collections.abc import Iterator, Sequence

import msgspec

from pubsub_api.core.frame import GUID_BYTES
from spark_pipeline import staging
from spark_pipeline.staging import Portion


class Ledger(msgspec.Struct, frozen=True):
    """Where a query stands."""

    delivered: int = -1
    """The last batch that took effect."""
    underway: int = -1
    """The batch whose files are named, -1 when there is none."""
    files: tuple[str, ...] = ()
    done: int = 0
    """Events of the batch underway that took effect, where that is known."""

    def begin(self, batch: int, names: Sequence[str]) -> Ledger:
        """The ledger with a batch underway: the one given, or the one that was named before and did not end."""
        return self if self.underway == batch else Ledger(self.delivered, batch, tuple(names))


class Target(abc.ABC):
    """Where rows go.  Travels to the workers; used in the commit, on the driver."""

    def __init__(self, url: str, directory: str) -> None:
        """``directory`` is where tasks stage files."""
        self.url = url
        self.directory = directory

    @abc.abstractmethod
    def deliver(self, query: str, batch: int, names: Sequence[str], *, is_only: bool = False) -> None:
        """Let the files of a batch take effect, once.  ``is_only``: the query has no other batch, so its ledger may go
        when this is done.  Raises PipelineError and what the target raises; then it may be tried again."""

    @abc.abstractmethod
    def named(self) -> set[str]:
        """Files that some query's ledger names."""

    def portions(self, ledger: Ledger) -> Iterator[Portion]:
        """What the tasks staged for the batch underway, in order."""
        return itertools.chain.from_iterable(staging.read_staged(self.directory, name) for name in ledger.files)

    def discard(self, ledger: Ledger, names: Sequence[str]) -> None:
        """Remove the files of a batch that took effect."""
        staging.discard(self.directory, {*ledger.files, *names})


def batch_guid(query: str, batch: int) -> bytes:
    """The GUID under which the events of a batch are published: the same each time."""
    return hashlib.blake2b(f"{query}\0{batch}".encode(), digest_size=GUID_BYTES).digest()
