"""What a database accepts, decided in one place so that every driver refuses the same things with the same errors.

Tables, keys and names of counters are non-empty strings of at most 255 characters without control characters.  Topics
obey `pubsub_api.core.topics`.  A value is anything that msgpack can say; it is read back as plain types, so a tuple
becomes a list.  What could be written and not be read again is refused.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Any

import msgspec

from nb_api.core.digests import bucket_of
from nb_api.errors import DbError, InvalidObject, RevisionTooOld, RevisionUnknown
from pubsub_api.core.events import ENCODING_ERRORS, PLAIN_TYPES, check_value
from pubsub_api.core.topics import FilterSet, is_wildcard, literal_prefix
from pubsub_api.errors import LimitReached, UsageError

NAME_CHARACTERS_MAX = 255
REVISION_MAX = 2**63 - 1
REPORT_BYTES_MAX = 16_384
"""Of what a process tells of itself.  Thousands are read at once."""

# Unpaired surrogates too: no database can store them.
_FORBIDDEN = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode


def check_name(name: str, what: str = "key") -> None:
    """``what`` is the word for it in the error.  Raises InvalidObject."""
    if not isinstance(name, str):
        raise InvalidObject(f"a {what} must be a str, not {type(name).__name__}")
    if not 0 < len(name) <= NAME_CHARACTERS_MAX:
        raise InvalidObject(f"a {what} has 1 to {NAME_CHARACTERS_MAX} characters, not {len(name)}")
    if name.isascii() and name.isprintable():
        return  # most are, and this is seen sooner
    if bad := _FORBIDDEN.search(name):
        raise InvalidObject(f"{what} {name[:80]!r} contains {bad.group()!r}")


def check_object(table: str, key: str) -> None:
    """What names an object.  Raises InvalidObject."""
    check_name(table, "table")
    check_name(key, "key")


def check_revision(revision: int, what: str = "revision") -> None:
    """Raises UsageError unless it is a number that a revision or a version can be, 0 included."""
    if type(revision) is not int or not 0 <= revision <= REVISION_MAX:
        raise UsageError(f"a {what} is an int from 0 to 2**63 - 1, not {revision!r}")


def check_expected(expected_version: int | None) -> None:
    """Raises UsageError unless it is None or can be a version."""
    if expected_version is not None:
        check_revision(expected_version, "expected version")


def check_in_feed(after_revision: int, *, compacted: int, newest: int, is_known: bool = True) -> None:
    """Raises RevisionTooOld and RevisionUnknown unless a feed without the changes up to ``compacted`` can go on there.

    ``is_known``: it is the revision of a change that the feed has.  That, and both numbers, must have been read after
    the changes, or at the same moment.
    """
    if after_revision < compacted:
        raise RevisionTooOld(
            f"the changes after revision {after_revision} are compacted away, only those after {compacted} are left",
            oldest_revision=compacted,
        )
    if after_revision > newest:
        raise RevisionUnknown(
            f"there is no revision {after_revision} yet, {newest} is the newest: the database went back",
            newest_revision=newest,
        )
    if not is_known and after_revision not in (0, compacted):
        raise RevisionUnknown(
            f"revision {after_revision} is not part of the history, whose newest is {newest}: the database has lost it",
            newest_revision=newest,
        )


def check_revisions(revisions: Sequence[int]) -> None:
    """Raises UsageError unless each is one."""
    for revision in revisions:
        check_revision(revision)


def check_limit(limit: int) -> None:
    """Raises UsageError unless a list can be cut to it."""
    if type(limit) is not int or not 1 <= limit <= REVISION_MAX:
        raise UsageError(f"a limit is an int of at least 1, not {limit!r}")


def check_not_negative(number: float, what: str) -> None:
    """Raises UsageError for a negative number, and for what is no number."""
    if isinstance(number, bool) or not isinstance(number, int | float) or not number >= 0:
        raise UsageError(f"{what} must be a number of at least 0, not {number!r}")


def check_report(name: str, data: bytes) -> None:
    """Raises InvalidObject for the name, LimitReached, and UsageError for what is not bytes."""
    check_name(name, "report")
    if not isinstance(data, bytes):
        raise UsageError(f"a report is bytes, not {type(data).__name__}")
    if len(data) > REPORT_BYTES_MAX:
        raise LimitReached(f"a report of {len(data)} bytes is larger than {REPORT_BYTES_MAX}")


def encode_value(value: Any, *, bytes_max: int) -> bytes:
    """The value as msgpack.  Raises InvalidObject when it has no such form, LimitReached when that is too large."""
    try:
        if type(value) not in PLAIN_TYPES:
            check_value(value)
        encoded = _encode(value)
    except ENCODING_ERRORS as error:
        raise InvalidObject(f"the value cannot be stored as msgpack: {error}") from error
    if len(encoded) > bytes_max:
        raise LimitReached(f"a value of {len(encoded)} bytes is larger than [db] value_bytes_max = {bytes_max}")
    return encoded


def decode_value(encoded: bytes | memoryview) -> Any:
    """What `encode_value` was given.  Raises DbError when another program has written it and it is no msgpack."""
    try:
        return _decode(encoded)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise DbError(f"the database holds a value that is no msgpack: {error}") from error


class TopicSelection:
    """Which objects a snapshot is about: those of any of the tables, with a topic that any of the filters selects.

    None selects all, an empty sequence nothing.  ``buckets`` selects by version (`nb_api.core.digests`).  Raises
    InvalidObject, InvalidTopic.
    """

    __slots__ = ("buckets", "filters", "tables")

    def __init__(
        self,
        tables: Sequence[str] | None = None,
        topics: Sequence[str] | None = None,
        buckets: Collection[int] | None = None,
    ) -> None:
        for names, what in ((tables, "tables"), (topics, "topics")):
            if isinstance(names, str):
                raise InvalidObject(f"{what} must be a sequence of strings, not the one string {names[:80]!r}")
        for table in tables or ():
            check_name(table, "table")
        self.tables = None if tables is None else frozenset(tables)
        self.filters = None if topics is None else FilterSet(topics)
        self.buckets = None if buckets is None else frozenset(buckets)

    @property
    def has_plain_topics(self) -> bool:
        """Whether each filter is a topic, or a topic and all below it: what a range of names can say."""
        return all(not is_wildcard(one) or one == f"{literal_prefix(one)}/#" for one in self.filters or ())

    def is_in_bucket(self, version: int) -> bool:
        return self.buckets is None or bucket_of(version) in self.buckets

    def selects(self, table: str, topic: str) -> bool:
        if self.tables is not None and table not in self.tables:
            return False
        return self.filters is None or self.filters.match(topic)
