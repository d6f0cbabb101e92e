"""What a controller counts."""

from __future__ import annotations

import dataclasses

from pubsub_api.runtime.durations import DurationCounter, DurationHistogram


@dataclasses.dataclass(frozen=True)
class RunQueueStatistics:
    """The queue of keys."""

    retries: int
    """Of the runs, those after a failure."""
    requeues: int
    """Runs that asked for another one after a time."""
    merged: int
    """Changes that caused no run of their own, because their key was wanted already."""


@dataclasses.dataclass(frozen=True)
class FollowingStatistics:
    """The follower of the copy, which puts keys into the queue."""

    unmapped: int
    """Objects whose owners are not known, because the function that tells them raised.  It is called again."""
    mapping_errors: int
    """How often a function that tells owners raised."""
    complete_readings: int
    """How often every object of the copy was read: at the start, and when changes were not told one by one."""
    ends_forgotten: int
    """Deletes of keys of other processes that were too many to be remembered for the case that those die."""


@dataclasses.dataclass(frozen=True)
class RunTimeStatistics:
    """How long keys waited, and runs took."""

    waited_s: float
    """How long keys have waited for a worker, all runs together."""
    waited_max_s: float
    run_s: float
    """How long runs took, all together."""
    run_max_s: float
    run_seconds: DurationHistogram
    """How long runs took."""


@dataclasses.dataclass(frozen=True)
class ControllerStatistics:
    """Counters since the controller was made: at the top what one watches, below it by what counts.

    Ages are of the moment at which they were asked for.
    """

    has_begun: bool
    """The copy was complete, and runs are made."""
    is_active: bool
    """Runs may begin: this process leads the election of the controller, or the lease on its shards lasts, or there is
    neither."""
    ready: int
    """Keys that wait for a worker."""
    running: int
    """Keys that a worker has."""
    waiting: int
    """Keys whose time has not come: after a failure, or because a run asked for it, or because they ran just now."""
    oldest_ready_s: float
    """How long the longest waits for a worker."""
    oldest_running_s: float
    """How long the longest is running.  When it grows and grows, the function hangs."""
    runs: int
    failures: int
    given_up: int
    """Failures after which a key was left alone until it changes."""
    unheld_runs: int
    """Runs during which the lease of this process was over: another may have worked on the key at the same time."""
    queue: RunQueueStatistics
    following: FollowingStatistics
    times: RunTimeStatistics


@dataclasses.dataclass
class RunTimes:
    """How long keys waited for a worker, and runs took."""

    waited_s: float = 0.0
    waited_max_s: float = 0.0
    run_s: float = 0.0
    run_max_s: float = 0.0
    runs: DurationCounter = dataclasses.field(default_factory=DurationCounter)

    def waited(self, seconds: float) -> None:
        self.waited_s += seconds
        self.waited_max_s = max(self.waited_max_s, seconds)

    def ran(self, seconds: float) -> None:
        self.runs.add(seconds)
        self.run_s += seconds
        self.run_max_s = max(self.run_max_s, seconds)

    def read(self) -> RunTimeStatistics:
        return RunTimeStatistics(self.waited_s, self.waited_max_s, self.run_s, self.run_max_s, self.runs.read())
