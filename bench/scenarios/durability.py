"""The durability service next to the durable log: appending, aligning another service, and comparing sets.

It belongs to no transport, so it is measured once, under ``zmq``: the service's own work, with events as its subscriber
hands them over, and two cores that align through the real encoding of their messages.  Events are appended that change
the same objects over and over, as in a flood, and such that make a new object each.  Alignment is measured three
times: from a set at rest, as a set is that was aligned, restored, or left alone for a while; from one of which every
sample has just been written; and from a set at rest into a store on disk, to compare with reading a log and appending
it to another.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import pathlib
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator

import durable_log
from bench.plan import Outcome, Plan
from bench.scenarios.log import COMMIT_FRAMES, FRAME_EVENTS, Rates, append_all, make_frames, read_all
from bench.targets import check
from durability_service import config
from durability_service.core import messages
from durability_service.core.effects import Event, Live, Received, Send, Stored, Tick
from durability_service.core.effects import StoreSamples as StoreEffect
from durability_service.core.messages import AlignData
from durability_service.core.namespaces import Kind, NameSpace, NamespacePolicy
from durability_service.core.service import DurabilityCore
from durability_service.core.sets.samples import Sample, make_sample
from durability_service.core.settings import ServiceSettings
from durability_service.service import DurabilityService
from durability_service.storage.store import SampleStore
from pubsub_api import loading
from pubsub_api.core import frame as frames

SHARE = 0.5
TIMEOUT_S = 600.0


def measure(plan: Plan, driver: str) -> Outcome:
    if driver != "zmq":
        return Outcome("durability", driver, [], [], ["the service's own work is the same on all drivers: see zmq"])
    count = max(FRAME_EVENTS, int(plan.events * SHARE))
    made, made_new = make_frames(count), make_frames(count, keys=count)
    samples = make_samples(count)
    rates = Rates()
    moved = Moved()
    with _collecting_seldom():
        for number in range(1, plan.rounds + 1):
            plan.say(f"round {number} of {plan.rounds}: the durability service")
            with tempfile.TemporaryDirectory(prefix="heliograph-bench-") as name:
                _log(rates, pathlib.Path(name), made)
                _service(rates, "append, service", pathlib.Path(name) / "same", made)
                _service(rates, "append, service, all objects new", pathlib.Path(name) / "new", made_new)
                _align_into_store(rates, pathlib.Path(name), samples)
            moved = _align(rates, samples)
    measured = {
        "append": rates.ratio("append, service", "append, log"),
        "align": rates.ratio("align", "read, log"),
        "store": rates.ratio("align and store", "read and append, log"),
        "equal": float(moved.equal),
        "one": 100 * moved.one / max(1, moved.all),
    }
    return Outcome("durability", driver, rates.rows(), check("durability", driver, measured))


@contextlib.contextmanager
def _collecting_seldom() -> Iterator[None]:
    """As in the service's own process, see `heliograph.commands.services.durability_service`."""
    before = gc.get_threshold()
    gc.set_threshold(200_000, 50, 100)
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _log(rates: Rates, directory: pathlib.Path, made: list[bytes]) -> None:
    total = len(made) * FRAME_EVENTS
    with contextlib.closing(durable_log.open(f"sqlite://{directory}/log.db?shards=1")) as log:

        def read() -> None:
            for _ in read_all(log):
                pass

        rates.add("append, log", total, lambda: append_all(log, made))
        rates.add("read, log", total, read)
        with contextlib.closing(durable_log.open(f"sqlite://{directory}/copy.db?shards=1")) as copy:

            def read_and_append() -> None:
                for found in read_all(log):
                    copy.append([stored.frame for stored in found])

            rates.add("read and append, log", total, read_and_append)


def _service(rates: Rates, case: str, directory: pathlib.Path, made: list[bytes]) -> None:
    total = len(made) * FRAME_EVENTS
    conf = loading.conf_from_url(f"memory://{uuid.uuid4().hex}")
    config.register(conf)
    conf.set_override("store", str(directory / "durability.db"), group=config.GROUP)
    conf.set_override("initial_discovery_period", 0.05, group=config.GROUP)
    with DurabilityService(conf) as service:
        _wait(lambda: service.status().name_spaces[0].is_complete)
        deliveries = [(frame, frames.unpack(frame, bytes_max=1 << 20), 0) for frame in made]

        def append() -> None:
            for start in range(0, len(deliveries), COMMIT_FRAMES):
                service._on_frames(deliveries[start : start + COMMIT_FRAMES])
            _, header, _ = deliveries[-1]
            _wait(lambda: service.ranges.has((header.guid, header.topic), 1, total))

        rates.add(case, total, append)


def _wait(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, "the service does not come to an end"
        time.sleep(0.001)


def make_samples(count: int) -> list[Sample]:
    stamp = time.time_ns() - 10**9
    return [
        make_sample(
            "tenant-00000/port", "port", f"port-{number}", timestamp=stamp + number, writer=bytes(16),
            number=number + 1, is_delete=False, event=b"v" * 120,
        )
        for number in range(count)
    ]  # fmt: skip


@dataclasses.dataclass
class Moved:
    """Bytes of alignment messages with samples."""

    all: int = 0
    equal: int = 0
    one: int = 0


class Pair:
    """Two cores and what goes between them.  The second may have a store."""

    def __init__(self, store: SampleStore | None = None) -> None:
        self.now = 0.0
        self.bytes = 0
        self._start_ns = time.time_ns()
        self._store = store
        kinds = (Kind.TRANSIENT, Kind.PERSISTENT if store else Kind.TRANSIENT)
        self.cores = [
            DurabilityCore(_settings(name, kind), {}, 0.0, rows)
            for name, kind, rows in zip(("source", "other"), kinds, (None, store), strict=True)
        ]
        self._boxes: list[list[bytes]] = [[], []]

    def step(self, number: int, event: Event) -> None:
        wall_ns = self._start_ns + int(self.now * 1e9)
        stored: list[StoreEffect] = []
        for effect in self.cores[number].step(self.now, wall_ns, event):
            if isinstance(effect, Send):
                data = messages.encode(effect.message)
                self.bytes += len(data) if isinstance(effect.message, AlignData) else 0
                self._boxes[1 - number].append(data)
            elif isinstance(effect, StoreEffect):
                stored.append(effect)
        if stored:
            assert self._store is not None
            self._store.do([effect.operation for effect in stored])
            self.step(number, Stored(stored[-1].number))

    def run(self, seconds: float, *, only: int | None = None) -> None:
        """Let both, or only one, live for so long."""
        end = self.now + seconds
        while self.now < end:
            self.now += 0.05
            for number in (0, 1) if only is None else (only,):
                box, self._boxes[number] = self._boxes[number], []
                for data in box:
                    self.step(number, Received(messages.decode(data)))
                self.step(number, Tick())

    def run_until_equal(self) -> None:
        """Until both have the same set, and it is as durable as it will be."""
        held = [core.keepers["all"].holding for core in self.cores]
        while len({one.set.digest for one in held}) > 1 or not all(one.is_complete for one in held):
            self.run(0.05)

    def fill(self, samples: list[Sample]) -> None:
        """Write them to the first."""
        self.run(10.0, only=0)
        for start in range(0, len(samples), 512):
            self.step(0, Live(samples[start : start + 512]))

    def rest(self) -> None:
        """Leave the first alone until its set is packed."""
        settings = self.cores[0].settings
        rounds = 3 * len(self.cores[0].keepers["all"].holding.set) / settings.idle_samples
        self.run(60.0 + rounds * settings.heartbeat_s, only=0)


def _settings(name: str, kind: Kind) -> ServiceSettings:
    policy = NamespacePolicy(durability=kind)
    space = NameSpace("all", frozenset({"#"}))
    return ServiceSettings(node=name, name_spaces=(space,), policies=(policy,), combine_initial_s=0.0)


def _align_into_store(rates: Rates, directory: pathlib.Path, samples: list[Sample]) -> None:
    with SampleStore(directory / "aligned.db") as store:
        pair = Pair(store)
        pair.fill(samples)
        pair.rest()
        rates.add("align and store", len(samples), pair.run_until_equal)


def _align(rates: Rates, samples: list[Sample]) -> Moved:
    just_written = Pair()
    just_written.fill(samples)
    rates.add("align, just written", len(samples), just_written.run_until_equal)
    del just_written
    pair = Pair()
    pair.fill(samples)
    pair.rest()
    moved = Moved()
    rates.add("align", len(samples), pair.run_until_equal)
    moved.all, pair.bytes = pair.bytes, 0
    pair.run(30.0)
    moved.equal, pair.bytes = pair.bytes, 0
    changed = samples[0]._replace(timestamp=time.time_ns(), number=len(samples) + 1, digest=bytes(range(16)))
    pair.step(0, Live([changed]))
    pair.run_until_equal()
    moved.one = pair.bytes
    return moved
