"""How users write durations and points in time, the same for all commands."""

from __future__ import annotations

import argparse
import datetime
import math
import re

DURATIONS = "500ms, 10s, 5m, 2h or 1d"
"""Examples for help texts.  A number without a unit is in seconds."""

_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_YEAR_S = 365 * 86_400.0


def seconds(text: str) -> float:
    """An argparse type: a duration, as in ``10``, ``10s``, ``500ms`` or ``1h30m``, from 0 to a year."""
    value = _seconds(text)
    if value is None or not 0.0 <= value <= _YEAR_S:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time such as {DURATIONS}, from 0 seconds to a year")
    return value


def _seconds(text: str) -> float | None:
    try:
        return value if math.isfinite(value := float(text)) else None
    except ValueError:
        pass
    parts = _PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        return None
    return math.fsum(float(number) * _UNITS_S[unit] for number, unit in parts)


def duration_text(value_s: float) -> str:
    """A duration for people, in the largest unit that is not longer than it: ``2.5h``."""
    name, size = next((pair for pair in reversed(_UNITS_S.items()) if abs(value_s) >= pair[1]), ("s", 1.0))
    return f"{value_s / size:.3g}{name}"


class Moment:
    """A point in time: a date, or a duration before now.  The caller gives now, because its clock counts."""

    def __init__(self, text: str) -> None:
        """Raises ArgumentTypeError."""
        self._ago_s = _seconds(text)
        self._at: datetime.datetime | None = None
        if self._ago_s is None:
            try:
                at = datetime.datetime.fromisoformat(text.replace("Z", "+00:00"))
            except ValueError:
                raise argparse.ArgumentTypeError(
                    f"{text!r} is neither a time such as 2026-11-16T10:00 (UTC unless it says otherwise) nor one so "
                    f"long ago, such as {DURATIONS}"
                ) from None
            self._at = at if at.tzinfo else at.replace(tzinfo=datetime.timezone.utc)
        elif not 0.0 <= self._ago_s <= 100 * _YEAR_S:
            raise argparse.ArgumentTypeError(f"{text!r} is not from 0 seconds to a hundred years ago")

    def ns(self, now_ns: int) -> int:
        """Nanoseconds since 1970."""
        if self._ago_s is not None:
            return now_ns - int(self._ago_s * 1e9)
        assert self._at is not None
        return round(self._at.timestamp() * 1_000_000) * 1000

    def at(self, now_ns: int) -> datetime.datetime:
        """The same as a date with a time zone."""
        return datetime.datetime.fromtimestamp(self.ns(now_ns) / 1e9, tz=datetime.timezone.utc)
