"""Which versions a copy on a busy bus keeps to ask its database for."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest

from nb_api.cache.index import CacheIndexes
from nb_api.cache.reading.history_marks import HistoryMarks
from nb_api.cache.reading.live_changes import LiveChanges
from nb_api.core.copy.cache import CacheCore
from nb_api.revisions import NONCE_BITS
from pubsub_api import Event

MARKS_MAX = 400


class Ears:
    """Hears versions as `LocalCache` does, so many in a frame."""

    def __init__(self, frame_size: int) -> None:
        def check() -> None:
            """The copy is usable."""

        self._core = CacheCore(None, ["#"], tombstones_max=10)
        self.marks = HistoryMarks(interval_s=64.0)
        self._live = LiveChanges(self._core, CacheIndexes(self._core, None, check), self.marks)
        self._frame_size = frame_size

    def hear(self, versions: Iterable[int], now: float) -> None:
        size, waiting = self._frame_size, list(versions)
        for start in range(0, len(waiting), size):
            events = [
                Event(topic="t", table="port", key=str(version % 100), action="set", version=version)
                for version in waiting[start : start + size]
            ]
            self._live.apply(events, now)

    def pending(self) -> list[int]:
        return self.marks.pending(self._core.newest)


def history(first: int, last: int, *, nonce: int) -> list[int]:
    return [(number << NONCE_BITS) + nonce for number in range(first, last + 1)]


def shuffled(versions: list[int], distance: int) -> list[int]:
    """As they come when several publish."""
    chance = random.Random(7)
    return sorted(versions, key=lambda version: (version >> NONCE_BITS) + chance.uniform(0, distance))


@pytest.mark.parametrize("frame_size", [1, 10])
@pytest.mark.parametrize("disorder", [0, 20])
@pytest.mark.parametrize("lost", [30, 100, 5000])
def test_a_backup_that_is_put_back_and_overtaken_within_a_slot_is_asked_for(
    lost: int, disorder: int, frame_size: int
) -> None:
    ears = Ears(frame_size)
    before = history(1, 10_000, nonce=1)
    ears.hear(shuffled(before, disorder), now=5.1)
    ears.hear(shuffled(history(10_001 - lost, 20_000, nonce=2), disorder), now=5.5)
    ears.hear(shuffled(history(20_001, 30_000, nonce=2), disorder), now=5.9)
    asked = ears.pending()
    assert set(asked) & set(before[-lost:])
    assert len(asked) < MARKS_MAX


@pytest.mark.parametrize("frame_size", [1, 10])
def test_in_a_long_time_without_a_check_marks_stay_bounded(frame_size: int) -> None:
    ears = Ears(frame_size)
    for second in range(300):
        ears.hear(shuffled(history(1000 * second + 1, 1000 * second + 500, nonce=1), 20), now=float(second))
    assert len(ears.pending()) < MARKS_MAX


@pytest.mark.parametrize("is_proved_between", [False, True])
def test_the_last_that_was_heard_before_the_history_was_lost_is_asked_for(is_proved_between: bool) -> None:
    """Lone versions that come in order are noted one by one at first, and then only the newest of an interval."""
    ears = Ears(1)
    ears.hear(history(1, 1000, nonce=1), now=5.0)
    asked = ears.pending()
    ears.hear(history(1001, 1010, nonce=1), now=5.1)
    if is_proved_between:
        ears.marks.proved(asked, asked[-1])
    [last] = history(1010, 1010, nonce=1)
    ears.hear(history(1011, 1020, nonce=2), now=7.5)
    assert last in ears.pending()
    ears.hear(history(1021, 3000, nonce=2), now=9.5)
    assert last in ears.pending()
