"""Appending again and again while the log cannot be reached, for callers that cannot give up."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence

from durable_log.errors import LogError
from durable_log.log_api import Appended, LogApi
from pubsub_api.runtime.backoff import Backoff

LOG = logging.getLogger(__name__)

_RETRY_MIN_S = 0.05
_RETRY_MAX_S = 2.0


def append_patiently(
    log: LogApi, frames: Sequence[bytes], closing: threading.Event, on_retry: Callable[[], None] = lambda: None
) -> Appended:
    """Append, again and again while the log is unavailable, until ``closing`` is set.

    Raises FrameError, Closed, and LogError when it is no use.
    """
    pauses = Backoff(_RETRY_MIN_S, _RETRY_MAX_S)
    while True:
        try:
            return log.append(frames)
        except LogError as error:
            if not error.retriable or closing.wait(pauses.next_s()):
                raise
            LOG.warning("Recorder: the log cannot be reached, trying again: %s", error)
            on_retry()
