"""Which requests to delete history or make a snapshot are admitted: those that prove that their sender has the key.

Administration is apart from data.  It is off until ``[durability] admin_key`` is set, in the services and where
requests come from; ``hmac_key``, which every process on the bus has, is not enough.  A service hands out a challenge
with its status.  A request proves that its sender has the key: it carries an HMAC-SHA256 of itself and of the
challenge.  A challenge is good for one request and for at most two minutes, so a recorded request is worth nothing,
and no clocks are compared.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import os

import msgspec

from durability_service.protocol import Ask

LOG = logging.getLogger(__name__)

KEY_BYTES_MIN = 16
"""Shorter ones can be guessed from one recorded request."""
_CHALLENGE_BYTES = 16
_CHALLENGE_S = 60.0
"""When a challenge is replaced by the next; it is good until then and as long again."""
_LOG_S = 10.0
"""Refusals are logged no more often than this: any process can cause them."""

OFF = "administration is off: set [durability] admin_key in the services"
NO_PROOF = "the request does not prove that its sender has [durability] admin_key"
STALE = "the request answers a challenge that is used or too old: ask for another"

_encode = msgspec.msgpack.Encoder().encode


def proof(key: bytes, ask: Ask, challenge: bytes) -> bytes:
    """What proves that the sender has the key."""
    asked = (ask.durability, ask.domain, ask.to, list(ask.topics), ask.action, challenge)
    return hmac.digest(key, _encode(asked), hashlib.sha256)


class Administration:
    """Of one service.  Not thread-safe: the caller serialises."""

    def __init__(self, key: bytes | None) -> None:
        """Without a key every request is refused."""
        self._key = key
        self._challenges = [os.urandom(_CHALLENGE_BYTES)]
        self._made_at = float("-inf")
        self.refused = 0
        self._logged_at = float("-inf")
        self._unlogged = 0

    def challenge(self, now: float) -> bytes:
        """What the next request has to answer; empty when there is no key."""
        if self._key is None:
            return b""
        if now - self._made_at >= _CHALLENGE_S:
            is_last_young = now - self._made_at < 2 * _CHALLENGE_S
            self._renew(now, self._challenges[-1:] if is_last_young else [])
        return self._challenges[-1]

    def _renew(self, now: float, still_good: list[bytes]) -> None:
        self._challenges = [*still_good, os.urandom(_CHALLENGE_BYTES)]
        self._made_at = now

    def admit(self, ask: Ask, node: str, now: float) -> str:
        """Whether a request is to be done: empty, or why not.  One that is admitted uses its challenge up."""
        reason = self._reason(ask, node, now)
        if reason:
            self._count(reason, ask, now)
        else:
            self._renew(now, [])
        return reason

    def _reason(self, ask: Ask, node: str, now: float) -> str:
        if self._key is None:
            return OFF
        self.challenge(now)  # what is too old goes
        if ask.to != node or not hmac.compare_digest(ask.proof, proof(self._key, ask, ask.challenge)):
            return NO_PROOF
        return "" if ask.challenge in self._challenges else STALE

    def _count(self, reason: str, ask: Ask, now: float) -> None:
        self.refused += 1
        self._unlogged += 1
        if now - self._logged_at >= _LOG_S:
            LOG.warning(
                "Durability: refused to %s: %s (%d refused since this was last logged).",
                ask.durability, reason, self._unlogged,
            )  # fmt: skip
            self._logged_at, self._unlogged = now, 0
