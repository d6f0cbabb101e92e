"""The sampler: asks every source at an interval, once for all viewers.

Each source has a thread of its own, so that a source that does not answer does not delay the others.  Its last answer
is kept, with its age and the reason why there is no newer one.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from pubsub_api.errors import Closed, HeliographError
from pubsub_api.runtime.closing import Closeable
from pubsub_api.runtime.periodic import Failures, PeriodicThread

LOG = logging.getLogger(__name__)

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class SourceSample(Generic[T]):
    """The newest answer of a source."""

    source_title: str
    value: T | None = None
    """None when there was no answer yet."""
    taken_at: float = 0.0
    """When the value was read, by the monotonic clock."""
    problem: str = ""
    """Why the last question was not answered; empty when it was."""
    is_asked: bool = True
    """False when no address of the source is configured."""
    is_expected: bool = True
    """Whether it is a problem that the source has never answered."""

    @property
    def age_s(self) -> float | None:
        return None if self.value is None else max(0.0, time.monotonic() - self.taken_at)

    @property
    def is_missed(self) -> bool:
        """Whether the source should answer and does not."""
        return bool(self.problem) and (self.is_expected or self.value is not None)


class SampleSource(Generic[T]):
    """A source and its newest answer.  ``read`` is called in a thread of the source at every interval; None when no
    address of the source is configured."""

    def __init__(
        self, name: str, source_title: str, read: Callable[[], T] | None, *, interval_s: float, is_expected: bool = True
    ) -> None:
        self.name = name
        self.sample: SourceSample[T] = SourceSample(source_title, is_asked=read is not None, is_expected=is_expected)
        self._read = read
        self._interval_s = interval_s
        self._on_answer: Callable[[], None] = lambda: None
        failures = Failures(LOG, f"The console cannot ask {source_title}")
        self._thread = PeriodicThread(
            f"heliograph-console-{name}", self._ask, failures, pause_s=interval_s, at_once=True, on_failure=self._fail
        )

    def start(self, on_answer: Callable[[], None]) -> None:
        """Raises LimitReached."""
        self._on_answer = on_answer
        if self._read is not None:
            self._thread.start()

    def ask_to_stop(self) -> None:
        self._thread.ask_to_stop()

    def _ask(self) -> None:
        assert self._read is not None
        try:
            value = self._read()
        except Closed:
            raise
        except HeliographError as error:  # the page shows it
            self._fail(error)
            return
        self.sample = dataclasses.replace(self.sample, value=value, taken_at=time.monotonic(), problem="")
        self._on_answer()

    def _fail(self, error: Exception) -> None:
        problem = str(error) if isinstance(error, HeliographError) else f"{type(error).__name__}: {error}"
        self.sample = dataclasses.replace(self.sample, problem=problem or type(error).__name__)
        self._on_answer()


class Sampler(Closeable):
    """Runs the sources, and counts their answers so that viewers can wait for the next one."""

    def __init__(self, *sources: SampleSource[Any]) -> None:
        self._sources = sources
        self._changed = threading.Condition()
        self.number = 0
        """How many answers there were."""
        self._is_closed = False

    def start(self) -> None:
        """Raises LimitReached."""
        for source in self._sources:
            source.start(self._count)

    def wait(self, number: int, *, timeout_s: float) -> bool:
        """Block until there are more than ``number`` answers, the time is over, or the sampler is closed.  Returns
        whether there are more."""
        with self._changed:
            self._changed.wait_for(lambda: self.number > number or self._is_closed, timeout_s)
            return self.number > number

    def wait_closed(self, *, timeout_s: float) -> None:
        """Block until the sampler is closed, or the time is over."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed, timeout_s)

    def close(self) -> None:
        """End every wait.  Does not wait for a source that is being asked.  Idempotent."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        for source in self._sources:
            source.ask_to_stop()

    def _count(self) -> None:
        with self._changed:
            self.number += 1
            self._changed.notify_all()
