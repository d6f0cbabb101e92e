"""What a subscriber wants of the past, as one value: of whom it is asked, and how much of it.

| ``past`` | Asked for |
| --- | --- |
| None | nothing: what is published from now on |
| ``"all"`` | all that publishers and caches still have |
| a number | the newest events of each stream that they have, so many |
| `History` | the same, or what is younger than a timestamp |
| ``"transient_local"``, ``"transient"``, ``"persistent"``, `Durability` | what is kept of them, at least so well |
| `HistorySource` | what that source has |
"""

from __future__ import annotations

from pubsub_api.core.durability import Durability
from pubsub_api.core.errors import UsageError
from pubsub_api.core.settings import History
from pubsub_api.subscribing.history import HistorySource

Past = int | str | History | Durability | HistorySource


def understood(past: Past | None) -> History | Durability | HistorySource | None:
    """Raises UsageError."""
    if past is None or isinstance(past, History | Durability | HistorySource):
        return past
    if past == "all":
        return History()
    if isinstance(past, str) and past.upper() in Durability.__members__:
        return Durability[past.upper()]
    if isinstance(past, int) and not isinstance(past, bool) and past > 0:
        return History(newest=past)
    kinds = ", ".join(repr(name.lower()) for name in Durability.__members__)
    raise UsageError(f"past is 'all', a number from 1, {kinds}, a History or a HistorySource, not {past!r}")
