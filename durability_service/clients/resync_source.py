"""Durability services as the resync source of a local cache: ``[local_cache] resync_source = durability``.

Services keep the newest change of every object that they have received.  A checkpoint
(`durability_service.storage.checkpoint`) says which objects there are.  Changes that agree with the checkpoint, or are
later, are taken: so services can stand in for a database that is unreachable.  Objects whose change does not agree are
read from the database.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

from oslo_config import cfg

from durability_service import config
from durability_service.client import DurabilityClient
from durability_service.core.sets.samples import Sample
from durability_service.serving.sampling import event_of
from durability_service.storage import checkpoint
from durability_service.storage.checkpoint import Checkpoint, ObjectKey
from nb_api.cache.snapshot_source import Doubt, SnapshotSource, SourceSnapshot, Take
from nb_api.core.checks import TopicSelection
from nb_api.core.own_tables import is_own
from nb_api.errors import SourceUnavailable
from nb_api.notify_config import SOURCE_TIMEOUT_S
from pubsub_api import Event, Session
from pubsub_api.core.durability import HistoryOutcome
from pubsub_api.errors import Closed, InvalidConfig


class DurabilitySource(SnapshotSource):
    """The services that are reached over the bus."""

    options: ClassVar[Mapping[str, Sequence[cfg.Opt]]] = {config.GROUP: config.OPTIONS}
    has_tail = True
    needs_slot = True

    def __init__(self, conf: cfg.ConfigOpts, session: Session | None) -> None:
        super().__init__(conf, session)
        if session is None:
            raise InvalidConfig("resync_source = durability needs a bus: [pubsub] enable_df_pub_sub")
        self._client = DurabilityClient(session)
        self._timeout_s = SOURCE_TIMEOUT_S
        self._is_closed = False

    def open(self, tables: Sequence[str] | None, topics: Sequence[str]) -> SourceSnapshot:
        found: list[Sample] = []
        self.read([checkpoint.TOPIC], found.extend)
        known = checkpoint.read_checkpoint(sorted(found, key=lambda sample: sample.order))
        if known is None:
            raise SourceUnavailable("durability services have no checkpoint: heliograph durability checkpoint")
        return _ServiceSnapshot(self, known, tables, topics)

    def read(self, topics: Sequence[str], take: Callable[[Sequence[Sample]], None]) -> None:
        """Give everything that services keep of these topics to ``take``.  Blocks.

        Raises SourceUnavailable, Closed, and what ``take`` raises.
        """
        outcome = self._client.read(topics, take, timeout_s=self._timeout_s)
        if outcome is HistoryOutcome.COMPLETE:
            return
        if self._is_closed:
            raise Closed("the resync source is closed")
        if outcome is HistoryOutcome.NO_SERVICE:
            raise SourceUnavailable("no durability service answers")
        raise SourceUnavailable(f"no durability service gave everything within {self._timeout_s} s")

    def close(self) -> None:
        self._is_closed = True
        self._client.close()


class _ServiceSnapshot(SourceSnapshot):
    """What services have, compared with a checkpoint."""

    def __init__(
        self, source: DurabilitySource, known: Checkpoint, tables: Sequence[str] | None, topics: Sequence[str]
    ) -> None:
        self._source = source
        self._known = known
        self._topics = topics
        selection = TopicSelection(tables, topics)
        self._unconfirmed = {name for name, (_, topic) in known.versions.items() if selection.selects(name[0], topic)}
        """Objects of the checkpoint for which no service has a change that agrees with it."""
        self._older: dict[ObjectKey, Event] = {}
        """Object -> an older change of it."""

    @property
    def revision(self) -> int:
        return self._known.revision

    def read(self, take: Take) -> Sequence[Doubt]:
        def take_wanted(samples: Sequence[Sample]) -> None:
            take([event for event in map(event_of, samples) if self._is_wanted(event)])

        self._source.read(self._topics, take_wanted)
        return [Doubt(*name, self._older.get(name)) for name in sorted(self._unconfirmed)]

    def _is_wanted(self, event: Event) -> bool:
        """Whether a change agrees with the checkpoint, or is later, or is a deletion."""
        if not event.version or is_own(event.table):  # not a change of an object in the database
            return False
        name = (event.table, event.key)
        is_delete = event.action == "delete"
        is_as_known = not is_delete and (event.version, event.topic) == self._known.versions.get(name)
        if is_as_known or event.version > self._known.revision_of(name):
            self._unconfirmed.discard(name)
            return True
        if not is_delete and name in self._unconfirmed:
            self._older[name] = event
        return is_delete

    def close(self) -> None:
        """Nothing is held."""
