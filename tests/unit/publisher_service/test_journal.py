"""The journal of the publisher service: what was written is what is read, and what is damaged is never believed."""

from __future__ import annotations

import os
import pathlib
import random

import pytest

from publisher_service.core import messages
from publisher_service.core.messages import Group, WorkerBatch
from publisher_service.errors import JournalError
from publisher_service.journal import INCARNATIONS_MAX, Journal, RecoveredJournal, predecessor_of
from pubsub_api.core import frame as frames
from pubsub_api.core.events import Event, decode_events, encode_event
from pubsub_api.core.settings import FrameSettings

WORKER = b"w" * 16
KIB = 1024


def open_journal(directory: pathlib.Path, bytes_max: int = 256 * KIB, **options: int) -> Journal:
    return Journal(directory / "j", bytes_max=bytes_max, **options)


def begin(directory: pathlib.Path, guid: bytes = b"1" * 16, bytes_max: int = 256 * KIB, **options: int) -> Journal:
    journal = open_journal(directory, bytes_max, **options)
    journal.start(guid, journal.recover())
    return journal


def write(journal: Journal, number: int, groups: list[Group], worker: bytes = WORKER) -> None:
    journal.append(worker, number, 1000 + number, groups, messages.encode(WorkerBatch(number, groups)))


def write_many_topics(journal: Journal) -> None:
    for number in range(1, 10_000):
        write(journal, number, [(f"topic/{number}", [b"x"])])


def recover(directory: pathlib.Path) -> RecoveredJournal:
    return open_journal(directory).recover()


def test_batches_heads_and_numbers_come_back(tmp_path: pathlib.Path) -> None:
    with begin(tmp_path) as journal:
        write(journal, 1, [("a", [b"x", b"y"]), ("b", [b"z"])])
        write(journal, 2, [("a", [b"v"])])
        write(journal, 5, [("a", [b"w"])], worker=b"o" * 16)
        write(journal, 0, [("c", [b"own"])])
        assert journal.heads() == {"a": 4, "b": 1, "c": 1}
    told = recover(tmp_path)
    assert told.taken == {WORKER: 2, b"o" * 16: 5}
    assert [(one.guid, one.heads) for one in told.incarnations] == [(b"1" * 16, {"a": 4, "b": 1, "c": 1})]
    assert [(part.topic, part.first, part.encoded) for part in told.stretches] == [
        ("a", 1, [b"x", b"y"]), ("b", 1, [b"z"]), ("a", 3, [b"v"]), ("a", 4, [b"w"]), ("c", 1, [b"own"]),
    ]  # fmt: skip
    assert not told.is_damaged


@pytest.mark.parametrize("rotations", [0, 2])
def test_what_could_not_be_published_comes_back(tmp_path: pathlib.Path, rotations: int) -> None:
    with begin(tmp_path, bytes_max=8 * KIB) as journal:
        for number, refused in enumerate((2, 1), 1):
            journal.refuse(WORKER, refused)
            write(journal, number, [])
        journal.refuse(b"o" * 16, 5)
        journal.forget(b"o" * 16)
        while journal.rotations <= rotations:
            write(journal, 0, [("a", [b"x" * 500])])
    assert recover(tmp_path).refused.get(WORKER) == 3
    with begin(tmp_path, bytes_max=8 * KIB):
        pass
    assert recover(tmp_path).refused.get(WORKER) == 3


def test_no_journal_tells_nothing(tmp_path: pathlib.Path) -> None:
    assert recover(tmp_path) == RecoveredJournal()


def test_a_record_torn_at_any_byte_ends_the_reading_before_it(tmp_path: pathlib.Path) -> None:
    with begin(tmp_path) as journal:
        write(journal, 1, [("a", [b"first"])])
        whole = journal.written_bytes
        write(journal, 2, [("a", [b"second"])])
        end = journal.written_bytes
    path = next(path for path in tmp_path.iterdir() if path.stat().st_size)
    content = path.read_bytes()
    for cut in range(whole, end):
        path.write_bytes(content[:cut])
        assert recover(tmp_path).taken == {WORKER: 1}, cut
        path.write_bytes(content[:cut] + b"\0" * 100)
        assert recover(tmp_path).taken == {WORKER: 1}, cut
    path.write_bytes(content[:end])
    assert recover(tmp_path).taken == {WORKER: 2}


def test_no_flipped_byte_is_believed(tmp_path: pathlib.Path) -> None:
    with begin(tmp_path) as journal:
        for number in range(1, 6):
            write(journal, number, [("a", [b"event %d" % number])])
        end = journal.written_bytes
    path = next(path for path in tmp_path.iterdir() if path.stat().st_size)
    content = path.read_bytes()[:end]
    dice = random.Random(3)
    for _ in range(300):
        damaged = bytearray(content)
        damaged[dice.randrange(end)] ^= 1 << dice.randrange(8)
        path.write_bytes(damaged)
        told = recover(tmp_path)
        assert [part.encoded[0] for part in told.stretches] == [b"event %d" % n for n in range(1, 6)][
            : len(told.stretches)
        ]
        assert told.is_damaged == (not told.incarnations)


def test_files_take_turns_and_nothing_is_forgotten_but_old_events(tmp_path: pathlib.Path) -> None:
    with begin(tmp_path, bytes_max=8 * KIB) as journal:
        for number in range(1, 400):
            write(journal, number, [(f"t/{number % 7}", [b"x" * 100])])
        assert journal.rotations > 5
        heads = dict(journal.heads())
    told = recover(tmp_path)
    assert told.taken == {WORKER: 399}
    assert told.incarnations[-1].heads == heads
    assert sum(heads.values()) == 399
    assert 20 < len(told.stretches) < 100
    for part in told.stretches:
        assert heads[part.topic] - 60 < part.first <= heads[part.topic]
    assert all(path.stat().st_size <= 4 * KIB for path in tmp_path.iterdir())


def test_each_incarnation_goes_on_from_the_one_before_and_few_are_remembered(tmp_path: pathlib.Path) -> None:
    for run in range(1, 8):
        with begin(tmp_path, guid=bytes([run]) * 16) as journal:
            write(journal, run, [("a", [b"x"] * run)])
    told = recover(tmp_path)
    assert [one.guid[0] for one in told.incarnations] == [4, 5, 6, 7]
    assert len(told.incarnations) == INCARNATIONS_MAX
    assert [one.heads["a"] for one in told.incarnations] == [4, 5, 6, 7]
    assert told.taken == {WORKER: 7}
    assert [(part.guid[0], part.first) for part in told.stretches] == [(run, 1) for run in range(1, 8)]


@pytest.mark.parametrize("is_full", [False, True])
def test_an_incarnation_that_died_while_it_began_hides_nothing(tmp_path: pathlib.Path, is_full: bool) -> None:
    """Behind the last incarnation while there is room, in the other file when there is hardly any."""
    with begin(tmp_path, bytes_max=8 * KIB) as journal:
        write(journal, 1, [("a", [b"x" * (3500 if is_full else 10)])])
        ended = journal.written_bytes
    with begin(tmp_path, guid=b"2" * 16, bytes_max=8 * KIB) as journal:
        size = journal.written_bytes
        begun = journal.path
    assert (size < ended) == is_full
    content = begun.read_bytes()
    for cut in range(0 if is_full else ended, size):
        begun.write_bytes(content[:cut])
        told = recover(tmp_path)
        assert [one.guid for one in told.incarnations] == [b"1" * 16]
        assert told.taken == {WORKER: 1}
    with begin(tmp_path, guid=b"3" * 16, bytes_max=8 * KIB) as journal:
        write(journal, 2, [("a", [b"y"])])
    told = recover(tmp_path)
    assert [one.guid[:1] for one in told.incarnations] == [b"1", b"3"]
    assert [part.encoded[0][:1] for part in told.stretches] == [b"x", b"y"]


def test_workers_are_bounded_and_those_that_ended_are_left_out(tmp_path: pathlib.Path) -> None:
    with begin(tmp_path, bytes_max=8 * KIB, workers_max=3) as journal:
        for worker in (1, 2, 3, 1, 4, 5):
            write(journal, 1, [("a", [b"x"])], worker=bytes([worker]) * 16)
        journal.forget(bytes([4]) * 16)
        rotations = journal.rotations
        number = 1
        while journal.rotations == rotations:
            number += 1
            write(journal, number, [("a", [b"x" * 200])], worker=bytes([5]) * 16)
    assert sorted(worker[0] for worker in recover(tmp_path).taken) == [1, 5]


def test_a_journal_that_does_not_fit_says_so(tmp_path: pathlib.Path) -> None:
    with pytest.raises(JournalError, match="cannot be begun"):
        begin(tmp_path, bytes_max=2**62)
    with begin(tmp_path, bytes_max=8 * KIB) as journal, pytest.raises(JournalError, match="raise journal_bytes_max"):
        write_many_topics(journal)
    with pytest.raises(JournalError, match="cannot be begun"):
        begin(tmp_path / "missing")


def test_what_is_discarded_is_gone(tmp_path: pathlib.Path) -> None:
    journal = begin(tmp_path)
    journal.discard()
    assert list(tmp_path.iterdir()) == []
    assert recover(tmp_path) == RecoveredJournal()


def test_files_are_private(tmp_path: pathlib.Path) -> None:
    begin(tmp_path).close()
    assert {os.stat(path).st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}


@pytest.mark.parametrize("key", [None, b"secret"])
def test_frames_are_rebuilt_with_the_numbers_they_had(tmp_path: pathlib.Path, key: bytes | None) -> None:
    events = [Event(table="t", key="k", action="set", value=number, version=number) for number in range(5)]
    encoded = [encode_event(event, 7) for event in events]
    with begin(tmp_path) as journal:
        write(journal, 1, [("a", encoded[:2])])
        write(journal, 2, [("a", encoded[2:]), ("b", [b"x" * 70_000])])
    settings = FrameSettings(bytes_max=65_536, key=key)
    predecessor = predecessor_of(recover(tmp_path), settings)
    assert predecessor is not None
    assert (predecessor.guid, predecessor.heads, predecessor.former) == (b"1" * 16, {"a": 5, "b": 1}, None)
    headers = [frames.unpack(frame, bytes_max=65_536, key=key) for frame in predecessor.frames]
    assert [(header.topic, header.first, header.count) for header in headers] == [("a", 1, 2), ("a", 3, 3)]
    read = [event for frame, header in zip(predecessor.frames, headers, strict=True)
            for event in decode_events(frame, header)]  # fmt: skip
    assert [event.version for event in read] == [0, 1, 2, 3, 4]


def test_no_incarnation_is_no_predecessor() -> None:
    assert predecessor_of(RecoveredJournal(), FrameSettings()) is None
