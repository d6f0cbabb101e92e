"""A controller's copy with two indexes: memory against a dict of the values, look-ups, and changes applied and indexed.

The plain reader is that of the scenario ``sync``.  Changes come as frames of 64 events, as the bus hands them over, and
are decoded, applied, indexed and given to a callback that counts them: all that a controller does in a flood but
receiving.  A third of them changes a field that is indexed.

Objects are looked up twice: a thousand again and again, as a controller does with those it works on, and others all
over the copy, of which nothing is in the processor's caches.  The target is for these.

The proof that a copy equals the database is measured by the CPU of the process that verifies, which with SQLite has
that of the database in it, for a million objects.  The digests that it needs are kept with every change, so what they
cost is part of the changes; they alone are measured by adding up as many versions.

What a `Controller` on a copy adds to each run of its function is measured by `bench.scenarios.reconciling`.
"""

from __future__ import annotations

import pathlib
import tempfile
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import msgspec

from bench.plan import Outcome, Plan, Row, median, ratio
from bench.scenarios import reconciling
from bench.scenarios.commit import nb_conf, writes
from bench.scenarios.reconciling import Reconciled, reconcile
from bench.scenarios.sync import OBJECTS_PER_EVENT, PLAIN, TIMEOUT_S, Sync, fill, read_plainly
from bench.targets import check
from bench.workers import ask_once, usage_now
from nb_api import CacheChange, DbObject, LocalCache, NbApi, Verification, notify_config
from nb_api.notify_config import CACHE_GROUP
from pubsub_api import Event
from pubsub_api.config import GROUP
from pubsub_api.core.events import encode_event, pack_body

OURS = "heliograph LocalCache, two indexes"
PROOF = "heliograph LocalCache.verify"
VERIFICATIONS = 3
RECONCILED = 0.1
"""Of the objects, this part is worked on by a `Controller`."""
MILLION = 1_000_000
FRAME_EVENTS = 64
LOOKUPS = 20_000
USED = 1_000
"""Objects that are looked up again and again, as a controller does with those it works on."""


class Copy(NamedTuple):
    objects: int
    bytes: int
    lookup_us: float
    """By key, with the value copied for the reader, of an object that was looked up shortly before."""
    index_us: float
    """The same by a value of an index that one object has."""
    far_lookup_us: float
    """By key, of objects all over the copy, none of which is in the processor's caches."""
    far_index_us: float
    changes_per_s: float
    """Of the process's CPU."""
    wrong: int
    """Objects that an index has at another place than a scan."""


class Proof(NamedTuple):
    objects: int
    cpu_s: float
    """Of one verification that finds nothing."""
    values: int
    """Objects whose values it compared."""
    thorough_cpu_s: float
    digest_ns: float
    """What the digest adds to a change."""
    differences: int


def measure(plan: Plan, driver: str) -> Outcome:
    """``driver`` is the bus that the controller is set up for."""
    count = round(plan.events * OBJECTS_PER_EVENT)
    plain: list[Sync] = []
    ours: list[Copy] = []
    proofs: list[Proof] = []
    reconciled: list[Reconciled] = []
    with tempfile.TemporaryDirectory(prefix="heliograph-bench-") as directory:
        path = pathlib.Path(directory) / "objects.db"
        plan.say(f"writing {count:,} objects")
        ask_once(fill, path, count, timeout_s=TIMEOUT_S)
        for number in range(1, plan.rounds + 1):
            plan.say(f"round {number} of {plan.rounds}: {PLAIN}")
            plain.append(ask_once(read_plainly, path, driver, timeout_s=TIMEOUT_S))
            plan.say(f"round {number} of {plan.rounds}: {OURS}")
            ours.append(ask_once(follow, path, driver, plan.events, timeout_s=TIMEOUT_S))
            plan.say(f"round {number} of {plan.rounds}: {PROOF}")
            proofs.append(ask_once(prove, path, driver, timeout_s=TIMEOUT_S))
            plan.say(f"round {number} of {plan.rounds}: {reconciling.OURS}")
            other = path.with_name(f"reconcile-{number}.db")
            reconciled.append(ask_once(reconcile, other, round(count * RECONCILED), timeout_s=TIMEOUT_S))
    measured = {
        "memory": ratio(ours, plain, lambda run: run.bytes),
        "look-up": median(ours, lambda run: max(run.far_lookup_us, run.far_index_us)),
        "changes": median(ours, lambda run: run.changes_per_s),
        "wrong": float(max(run.wrong for run in ours)),
        "verify": median(proofs, lambda run: run.cpu_s / run.objects * MILLION),
        "differences": float(max(run.differences for run in proofs)),
        "reconcile": median(reconciled, lambda run: run.us),
        "runs": float(max(run.runs_per_key for run in reconciled)),
    }
    rows = [_row(ours), _proof_row(proofs), reconciling.row(reconciled)]
    return Outcome("controller", driver, rows, check("controller", driver, measured))


def _row(runs: Sequence[Copy]) -> Row:
    return {
        "case": OURS,
        "objects": runs[0].objects,
        "MiB": round(median(runs, lambda run: run.bytes)) >> 20,
        "us/look-up": round(median(runs, lambda run: run.lookup_us), 2),
        "us/index": round(median(runs, lambda run: run.index_us), 2),
        "us/far look-up": round(median(runs, lambda run: run.far_lookup_us), 2),
        "us/far index": round(median(runs, lambda run: run.far_index_us), 2),
        "changes/s": round(median(runs, lambda run: run.changes_per_s)),
    }


def _proof_row(runs: Sequence[Proof]) -> Row:
    return {
        "case": PROOF,
        "objects": runs[0].objects,
        "cpu s": round(median(runs, lambda run: run.cpu_s), 2),
        "values": runs[0].values,
        "thorough cpu s": round(median(runs, lambda run: run.thorough_cpu_s), 2),
        "ns/change": round(median(runs, lambda run: run.digest_ns)),
    }


# -- in processes of their own


def _net_of(port: DbObject) -> Any:
    return port.value["net"]


def _number_of(port: DbObject) -> Any:
    return port.value["id"]


def follow(pipe: Connection, path: pathlib.Path, driver: str, changes: int) -> None:
    told = 0

    def on_changes(batch: Sequence[CacheChange]) -> None:
        nonlocal told
        told += len(batch)

    conf = nb_conf(driver)
    notify_config.register(conf)
    for option in ("verify_interval", "bus_patience"):  # the database, which knows nothing of these changes, stays out
        conf.set_override(option, 0.0, group=CACHE_GROUP)
    with NbApi.open(conf=conf, url=f"sqlite://{path}") as nb:
        before = usage_now()
        with LocalCache(nb, tables=["port"], on_changes=on_changes) as cache:
            cache.index("by_net", _net_of)
            cache.index("by_number", _number_of, unique=True)
            cache.need_snapshot("benchmark", is_awaited=True)  # whether or not a publisher is there to be heard
            while not cache.is_loaded:
                time.sleep(0.001)
            used = usage_now() - before
            count = cache.statistics().objects
            numbers = [number % count for number in range(0, 7919 * LOOKUPS, 7919)]
            far_us = _lookups_us(cache, numbers)
            us = _lookups_us(cache, numbers[:USED] * (LOOKUPS // USED))
            frames = _frames(count, changes, cache.position)
            decode = msgspec.msgpack.Decoder(list[Event]).decode
            start = time.process_time()
            for body in frames:
                events = decode(body)
                for event in events:
                    event.topic = "tenant-1"
                cache.on_events(events)
            rate = changes / (time.process_time() - start)
            pipe.send(Copy(count, used.resident_bytes, *us, *far_us, rate, _wrong(cache)))


def prove(pipe: Connection, path: pathlib.Path, driver: str) -> None:
    conf = nb_conf(driver)
    conf.set_override("enable_df_pub_sub", False, group=GROUP)  # no process publishes here: a bus would only be away
    with NbApi.open(conf=conf, url=f"sqlite://{path}") as nb, LocalCache(nb, tables=["port"]) as cache:
        cache.wait_synced(timeout_s=TIMEOUT_S)
        runs = [_cpu_of(cache.verify) for _ in range(VERIFICATIONS)]
        thorough_cpu_s, thorough = _cpu_of(lambda: cache.verify(timeout_s=TIMEOUT_S, is_thorough=True))
        cpu_s, found = sorted(runs, key=lambda run: run[0])[VERIFICATIONS // 2]
        differences = sum(len(one.differences) for _, one in runs) + len(thorough.differences)
        pipe.send(Proof(found.objects, cpu_s, found.values, thorough_cpu_s, _digest_ns(), differences))


def _cpu_of(verify: Callable[[], Verification]) -> tuple[float, Verification]:
    start = time.process_time()
    found = verify()
    return time.process_time() - start, found


def _digest_ns() -> float:
    """What `nb_api.core.copy.cache` does for the digest at every update, less the loop around it."""
    totals = {"port": 0}
    versions = range(1 << 50, (1 << 50) + MILLION)
    start = time.process_time()
    for version in versions:
        totals["port"] += version - 1
    counted = time.process_time()
    for _ in versions:
        pass
    return ((counted - start) - (time.process_time() - counted)) / MILLION * 1e9


def _lookups_us(cache: LocalCache, numbers: Sequence[int]) -> tuple[float, float]:
    """By key, and by index."""
    keys = [f"port-{number:09}" for number in numbers]
    return _us_each(lambda key: cache.get("port", key), keys), _us_each(cache.index("by_number").one, numbers)


def _us_each(call: Callable[[Any], object], arguments: Sequence[Any]) -> float:
    start = time.process_time()
    for argument in arguments:
        call(argument)
    return (time.process_time() - start) / len(arguments) * 1e6


def _frames(objects: int, changes: int, position: int) -> list[bytes]:
    """The bodies of frames."""
    frames = []
    for first in range(0, changes, FRAME_EVENTS):
        batch = writes(first, min(FRAME_EVENTS, changes - first), tenant=1)
        events = [
            Event(
                table="port", key=f"port-{number % objects:09}", action="set", version=position + 1_000_000 + number,
                value={**write.value, "net": number // 3 % 1000, "id": number % objects},
            )
            for number, write in enumerate(batch, first)
        ]  # fmt: skip
        frames.append(pack_body([encode_event(event, 1) for event in events]))
    return frames


def _wrong(cache: LocalCache) -> int:
    by_net, by_number = cache.index("by_net"), cache.index("by_number")
    nets: dict[Any, list[str]] = {}
    wrong = 0
    for port in cache.get_all("port"):
        nets.setdefault(port.value["net"], []).append(port.key)
        wrong += by_number.keys(port.value["id"]) != [port.key]
    return wrong + sum(by_net.keys(net) != keys for net, keys in nets.items()) + abs(len(nets) - len(by_net))
