"""Zenoh sessions, and protection against what Zenoh does not support: ``fork()``, and open sessions at exit.

After a fork the child lacks the threads of Zenoh's runtime, and every call that needs them hangs for ever: sending,
closing, opening a session, even freeing a declared object.  So a child of a process that has ever opened a session
refuses to work, and never frees what it inherited.

Sessions that are still open at the end of the program are closed then.

Rarely, Zenoh's own threads wait for one another for ever while a session is opened or closed; the reason was not found.
So opening and closing have a time limit (`within_limit`).
"""

from __future__ import annotations

import atexit
import concurrent.futures
import ctypes
import errno
import json
import logging
import socket
import threading
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar

import zenoh

from heliograph_drivers.pubsub.zenoh import config as settings_module
from heliograph_drivers.pubsub.zenoh.config import SESSIONS_MAX, ZenohSettings, make_address, split_address
from pubsub_api.driver_kit import start_thread
from pubsub_api.errors import AddressInUse, Forked, InvalidConfig, LimitReached, TransportUnavailable
from pubsub_api.runtime import forking

if not hasattr(zenoh.SessionInfo, "declare_link_events_listener"):
    raise ImportError("this Zenoh is older than 1.8 and does not report links", name="zenoh")

LOG = logging.getLogger(__name__)

_EPHEMERAL_ATTEMPTS = 20

STUCK_S = 60.0
"""Zenoh ends these calls by itself within 10 s; one that has not returned for this long never will."""

_Result = TypeVar("_Result")


class _Closable(Protocol):
    def close(self) -> None: ...


class _Declared(Protocol):
    def undeclare(self) -> Any: ...


_Entity = TypeVar("_Entity", bound=_Declared)


def never_free(kept: object) -> None:
    """Add a reference that is never removed, so that not even the end of the interpreter frees the object."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))


class ZenohProcess:
    """The open sessions of this process, and whether it may open more."""

    def __init__(self) -> None:
        self.sessions: set[ZenohSession] = set()
        self.ends: set[_Closable] = set()
        """Publishers and subscribers with threads.  A thread inside Zenoh would abort the interpreter at its end."""
        self._has_opened = False
        self._is_forked = False
        forking.register(self)
        atexit.register(self._on_exit)

    def enter(self) -> None:
        """Call it before a session is opened: from then on Zenoh's threads exist.  Raises Forked."""
        self.check()
        self._has_opened = True

    def check(self) -> None:
        """Raise Forked in a child of a process that had opened a session."""
        if self._is_forked:
            raise Forked(
                "zenoh cannot be used in this process: it was forked from one that had opened a zenoh session. Start "
                "workers with multiprocessing's 'spawn' method, or let forked workers publish through the publisher "
                "service of their host (pub_sub_use_multiproc)"
            )

    @property
    def is_child(self) -> bool:
        return self._is_forked

    def after_fork_in_child(self) -> None:
        self._is_forked = self._is_forked or self._has_opened
        for session in self.sessions:
            never_free(session)

    def _on_exit(self) -> None:
        if not self._is_forked:
            for open_one in [*self.ends, *self.sessions]:
                open_one.close()


PROCESS = ZenohProcess()


def within_limit(call: Callable[[], _Result], doing: str) -> _Result:
    """Make a call on another thread, and return or raise what it does.  Blocks for `STUCK_S` at most; then raises
    TransportUnavailable."""
    future: concurrent.futures.Future[_Result] = concurrent.futures.Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:  # noqa: BLE001  raised by the caller's thread
            future.set_exception(error)

    try:
        start_thread(threading.Thread(target=run, name="zenoh call", daemon=True))
    except LimitReached:  # it is also raised while the interpreter ends
        return call()
    try:
        return future.result(STUCK_S)
    except concurrent.futures.TimeoutError:
        raise TransportUnavailable(
            f"zenoh is stuck {doing}: it did not return for {STUCK_S:g} s. Restart this program"
        ) from None


class ZenohSession:
    """An open Zenoh session and its declarations.  Use it from one thread at a time."""

    def __init__(self, config: zenoh.Config) -> None:
        """Open it.  Blocks for as long as ``config`` allows.  Raises zenoh.ZError, Forked."""
        PROCESS.enter()
        self.zenoh = zenoh.open(config)
        self._declared: dict[int, _Declared] = {}
        PROCESS.sessions.add(self)

    def keep(self, entity: _Entity) -> _Entity:
        """Keep a declared object: Zenoh undeclares it when it is freed."""
        self._declared[id(entity)] = entity
        return entity

    def undeclare(self, entity: _Declared) -> None:
        del self._declared[id(entity)]
        entity.undeclare()

    def close(self) -> None:
        """Flush and close.  Blocks for milliseconds, or for Zenoh's limit of 10 s when a peer has stopped reading.

        A session that is stuck is given up and never freed, because freeing it would get stuck, too.
        """
        if PROCESS.is_child:
            return
        try:
            within_limit(self.zenoh.close, "closing a session")
            self._declared.clear()
        except zenoh.ZError as error:
            LOG.warning("a zenoh session was closed by force: %s", brief(error))
            self._declared.clear()
        except TransportUnavailable as error:
            LOG.error("a zenoh session is given up: %s", error)
            never_free(self)
        PROCESS.sessions.discard(self)


def make_config(settings: ZenohSettings, mode: str, values: Mapping[str, object]) -> zenoh.Config:
    """The configuration of a session.  Raises InvalidConfig with the option that Zenoh refuses."""
    options = settings.options
    try:
        config: zenoh.Config = zenoh.Config.from_file(options.config_file) if options.config_file else zenoh.Config()
    except zenoh.ZError as error:
        raise InvalidConfig(f"[zenoh] config_file {options.config_file!r} cannot be used: {brief(error)}") from error
    for key, value in {"mode": mode, **_common_values(settings), **values}.items():
        try:
            config.insert_json5(key, json.dumps(value))
        except zenoh.ZError as error:
            raise InvalidConfig(f"zenoh refuses the setting {key}: {brief(error)}") from error
    return config


def _common_values(settings: ZenohSettings) -> dict[str, object]:
    options = settings.options
    send_wait_us = round(settings.common.send_wait * 1e6)
    values: dict[str, object] = {
        "listen/endpoints": [],  # Zenoh's default is every interface
        "connect/endpoints": [],
        "connect/exit_on_failure": False,
        "connect/retry": {
            "period_init_ms": round(settings.retry_interval_s * 1e3),
            "period_max_ms": round(settings.common.retry_interval_max * 1e3),
            "period_increase_factor": 2,
        },
        "scouting/multicast/enabled": False,
        "scouting/gossip/enabled": False,
        "scouting/delay": 0,  # scouting is off, so there is no reason to wait for it
        "transport/unicast/open_timeout": round(settings.common.connect_timeout * 1e3),
        "transport/unicast/max_sessions": SESSIONS_MAX,
        "transport/link/tx/lease": round(settings.common.link_timeout / settings_module.LEASES_PER_TIMEOUT * 1e3),
        "transport/link/tx/queue/congestion_control/drop/wait_before_drop": send_wait_us,
        "transport/link/tx/queue/congestion_control/drop/max_wait_before_drop_fragments": 10 * send_wait_us,
        "transport/link/tx/queue/congestion_control/block/wait_before_close": round(settings_module.BLOCK_WAIT_S * 1e6),
        "transport/shared_memory/enabled": options.shared_memory,
        "transport/link/tls/enable_mtls": settings.common.tls_client_auth,
        "transport/link/tls/verify_name_on_connect": True,
    }
    given = {
        "transport/auth/usrpwd/user": options.user,
        "transport/auth/usrpwd/password": options.password,
        "transport/auth/usrpwd/dictionary_file": options.password_file,
        "transport/link/tls/root_ca_certificate": settings.common.tls_ca_file,
        "transport/link/tls/listen_certificate": settings.common.tls_cert_file,
        "transport/link/tls/listen_private_key": settings.common.tls_key_file,
        "transport/link/tls/connect_certificate": settings.common.tls_cert_file,
        "transport/link/tls/connect_private_key": settings.common.tls_key_file,
    }
    return {**values, **{key: value for key, value in given.items() if value is not None}}


def listen(settings: ZenohSettings) -> tuple[ZenohSession, str]:
    """Open a session that listens on the configured addresses; return it with the address for subscribers.

    Raises AddressInUse, InvalidConfig, Forked.
    """
    is_ephemeral = any((parts := split_address(address)) and parts[2] == 0 for address in settings.listen)
    attempts = _EPHEMERAL_ATTEMPTS if is_ephemeral else 1
    while True:
        # Zenoh does not report the port that the system chose, so a free one is looked up first.  If another process
        # takes it meanwhile, the next one is tried.
        addresses = [_with_port(address) for address in settings.listen]
        try:
            session = ZenohSession(make_config(settings, settings.mode, {"listen/endpoints": addresses}))
        except zenoh.ZError as error:
            attempts -= 1
            if not attempts or not _is_in_use(error):
                raise _listen_error(addresses, error) from error
        else:
            return session, _public(addresses[0], settings.public_address)


def _with_port(address: str) -> str:
    parts = split_address(address)
    if parts is None or parts[2] != 0:
        return address
    protocol, host, _ = parts
    kind = socket.SOCK_DGRAM if protocol in ("udp", "quic") else socket.SOCK_STREAM
    try:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, kind) as probe:
            probe.bind((host, 0))
            return make_address(protocol, host, probe.getsockname()[1])
    except OSError as error:
        raise InvalidConfig(f"zenoh cannot listen on {address}: {error}") from error


def _public(address: str, public_host: str) -> str:
    parts = split_address(address)
    if parts is None or parts[1] not in ("0.0.0.0", "::"):
        return address
    return make_address(parts[0], public_host, parts[2])


def _is_in_use(error: zenoh.ZError) -> bool:
    """Whether the address is taken.  Zenoh has one class for all errors, so only the text shows it."""
    return f"os error {errno.EADDRINUSE}" in str(error)


def _listen_error(addresses: list[str], error: zenoh.ZError) -> AddressInUse | InvalidConfig:
    shown = ", ".join(addresses)
    if _is_in_use(error):
        return AddressInUse(f"{shown} is bound by another process; stop it, or choose another publisher_port")
    return InvalidConfig(f"zenoh cannot listen on {shown}: {brief(error)}")


def brief(error: zenoh.ZError) -> str:
    """The text of an error without the positions in Zenoh's source."""
    return " ".join(word for word in str(error).split() if ".rs:" not in word).replace(" at ]", "]").removesuffix(" at")
