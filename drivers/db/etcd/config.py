"""What ``[db]`` and the URL say of an etcd, checked once."""

from __future__ import annotations

import dataclasses
import re
import ssl
import urllib.parse
from collections.abc import Sequence
from urllib.parse import SplitResult

from oslo_config import cfg

from heliograph_drivers.db.handles import HandleLimits, read_limits
from nb_api import config
from pubsub_api.errors import InvalidConfig

GROUP = "db_etcd"

_SCHEMES = {"etcd": False, "etcds": True}
"""And whether connections are encrypted."""
_DEFAULT_HOST = "127.0.0.1"
_DEFAULT_PORT = 2379
_DEFAULT_PREFIX = "heliograph"
_PREFIX = re.compile(r"[A-Za-z0-9._-]{1,100}")
_TLS_FILES = ("tls_ca_file", "tls_cert_file", "tls_key_file")
_FORM = "etcd://[user:password@]host:port[,host:port...]/prefix, or etcds:// for TLS"

OPTIONS: Sequence[cfg.Opt] = ()
"""None any more.  A file that names one is told where it went."""


@dataclasses.dataclass(frozen=True)
class EtcdEndpoint:
    """Where a member of the cluster listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclasses.dataclass(frozen=True)
class EtcdSettings:
    """Everything the driver needs to know."""

    endpoints: tuple[EtcdEndpoint, ...]
    """In the order of preference."""
    security: ssl.SSLContext | None
    grpc_security: ssl.SSLContext | None
    """The same for connections that speak HTTP/2."""
    has_certificate: bool
    """Whether we show one of our own."""
    user: str
    """Empty without a login."""
    password: str = dataclasses.field(repr=False)
    prefix: bytes
    connect_timeout_s: float
    operation_timeout_s: float
    snapshot_portion: int
    limits: HandleLimits

    @property
    def address(self) -> str:
        """The URL without credentials: what errors show."""
        scheme = "etcd" if self.security is None else "etcds"
        return f"{scheme}://{','.join(map(str, self.endpoints))}/{self.prefix.decode()}"


def read_settings(conf: cfg.ConfigOpts, url: SplitResult) -> EtcdSettings:
    """Translate the groups and the URL.  Raises InvalidConfig, which never shows a password."""
    common = conf[config.GROUP]
    if url.scheme not in _SCHEMES or url.query or url.fragment:
        raise InvalidConfig(f"the URL of an etcd is {_FORM}, and has no options")
    prefix = url.path.strip("/") or _DEFAULT_PREFIX
    if not _PREFIX.fullmatch(prefix):
        raise InvalidConfig(f"{prefix!r} cannot begin keys: it is 1 to 100 letters, digits, dots, dashes, underscores")
    user, password = _read_login(url)
    has_tls = _SCHEMES[url.scheme]
    return EtcdSettings(
        endpoints=_read_endpoints(url),
        security=_read_security(common, has_tls=has_tls),
        grpc_security=_read_security(common, has_tls=has_tls, protocol="h2"),
        has_certificate=common.tls_cert_file is not None,
        user=user,
        password=password,
        prefix=prefix.encode(),
        connect_timeout_s=config.connect_timeout(conf),
        operation_timeout_s=common.operation_timeout,
        snapshot_portion=config.SNAPSHOT_PORTION,
        limits=read_limits(conf),
    )


def _read_login(url: SplitResult) -> tuple[str, str]:
    """User and password, both empty when there are none."""
    credentials, has_login, _ = url.netloc.rpartition("@")
    if not has_login:
        return "", ""
    user, _, password = credentials.partition(":")
    if not user or not password:
        raise InvalidConfig(f"the URL of an etcd has a user and a password, or neither: write {_FORM}")
    return urllib.parse.unquote(user), urllib.parse.unquote(password)


def _read_endpoints(url: SplitResult) -> tuple[EtcdEndpoint, ...]:
    found = []
    for place in url.netloc.rpartition("@")[2].split(","):
        try:
            parts = urllib.parse.urlsplit(f"//{place}")
            endpoint = EtcdEndpoint(
                parts.hostname or _DEFAULT_HOST, _DEFAULT_PORT if parts.port is None else parts.port
            )
        except ValueError as error:
            raise InvalidConfig(f"{place!r} is no host:port of an etcd: {error}") from error
        if endpoint.port == 0 or (not place and "," in url.netloc):
            raise InvalidConfig(f"{place!r} is no host:port of an etcd: write {_FORM}")
        found.append(endpoint)
    if len(set(found)) < len(found):
        raise InvalidConfig(f"an endpoint of {', '.join(map(str, found))} is named twice")
    return tuple(found)


def _read_security(own: cfg.ConfigOpts.GroupAttr, *, has_tls: bool, protocol: str = "") -> ssl.SSLContext | None:
    """Without ``tls_ca_file`` the authorities that the system trusts count.  ``protocol``: what is asked for."""
    if not has_tls:
        if any(own.get(name) is not None for name in _TLS_FILES):
            raise InvalidConfig("[db] has files for TLS, but the URL is not encrypted: write etcds://")
        return None
    if own.tls_key_file is not None and own.tls_cert_file is None:
        raise InvalidConfig("[db] tls_key_file needs tls_cert_file, the certificate that the key belongs to")
    try:
        context = ssl.create_default_context(cafile=own.tls_ca_file)
    except OSError as error:
        raise InvalidConfig(f"[db] tls_ca_file {own.tls_ca_file} cannot be read: {error}") from error
    if protocol:
        context.set_alpn_protocols([protocol])
    if own.tls_cert_file is not None:
        try:
            context.load_cert_chain(own.tls_cert_file, own.tls_key_file)
        except OSError as error:
            files = " and ".join(filter(None, (own.tls_cert_file, own.tls_key_file)))
            raise InvalidConfig(f"[db] tls_cert_file, tls_key_file: {files} cannot be used: {error}") from error
    return context
