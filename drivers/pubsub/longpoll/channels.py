"""Makes the gRPC channels and servers of this driver: one connection each, bounded messages, TLS if configured."""

from __future__ import annotations

import errno
import socket

from heliograph_drivers.pubsub.longpoll.config import QUERIES_MAX, LongpollSettings, Tls, check_address, make_address
from heliograph_drivers.pubsub.longpoll.core.wire import BATCH_BYTES_MAX
from heliograph_drivers.pubsub.longpoll.library import aio, grpc
from pubsub_api.errors import AddressInUse, InvalidConfig, LimitReached

MESSAGE_BYTES_MAX = 2**31 - 1
REQUEST_BYTES_MAX = 2 * BATCH_BYTES_MAX
"""The largest request to a publisher: a full batch with its envelope.  A query may be larger, if frames may."""
CALLS_MAX = 16
"""Calls of one connection at a time beside `QUERIES_MAX` questions: polls and batches, also ones that are ending.  gRPC
delays further calls at the caller.  Questions alone must not reach the limit: a poll that is delayed looks like a dead
subscriber."""


def open_channel(settings: LongpollSettings, address: str) -> aio.Channel:
    """A new connection to a publisher, which connects at its first use.  Call it in the event loop."""
    arguments: list[tuple[str, object]] = [
        # Otherwise channels of a process to the same address would share a connection.
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.enable_http_proxy", 0),
        ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
        ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
        ("grpc.initial_reconnect_backoff_ms", round(settings.link.retry_min_s * 1000)),
        ("grpc.max_reconnect_backoff_ms", round(settings.link.retry_max_s * 1000)),
        ("grpc.min_reconnect_backoff_ms", round(settings.connect_timeout_s * 1000)),
        # The core repeats calls: only it knows which calls may be repeated.
        ("grpc.enable_retries", 0),
    ]
    target = check_address(address)
    if settings.tls is None:
        return aio.insecure_channel(target, options=arguments)
    if settings.tls.server_name is not None:
        arguments.append(("grpc.ssl_target_name_override", settings.tls.server_name))
    credentials = grpc.ssl_channel_credentials(settings.tls.ca_file, settings.tls.key_file, settings.tls.cert_file)
    return aio.secure_channel(target, credentials, options=arguments)


def open_server(settings: LongpollSettings, handler: grpc.GenericRpcHandler) -> tuple[aio.Server, str]:
    """A server that has bound the configured address but is not started, and the address for subscribers.

    Call it in the event loop.  Raises AddressInUse, InvalidConfig, and LimitReached when gRPC gets no thread.
    """
    options: list[tuple[str, object]] = [
        ("grpc.so_reuseport", 0),  # else two publishers could bind one address, each with half of the subscribers
        ("grpc.max_receive_message_length", max(REQUEST_BYTES_MAX, settings.frame_bytes_max + 1024)),
        ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
        ("grpc.max_concurrent_streams", QUERIES_MAX + CALLS_MAX),
        # The connection of a peer that has vanished is closed long before the kernel would close it.
        ("grpc.keepalive_time_ms", round(settings.link.poll_interval_s * 1000)),
        ("grpc.keepalive_timeout_ms", round(settings.link.poll_grace_s * 1000)),
    ]
    try:
        server = aio.server(options=options)
    except RuntimeError as error:
        raise LimitReached(f"gRPC cannot start a thread: {error}") from error
    server.add_generic_rpc_handlers((handler,))
    host = f"[{settings.bind_host}]" if ":" in settings.bind_host else settings.bind_host
    target = f"{host}:{settings.port}"
    try:
        if settings.tls is None:
            port = server.add_insecure_port(target)
        else:
            port = server.add_secure_port(target, _server_credentials(settings.tls))
    except RuntimeError as error:
        raise _bind_error(settings, target, error) from error
    public = settings.public_host if settings.bind_host in ("0.0.0.0", "::") else settings.bind_host
    return server, make_address(public, port)


def _server_credentials(tls: Tls) -> grpc.ServerCredentials:
    if tls.cert_file is None or tls.key_file is None:
        raise InvalidConfig("for a publisher, TLS needs [pubsub] tls_cert_file and tls_key_file")
    pair = (tls.key_file, tls.cert_file)
    return grpc.ssl_server_credentials([pair], tls.ca_file if tls.client_auth else None, tls.client_auth)


def _bind_error(settings: LongpollSettings, target: str, error: RuntimeError) -> AddressInUse | InvalidConfig:
    """The reason why the address could not be bound.  gRPC has one error for all reasons, so bind once more to see."""
    family = socket.AF_INET6 if ":" in settings.bind_host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((settings.bind_host, settings.port))
    except OSError as reason:
        if reason.errno == errno.EADDRINUSE:
            return AddressInUse(f"{target} is bound by another process; stop it, or choose another publisher_port")
        return InvalidConfig(f"longpoll cannot listen on {target}: {reason}")
    return InvalidConfig(f"longpoll cannot listen on {target}: {error}")
