"""What happens to the core, and what it wants done."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping, Sequence
from typing import Any

from durability_service.core.messages import NO_EPOCH, Epoch, Message
from durability_service.core.sets.batches import BucketSummary, SampleBatch
from durability_service.core.sets.sample_set import Deletion
from durability_service.core.sets.samples import Sample

# -- events


@dataclasses.dataclass(frozen=True)
class Tick:
    """Time passed."""


@dataclasses.dataclass(frozen=True)
class Received:
    message: Message


@dataclasses.dataclass(frozen=True)
class Live:
    """Samples came over the bus.  ``token`` comes back in `AcknowledgeRange` when they are as durable as they will
    be."""

    samples: Sequence[Sample]
    token: int = 0


@dataclasses.dataclass(frozen=True)
class LiveLost:
    """The bus says that live samples may have been lost on their way to us, or come late."""

    is_read: bool = False
    """A reader was given history before."""
    is_sure: bool = False
    """The bus gave up events that are to be kept here."""


@dataclasses.dataclass(frozen=True)
class Stored:
    """Everything up to and including this operation is durable."""

    operation: int


@dataclasses.dataclass(frozen=True)
class Interest:
    """A reader wants the data of these name-spaces."""

    name_spaces: Sequence[str]


@dataclasses.dataclass(frozen=True)
class DeleteHistory:
    """Delete the history of the topics that these filters select, up to now."""

    filters: Sequence[str]


@dataclasses.dataclass(frozen=True)
class Terminate:
    """Say good-bye."""


Event = Tick | Received | Live | LiveLost | Stored | Interest | DeleteHistory | Terminate

# -- what a store is told.  Operations are numbered and done in order, each whole or not at all.


@dataclasses.dataclass(frozen=True)
class StoreMarks:
    """What a store knows of a name-space besides its samples."""

    epoch: Epoch = NO_EPOCH
    lineage: tuple[Epoch, ...] = ()
    deletions: frozenset[Deletion] = frozenset()
    alive: int = 0
    is_clean: bool = False
    """Nothing is left of what the deletions cover; written by releases that know it."""
    """The latest time at which the set is known to have been maintained."""


@dataclasses.dataclass(frozen=True)
class Apply:
    """Change the current generation, and its marks when some are given.  It is complete before and after."""

    name_space: str
    added: Sequence[Sample]
    removed: Sequence[Sample]
    marks: StoreMarks | None = None
    batches: Mapping[int, SampleBatch] = dataclasses.field(default_factory=dict)
    """Bucket -> all that is in it after this change."""


@dataclasses.dataclass(frozen=True)
class BeginFill:
    """Start a new, incomplete generation; the current one, if it is complete, is set aside as the backup."""

    name_space: str
    filters: tuple[str, ...]
    buckets: int
    """In how many buckets it is kept."""


@dataclasses.dataclass(frozen=True)
class Fill:
    """Put whole buckets into the generation that is being filled."""

    name_space: str
    batches: Mapping[int, SampleBatch]
    kept: Sequence[int] = ()
    """Buckets that are as they are in the backup."""


@dataclasses.dataclass(frozen=True)
class CompleteFill:
    """The generation that was being filled is whole: it is the one to start from."""

    name_space: str
    marks: StoreMarks


StoreOperation = Apply | BeginFill | Fill | CompleteFill

# -- effects


class Level(enum.IntEnum):
    """How much is told, as in the original's configuration; each includes those above it."""

    NONE = 0
    SEVERE = 1
    WARNING = 2
    INFO = 3
    CONFIG = 4
    FINE = 5
    FINER = 6
    FINEST = 7


@dataclasses.dataclass(frozen=True)
class Send:
    """To every peer."""

    message: Message


@dataclasses.dataclass(frozen=True)
class StoreSamples:
    number: int
    operation: StoreOperation


@dataclasses.dataclass(frozen=True)
class AcknowledgeRange:
    token: int


@dataclasses.dataclass(frozen=True)
class Trace:
    level: Level
    what: str
    fields: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class NameTaken:
    """Another service has our name and has been there longer: this one has ended."""

    reason: str


Effect = Send | StoreSamples | AcknowledgeRange | Trace | NameTaken


@dataclasses.dataclass(frozen=True)
class Restored:
    """The complete set that a store found of a name-space when it was opened.  All is in the rows of its buckets."""

    marks: StoreMarks = StoreMarks()
    filters: tuple[str, ...] = ()
    buckets: Mapping[int, BucketSummary] = dataclasses.field(default_factory=dict)
    """Bucket -> what is in its row, of those that are not empty."""
