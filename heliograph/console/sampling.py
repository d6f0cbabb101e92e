"""The sampler: asks every source now and then, for all viewers together.

Each source has a thread of its own, so that one that does not answer holds up no other.  What was told last stays, with
its age and the reason why there is nothing newer.
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
    """What a source has told."""

    told_by: str
    value: T | None = None
    """The newest answer; None when there was none yet."""
    taken_at: float = 0.0
    """When, by the monotonic clock."""
    problem: str = ""
    """Why the newest question was not answered; empty when it was."""
    is_asked: bool = True
    """False: no address to ask is configured."""
    is_expected: bool = True
    """It is a problem when it does not answer, also when it never has."""

    @property
    def age_s(self) -> float | None:
        return None if self.value is None else max(0.0, time.monotonic() - self.taken_at)

    @property
    def is_missed(self) -> bool:
        """It should answer, and does not."""
        return bool(self.problem) and (self.is_expected or self.value is not None)


class SampleSource(Generic[T]):
    """``read`` is called in a thread of the source, again and again.  ``read`` None: it cannot be asked."""

    def __init__(
        self, name: str, told_by: str, read: Callable[[], T] | None, *, interval_s: float, is_expected: bool = True
    ) -> None:
        self.name = name
        self.sample: SourceSample[T] = SourceSample(told_by, is_asked=read is not None, is_expected=is_expected)
        self._read = read
        self._interval_s = interval_s
        self._on_answer: Callable[[], None] = lambda: None
        failures = Failures(LOG, f"The console cannot ask {told_by}")
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
        except HeliographError as error:  # the page tells it
            self._fail(error)
            return
        self.sample = dataclasses.replace(self.sample, value=value, taken_at=time.monotonic(), problem="")
        self._on_answer()

    def _fail(self, error: Exception) -> None:
        told = str(error) if isinstance(error, HeliographError) else f"{type(error).__name__}: {error}"
        self.sample = dataclasses.replace(self.sample, problem=told or type(error).__name__)
        self._on_answer()


class Sampler(Closeable):
    """Runs the sources, and numbers what they tell."""

    def __init__(self, *sources: SampleSource[Any]) -> None:
        self._sources = sources
        self._changed = threading.Condition()
        self.number = 0
        """Rises with every answer."""
        self._is_closed = False

    def start(self) -> None:
        """Raises LimitReached."""
        for source in self._sources:
            source.start(self._count)

    def wait(self, number: int, *, timeout_s: float) -> bool:
        """Block until there is something newer than ``number``, the time is over or the sampler is closed.  True when
        there is."""
        with self._changed:
            self._changed.wait_for(lambda: self.number > number or self._is_closed, timeout_s)
            return self.number > number

    def wait_closed(self, *, timeout_s: float) -> None:
        """Block until the sampler is closed, or the time is over."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed, timeout_s)

    def close(self) -> None:
        """Ends every wait.  A question that is under way is not waited for.  Idempotent."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        for source in self._sources:
            source.ask_to_stop()

    def _count(self) -> None:
        with self._changed:
            self.number += 1
            self._changed.notify_all()
