"""CURVE for the ZeroMQ driver: it authenticates peers and encrypts all messages.

Publishers are the servers of a CURVE handshake and subscribers its clients, on the query sockets, too.  Key files are
certificates as ``zmq.auth`` writes them.  Without keys links are open, so the default addresses are loopback.  An end
is refused when only the other side's keys are configured: it would listen or connect unencrypted, although encryption
was wanted.
"""

from __future__ import annotations

import logging
import os
import pathlib
from typing import NamedTuple

import zmq
import zmq.auth
from oslo_config import cfg
from zmq.utils import z85

from heliograph_drivers.pubsub.zmq.access.allowed_keys import AllowedKeys
from heliograph_drivers.pubsub.zmq.endpoints import Socket
from heliograph_drivers.pubsub.zmq.options import GROUP
from pubsub_api.driver_kit import Tally
from pubsub_api.errors import DriverDependencyMissing, InvalidConfig
from pubsub_api.runtime.rate_limited_log import RateLimitedLog

LOG = logging.getLogger(__name__)

_log_refusal = RateLimitedLog(LOG)

ZAP_ADDRESS = "inproc://zeromq.zap.01"
_ZAP_DOMAIN = b"heliograph"
_ZAP_VERSION = b"1.0"
_ZAP_CURVE_PARTS = 7


class KeyPair(NamedTuple):
    public: bytes
    secret: bytes


class Curve:
    """The keys that the configuration names.  Raises InvalidConfig when they cannot be used together."""

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        options = conf[GROUP]
        self._server = _key_pair(options.curve_server_secret_key_file)
        self._server_public = _public_key(options.curve_server_public_key_file)
        self._client = _key_pair(options.curve_secret_key_file)
        if (self._client is None) != (self._server_public is None):
            raise InvalidConfig(
                "[zmq] a subscriber needs both curve_secret_key_file and curve_server_public_key_file, or neither"
            )
        self._allowed_dir: pathlib.Path | None = None
        if options.curve_allowed_keys_dir:
            if self._server is None:
                raise InvalidConfig(
                    "[zmq] curve_allowed_keys_dir needs curve_server_secret_key_file: without it links are open"
                )
            self._allowed_dir = pathlib.Path(options.curve_allowed_keys_dir)
            self.allowed_keys()
        if (self._server or self._client) and not zmq.has("curve"):
            raise DriverDependencyMissing("the installed libzmq was built without CURVE, which [zmq] curve_* needs")

    def check_publisher(self) -> None:
        """Raises InvalidConfig when keys are configured, but not those that a publisher needs."""
        if self._client is not None and self._server is None:
            raise InvalidConfig(
                "[zmq] curve_secret_key_file is set and curve_server_secret_key_file is not: a publisher would listen "
                "unencrypted. Give it its own key, or leave all curve_ options out"
            )

    def check_subscriber(self) -> None:
        """Raises InvalidConfig when keys are configured, but not those that a subscriber needs."""
        if self._server is not None and self._client is None:
            raise InvalidConfig(
                "[zmq] curve_server_secret_key_file is set and curve_secret_key_file is not: a subscriber would trust "
                "publishers without a key. Set curve_secret_key_file and curve_server_public_key_file as well"
            )

    def allowed_keys(self) -> AllowedKeys | None:
        """The keys that a publisher accepts; None when it accepts every key.  Raises InvalidConfig."""
        return AllowedKeys(self._allowed_dir) if self._allowed_dir is not None else None

    def secure_server(self, sock: Socket) -> None:
        """Set the keys of a publisher's socket.  Call it before the socket is bound."""
        if self._server is None:
            return
        sock.set(zmq.CURVE_SERVER, 1)
        sock.set(zmq.CURVE_PUBLICKEY, self._server.public)
        sock.set(zmq.CURVE_SECRETKEY, self._server.secret)
        if self._allowed_dir is not None:
            sock.set(zmq.ZAP_DOMAIN, _ZAP_DOMAIN)

    def secure_client(self, sock: Socket) -> None:
        """Set the keys of a subscriber's socket.  Call it before the socket is connected."""
        if self._client is None or self._server_public is None:
            return
        sock.set(zmq.CURVE_SERVERKEY, self._server_public)
        sock.set(zmq.CURVE_PUBLICKEY, self._client.public)
        sock.set(zmq.CURVE_SECRETKEY, self._client.secret)


def answer_zap(sock: Socket, allowed: AllowedKeys, tally: Tally) -> None:
    """Answer one question of libzmq, whether the client with this key may connect.  Reads and sends one message."""
    request = sock.recv_multipart()
    is_curve = len(request) == _ZAP_CURVE_PARTS and request[0] == _ZAP_VERSION and request[5] == b"CURVE"
    key = z85.encode(request[6]) if is_curve else b""
    is_allowed = is_curve and allowed.may_enter(key, tally)
    if not is_allowed:
        tally.add("keys_refused")
        _log_refusal(
            "A subscriber at %s was refused: its CURVE key is not allowed", request[3].decode(errors="replace")
        )
    status, text = (b"200", b"OK") if is_allowed else (b"400", b"key not allowed")
    sock.send_multipart([_ZAP_VERSION, request[1], status, text, key if is_allowed else b"", b""])


def _public_key(path: str) -> bytes | None:
    return _load(path)[0] if path else None


def _key_pair(path: str) -> KeyPair | None:
    if not path:
        return None
    public, secret = _load(path)
    if secret is None:
        raise InvalidConfig(f"{path} has no secret key")
    if zmq.curve_public(secret) != public:
        raise InvalidConfig(f"{path}: the public key does not belong to the secret key")
    if os.stat(path).st_mode & 0o077:
        LOG.warning("The secret key in %s can be read by others: chmod 600 it", path)
    return KeyPair(public, secret)


def _load(path: str) -> tuple[bytes, bytes | None]:
    try:
        public, secret = zmq.auth.load_certificate(path)
        for key in (public, secret or public):
            z85.decode(key)
    except (OSError, ValueError, IndexError, KeyError) as error:
        raise InvalidConfig(f"{path} is no CURVE certificate: {error}") from error
    if len(public) != 40 or (secret is not None and len(secret) != 40):
        raise InvalidConfig(f"{path} is no CURVE certificate: a key has 40 characters")
    return public, secret
