"""Streaming queries in the session of the tests, under a supervisor, as in earnest.

Spark gives the Python process of a query ten seconds to start, which cannot be configured.  On a busy machine one may
take longer: then the query ends with an error, and is started again.  It is the only error that is not the test's.
"""

from __future__ import annotations

from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

_STARTS_MAX = 10
_SLOW_START = "Python worker failed to connect back"


def run_to_end(writer: DataStreamWriter) -> None:
    """Let a query take what is there now.  Raises what ends it."""
    for start in range(1, _STARTS_MAX + 1):
        try:
            writer.trigger(availableNow=True).start().awaitTermination()
        except StreamingQueryException as error:
            if start == _STARTS_MAX or not _is_slow_start(error):
                raise
        else:
            return


class RunningQuery:
    """A query that goes on until it is stopped; use it in a ``with``."""

    def __init__(self, writer: DataStreamWriter) -> None:
        self._writer = writer
        self._query: StreamingQuery = writer.start()

    def __enter__(self) -> RunningQuery:
        return self

    def __exit__(self, *_: object) -> None:
        self._query.stop()

    def has_failed(self) -> bool:
        """Whether it has ended with an error; look again and again, for one that was slow to start is started again
        then."""
        error = self._query.exception()
        if error is not None and _is_slow_start(error):
            self._query = self._writer.start()
            return False
        return error is not None


def _is_slow_start(error: StreamingQueryException) -> bool:
    return _SLOW_START in str(error)
