"""Getting aligned: asking one source, collecting its answer, and knowing when it is whole.

A bucket counts when all its parts have come and it has the digest that the source said.  It stays packed: what is in it
is looked at only where there is something here to merge it with.  When the answer has ended and a bucket is missing, or
nothing moves any more, the rest is asked for again: the new request says what has come already, so that every round
makes progress.

Where an answer can only add to what is here, buckets are put into the set whenever the source is told to go on, so that
memory never holds more than a few (`Alignment.is_streamed`).  Of all other answers nothing is applied before all of it
is there.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Sequence
from typing import TYPE_CHECKING

from durability_service.core.messages import AlignData, AlignEnd, AlignProgress, AlignRequest, BucketPart
from durability_service.core.sets.batches import SampleBatch, from_content
from durability_service.core.sets.sample_set import SampleSet
from durability_service.core.sets.samples import DIGEST_BYTES, Sample, digest_value
from durability_service.core.settings import ServiceSettings
from pubsub_api.core.errors import UndecodableBody

if TYPE_CHECKING:
    from durability_service.core.alignment.conflicts import Conflict

ATTEMPTS_MAX = 8
_UNKNOWN = b"\xff" * DIGEST_BYTES


class AlignmentPurpose(enum.Enum):
    """Why a service asks."""

    FETCH = "fetch"
    """It starts and the master is complete."""
    FOLLOW = "follow"
    """The master is at another epoch."""
    RECONCILE = "reconcile"
    """Sets of the same epoch differ: something was lost on the way."""
    COLLECT = "collect"
    """The master joins another side of a split."""
    FOREIGN = "foreign"
    """The master joins with another role."""


@dataclasses.dataclass
class Applying:
    """What an answer that has come whole did to the set so far, and what is left of it."""

    buckets: list[int]
    """Those that are left, the next one last."""
    removed: list[Sample]
    """``added`` and ``removed`` are for the store."""
    is_change: bool
    """It made a difference."""
    added: list[Sample] = dataclasses.field(default_factory=list)
    adopted: list[int] = dataclasses.field(default_factory=list)
    """Buckets that were empty and were taken over whole."""


class Alignment:
    """One attempt to align with one source."""

    def __init__(
        self,
        settings: ServiceSettings,
        name: str,
        samples: SampleSet,
        conflict: Conflict,
        *,
        asked_at: int,
        compares: bool,
        is_streamed: bool,
    ) -> None:
        """``conflict`` says with which peer, why and how."""
        self._settings = settings
        self._name = name
        self._set = samples
        self.source = conflict.peer.node
        self.source_incarnation = conflict.peer.service.advert.incarnation
        self.role = conflict.peer.role
        self.purpose = conflict.purpose
        self.policy = conflict.policy
        self.is_streamed = is_streamed
        self.asked_at = asked_at
        """The time of the request: what was written here later is never touched."""
        self._compares = compares
        self._number = 0
        self._answer = 0
        self._attempts = 0
        self._received_before = -1
        self._moved_at = 0.0
        self._parts: dict[int, dict[int, BucketPart]] = {}
        self.staged: dict[int, SampleBatch] = {}
        """What has come and is not in the set yet."""
        self.digests: dict[int, bytes] = {}
        """Bucket -> digest, of those that have come."""
        self._told_chunk = 0
        self.end: AlignEnd | None = None
        """The end of the answer, once everything it covers is here."""
        self.applying: Applying | None = None
        """From when the answer is whole."""
        self.received = 0

    def request(self, number: int, now: float) -> AlignRequest:
        """The question, or the question for what is still missing."""
        self._number = number
        self._answer = 0
        self._attempts = 1 if self.received > self._received_before else self._attempts + 1
        self._received_before = self.received
        self._moved_at = now
        self._parts.clear()
        return AlignRequest(
            node=self._settings.node,
            incarnation=self._settings.incarnation,
            to=self.source,
            name_space=self._name,
            number=number,
            is_initial=self.purpose is AlignmentPurpose.FETCH,
            digests=self._known(),
        )

    def _known(self) -> dict[int, bytes] | None:
        if self._compares:
            return {**self._set.digests(), **self.digests}
        if self.digests:
            return {number: self.digests.get(number, _UNKNOWN) for number in range(self._set.bucket_count)}
        return None

    def is_overdue(self, now: float) -> bool:
        return self.end is None and now >= self.next_deadline()

    def next_deadline(self) -> float:
        return float("inf") if self.end else self._moved_at + self._settings.align_timeout_s

    @property
    def is_hopeless(self) -> bool:
        """So many requests in a row brought nothing."""
        return self._attempts >= ATTEMPTS_MAX

    def is_for_us(self, message: AlignData | AlignEnd) -> bool:
        return (
            self.end is None
            and message.node == self.source
            and message.incarnation == self.source_incarnation
            and (self._settings.node, self._number) in message.addressees
        )

    def data(self, message: AlignData, now: float) -> AlignProgress | None:
        """A chunk came.  Returns what to tell the source, now and then."""
        if message.answer != self._answer:
            self._answer, self._told_chunk = message.answer, 0
            self._parts.clear()  # a bucket may have been packed anew: pieces of two answers do not fit
        self._moved_at = now
        for part in message.parts:
            self._take(part)
        if message.chunk - self._told_chunk < max(1, self._settings.window_chunks // 4):
            return None
        self._told_chunk = message.chunk
        return AlignProgress(
            node=self._settings.node, to=self.source, name_space=self._name, answer=message.answer, chunk=message.chunk
        )

    def _take(self, part: BucketPart) -> None:
        if self.digests.get(part.bucket) == part.digest or not 0 <= part.bucket < self._set.bucket_count:
            return
        parts = self._parts.setdefault(part.bucket, {})
        parts[part.part] = part
        if len(parts) < part.parts:
            return
        del self._parts[part.bucket]
        content = part.content if part.parts == 1 else b"".join(one.content for _, one in sorted(parts.items()))
        try:
            batch = from_content(content)
        except UndecodableBody:
            return  # it is asked for again
        if batch.digest != digest_value(part.digest):
            return
        self.staged[part.bucket] = batch
        self.digests[part.bucket] = part.digest
        self.received += batch.count

    def take_staged(self) -> dict[int, SampleBatch]:
        """The buckets that have come since the last call."""
        staged, self.staged = self.staged, {}
        return staged

    def ended(self, message: AlignEnd, now: float) -> bool:
        """The answer ended.  True when it is whole; False when the rest must be asked for."""
        self._moved_at = now
        if not message.is_complete:
            return False
        for number, digest in message.buckets.items():
            if self.digests.get(number, _UNKNOWN) != digest:
                return False
        # What was staged from an earlier answer and is not in this one is equal to what we said we had: the same.
        self.end = message
        return True

    def apply(self, removed: Sequence[Sample], *, is_change: bool) -> None:
        """Begin to apply what came; in all other buckets the source has what we have.  ``removed`` and ``is_change``
        are what the deletions that came with it did."""
        self.applying = Applying(sorted(self.staged, reverse=True), list(removed), is_change)
