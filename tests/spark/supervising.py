"""Queries in the session of the tests, under a supervisor, as in earnest.

Spark gives the Python process of a query ten seconds to start, which cannot be configured.  On a busy machine one may
take longer: then the query ends with an error, and is started again.  And when such a process refuses something and
ends, Spark may notice that before it has read why: then it is asked again.  These are the only errors that are not the
test's.
"""

from __future__ import annotations

from collections.abc import Callable

from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

_STARTS_MAX = 10
_ACCIDENTS = ("Python worker failed to connect back", "Broken pipe")


def run(query: Callable[[], object]) -> None:
    """Let Spark do something.  Raises what ends it."""
    for start in range(1, _STARTS_MAX + 1):
        try:
            query()
        except Exception as error:
            if start == _STARTS_MAX or not _is_accident(error):
                raise
        else:
            return


def run_to_end(writer: DataStreamWriter) -> None:
    """Let a query take what is there now.  Raises what ends it."""
    run(lambda: writer.trigger(availableNow=True).start().awaitTermination())


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
        """Whether it has ended with an error; look again and again, for one that met with an accident is started again
        then."""
        error: StreamingQueryException | None = self._query.exception()
        if error is not None and _is_accident(error):
            self._query = self._writer.start()
            return False
        return error is not None


def _is_accident(error: Exception) -> bool:
    return any(accident in str(error) for accident in _ACCIDENTS)
