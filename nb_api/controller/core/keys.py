"""What a controller works on: a key, and what its run ended with.  Plain data."""

from __future__ import annotations

import dataclasses
import math
from typing import NamedTuple

from pubsub_api.errors import UsageError


class Key(NamedTuple):
    """The table and the key of an object, or of anything else that a program brings into order."""

    table: str
    key: str

    def __str__(self) -> str:
        return f"{self.table} {self.key!r}"


def check_seconds(seconds: float, what: str, *, is_finite: bool = False) -> float:
    """A time from 0 on, as a float.  Raises UsageError, also for an integer that is too large for one."""
    try:
        checked = float(seconds)
    except (TypeError, ValueError, OverflowError) as error:
        raise UsageError(f"{what} takes seconds, and what was given cannot be that: {error}") from error
    if not checked >= 0 or (is_finite and checked == math.inf):
        raise UsageError(f"{what} takes seconds from 0 on, not {checked!r}")
    return checked


@dataclasses.dataclass(frozen=True)
class RequeueAfter:
    """A run succeeded and wants another one so many seconds later, unless a change causes one before."""

    seconds: float

    def __post_init__(self) -> None:
        check_seconds(self.seconds, "RequeueAfter")


@dataclasses.dataclass(frozen=True)
class RetryPauses:
    """The pauses after failures of one key: ``first_s``, then twice as long each time, up to ``max_s``.

    Each is between half of it and the whole, so that keys that failed together do not come back together.
    """

    first_s: float = 0.1
    max_s: float = 60.0

    def __post_init__(self) -> None:
        first_s, max_s = check_seconds(self.first_s, "first_s", is_finite=True), check_seconds(self.max_s, "max_s")
        if not 0 < first_s <= max_s:
            raise UsageError(f"pauses begin above 0 s and end at max_s, not {self.first_s} s and {self.max_s} s")
