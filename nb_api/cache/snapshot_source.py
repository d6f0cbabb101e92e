"""Where a local cache gets all objects from when that is not the database: the contract of a resync source.

A source has objects of some earlier moment, and may *prove* a revision of the database: everything that was committed
up to it is among them.  Then the cache loads them and reads only the changes after that revision from the database's
feed; the outcome is the same as that of a snapshot of the database.  Without a proof, or when the feed does not reach
back that far, the database is read as if there were no source.

A source that also has what came after its proof (``has_tail``) can stand in for a database that is away.  What it has
is then applied by version, like events, nothing is removed because it is absent, and the copy counts as *provisional*
until the database has been asked.

Sources are entry points of the namespace ``heliograph.resync_source``, found by stevedore and by nothing else.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, NamedTuple

from oslo_config import cfg

from nb_api import notify_config
from pubsub_api import Session
from pubsub_api.config import check_group
from pubsub_api.core.events import Event
from pubsub_api.runtime.closing import Closeable
from pubsub_api.runtime.plugins import Plugins, register_options

NAMESPACE = "heliograph.resync_source"
DATABASE = "db"
"""The name of the source that is none: the database itself."""

Take = Callable[[Sequence[Event]], None]


class Doubt(NamedTuple):
    """An object that the source cannot vouch for: it has an older version than the proof says, or none."""

    table: str
    key: str
    known: Event | None
    """What the source has of it."""


class SourceSnapshot(Closeable):
    """All that a source has of some tables and topics.  For one thread; read once, then close it."""

    @property
    @abc.abstractmethod
    def revision(self) -> int:
        """Every change of the database up to this revision is reflected, but for what `read` returns.  0: unknown."""

    @abc.abstractmethod
    def read(self, take: Take) -> Sequence[Doubt]:
        """Give everything to ``take``, in portions of bounded size: ``set`` for an object, ``delete`` for a tombstone.

        An object may come twice, and later than `revision`.  Returns the objects of which nothing can be said.
        Raises SourceUnavailable when not all could be given, and what ``take`` raises.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Idempotent."""


class SnapshotSource(abc.ABC):
    """A place with snapshots.  For one thread, but for `close`.  The constructor raises InvalidConfig."""

    options: ClassVar[Mapping[str, Sequence[cfg.Opt]]] = {}
    """Option group -> options that this source adds.  Registered on ``conf`` before the constructor is called."""

    has_tail: ClassVar[bool] = False
    """It also has what was committed after the revision it proves, so that it may stand in for the database."""

    needs_slot: ClassVar[bool] = False
    """Many caches that read it at once are a burden: they take turns, in the slots for snapshots of the database."""

    def __init__(self, conf: cfg.ConfigOpts, session: Session | None) -> None:
        """``session`` None: there is no bus."""
        self.conf = conf
        self.session = session

    @abc.abstractmethod
    def open(self, tables: Sequence[str] | None, topics: Sequence[str]) -> SourceSnapshot:
        """What there is of these tables (None: all) and filters.  May block for a bounded time.

        Raises SourceUnavailable.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """From any thread; what is being read ends soon, with SourceUnavailable or Closed.  Idempotent."""


_PLUGINS = Plugins(NAMESPACE, SnapshotSource, "resync source")  # type: ignore[type-abstract]  # subclasses are made


def build_source(name: str, conf: cfg.ConfigOpts, session: Session | None) -> SnapshotSource | None:
    """The source installed under ``name``, None for the database itself.  Close it when done.

    Raises DriverNotFound with the names that exist, DriverDependencyMissing with the pip extra, InvalidConfig.
    """
    if name == DATABASE:
        return None
    source_class = load_source(name)
    register_options(conf, source_class, source_class.options)
    for group, options in source_class.options.items():
        check_group(conf, group, options)
    return source_class(conf, session)


def load_source(name: str) -> type[SnapshotSource]:
    """The class installed under ``name``.  Raises DriverNotFound, DriverDependencyMissing, DriverError."""
    return _PLUGINS.load(name)


def may_stand_in(conf: cfg.ConfigOpts) -> bool:
    """Whether the source that is configured can do without the database.  Raises as `load_source`."""
    name = conf[notify_config.CACHE_GROUP].resync_source
    return name != DATABASE and load_source(name).has_tail
