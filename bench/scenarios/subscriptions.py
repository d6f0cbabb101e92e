"""Very many exact subscriptions over few connections: what they cost the publisher.  For drivers that index them there.

A hundred subscribers have a thousand keys each.  Measured are the connections that the kernel sees, how much the
publisher grew for each subscription, how long it takes until all are in effect, and whether sending a frame to one
subscriber costs more with a hundred times as many subscriptions.  Works on the driver itself, without sessions.
"""

from __future__ import annotations

import contextlib
import pathlib
import time
from multiprocessing.connection import Connection
from typing import Any

from bench import catalog
from bench.plan import Outcome, Plan
from bench.targets import check
from bench.workers import Worker, usage_now
from pubsub_api import loading
from pubsub_api.testing.frames import Frames
from pubsub_api.testing.receivers import RecordingReceiver

SUBSCRIBERS, KEYS = 100, 1000
SUBSCRIBERS_QUICK, KEYS_QUICK = 5, 20
SENDS, SENDS_QUICK = 5_000, 100
OPEN_TIMEOUT_S = 120.0
DRIVERS = ("longpoll",)
"""Others do not keep subscriptions at the publisher, or keep them in a foreign library."""


def measure(plan: Plan, driver: str) -> Outcome:
    if driver not in DRIVERS:
        note = f"{driver} does not index subscriptions in this process: nothing to measure"
        return Outcome("subscriptions", driver, [], [], [note])
    subscribers, keys = (SUBSCRIBERS_QUICK, KEYS_QUICK) if plan.is_quick else (SUBSCRIBERS, KEYS)
    sends = SENDS_QUICK if plan.is_quick else SENDS
    with catalog.transport(driver) as transport, contextlib.ExitStack() as stack:
        url = transport.ours.server
        publisher = stack.enter_context(Worker(publish, url))
        address = publisher.hear()
        few = stack.enter_context(Worker(subscribe, url, address, range(1), keys))
        few.hear()
        alone = publisher.ask((f"channel/0-{keys - 1}", sends), OPEN_TIMEOUT_S)
        plan.say(f"{subscribers} subscribers with {keys} keys each: {driver}")
        many = stack.enter_context(Worker(subscribe, url, address, range(1, subscribers), keys))
        seconds = many.hear(OPEN_TIMEOUT_S)
        among = publisher.ask((f"channel/0-{keys - 1}", sends), OPEN_TIMEOUT_S)
    count = subscribers * keys
    measured = {
        "connections": among["connections"] / subscribers,
        "memory": among["grown_bytes"] / count,
        "subscribing": seconds,
        "publish cost": among["send_us"] / alone["send_us"],
    }
    rows = [
        {"case": "one subscriber", "subscriptions": keys, **_row(alone)},
        {"case": "all", "subscriptions": count, **_row(among), "seconds to subscribe": round(seconds, 2)},
    ]
    return Outcome("subscriptions", driver, rows, check("subscriptions", driver, measured))


def _row(measured: dict[str, Any]) -> dict[str, Any]:
    return {
        "connections": measured["connections"],
        "publisher grew, MB": round(measured["grown_bytes"] / 1e6, 1),
        "us per frame sent": round(measured["send_us"], 2),
    }


# -- in the publisher's process


def publish(pipe: Connection, url: str) -> None:
    """Sends frames on request and tells what that cost, until the parent ends it."""
    publisher = loading.build_driver(loading.conf_from_url(url)).get_publisher()
    publisher.initialize(lambda _report: None)
    frames = Frames()
    before = usage_now()
    pipe.send(publisher.address)
    while True:
        topic, sends = pipe.recv()
        grown = usage_now() - before
        pairs = [(topic, frames.data(topic)) for _ in range(sends)]
        begun = time.thread_time()
        for name, frame in pairs:
            publisher.send(name, frame)
        send_us = (time.thread_time() - begun) / sends * 1e6
        connections = _established(publisher.address)
        pipe.send({"grown_bytes": grown.resident_bytes, "send_us": send_us, "connections": connections})


def _established(address: str) -> int:
    """Connections of the address's owner, as the kernel counts them."""
    port = f":{int(address.rpartition(':')[2]):04X}"
    tables = [pathlib.Path("/proc/self/net", name).read_text().splitlines()[1:] for name in ("tcp", "tcp6")]
    rows = [line.split() for table in tables for line in table]
    return sum(row[1].endswith(port) and row[3] == "01" for row in rows)


# -- in the subscribers' process


def subscribe(pipe: Connection, url: str, address: str, numbers: range, keys: int) -> None:
    """Opens the subscribers, tells how long it took until everything was in effect, and stays until it is ended."""
    driver = loading.build_driver(loading.conf_from_url(url))
    ends = []
    for number in numbers:
        subscriber, heard = driver.get_subscriber(), RecordingReceiver()
        subscriber.initialize(heard)
        for key in range(keys):
            subscriber.register_topic(f"channel/{number}-{key}")
        subscriber.register_listen_address(address)
        ends.append((subscriber, heard))
    begun = time.monotonic()
    for subscriber, _ in ends:
        subscriber.daemonize()
    for _, heard in ends:
        heard.wait_connected(address, timeout_s=OPEN_TIMEOUT_S)
    pipe.send(time.monotonic() - begun)
    pipe.recv()
