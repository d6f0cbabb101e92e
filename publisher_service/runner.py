"""The life of the service process: signals, reload, watchdog.  Only the main thread may run it."""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Callable
from types import FrameType

from publisher_service import config
from publisher_service.service import PublisherService
from publisher_service.systemd import Notifier
from pubsub_api.errors import HeliographError
from pubsub_api.runtime.sockets.waking import Waker

LOG = logging.getLogger(__name__)

_LOOK_S = 1.0
"""How often the service is looked at, at least."""
_MISSES_MAX = 3
"""When the whole process stood still, this thread may be the first to notice; the others get some time to follow."""
_ENDING = (signal.SIGTERM, signal.SIGINT)


class ServiceFailed(HeliographError):
    """A part of the service has stopped working.  The process ends, so that its supervisor starts another."""

    fault = "environment"
    retriable = True


class _Signals:
    """Signals as something to wait for: a handler may do hardly anything safely, but it may write to a descriptor."""

    def __init__(self) -> None:
        self._waker = Waker()
        self._came: list[int] = []
        self._before = {number: signal.signal(number, self._on_signal) for number in (*_ENDING, signal.SIGHUP)}

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        self._came.append(number)
        self._waker.wake()

    def wait(self, timeout_s: float) -> list[int]:
        """The signals that came, after waiting for one for at most that long."""
        self._waker.wait(timeout_s)
        came, self._came = self._came, []
        return came

    def close(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._waker.close()


def run(service: PublisherService, *, on_ready: Callable[[], None] = lambda: None) -> None:
    """Start the service, run it until SIGTERM or SIGINT, and stop it in good order.  SIGHUP reloads.

    Raises what `PublisherService.start` raises, and ServiceFailed.
    """
    notifier, signals = Notifier(), _Signals()
    try:
        set_log_level(service)
        with service:
            notifier.tell(READY=1, STATUS=f"publishing at {service.publisher.address}")
            on_ready()
            _serve(service, notifier, signals)
            notifier.tell(STOPPING=1, STATUS="draining")
    finally:
        signals.close()


def _serve(service: PublisherService, notifier: Notifier, signals: _Signals) -> None:
    misses = 0
    while True:
        came = signals.wait(min(_LOOK_S, notifier.watchdog_s or _LOOK_S))
        misses = 0 if service.is_well else misses + 1
        if misses > _MISSES_MAX:
            raise ServiceFailed("the intake of the publisher service does not turn any more")
        notifier.tell(WATCHDOG=1)
        if any(number in _ENDING for number in came):
            LOG.info("Told to stop.")
            return
        if came:
            notifier.tell(RELOADING=1, MONOTONIC_USEC=time.monotonic_ns() // 1000)
            reload(service)
            notifier.tell(READY=1)


def reload(service: PublisherService) -> None:
    """Read the configuration files again; what cannot change while the service runs is named in the log."""
    try:
        service.conf.mutate_config_files()
        set_log_level(service)
        LOG.info("The configuration was read again.")
    except Exception:  # whatever is wrong with the new files, the service goes on with the old values
        service.reload_failures += 1
        LOG.exception("The configuration cannot be read again; nothing was changed.")


def set_log_level(service: PublisherService) -> None:
    level = service.conf[config.GROUP].log_level
    if level:
        logging.getLogger().setLevel(level.upper())
