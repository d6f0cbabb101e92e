"""The lease for sealing on object storage: who gets it, who loses it, and what is not known."""

from __future__ import annotations

import contextlib
from typing import cast

import pytest

from durable_log.errors import LeaseLost, LogCorrupt, LogUnavailable, RecordConflict, SealingBusy
from durable_log.log_api import LogApi, Record
from durable_log.segments.lease import LEASE_S, RECORD, SealingLease

SECOND_NS = 10**9


class Records:
    """Of a log that has nothing else, and a clock that is turned by hand."""

    def __init__(self) -> None:
        self.value: bytes | None = None
        self.version = 0
        self.now_s = 1000.0
        self.loses_answers = 0

    def get_record(self, name: str) -> Record | None:
        assert name == RECORD
        return None if self.value is None else Record(name, self.value, self.version)

    def put_records(self, writes: list[tuple[str, bytes, int]]) -> list[int]:
        [(_, value, expected)] = writes
        if expected != self.version:
            raise RecordConflict("another version")
        self.value, self.version = value, self.version + 1
        if self.loses_answers:
            self.loses_answers -= 1
            raise LogUnavailable("no answer")
        return [self.version]

    def now_ns(self) -> int:
        return int(self.now_s * SECOND_NS)


@pytest.fixture
def records() -> Records:
    return Records()


def held(lease: SealingLease, records: Records) -> contextlib.AbstractContextManager[None]:
    return lease.held(cast(LogApi, records))


def epoch(records: Records) -> int:
    assert records.value is not None
    return int(records.value.split()[0])


def test_one_at_a_time_has_it_and_each_has_an_epoch_of_its_own(records: Records) -> None:
    first, second = SealingLease("s3://b/p"), SealingLease("s3://b/p")
    with held(first, records):
        assert epoch(records) == 1
        first.fence().check(records.value)
        with (
            pytest.raises(SealingBusy, match=r"s3://b/p now; if it has died, its lease ends in 3"),
            held(second, records),
        ):
            pass
        with pytest.raises(SealingBusy, match="another thread"), held(first, records):
            pass
    with held(second, records):
        assert epoch(records) == 2
        with pytest.raises(LeaseLost):
            first.fence().check(records.value)


def test_what_a_dead_holder_left_is_taken_over_when_it_has_ended(records: Records) -> None:
    dead, next_one = SealingLease("p"), SealingLease("p")
    holding = held(dead, records)
    holding.__enter__()
    try:
        records.now_s += LEASE_S + 1
        with held(next_one, records):
            assert epoch(records) == 2
            with pytest.raises(LeaseLost):
                dead._renew(cast(LogApi, records))
    finally:
        holding.__exit__(None, None, None)
    assert epoch(records) == 2, "who lost it does not give it back"


def test_a_clock_that_was_set_back_keeps_nobody_out(records: Records) -> None:
    dead = held(SealingLease("p"), records)
    dead.__enter__()
    try:
        records.now_s -= 3600
        with held(SealingLease("p"), records):
            assert epoch(records) == 2
    finally:
        dead.__exit__(None, None, None)


def test_a_lease_whose_answer_was_lost_is_ones_own(records: Records) -> None:
    lease = SealingLease("p")
    records.loses_answers = 1
    with pytest.raises(LogUnavailable, match="no answer"), held(lease, records):
        pass
    with held(lease, records):
        assert epoch(records) == 2
        records.loses_answers = 1
        with pytest.raises(LogUnavailable, match="no answer"):
            lease._renew(cast(LogApi, records))
        lease._renew(cast(LogApi, records))
        lease.fence().check(records.value)


def test_a_damaged_record_is_named(records: Records) -> None:
    records.value, records.version = b"what is this", 1
    with pytest.raises(LogCorrupt, match=RECORD), held(SealingLease("p"), records):
        pass
