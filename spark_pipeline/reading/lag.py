"""How far a streaming query is behind its log, from what Spark tells of its progress."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import StreamingQueryProgress


class QueryLag(NamedTuple):
    """Sums over all sources of a query that are logs of Heliograph."""

    events: int
    """In the log when the batch was planned, and not in this batch or one before it.  Events of all topics: which of
    them the filters select is known only when they are read."""
    lost: int
    """Removed by retention before the query could read them, since its checkpoint was new: ``failOnDataLoss=false``."""


def lag_of(progress: StreamingQueryProgress) -> QueryLag:
    """What is in the progress of a batch, as `StreamingQuery.lastProgress` and listeners have it.  Jobs of a group are
    not in it: ``heliograph group show`` tells their lag."""
    events = lost = 0
    for source in progress.sources:
        end, latest = _offsets(source.endOffset), _offsets(source.latestOffset)
        events += sum(max(0, offset - end.get(shard, 0)) for shard, offset in latest.items() if shard.isdecimal())
        lost += end.get("lost", 0)
    return QueryLag(events, lost)


def _offsets(text: str | None) -> dict[str, int]:
    """The offsets of a source; none when it is another kind of source."""
    try:
        found = json.loads(text or "")
    except ValueError:
        return {}
    return found if isinstance(found, dict) and {"log", "appended"} <= found.keys() else {}
