"""Which versions a copy on a busy bus keeps to ask its database for."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest

from nb_api.cache.reading.history_marks import HistoryMarks
from nb_api.core.copy.cache import CacheCore
from nb_api.revisions import NONCE_BITS
from pubsub_api import Event

MARKS_MAX = 400


class Ears:
    """Hears versions as `LocalCache` does, ten in a frame."""

    def __init__(self) -> None:
        self._core = CacheCore(None, ["#"], tombstones_max=10)
        self._marks = HistoryMarks(interval_s=64.0)

    def hear(self, versions: Iterable[int], now: float) -> None:
        core, waiting = self._core, list(versions)
        for start in range(0, len(waiting), 10):
            events = [
                Event(topic="t", table="port", key=str(version), action="set", version=version)
                for version in waiting[start : start + 10]
            ]
            core.heard = [] if self._marks.has_room(len(events)) else None
            core.apply(events)
            self._marks.heard(core.newest, (core.late, core.peak, *(core.heard or ())), now)
            core.late = core.peak = 0

    def pending(self) -> list[int]:
        return self._marks.pending(self._core.newest)


def history(first: int, last: int, *, nonce: int) -> list[int]:
    return [(number << NONCE_BITS) + nonce for number in range(first, last + 1)]


def shuffled(versions: list[int], distance: int) -> list[int]:
    """As they come when several publish."""
    chance = random.Random(7)
    return sorted(versions, key=lambda version: (version >> NONCE_BITS) + chance.uniform(0, distance))


@pytest.mark.parametrize("disorder", [0, 20])
@pytest.mark.parametrize("lost", [30, 100, 5000])
def test_a_backup_that_is_put_back_and_overtaken_within_a_slot_is_asked_for(lost: int, disorder: int) -> None:
    ears = Ears()
    before = history(1, 10_000, nonce=1)
    ears.hear(shuffled(before, disorder), now=5.1)
    ears.hear(shuffled(history(10_001 - lost, 20_000, nonce=2), disorder), now=5.5)
    ears.hear(shuffled(history(20_001, 30_000, nonce=2), disorder), now=5.9)
    asked = ears.pending()
    assert set(asked) & set(before[-lost:])
    assert len(asked) < MARKS_MAX


def test_in_a_long_time_without_a_check_marks_stay_bounded() -> None:
    ears = Ears()
    for second in range(300):
        ears.hear(shuffled(history(1000 * second + 1, 1000 * second + 500, nonce=1), 20), now=float(second))
    assert len(ears.pending()) < MARKS_MAX
