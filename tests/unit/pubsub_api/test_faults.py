"""The faults of a link: seeded, counted, and nothing lost that is not counted as lost."""

from __future__ import annotations

import collections
import gc
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pubsub_api.core import frame as frames
from pubsub_api.core.frame import Kind
from pubsub_api.errors import UsageError
from pubsub_api.testing.faults import FaultInjector, Faults
from pubsub_api.testing.frames import Frames

FOREVER = 1e9


def some_frames(count: int) -> list[bytes]:
    maker = Frames()
    return [maker.data("t") for _ in range(count)]


def run(faults: Faults, sent: list[bytes], name: str = "") -> list[bytes]:
    """Everything that comes out, one frame at a time, and the held ones at the end of time."""
    injector = FaultInjector(faults, name)
    out = [passed for frame in sent for passed in injector.push((frame,), now=0.0)]
    return out + injector.due(FOREVER)


def test_without_faults_everything_passes_in_order() -> None:
    faults, sent = Faults(), some_frames(100)
    assert FaultInjector(faults).is_idle
    assert run(faults, sent) == sent
    assert faults.counts().passed == 100


def test_the_seed_decides_everything() -> None:
    sent = some_frames(500)
    settings = {"drop": 0.1, "duplicate": 0.1, "reorder": 0.1, "delay": 0.1}
    assert run(Faults(7, **settings), sent) == run(Faults(7, **settings), sent)
    assert run(Faults(7, **settings), sent) != run(Faults(8, **settings), sent)


def test_links_that_share_faults_do_not_lose_the_same_frames() -> None:
    faults, sent = Faults(drop=0.5), some_frames(200)
    assert run(faults, sent, "a") != run(faults, sent, "b")


def test_the_fate_of_a_frame_does_not_depend_on_other_faults_before_it() -> None:
    sent = some_frames(200)
    plain, changing = Faults(drop=0.3), Faults(drop=1.0, duplicate=0.5, delay=0.5)
    injectors = FaultInjector(plain), FaultInjector(changing)
    for injector in injectors:
        injector.push(sent[:100], 0.0)
    changing.set(drop=0.3, duplicate=0.0, delay=0.0)
    injectors[1].due(FOREVER)
    assert injectors[0].push(sent[100:], 0.0) == injectors[1].push(sent[100:], 0.0)


def test_dropped_frames_are_counted() -> None:
    faults, sent = Faults(drop=0.2), some_frames(1000)
    out = run(faults, sent)
    assert out == [frame for frame in sent if frame in set(out)]
    assert faults.counts().dropped == 1000 - len(out)
    assert 100 < faults.counts().dropped < 300


def test_duplicates_are_counted() -> None:
    faults, sent = Faults(duplicate=0.2), some_frames(500)
    out = run(faults, sent)
    assert list(dict.fromkeys(out)) == sent
    assert len(out) - len(sent) == faults.counts().duplicated > 0


def test_reordered_frames_are_overtaken_by_a_few_and_not_lost() -> None:
    faults, sent = Faults(reorder=0.2, reorder_span=3), some_frames(500)
    out = run(faults, sent)
    assert out != sent
    assert sorted(out) == sorted(sent)
    assert faults.counts().reordered > 0
    position = {frame: place for place, frame in enumerate(out)}
    places = [position[frame] for frame in sent]
    overtaken = [sum(later < place for later in places[number:]) for number, place in enumerate(places)]
    assert 0 < max(overtaken) <= 10


def test_a_reordered_frame_that_nobody_overtakes_comes_late() -> None:
    injector = FaultInjector(Faults(reorder=1.0, delay_s_max=2.0))
    [frame] = some_frames(1)
    assert injector.push([frame], now=10.0) == []
    assert injector.next_due == 12.0
    assert injector.due(11.9) == []
    assert injector.due(12.0) == [frame]
    assert injector.next_due is None


def test_delayed_frames_come_when_they_are_due() -> None:
    faults = Faults(delay=1.0, delay_s_min=1.0, delay_s_max=3.0)
    injector = FaultInjector(faults)
    sent = some_frames(50)
    assert injector.push(sent, now=0.0) == []
    assert injector.due(0.99) == []
    assert injector.next_due is not None
    assert 1.0 <= injector.next_due <= 3.0
    early, late = injector.due(2.0), injector.due(3.0)
    assert early
    assert late
    assert sorted(early + late) == sorted(sent)
    assert faults.counts().delayed == 50


def test_plain_latency_keeps_the_order() -> None:
    injector = FaultInjector(Faults(delay=1.0, delay_s_min=1.0, delay_s_max=1.0))
    sent = some_frames(20)
    out = list(itertools.chain.from_iterable(injector.push([frame], number / 10) for number, frame in enumerate(sent)))
    assert out + injector.due(FOREVER) == sent


def test_a_partition_loses_everything_until_it_ends() -> None:
    faults, sent = Faults(), some_frames(30)
    injector = FaultInjector(faults)
    out = injector.push(sent[:10], 0.0)
    faults.partition(True)
    out += injector.push(sent[10:20], 0.0)
    faults.partition(False)
    out += injector.push(sent[20:], 0.0)
    assert out == sent[:10] + sent[20:]
    assert faults.counts().cut == 10


def test_a_frozen_link_holds_everything_and_then_lets_it_go_in_order() -> None:
    faults, sent = Faults(), some_frames(30)
    injector = FaultInjector(faults)
    faults.freeze()
    assert injector.push(sent[:20], 0.0) == []
    assert injector.next_due is None
    faults.thaw()
    assert not injector.is_idle
    assert injector.next_due == 0.0
    assert injector.push(sent[20:], 0.0) == sent
    assert injector.is_idle
    assert faults.counts().frozen == 20


def test_a_link_that_goes_down_loses_what_was_under_way() -> None:
    faults, sent = Faults(delay=1.0), some_frames(10)
    injector = FaultInjector(faults)
    injector.push(sent, 0.0)
    faults.disconnect()
    assert injector.due(FOREVER) == []
    faults.heal()
    assert injector.due(FOREVER) == []
    assert faults.counts().cut == 10
    assert injector.is_idle


def test_faults_can_be_confined_to_kinds() -> None:
    guid = bytes(16)
    made = {kind: frames.pack(kind, guid, "t", b"\xc0", first=1, count=int(kind == Kind.DATA)) for kind in Kind}
    injector = FaultInjector(Faults(drop=1.0, kinds={Kind.DATA, Kind.REPLY}))
    passed = injector.push(made.values(), 0.0)
    assert passed == [frame for kind, frame in made.items() if kind not in (Kind.DATA, Kind.REPLY)]


def test_what_is_held_has_a_bound() -> None:
    faults, sent = Faults(), some_frames(10)
    injector = FaultInjector(faults, held_bytes_max=3 * len(sent[0]))
    faults.freeze()
    injector.push(sent, 0.0)
    faults.thaw()
    assert injector.due(0.0) == sent[:3]
    assert faults.counts().overflowed == 7


def test_heal_stops_every_fault() -> None:
    faults = Faults(drop=1.0, duplicate=1.0, reorder=1.0, delay=1.0)
    faults.partition(True)
    faults.freeze()
    faults.disconnect()
    assert not faults.settings.is_quiet
    faults.heal()
    assert faults.settings.is_quiet


@pytest.mark.parametrize(
    "settings",
    [{"drop": 1.1}, {"duplicate": -0.1}, {"reorder": 2}, {"delay_s_min": 1.0, "delay_s_max": 0.5}, {"reorder_span": 0}],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(UsageError):
        Faults(**settings)
    faults = Faults(drop=0.5)
    with pytest.raises(UsageError):
        faults.set(**settings)
    assert faults.settings.drop == 0.5


def test_watchers_are_told_and_not_kept_alive() -> None:
    class Watcher:
        def __init__(self) -> None:
            self.seen: list[float] = []

        def on_faults(self) -> None:
            self.seen.append(faults.settings.drop)

    faults = Faults()
    watcher = Watcher()
    seen = watcher.seen
    faults.watch(watcher)
    faults.set(drop=0.5)
    del watcher
    gc.collect()
    faults.set(drop=0.6)
    assert seen == [0.5]


_PROBABILITY = st.floats(0.0, 1.0)
_SETTINGS = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys(("drop", "duplicate", "reorder", "delay"), _PROBABILITY),
        **dict.fromkeys(("partitioned", "frozen", "disconnected"), st.booleans()),
        "reorder_span": st.integers(1, 5),
    },
)


@given(seed=st.integers(), phases=st.lists(st.tuples(_SETTINGS, st.integers(0, 30)), max_size=6))
def test_every_frame_is_accounted_for(seed: int, phases: list[tuple[dict[str, float], int]]) -> None:
    faults, maker = Faults(seed), Frames()
    injector = FaultInjector(faults, held_bytes_max=2000)
    sent: list[bytes] = []
    out: list[bytes] = []
    for now, (settings, count) in enumerate(phases):
        faults.set(**settings)
        batch = [maker.data("t") for _ in range(count)]
        sent += batch
        out += injector.push(batch, now / 100)
    faults.heal()
    out += injector.due(FOREVER)
    assert injector.is_idle
    counts = faults.counts()
    assert counts.passed == len(out)
    assert len(sent) + counts.duplicated == len(out) + counts.dropped + counts.cut + counts.overflowed
    assert set(out) <= set(sent)
    assert max(collections.Counter(out).values(), default=1) <= 2
