"""Dead letters, for an operator: look at them, and have them delivered again.

A letter stays in the log.  To redrive it is to append its event once more under its first topic, at the end: it comes
after later events of its key, with its attempts counted anew, to every group whose filter has the topic.  A record
of the group says up to where letters were redriven.
"""

from __future__ import annotations

import dataclasses
import hashlib
import time
from collections.abc import Iterator, Sequence

import msgspec

from durable_log.errors import RecordConflict
from durable_log.log_api import LogApi, Record, StoredFrame
from pubsub_api.core import frame as frames
from pubsub_api.core.events import Event, encode_event, pack_body
from pubsub_api.core.frame import Kind
from pubsub_api.core.topics import FilterSet, check_topic
from pubsub_api.errors import InvalidEvent, InvalidTopic, UndecodableBody
from shared_subscriptions import groups
from shared_subscriptions.config import DEAD_LETTER_TOPIC
from shared_subscriptions.names import Names

LETTERS_MAX = 1000
"""That are redriven by one call."""
_APPENDED_AT_ONCE = 100


@dataclasses.dataclass(frozen=True)
class DeadLetter:
    """An event that used up its attempts."""

    offset: int
    """Of the letter, in the shard of its topic; when the log was given more shards, and its topic is in another one
    since, offsets go on behind those of the former shard."""
    event: Event
    """As it was delivered."""
    is_fit: bool
    """False: it holds no event that could be delivered again."""
    reason: str
    attempts: int | None


@dataclasses.dataclass(frozen=True)
class Redriven:
    """What was redriven, or would be."""

    letters: int
    unfit: int
    """Letters that hold no event of the topics of the group: they stay where they are."""
    first: int
    until: int
    """The letters are at offsets from ``first`` on, without ``until``."""
    is_all: bool
    """False: there were too many for one call."""
    others: list[str]
    """Other groups that get some of these events once more."""


class RedriveRecord(msgspec.Struct):
    """How far the letters of a group were redriven."""

    until: int = 0
    letters: int = 0
    """How many there were before that offset."""


def topic_of(group: str) -> str:
    return DEAD_LETTER_TOPIC.replace("{group}", group)


def progress(log: LogApi, group: str) -> RedriveRecord:
    """Raises LogUnavailable."""
    return _decoded(log.get_record(Names(group).redriven))


def letters(log: LogApi, group: str, first: int = 0) -> Iterator[DeadLetter]:
    """From an offset on, oldest first, up to where the log ends now.  Raises LogError."""
    topic, before = topic_of(group), 0
    for start, shard, end in _places(log, topic):
        yield from _letters(log, topic, shard, (max(start, first - before), end), before)
        before += end


def end_of(log: LogApi, group: str) -> int:
    """The offset that the next letter would have at least."""
    return sum(end for _, _, end in _places(log, topic_of(group)))


def _places(log: LogApi, topic: str) -> list[tuple[int, int, int]]:
    """Where the letters are, oldest first: the oldest offset of a shard, the shard, and where they end in it."""
    states = log.state()
    home = states[log.shards_of(topic)[-1]]
    return [(states[shard].start, shard, end) for shard, end in (*home.after, (home.shard, home.end))]


def _letters(log: LogApi, topic: str, shard: int, span: tuple[int, int], before: int) -> Iterator[DeadLetter]:
    """Those of a shard within a span of offsets; ``before`` is added to their offsets."""
    first, end = offset, _ = span
    while offset < end and (found := log.read(shard, offset)):
        for stored in found:
            if stored.header().topic == topic:
                for place, event in enumerate(_events(stored)):
                    if first <= stored.offset + place < end:
                        yield _letter(before + stored.offset + place, event)
        offset = found[-1].end


def redrive(log: LogApi, group: str, *, until: int | None = None, is_dry: bool = False) -> Redriven:
    """Append the events of dead letters again: those before the offset ``until`` that were not redriven yet.

    At most `LETTERS_MAX` at a time.  A process that redrives the same letters at the same time, or again after a crash
    in the middle, appends nothing twice.  Blocks while it reads the shard.  Raises GroupNotFound, LogError.
    """
    declared = groups.get(log, group)
    own = FilterSet([declared.topic_filter])
    done = progress(log, group)
    fit: list[tuple[int, Event]] = []
    shard_end = end_of(log, group)
    seen, end, is_all = 0, done.until, True
    for letter in letters(log, group, done.until):
        if until is not None and letter.offset >= until:
            break
        if seen == LETTERS_MAX:
            is_all = False
            break
        seen, end = seen + 1, letter.offset + 1
        if letter.is_fit and own.match(letter.event.topic):
            fit.append((letter.offset, letter.event))
    else:
        end = max(end, shard_end)  # all of it was looked at, and need not be again
    if not is_dry:
        _append(log, f"{log.identity} {group} {declared.incarnation}", fit)
        _remember(log, group, RedriveRecord(end, done.letters + seen))
    others = _others(log, group, {event.topic for _, event in fit})
    return Redriven(len(fit), seen - len(fit), done.until, end, is_all, others)


def _append(log: LogApi, name: str, fit: Sequence[tuple[int, Event]]) -> None:
    """As streams of the group, with numbers that tell which letter it is: the log takes each number once."""
    guid = hashlib.blake2b(name.encode(), digest_size=frames.GUID_BYTES, person=b"redrive").digest()
    stamp = time.time_ns()
    packed = [
        frames.pack(
            Kind.DATA, guid, event.topic, pack_body([encode_event(event, stamp)]),
            first=offset + 1, after=0, count=1, timestamp=stamp,  # all numbers between were left out on purpose
        )
        for offset, event in fit
    ]  # fmt: skip
    for place in range(0, len(packed), _APPENDED_AT_ONCE):
        log.append(packed[place : place + _APPENDED_AT_ONCE])


def _remember(log: LogApi, group: str, now: RedriveRecord) -> None:
    name = Names(group).redriven
    while True:
        record = log.get_record(name)
        if _decoded(record).until >= now.until:  # another process has redriven them, too
            return
        try:
            log.put_records([(name, msgspec.msgpack.encode(now), 0 if record is None else record.version)])
            return
        except RecordConflict:
            continue


def _others(log: LogApi, group: str, topics: set[str]) -> list[str]:
    if not topics:
        return []
    found = []
    for name in groups.names(log):
        if name != group and any(map(FilterSet([groups.get(log, name).topic_filter]).match, topics)):
            found.append(name)
    return found


def _decoded(record: Record | None) -> RedriveRecord:
    return RedriveRecord() if record is None else msgspec.msgpack.decode(record.value, type=RedriveRecord)


def _events(stored: StoredFrame) -> list[Event]:
    """What cannot be decoded stands in its place as what is no letter, so that it is counted and stops nothing."""
    try:
        return stored.events()
    except UndecodableBody as error:
        return [Event(table="", key="", action="set", value={"reason": str(error)})] * stored.count


def _letter(offset: int, letter: Event) -> DeadLetter:
    """A program that can append to the log can append what is no letter."""
    told = letter.value if isinstance(letter.value, dict) else {}
    attempts, timestamp = told.get("attempts"), told.get("timestamp")
    event = Event(
        topic=str(told.get("topic", "")), table=letter.table, key=letter.key, action=letter.action,
        version=letter.version, value=told.get("value"), timestamp=timestamp if isinstance(timestamp, int) else 0,
        headers=letter.headers,
    )  # fmt: skip
    try:
        check_topic(event.topic)
        encode_event(event, 1)
        is_fit = True
    except (InvalidTopic, InvalidEvent):
        is_fit = False
    attempts = attempts if isinstance(attempts, int) else None
    return DeadLetter(offset, event, is_fit, str(told.get("reason", "")), attempts)
