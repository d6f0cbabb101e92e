"""From the changes of a local cache to the keys that a controller has to work on."""

from __future__ import annotations

import contextlib
import itertools
import logging
import threading
import time
from collections.abc import Callable, Collection, Sequence

from nb_api.cache.local_cache import LocalCache
from nb_api.cache.telling.subscriptions import Subscription
from nb_api.controller.core.keys import Key
from nb_api.controller.core.owners import OwnerMap
from nb_api.controller.work import Work, text_of
from nb_api.core.changes import DbObject
from nb_api.core.copy.differences import CacheChange, Deleted, Resynced
from nb_api.errors import ObjectNotFound, ValueMismatch
from pubsub_api.errors import Closed
from pubsub_api.runtime.backoff import Backoff
from pubsub_api.runtime.rate_limited_log import RateLimitedLog
from pubsub_api.runtime.threads import start_thread

LOG = logging.getLogger(__name__)

_PORTION = 1000
"""Changes that are taken together."""
_PATIENCE_S = 0.2
"""How long the thread waits for changes before it looks whether it is to end: `close` waits as long."""
_SYNC_PATIENCE_S = 0.02
"""The same until the copy is complete."""
_JUMP_PATIENCE_S = 0.002
"""The same while owners are to be asked for again, and a test moves the time."""
_RETRY_S, _RETRY_MAX_S = 1.0, 60.0
_TROUBLE_PAUSE_S = 0.2
"""Between two attempts to follow changes that fail: `close` waits as long."""


class CacheFollower:
    """One thread that takes the changes of a cache and tells `Work` the keys, and when the copy is complete.

    It is one of any number of consumers of the cache.  The objects that are there at first are told as the bulk.
    """

    def __init__(self, cache: LocalCache, owners: OwnerMap, work: Work, *, name: str) -> None:
        self._cache = cache
        self._owners = owners
        self._work = work
        self._name = name
        self._unmapped: set[tuple[str, str]] = set()
        """Objects whose owners could not be told."""
        self._backoff = Backoff(_RETRY_S, _RETRY_MAX_S)
        self._has_begun = False
        self._log_mapping = RateLimitedLog(LOG)
        self._log_trouble = RateLimitedLog(LOG)
        self.thread = threading.Thread(target=self._run, name=f"controller-changes-{name}", daemon=True)

    def start(self) -> None:
        """Raises LimitReached."""
        start_thread(self.thread)

    def _run(self) -> None:
        try:
            self._follow_all()
        except BaseException as error:
            # Without this thread nothing is known of changes: the controller must not look as if it worked.
            LOG.critical("Controller %s ends, because it cannot follow changes.", self._name, exc_info=error)
        finally:
            is_closed = self._work.is_stopping
            self._work.stop()
            if not is_closed and (given_up := self._work.permits.give_up()):
                # Otherwise no process would work on these keys.
                LOG.warning("Controller %s ends by itself, and gives up %s.", self._name, given_up)

    def _follow_all(self) -> None:
        with contextlib.suppress(Closed), contextlib.closing(self._cache.subscribe(tables=self._owners.tables)) as told:
            self._work.following.untold = lambda: told.untold
            while not self._work.is_stopping and not self._cache.is_closed:
                try:
                    if self._work.must_read_all:
                        self._work.must_read_all = False
                        self._read_all()
                    self._follow(told)
                except Closed:
                    raise
                except BaseException as error:  # noqa: BLE001  a thread that ends in silence would leave keys as they are
                    # What was being taken is not known any more: so everything is looked at, as after an overrun.
                    self._work.must_read_all = True
                    self._log_trouble("Controller %s cannot follow changes: %s", self._name, error, exc_info=error)
                    time.sleep(_TROUBLE_PAUSE_S)
        if not self._work.is_stopping:
            LOG.info("Controller %s ends, because its local cache was closed.", self._name)

    def _follow(self, told: Subscription) -> None:
        """Take what has come, or wait for it a moment."""
        patience_s = _PATIENCE_S if self._has_begun else _SYNC_PATIENCE_S
        if self._unmapped and self._work.time_may_jump:
            patience_s = _JUMP_PATIENCE_S
        if unsure := self._work.take_unsure():
            self._confirm(told, unsure)
        if told.wait(timeout_s=patience_s):
            self._work.following.is_taking = True
            try:
                self._take(list(itertools.islice(told.changes(timeout_s=0), _PORTION)))
            finally:
                self._work.following.is_taking = False
            self._work.tell_idle()
        if not self._has_begun and told.is_synced and not told.untold:  # in this order: what is told later is news
            self._has_begun = True
            self._work.following.complete_readings += 1
            self._work.begin()
        self._work.take_moves(self._owners.keys)
        self._map_again()
        self._work.watch()

    def _confirm(self, told: Subscription, unsure: Collection[Key]) -> None:
        """Take what the copy has told until now, so that the end of what is absent is known before its run begins."""
        try:
            _ = self._cache.topics  # waits until the thread that changes the copy has told of it, too
            self._take(list(itertools.islice(told.changes(timeout_s=0), told.untold)))
        finally:
            self._work.confirm(unsure)

    def _take(self, changes: Sequence[CacheChange]) -> None:
        keys: list[Key] = []
        ends: dict[Key, Deleted | None] = {}
        for change in changes:
            if isinstance(change, Resynced):
                if not change.is_told:
                    self._read_all()
            elif not self._owners.is_followed(change.table):
                continue
            elif isinstance(change, Deleted):
                self._unmapped.discard((change.table, change.key))
                keys += self._owners.remove(change.table, change.key)
                if self._owners.is_own(change.table):
                    ends[Key(change.table, change.key)] = change
            else:
                keys += self._map(change.table, change.key, lambda change=change: change.object)  # type: ignore[misc]
                ends[Key(change.table, change.key)] = None
        self._work.put(keys, ends=ends, is_bulk=not self._has_begun, unmapped=len(self._unmapped))

    def _read_all(self) -> None:
        """Have every key worked on, also those that were known and are not there any more."""
        gone = {*self._owners.names(), *self._unmapped}
        for table in filter(self._owners.is_followed, self._cache.tables):
            for found in self._cache.get_all(table):
                gone.discard((table, found.key))
                keys = self._map(table, found.key, lambda found=found: found)  # type: ignore[misc]
                self._work.put(keys, ends={Key(table, found.key): None}, is_bulk=True)
        for table, key in gone:
            self._unmapped.discard((table, key))
            self._work.put(self._owners.remove(table, key), is_bulk=True)
        self._work.following.complete_readings += 1

    # -- owners

    def _map(self, table: str, key: str, get: Callable[[], DbObject]) -> Sequence[Key]:
        """The keys that an object concerns; those it concerned before, when its owners cannot be told."""
        try:
            keys = self._owners.put(table, key, get)
        except BaseException as error:  # noqa: BLE001  a function of the program: counted, logged, called again
            if isinstance(error, ValueMismatch) and (error.table, error.key) == (table, key):
                # Counted and logged where it was read.  It cannot be read in another way before it changes.
                self._unmapped.discard((table, key))
                return self._owners.owners_before(table, key)
            self._work.following.mapping_errors += 1
            if not self._unmapped:
                self._backoff.reset()
                self._work.following.map_again_at = self._work.now() + self._backoff.next_s()
            self._unmapped.add((table, key))
            self._log_mapping(
                "Controller %s: the owners of %s cannot be told: %s: %s. It will be tried again.",
                self._name, Key(table, key), type(error).__name__, text_of(error), exc_info=error,
            )  # fmt: skip
            keys = self._owners.owners_before(table, key)
        else:
            if self._unmapped:
                self._unmapped.discard((table, key))
        return keys

    def _map_again(self) -> None:
        if not self._unmapped or self._work.now() < self._work.following.map_again_at:
            return
        for table, key in list(self._unmapped):
            try:
                found = self._cache.get(table, key)
            except ObjectNotFound:  # its end is told, or was
                self._unmapped.discard((table, key))
                keys: Sequence[Key] = ()
            else:
                keys = self._map(table, key, lambda found=found: found)  # type: ignore[misc]
            self._work.put(keys, unmapped=len(self._unmapped))
        self._work.following.map_again_at = self._work.now() + self._backoff.next_s()
