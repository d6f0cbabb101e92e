"""Checks of the bus: the driver, signing, its address or server, and the way of a real event."""

from __future__ import annotations

import errno
import pathlib
import secrets
import tempfile
import threading
import time
from collections.abc import Sequence

from oslo_config import cfg

import pubsub_api
from heliograph.doctor import addresses
from heliograph.doctor.findings import CheckContext, Finding
from heliograph.opening.hosts import resolution_hint
from pubsub_api import Event, PubSubApi, loading
from pubsub_api.config import GROUP
from pubsub_api.driver import Connected, Disconnected, LinkReport
from pubsub_api.errors import AddressInUse, HeliographError, InvalidConfig, WaitTimeout
from pubsub_api.runtime.sockets.addresses import is_loopback

TOPIC = "heliograph-doctor"
PUBLISHER_NAME = "heliograph-doctor"


def check_driver(context: CheckContext) -> list[Finding]:
    """Make the driver, which checks its options and their combinations.  Sets ``context.driver``."""
    if context.conf is None:
        return [_skipped("driver", "the configuration cannot be used")]
    try:
        context.driver = loading.build_driver(context.conf)
    except InvalidConfig as error:
        return [Finding("driver", "failed", str(error), "correct the option that the message names")]
    except HeliographError as error:
        return [
            Finding("driver", "failed", str(error), "heliograph drivers lists what is installed and what is missing")
        ]
    able = context.driver.capabilities
    kind = "subscribers connect to the publisher" if able.bind_based else "publishers and subscribers share a bus"
    return [Finding("driver", "ok", f"{context.conf[GROUP].pub_sub_driver}: {kind}")]


def check_signing(context: CheckContext) -> list[Finding]:
    """On a bus that other hosts can reach, frames should be signed, because such a host could forge events."""
    if context.conf is None or context.driver is None:
        return [_skipped("signing", "there is no driver")]
    pubsub = context.conf[GROUP]
    found = [addresses.host_port(address) for address in context.driver.listen_addresses()]
    hosts = {it[0] for it in found if it}
    if context.driver.capabilities.bind_based and pubsub.publisher_transport == "tcp":
        hosts.add(pubsub.publisher_bind_address)
    exposed = sorted(host for host in hosts if not is_loopback(host))
    if exposed and not pubsub.hmac_key:
        detail = f"frames are not signed and pass through {', '.join(exposed)}: hosts that reach it can forge events"
        return [Finding("signing", "warning", detail, "set [pubsub] hmac_key to the same secret on all hosts")]
    signed = "frames are signed" if pubsub.hmac_key else "not signed, and other hosts cannot reach the bus"
    return [Finding("signing", "ok", signed)]


def check_address(context: CheckContext) -> list[Finding]:
    """On bind-based drivers: is the address free, and if not, which process has it?  Disturbs no process."""
    if context.conf is None or context.driver is None:
        return [_skipped("address", "there is no driver")]
    if not context.driver.capabilities.bind_based:
        return []
    listened = context.driver.listen_addresses()
    pubsub = context.conf[GROUP]
    host, port = pubsub.publisher_bind_address, pubsub.publisher_port
    if port == 0:
        return [Finding("address", "ok", "the system chooses a free port")]
    if not listened:
        return [_skipped("address", "the configuration names no publisher to listen to")]
    if port not in {it[1] for it in map(addresses.host_port, listened) if it}:
        return [_check_elsewhere(context, listened)]
    local = _check_local(context, host, port, listened[0])
    return [local, *(_check_remote(context, it) for it in listened if not _is_local(it, host))]


def _check_local(context: CheckContext, host: str, port: int, spelling: str) -> Finding:
    where = f"{host}:{port}"
    problem = addresses.try_bind(host, port)
    if problem is None:
        return Finding("address", "ok", f"{where} is free: no publisher runs there now")
    if problem.errno != errno.EADDRINUSE:
        fix = "set [pubsub] publisher_bind_address to an address of this host, and publisher_port to 1024 or more"
        return Finding("address", "failed", f"{where} cannot be bound to: {problem.strerror or problem}", fix)
    owner = addresses.listening_processes(port)
    reason = _connect(context, [addresses.with_host(spelling, "127.0.0.1" if host in addresses.WILDCARDS else host)])
    if reason is None:
        return Finding("address", "ok", f"a publisher answers at {where}: {owner}")
    fix = "stop that program, or choose another [pubsub] publisher_port"
    return Finding(
        "address", "failed", f"{where} is taken by {owner}, and no publisher of this driver answers: {reason}", fix
    )


def _check_elsewhere(context: CheckContext, listened: list[str]) -> Finding:
    """Addresses that are not made from publisher_port: socket files, or the driver's own options."""
    reason = _connect(context, listened)
    shown = ", ".join(listened)
    return Finding(
        "address", "ok", f"no publisher runs at {shown} now" if reason else f"a publisher answers at {shown}"
    )


def _check_remote(context: CheckContext, address: str) -> Finding:
    found = addresses.host_port(address)
    if found and addresses.answers(*found, timeout_s=context.timeout_s):
        return Finding("publisher", "ok", f"{address} accepts connections")
    fix = "start the publisher there; check publishers_ips, publisher_port and the firewall between"
    return Finding("publisher", "warning", f"no process answers at {address}{resolution_hint([address])}", fix)


def _is_local(address: str, bind_host: str) -> bool:
    found = addresses.host_port(address)
    return found is not None and (found[0] == bind_host or is_loopback(found[0]))


class _Listener:
    """The receiver of a subscriber that ignores frames, and waits for its links to come up."""

    def __init__(self, wanted: Sequence[str]) -> None:
        self._down = set(wanted)
        self._reasons: dict[str, str] = {}
        self._is_up = threading.Event()

    def on_frames(self, _frames: Sequence[bytes]) -> None:
        return

    def on_foreign(self, _topic: str, _payload: bytes | None) -> None:
        return

    def on_link(self, report: LinkReport) -> None:
        if isinstance(report, Connected):
            self._down.discard(report.address)
        elif isinstance(report, Disconnected):
            self._reasons[report.address] = report.reason
        if not self._down:
            self._is_up.set()

    def wait(self, timeout_s: float) -> str | None:
        """Wait for all links.  Returns None, or the reason why one did not come up."""
        if self._is_up.wait(timeout_s):
            return None
        return next(iter(self._reasons.values()), f"no answer within {timeout_s:g} s")


def _connect(context: CheckContext, listened: Sequence[str]) -> str | None:
    """Open links to these addresses, which works with a publisher or a server of the driver's kind only.

    Blocks for the timeout of the context at most.  Returns None, or the reason why a link did not come up.
    """
    assert context.driver is not None
    listener = _Listener(listened)
    subscriber = context.driver.get_subscriber()
    try:
        subscriber.initialize(listener)
        subscriber.register_topic(TOPIC)
        for address in listened:
            subscriber.register_listen_address(address)
        subscriber.daemonize()
        return listener.wait(context.timeout_s)
    finally:
        subscriber.close()


def check_server(context: CheckContext) -> list[Finding]:
    """On drivers with a server: does it answer?  Sets ``context.is_reachable``."""
    if context.driver is None or context.driver.capabilities.bind_based:
        return []
    listened = context.driver.listen_addresses()
    where = ", ".join(listened)
    reason = _connect(context, listened)
    if reason is None:
        return [Finding("server", "ok", f"{where} answers")]
    context.is_reachable = False
    fix = "start the server, or correct its address, user and password"
    return [Finding("server", "failed", f"{where}: {reason}", fix)]


def check_round_trip(context: CheckContext) -> list[Finding]:
    """Publish an event and receive it: at a free port of this host on bind-based drivers, else through the server."""
    if context.driver is None or not context.is_reachable:
        return [
            _skipped("round trip", "there is no driver" if context.driver is None else "the server does not answer")
        ]
    with tempfile.TemporaryDirectory(prefix="heliograph-doctor-") as directory:
        try:
            elapsed_s = _round_trip(context, _private_conf(context, pathlib.Path(directory)), context.driver)
        except WaitTimeout as error:
            fix = "look for a firewall on the loopback interface, for keys that do not match, or for an overloaded host"
            return [Finding("round trip", "failed", f"no event came through: {error}", fix)]
        except AddressInUse as error:
            return [Finding("round trip", "skipped", str(error))]
        except HeliographError as error:
            return [Finding("round trip", "failed", str(error), "correct what the message names")]
    return [Finding("round trip", "ok", f"an event went from a publisher to a subscriber in {elapsed_s * 1e3:.1f} ms")]


def _private_conf(context: CheckContext, directory: pathlib.Path) -> cfg.ConfigOpts:
    """The configuration with another address for the publisher: a free port of this host only."""
    conf = context.read_conf()
    if context.driver is not None and context.driver.capabilities.bind_based:
        conf.set_override("publisher_transport", "tcp", group=GROUP)
        conf.set_override("publisher_bind_address", "127.0.0.1", group=GROUP)
        conf.set_override("publisher_port", 0, group=GROUP)
        conf.set_override("publisher_multiproc_socket", str(directory / "socket"), group=GROUP)
    return conf


def _round_trip(context: CheckContext, conf: cfg.ConfigOpts, driver: PubSubApi) -> float:
    """Seconds from publishing to receiving.  Raises WaitTimeout and what `pubsub_api.open` raises."""
    topic = f"{TOPIC}/{secrets.token_hex(8)}"
    arrived = threading.Event()
    with pubsub_api.open(conf=conf) as session:
        publisher = session.publisher(name=PUBLISHER_NAME)
        subscriber = session.subscriber(
            [topic],
            lambda _event: arrived.set(),
            addresses=[publisher.address] if driver.capabilities.bind_based else None,
        )
        subscriber.wait_ready(timeout_s=context.timeout_s)
        start = time.monotonic()
        publisher.send_event(Event(topic=topic, table="doctor", key="round-trip", action="set", value=True))
        if not arrived.wait(context.timeout_s):
            raise WaitTimeout(f"the event was sent and did not arrive within {context.timeout_s:g} s")
        return time.monotonic() - start


def _skipped(check: str, why: str) -> Finding:
    return Finding(check, "skipped", why)
