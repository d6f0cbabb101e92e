"""Errors of the database side, in the same tree as all others (`pubsub_api.errors`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pubsub_api.core.errors import Fault
from pubsub_api.errors import HeliographError, InvalidConfig, UsageError

if TYPE_CHECKING:
    from nb_api.core.changes import DbObject

__all__ = [
    "DbError",
    "DbNotFound",
    "DbUnavailable",
    "GiveUp",
    "InvalidObject",
    "NoDatabase",
    "ObjectExists",
    "ObjectNotFound",
    "RevisionGone",
    "RevisionTooOld",
    "RevisionUnknown",
    "SourceUnavailable",
    "ValueMismatch",
    "VersionConflict",
]


class NoDatabase(InvalidConfig):
    """Neither the program, nor the environment, nor a configuration file names a database."""


class InvalidObject(UsageError):
    """A table, a key, a counter's name or a value breaks the rules of `nb_api.core.checks`."""


class ValueMismatch(InvalidObject):
    """The value of an object does not fit the class that is declared for its table (`nb_api.models`).

    A write that raises it has written nothing.  An object that was read is in the database, and in the copy, as it is.
    """

    def __init__(
        self, message: str, *, table: str = "", key: str = "", field: str = "", found: DbObject | None = None
    ) -> None:
        super().__init__(message)
        self.table = table
        self.key = key
        self.field = field
        """Which part of the value, as ``network`` or ``addresses[0].prefix``; empty when it is the whole."""
        self.object = found
        """As it is stored, None when it was to be written."""


class DbError(HeliographError):
    """A database could not do what was asked."""

    fault: ClassVar[Fault] = "environment"
    position: int | None = None
    """Which of the writes given to `DbApi.apply` was refused, from 0; None when the error is about no single one."""


class DbUnavailable(DbError):
    """The database cannot be reached, or did not answer in time.  Whether a write happened is not known."""

    retriable = True


class DbNotFound(DbError):
    """There is no database at the place that was named, and the caller does not want one to be made."""

    fault = "caller"


class ObjectNotFound(DbError):
    """There is no object of that table and key."""

    fault = "caller"

    def __init__(self, message: str, *, deleted_version: int | None = None) -> None:
        super().__init__(message)
        self.deleted_version = deleted_version
        """The version of its tombstone, None when it never existed or the tombstone has expired."""


class ObjectExists(DbError):
    """An object of that table and key exists already."""

    fault = "caller"


class VersionConflict(DbError):
    """The object has another version than the caller expected: another writer changed it.  Read again, then retry."""

    fault = "caller"
    retriable = True


class RevisionGone(DbError):
    """The feed cannot go on from that revision.  Take a snapshot and go on from its revision."""


class RevisionTooOld(RevisionGone):
    """The changes after that revision are compacted away."""

    def __init__(self, message: str, *, oldest_revision: int) -> None:
        super().__init__(message)
        self.oldest_revision = oldest_revision
        """`DbApi.changes` answers for this revision and later ones."""


class RevisionUnknown(RevisionGone):
    """The database has not come as far as that revision: it went back, as one does that is restored from a backup.

    What was seen of it may never have happened.  Objects of a snapshot count as newer than whatever is known, also when
    their versions are lower.
    """

    def __init__(self, message: str, *, newest_revision: int) -> None:
        super().__init__(message)
        self.newest_revision = newest_revision
        """The newest revision that the database knows."""


class SourceUnavailable(HeliographError):
    """A resync source cannot give what was asked for now: no process answers, a file is damaged, or it proves too
    little.

    A local cache then reads the database instead.
    """

    fault: ClassVar[Fault] = "environment"
    retriable = True


class GiveUp(HeliographError):
    """Raised by a program's reconcile function: this key cannot be brought into order before it changes.

    A `nb_api.Controller` does not try it again until then.
    """

    fault: ClassVar[Fault] = "caller"


class CopyUnsettled(HeliographError):
    """A local cache cannot be verified now: it is being read, a topic was added or dropped, or the bus is away.

    Try again later.
    """

    fault: ClassVar[Fault] = "environment"
    retriable = True
