"""Why a subscriber hears nothing, in words: for the error of `Subscriber.wait_ready`, and for the log."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from pubsub_api.runtime.rate_limited_log import RateLimitedLog

_UNSIGNED = "BadSignature"
_SIGNING_HINT = "hmac_key is not the same here and there"


def explain(addresses: Iterable[str], links: Mapping[str, str | None], bad_frames: Mapping[str, int]) -> str:
    """Each address with the state of its link, None when it is up, and what was refused of what came."""
    parts = [f"{one} up" if reason is None else f"{one} down: {reason}" for one, reason in links.items()]
    parts += [f"{address} not reached" for address in addresses if address not in links]
    parts += [f"{count} frames refused: {_reason(fault)}" for fault, count in bad_frames.items()]
    return ", ".join(parts) or "no address to listen to"


def _reason(fault: str) -> str:
    return f"{fault}, {_SIGNING_HINT}" if fault == _UNSIGNED else fault


class RefusedFrames:
    """Says in the log, seldom, that frames are refused: a wrong key makes a subscriber deaf, and must not do so in
    silence."""

    def __init__(self, logger: logging.Logger) -> None:
        self._log = RateLimitedLog(logger)
        self._told: dict[str, int] = {}

    def look(self, bad_frames: Mapping[str, int]) -> None:
        """Called now and then with what is counted.  One thread at a time."""
        for fault, count in bad_frames.items():
            if count > self._told.get(fault, 0):
                self._told[fault] = count
                self._log("Subscriber: %d frames were refused so far: %s.", count, _reason(fault))
