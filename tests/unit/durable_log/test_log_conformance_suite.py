"""The conformance suite of logs finds drivers that are wrong.  Each of these is right but for one thing."""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from durable_log import loading
from durable_log.log_api import Appended, LogApi, Record, StoredFrame, StreamState
from durable_log.testing.log_conformance import LogConformance
from durable_log.testing.log_conformance.base import SHARDS
from durable_log.testing.sources import Source
from pubsub_api.core import frame as frames
from pubsub_api.errors import WaitTimeout
from pubsub_api.runtime.plugins import split_url

_Sqlite: Any = loading.load_log_driver("sqlite")


class RightLog(_Sqlite):  # type: ignore[misc]
    """Nothing is wrong with it."""


class ForgetfulLog(RightLog):
    """Stores what it holds already under another publisher's name."""

    def append(self, data: Sequence[bytes]) -> Appended:
        appended: Appended = super().append(data)
        if appended.duplicates and not appended.events:
            topics = [frames.unpack(one, bytes_max=len(one)).topic for one in data]
            return super().append([Source().frame(topic) for topic in topics])  # type: ignore[no-any-return]
        return appended


class HalfLog(RightLog):
    """Every frame is a transaction of its own."""

    def append(self, data: Sequence[bytes]) -> Appended:
        results: list[Appended] = [super(HalfLog, self).append([one]) for one in data]
        ends = {shard: end for one in results for shard, end in one.ends.items()}
        return Appended(sum(one.events for one in results), sum(one.duplicates for one in results), ends)


class ReframingLog(RightLog):
    def read(self, *arguments: Any, **limits: Any) -> list[StoredFrame]:
        return [one._replace(frame=one.frame + b"\xc0") for one in super().read(*arguments, **limits)]


class GreedyLog(RightLog):
    def read(self, shard: int, offset: int, **_limits: Any) -> list[StoredFrame]:
        return list(super().read(shard, offset))


class HopefulLog(RightLog):
    """Knows of no holes."""

    def streams(self, shard: int) -> list[StreamState]:
        return [one._replace(missing=()) for one in super().streams(shard)]


class SilentTrimLog(RightLog):
    def read(self, shard: int, offset: int, **limits: Any) -> list[StoredFrame]:
        return list(super().read(shard, max(offset, self.state()[shard].start), **limits))


class SleepyLog(RightLog):
    def wait(self, ends: Mapping[int, int], *, timeout_s: float) -> bool:
        return False


class CarelessRecords(RightLog):
    """Writes whatever happened meanwhile."""

    def put_records(self, writes: Sequence[tuple[str, bytes | None, int | None]]) -> list[int]:
        careless = [(name, value, None) for name, value, _ in writes]
        return list(super().put_records(careless))


class ReusedVersions(RightLog):
    def get_record(self, name: str) -> Record | None:
        found: Record | None = super().get_record(name)
        return None if found is None else found._replace(version=1)


CASES: dict[Callable[..., None], type[RightLog]] = {
    LogConformance.test_appending_again_stores_nothing: ForgetfulLog,
    LogConformance.test_one_bad_frame_and_the_call_stores_nothing: HalfLog,
    LogConformance.test_frames_come_back_as_they_were_appended: ReframingLog,
    LogConformance.test_a_read_keeps_the_limits_but_for_one_frame: GreedyLog,
    LogConformance.test_a_hole_is_remembered_and_filled_late: HopefulLog,
    LogConformance.test_what_is_gone_is_told_with_the_place_to_go_on: SilentTrimLog,
    LogConformance.test_wait_is_woken_by_an_append: SleepyLog,
    LogConformance.test_several_are_written_together_or_not_at_all: CarelessRecords,
    LogConformance.test_who_expects_another_version_changes_nothing: CarelessRecords,
    LogConformance.test_versions_rise_also_after_a_delete: ReusedVersions,
}


def run(test: Callable[..., None], driver_class: type[RightLog], directory: pathlib.Path) -> None:
    url = f"sqlite://{directory}/log.db"
    conf = loading.build_log(f"{url}?shards={SHARDS}&synchronous=normal").conf
    log: LogApi
    with contextlib.closing(driver_class(conf, split_url(url, what="log", example=""))) as log:
        log.initialize()
        test(LogConformance(), log)


@pytest.mark.parametrize("test", CASES, ids=lambda test: test.__name__)
def test_a_wrong_driver_fails(test: Callable[..., None], tmp_path: pathlib.Path) -> None:
    with pytest.raises((AssertionError, pytest.fail.Exception, WaitTimeout)):
        run(test, CASES[test], tmp_path)


@pytest.mark.parametrize("test", CASES, ids=lambda test: test.__name__)
def test_a_right_driver_passes(test: Callable[..., None], tmp_path: pathlib.Path) -> None:
    run(test, RightLog, tmp_path)


def test_no_test_of_the_suite_hides_another() -> None:
    names = [name for part in LogConformance.__mro__ for name in vars(part) if name.startswith("test_")]
    assert len(names) == len(set(names))
