"""A control plane within a test: a database, a bus in memory, writers, copies and controllers, time, and faults."""

from __future__ import annotations

import contextlib
import pathlib
import time
import uuid
from collections.abc import Iterator
from typing import Any, TypeVar

from oslo_config import cfg

import pubsub_api
from nb_api import Controller, LocalCache, NbApi, config, notify_config
from nb_api.cache.view import CacheView
from nb_api.controller.request import Reconcile
from nb_api.testing.virtual_time import PATIENCE_S, VirtualTime
from pubsub_api import Session, loading
from pubsub_api.errors import WaitTimeout
from pubsub_api.runtime.closing import Closeable
from pubsub_api.testing.fast_conf import fast_conf
from pubsub_api.testing.faults import Faults

T = TypeVar("T")
_DB = {"outbox_age": 60.0, "retry_interval_max": 0.5}
_CACHE = {"verify_interval": 0.2, "snapshot_jitter": 0.05}
"""Short times: tests wait for them.  No fault is detected by them, so a loaded machine does not matter."""


class MemoryBus(Closeable):
    """A bus inside this process, with faults that can be switched on.  Thread-safe."""

    def __init__(self) -> None:
        self._name = uuid.uuid4().hex
        self.url = f"memory://{self._name}"
        self._bus: Any = loading.load_driver("memory").bus(self._name)  # type: ignore[attr-defined]
        self._sessions = contextlib.ExitStack()

    @property
    def faults(self) -> Faults:
        """All faults of the bus.  The methods below are for the faults that tests need most."""
        faults: Faults = self._bus.faults
        return faults

    def session(self, **options: Any) -> Session:
        """A session with short times, which is closed with the bus.  ``options`` are those of ``[pubsub]``."""
        return self._sessions.enter_context(pubsub_api.open(conf=fast_conf(self.url, **options)))

    def lose(self, share: float) -> None:
        """Lose this share of the frames, from 0 to 1."""
        self.faults.set(drop=share)

    def delay(self, seconds: float) -> None:
        """Delay every frame by this time."""
        self.faults.set(delay=1.0 if seconds else 0.0, delay_s_min=seconds, delay_s_max=seconds)

    def cut(self, *, silently: bool = False) -> None:
        """Lose every frame.  ``silently``: no process is told that its link is down."""
        self.faults.set(partitioned=silently, disconnected=not silently)

    def heal(self) -> None:
        """End every fault.  Lost frames are repaired, or objects are read from the database again."""
        self.faults.heal()

    def close(self) -> None:
        self._sessions.close()


class MemorySystem(Closeable):
    """A database in ``directory`` with writers, copies and controllers, which are closed with it.

    Not thread-safe: for the thread of a test.
    """

    def __init__(self, directory: pathlib.Path, bus: MemoryBus | None = None) -> None:
        """Without a ``bus``, copies follow the database's own feed."""
        self.url = f"sqlite://{directory}/objects.db"
        self.bus = bus
        self.time = VirtualTime()
        """The clock of the controllers."""
        self._closing = contextlib.ExitStack()
        self._writers: list[NbApi] = []
        self._caches: list[LocalCache] = []
        self._settled = -1
        """The revision up to which copies and controllers were done at the end of the last `settle`."""
        self._reader = self._open("reader")

    def _open(self, name: str) -> NbApi:
        nb = NbApi.open(conf=self._conf(name), url=self.url)
        self._closing.callback(nb.close)
        return nb

    def _conf(self, name: str) -> cfg.ConfigOpts:
        conf = fast_conf(self.bus.url if self.bus else "memory://none", publisher_name=name)
        conf.set_override("enable_df_pub_sub", self.bus is not None, group="pubsub")
        conf.register_opts(config.OPTIONS, group=config.GROUP)
        notify_config.register(conf)
        for group, values in ((config.GROUP, _DB), (notify_config.CACHE_GROUP, _CACHE)):
            for option, value in values.items():
                conf.set_override(option, value, group=group)
        return conf

    # -- members

    def writer(self, name: str = "writer") -> NbApi:
        """An `NbApi` as that of an API worker: it writes to the database, and publishes on the bus."""
        nb = self._open(name)
        self._writers.append(nb)
        return nb

    def cache(self, **arguments: Any) -> LocalCache:
        """A copy with a database handle and a session of its own; ``arguments`` are those of `LocalCache`.

        Blocks until it is complete, unless the bus has faults.
        """
        cache = LocalCache(self._open("controller"), **arguments)
        self._closing.callback(cache.close)
        self._caches.append(cache)
        if self.bus is None or self.bus.faults.settings.is_quiet:
            cache.wait_synced(timeout_s=PATIENCE_S)
        return cache

    def controller(self, cache: CacheView[T], reconcile: Reconcile[T], **arguments: Any) -> Controller:
        """A controller with the clock `time`; ``arguments`` are those of `Controller`."""
        controller = Controller(cache, reconcile, clock=self.time, **{"interval_min_s": 0.0, **arguments})
        self._closing.callback(controller.close)
        return controller

    # -- what happens

    def settle(self, *, timeout_s: float = PATIENCE_S) -> None:
        """Block until every copy is equal to the database and every controller has done what is due.

        That includes the writes that controllers make meanwhile.  Time does not advance.  Raises WaitTimeout.
        """
        self._settled = -1
        self._settle_writes(timeout_s=timeout_s)

    def _settle_writes(self, *, timeout_s: float) -> None:
        """As `settle`, if only controllers have written since the last one."""
        deadline = time.monotonic() + timeout_s
        self.time.settle(timeout_s=timeout_s)
        while self._settled != (revision := self._reader.db.revision()):
            self._settled = revision
            for writer in self._writers:
                writer.flush(timeout_s=self._rest(deadline))
            for cache in [cache for cache in self._caches if not cache.is_closed]:
                cache.wait_synced(timeout_s=self._rest(deadline))
                cache.wait_revision(revision, timeout_s=self._rest(deadline))
                cache.wait_told(timeout_s=self._rest(deadline))
            self.time.settle(timeout_s=self._rest(deadline))

    @staticmethod
    def _rest(deadline: float) -> float:
        if (rest_s := deadline - time.monotonic()) <= 0:
            raise WaitTimeout("the copies and controllers of the test were not done in time")
        return rest_s

    def advance(self, seconds: float, *, timeout_s: float = PATIENCE_S) -> None:
        """`settle`, advance the time of the controllers as `VirtualTime.advance`, and `settle` again.

        The writes of a run are in the copies before time advances further.  Raises UsageError, WaitTimeout.
        """
        self.settle(timeout_s=timeout_s)
        self.time.advance_by(seconds, self._settle_writes, timeout_s)
        self.settle(timeout_s=timeout_s)

    def restart(self, writer: NbApi) -> NbApi:
        """Close a writer without its BYE reaching any subscriber, as if killed, and return a new one of its name."""
        name = str(writer.conf.pubsub.publisher_name)
        with self._partitioned():
            writer.close()
        self._writers.remove(writer)
        return self.writer(name)

    @contextlib.contextmanager
    def _partitioned(self) -> Iterator[None]:
        if self.bus is None:
            yield
            return
        was_cut = self.bus.faults.settings.partitioned
        self.bus.faults.partition(True)
        try:
            yield
        finally:
            self.bus.faults.partition(was_cut)

    def close(self) -> None:
        self._closing.close()
