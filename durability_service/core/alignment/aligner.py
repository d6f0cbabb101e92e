"""Answering requests for alignment: combined, in bounded chunks, no faster than the slowest asker.

Requests that come within the combine period share one answer: it holds every bucket in which any of the askers differs.
The period of services that start ends when all that may ask have asked.
A bucket that an asker has already does it no harm, so a shared answer leaves each asker with the set that an answer of
its own would have given it.  The chunks go out once, to all.

Nothing is repeated: an asker that misses a chunk asks again for what it still lacks.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Set

from durability_service.core.messages import (
    NO_DIGEST,
    AlignData,
    AlignEnd,
    AlignProgress,
    AlignRequest,
    BucketPart,
    Epoch,
)
from durability_service.core.sets.sample_set import SampleSet
from durability_service.core.sets.samples import DIGEST_BYTES
from durability_service.core.settings import ServiceSettings


@dataclasses.dataclass(frozen=True)
class Standing:
    """What an answer is given from."""

    is_complete: bool
    is_settling: bool
    """Deleted samples leave the set.  None of them is sent; but digests differ from those of sets that have been
    cleaned, so only services that lack a set are answered: others would be sent what is equal soon."""
    epoch: Epoch
    lineage: list[Epoch]


@dataclasses.dataclass
class _AlignmentAnswer:
    number: int
    addressees: dict[str, int]
    """Node -> number of its request."""
    progress: dict[str, int]
    buckets: list[int]
    chunks: Iterator[list[BucketPart]]
    moved_at: float
    sent: int = 0
    covered: dict[int, bytes] = dataclasses.field(default_factory=dict)


class Aligner:
    """The answering side of one name-space."""

    def __init__(self, settings: ServiceSettings, name: str, samples: SampleSet) -> None:
        self._settings = settings
        self._name = name
        self._set = samples
        self._pending: dict[str, AlignRequest] = {}
        self._due = 0.0
        self._served: dict[str, tuple[int, int]] = {}
        """Asker -> incarnation and number of the last request that was answered."""
        self._answer: _AlignmentAnswer | None = None
        self._answers = 0
        self.requests = 0
        self.combined = 0
        """Requests that shared an answer with an earlier one."""
        self.samples_sent = 0
        self.dropped_askers = 0
        """Askers that did not keep up."""

    @property
    def is_busy(self) -> bool:
        return bool(self._pending) or self._answer is not None

    def requested(self, request: AlignRequest, now: float, askers: Set[str]) -> None:
        """A peer asks.  What it asked before and has not been answered is forgotten.

        ``askers`` are the peers that lack a set, and so have asked or may ask at any moment.
        """
        if self._served.get(request.node, (0, 0)) >= (request.incarnation, request.number):
            return
        known = self._pending.get(request.node)
        if known and (known.incarnation, known.number) >= (request.incarnation, request.number):
            return
        settings = self._settings
        if not self._pending:
            self._due = now + (settings.combine_initial_s if request.is_initial else settings.combine_operational_s)
        self._pending[request.node] = request
        self.requests += 1
        if request.is_initial and askers <= self._pending.keys():
            self._due = now

    def progressed(self, progress: AlignProgress, now: float) -> None:
        answer = self._answer
        if answer and answer.number == progress.answer and progress.chunk > answer.progress.get(progress.node, 1 << 62):
            answer.progress[progress.node] = progress.chunk
            answer.moved_at = now

    def left(self, node: str) -> None:
        """A peer is gone."""
        self._pending.pop(node, None)
        self._served.pop(node, None)
        if self._answer:
            self._drop(self._answer, node)
            if not self._answer.addressees:
                self._answer = None

    def next_deadline(self) -> float:
        if self._answer:
            return self._answer.moved_at + self._settings.align_timeout_s
        return self._due if self._pending else float("inf")

    def pump(self, now: float, standing: Standing) -> list[AlignData | AlignEnd]:
        """What to send now; a bounded amount of it."""
        if self._answer is None and self._pending and now >= self._due:
            if not standing.is_complete or standing.is_settling:  # others ask again, perhaps another peer
                answered = {node: one for node, one in self._pending.items() if standing.is_complete and one.is_initial}
                self._pending = answered
            if not self._pending:
                return []
            self._start(now)
        out: list[AlignData | AlignEnd] = []
        answer = self._answer
        if answer is None:
            return out
        self._drop_the_slow(answer, now)
        for _ in range(self._settings.chunks_per_step):
            if not answer.addressees or not self._has_room(answer):
                break
            parts = next(answer.chunks, None)
            if parts is None:
                out.append(self._end(answer, standing))
                self._answer = None
                break
            answer.sent += 1
            out.append(self._data(answer, parts))
        if self._answer and not answer.addressees:
            self._answer = None
        return out

    def is_ready_to_send(self, now: float) -> bool:
        """Whether `pump` would send something at once."""
        if self._answer:
            return self._has_room(self._answer)
        return bool(self._pending) and now >= self._due

    def _has_room(self, answer: _AlignmentAnswer) -> bool:
        slowest = min(answer.progress.values(), default=0)
        return answer.sent - slowest < self._settings.window_chunks

    def _drop_the_slow(self, answer: _AlignmentAnswer, now: float) -> None:
        if self._has_room(answer):
            return
        if now - answer.moved_at < self._settings.align_timeout_s:
            return
        slowest = min(answer.progress.values())
        for node in [node for node, chunk in answer.progress.items() if chunk == slowest]:
            self._drop(answer, node)
            self.dropped_askers += 1
        answer.moved_at = now

    def _drop(self, answer: _AlignmentAnswer, node: str) -> None:
        answer.addressees.pop(node, None)
        answer.progress.pop(node, None)

    def _start(self, now: float) -> None:
        requests, self._pending = self._pending, {}
        self.combined += len(requests) - 1
        self._answers += 1
        needed: set[int] = set()
        for request in requests.values():
            self._served[request.node] = (request.incarnation, request.number)
            needed.update(self._differing(request))
        answer = self._answer = _AlignmentAnswer(
            number=self._answers,
            addressees={node: request.number for node, request in requests.items()},
            progress=dict.fromkeys(requests, 0),
            buckets=sorted(needed),
            chunks=iter(()),
            moved_at=now,
        )
        answer.chunks = self._chunks(answer)

    def _differing(self, request: AlignRequest) -> Iterator[int]:
        for number in range(self._set.bucket_count):
            if request.digests is None or request.digests.get(number, NO_DIGEST) != self._set.digest_of(number):
                yield number

    def _chunks(self, answer: _AlignmentAnswer) -> Iterator[list[BucketPart]]:
        """Pieces of packed buckets, up to the size of a chunk.  A bucket is read when its turn comes."""
        chunk: list[BucketPart] = []
        bytes_max = self._settings.chunk_bytes
        size = 0
        for number in answer.buckets:
            batch = self._set.given(number)
            digest = answer.covered[number] = batch.digest.to_bytes(DIGEST_BYTES, "big")
            self.samples_sent += batch.count
            content = batch.content
            parts = -(-len(content) // bytes_max)
            for position in range(parts):
                piece = content[position * bytes_max : (position + 1) * bytes_max] if parts > 1 else content
                if chunk and size + len(piece) > bytes_max:
                    yield chunk
                    chunk, size = [], 0
                chunk.append(BucketPart(number, position, parts, digest, piece))
                size += len(piece)
        if chunk:
            yield chunk

    def _names(self, answer: _AlignmentAnswer) -> list[tuple[str, int]]:
        return list(answer.addressees.items())

    def _data(self, answer: _AlignmentAnswer, parts: list[BucketPart]) -> AlignData:
        return AlignData(
            node=self._settings.node,
            incarnation=self._settings.incarnation,
            name_space=self._name,
            answer=answer.number,
            addressees=self._names(answer),
            chunk=answer.sent,
            parts=parts,
        )

    def _end(self, answer: _AlignmentAnswer, standing: Standing) -> AlignEnd:
        return AlignEnd(
            node=self._settings.node,
            incarnation=self._settings.incarnation,
            name_space=self._name,
            answer=answer.number,
            addressees=self._names(answer),
            chunks=answer.sent,
            buckets=answer.covered,
            is_complete=standing.is_complete,
            epoch=standing.epoch,
            lineage=standing.lineage,
            deletions=sorted(self._set.deletions),
        )
