"""What etcd, TLS and the network say when something fails, as our errors: whose fault it is and what to do."""

from __future__ import annotations

import http
import ssl

import msgspec

from heliograph_drivers.db.etcd.config import EtcdEndpoint, EtcdSettings
from nb_api.errors import DbError, DbUnavailable
from pubsub_api.errors import InvalidConfig, LimitReached

_CODE_INVALID_ARGUMENT, _CODE_EXHAUSTED, _CODE_OUT_OF_RANGE, _CODE_UNAUTHENTICATED = 3, 8, 11, 16
_CODES_UNKNOWN = (2, 13)  # unknown, internal
_CODE_UNAVAILABLE = 14
_CODES_PERMISSION = (7, 16)
_CODES_PASSING = (1, 4, 10, _CODE_UNAVAILABLE)  # cancelled, deadline exceeded, aborted, unavailable
_UNTOUCHED = ("no leader", "not capable", "not supported for learner")
"""In refusals of a member that has not begun with the request."""


class Compacted(DbUnavailable):
    """The revision asked for is no longer known.  Leaves the driver only when a compaction runs in between; retry."""


class StorageLimitReached(LimitReached):
    """The alarm NOSPACE: etcd takes no writes, and in some releases, such as 3.5.1, no transactions that only read."""


class Refusal(msgspec.Struct, frozen=True):
    """The body of an answer that is not 200."""

    code: int = 0
    message: str = ""

    @property
    def is_about_token(self) -> bool:
        """The token has expired, the server does not know it since a restart, or users were changed since."""
        return (self.code == _CODE_UNAUTHENTICATED and "invalid auth token" in self.message) or (
            self.code == _CODE_INVALID_ARGUMENT and "revision of auth store is old" in self.message
        )

    @property
    def is_passing(self) -> bool:
        """Another member, or the same one later, may do it."""
        if self.code in _CODES_UNKNOWN:
            # The gateway has lost the server behind it, which was ended: it says so in any words.
            return not self.message.startswith("etcdserver: ")
        return self.code in _CODES_PASSING or (self.code == _CODE_EXHAUSTED and "too many requests" in self.message)

    @property
    def is_untouched(self) -> bool:
        """Nothing was done."""
        return self.is_passing and any(text in self.message for text in _UNTOUCHED)


def read_refusal(body: bytes, status: int = http.HTTPStatus.OK) -> Refusal:
    """A stream wraps its refusals, a plain call does not, and a proxy in between says what it likes."""
    try:
        found = msgspec.json.decode(body)
        wrapped = found.get("error", found)
        return msgspec.convert(wrapped if isinstance(wrapped, dict) else found, Refusal)
    except (msgspec.MsgspecError, AttributeError):
        code = _CODE_UNAVAILABLE if status >= http.HTTPStatus.BAD_GATEWAY else 0
        return Refusal(code, body[:200].decode(errors="replace").strip())


def refusal_error(refusal: Refusal, settings: EtcdSettings) -> Exception:
    """The error for what the server has refused."""
    text = refusal.message
    message = f"{settings.address}: {text}"
    if refusal.code == _CODE_OUT_OF_RANGE and "compacted" in text:
        return Compacted(message)
    if refusal.is_passing:
        return DbUnavailable(message)
    if refusal.code == _CODE_EXHAUSTED or (refusal.code == _CODE_INVALID_ARGUMENT and "too large" in text):
        if "space exceeded" in text:
            return StorageLimitReached(
                f"{message}. Compact and defragment it, raise --quota-backend-bytes, and take the alarm NOSPACE back"
            )
        return LimitReached(message)
    advice = _advice(refusal, settings)
    return InvalidConfig(f"{message}. {advice}") if advice else DbError(message)


def _advice(refusal: Refusal, settings: EtcdSettings) -> str:
    """What an operator can do about it; nothing when the configuration is not the reason."""
    text, prefix = refusal.message, settings.prefix.decode()
    if "CommonName of client" in text:
        return "While etcd has users, [db] tls_cert_file must be a certificate without a common name"
    if "HTTP request to an HTTPS server" in text:
        return "It speaks TLS: write etcds:// in [db] url"
    if "authentication failed" in text:
        return f"The user {settings.user!r} or its password is wrong: see [db] url"
    if "authentication is not enabled" in text:
        return "It has no users: `etcdctl auth enable`, or take user and password out of [db] url"
    if "user name is empty" in text or (refusal.code in _CODES_PERMISSION and not settings.user):
        return "It wants a user and a password: give them in [db] url"
    if refusal.code in _CODES_PERMISSION:
        return (
            f"The user {settings.user!r} needs a role with "
            f"`etcdctl role grant-permission ROLE readwrite --prefix {prefix}`"
        )
    return ""


def failure_error(
    error: Exception, endpoint: EtcdEndpoint, settings: EtcdSettings, *, is_new: bool = False
) -> DbError | InvalidConfig:
    """The error for a connection that could not be made, or broke, before anything was answered when it ``is_new``."""
    reason = str(error) or type(error).__name__
    message = f"{settings.address}: {endpoint}: {reason}"
    if isinstance(error, ssl.SSLCertVerificationError):
        return InvalidConfig(
            f"{message}. The server's certificate must be signed by [db] tls_ca_file and name its host"
        )
    if is_certificate_refused(error):
        mine = "another one as" if settings.has_certificate else "a certificate as"
        return InvalidConfig(f"{message}. The server wants {mine} [db] tls_cert_file, signed by whom it trusts")
    if is_new and settings.security is None and isinstance(error, ConnectionResetError):
        message += ". If it always does so, it may want TLS: write etcds:// in [db] url"
    return DbUnavailable(message)


def is_certificate_refused(error: Exception) -> bool:
    """Whether the server has ended the handshake because of our certificate.  It has read no request then."""
    reason = error.reason or "" if isinstance(error, ssl.SSLError) else ""
    return "ALERT" in reason and ("CERTIFICATE" in reason or "UNKNOWN_CA" in reason)
