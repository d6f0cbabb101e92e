"""The admin token: read from a file, compared in constant time, and protected against guessing."""

from __future__ import annotations

import hashlib
import hmac
import os
import stat
import threading
import time
from collections.abc import Callable
from typing import Literal

from pubsub_api.errors import InvalidConfig

TOKEN_CHARACTERS_MIN = 16
_BYTES_MAX = 4096
_FREE_FAILURES = 3
"""Wrong tokens in a row before requests are refused for a while."""
_WAIT_S_MAX = 60.0

Verdict = Literal["right", "wrong", "wait"]


def read_token(path: str) -> str:
    """The token in a file that only its owner can read.  Raises InvalidConfig."""
    try:
        with open(path, "rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            token = file.read(_BYTES_MAX).decode().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidConfig(f"the admin token cannot be read from {path}: {error}") from error
    if stat.S_ISREG(mode) and mode & 0o077:
        raise InvalidConfig(f"others can read the admin token in {path}: chmod 600 {path}")
    if len(token) < TOKEN_CHARACTERS_MIN:
        raise InvalidConfig(
            f"the admin token in {path} has fewer than {TOKEN_CHARACTERS_MIN} characters: it could be guessed"
        )
    return token


class TokenGuard:
    """Checks tokens.  May be called from any thread.

    After three wrong tokens in a row all requests are refused for a second, and for twice as long after each further
    one, up to a minute.  A request with the right token is refused, too: its answer would tell that it is right.
    """

    def __init__(self, token: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._digest = _digest(token)
        self._clock = clock
        self._lock = threading.Lock()
        self._failures_in_a_row = 0
        self._closed_until = 0.0
        self.failures = 0
        """Wrong tokens since the start of the console."""

    @property
    def wait_s(self) -> float:
        """For how long all requests are still refused."""
        return max(0.0, self._closed_until - self._clock())

    def check(self, given: str) -> Verdict:
        with self._lock:
            if self.wait_s:
                return "wait"
            if hmac.compare_digest(_digest(given), self._digest):
                self._failures_in_a_row = 0
                return "right"
            self.failures += 1
            self._failures_in_a_row += 1
            over = self._failures_in_a_row - _FREE_FAILURES
            if over >= 0:
                self._closed_until = self._clock() + min(_WAIT_S_MAX, 2.0 ** min(over, 10))
            return "wrong"


def _digest(token: str) -> bytes:
    """Digests have the same length, so the time of a comparison does not depend on the length of the token."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
