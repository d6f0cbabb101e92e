"""What a controller counts."""

from __future__ import annotations

import dataclasses

from pubsub_api.runtime.durations import DurationHistogram


@dataclasses.dataclass(frozen=True)
class ControllerStatistics:
    """Counters since the controller was made.  Ages are of the moment at which they were asked for."""

    has_begun: bool
    """The copy was complete, and runs are made."""
    is_active: bool
    """This process leads the election of the controller, or there is none."""
    ready: int
    """Keys that wait for a worker."""
    running: int
    """Keys that a worker has."""
    waiting: int
    """Keys whose time has not come: after a failure, or because a run asked for it, or because they ran just now."""
    unmapped: int
    """Objects whose owners are not known, because the function that tells them raised.  It is called again."""
    oldest_ready_s: float
    """How long the longest waits for a worker."""
    oldest_running_s: float
    """How long the longest is running.  When it grows and grows, the function hangs."""
    runs: int
    retries: int
    """Of the runs, those after a failure."""
    failures: int
    given_up: int
    """Failures after which a key was left alone until it changes."""
    requeues: int
    """Runs that asked for another one after a time."""
    merged: int
    """Changes that caused no run of their own, because their key was wanted already."""
    mapping_errors: int
    """How often a function that tells owners raised."""
    complete_readings: int
    """How often every object of the copy was read: at the start, and when changes were not told one by one."""
    waited_s: float
    """How long keys have waited for a worker, all runs together."""
    waited_max_s: float
    run_s: float
    """How long runs took, all together."""
    run_max_s: float
    run_seconds: DurationHistogram
    """How long runs took."""
