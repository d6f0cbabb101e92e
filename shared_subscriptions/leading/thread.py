"""The thread with which a process leads groups, or waits for its turn: one for all groups of a member.

It calls what each group has to do (`Leading`) when it is due, and not before.  What several groups want to have written
is one write, in which the registration of each is compared and set; when one of them was taken over meanwhile, each is
written for itself.  The process gives one sign of life for all groups that it leads.  Operators' wishes and new shards
are looked for once for all groups.

One thread does everything here, so the core needs no lock.  A log that does not answer makes a leader silent, which is
right: it cannot renew its registration either.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import logging
import os
import queue
import selectors
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from oslo_config import cfg

from durable_log.errors import LogError, LogReplaced, RecordConflict
from durable_log.log_api import LogApi
from pubsub_api.errors import Closed
from pubsub_api.runtime.rate_limited_log import RateLimitedLog
from pubsub_api.runtime.sockets.waking import Waker
from shared_subscriptions import config, wire
from shared_subscriptions.core.declaration import Declaration
from shared_subscriptions.core.leading.process_lease import ProcessLease
from shared_subscriptions.core.settings import LeaseSettings
from shared_subscriptions.leading.group import Commit, Leading, LeadingProcess
from shared_subscriptions.leading.listener import LeadershipListener
from shared_subscriptions.leading.listening import Listening
from shared_subscriptions.leading.storing import Write
from shared_subscriptions.names import CHANGES, LEASES

LOG = logging.getLogger(__name__)

T = TypeVar("T")

_IDLE_S = 0.5
_TELL_S = 0.002
"""Members are told that the log has grown this often at most."""
_WRITES_PER_ROUND = 256
_READ_ALL_S = 30.0
"""Declarations are read at least this often: one may have been changed without a note of it."""


class LeaderThread:
    """Runs from its first group on until it is closed."""

    def __init__(self, log: LogApi, conf: cfg.ConfigOpts) -> None:
        self._log = log
        self._conf = conf
        self._log_trouble = RateLimitedLog(LOG)
        self._key = os.urandom(wire.KEY_BYTES)
        self._groups: dict[str, Leading] = {}
        self._led: dict[LeaseSettings, dict[Leading, None]] = {}
        """Groups that this process led when they were last worked on, by their times."""
        self._outdated: dict[Leading, None] = {}
        """Those of them that want to know at once which partitions there are."""
        self._new: queue.SimpleQueue[Leading] = queue.SimpleQueue()
        self._due: list[tuple[float, int, Leading]] = []
        self._serial = itertools.count()
        self._touched: dict[Leading, None] = {}
        """Groups to which something has happened, the one that waits longest first."""
        self._look_round_at = self._read_all_at = 0.0
        self._known: tuple[int, list[tuple[int, int]]] = (-1, [])
        """The version of operators' wishes, and where shards began and ended, at the last look."""
        self._growth: queue.SimpleQueue[Mapping[int, int]] = queue.SimpleQueue()
        self._tell_at = 0.0
        self._close_by = float("inf")
        self._selector = selectors.DefaultSelector()
        self._waker = Waker()
        self._selector.register(self._waker, selectors.EVENT_READ, self._waker)
        self.listening = Listening(self._selector, self._groups, self._key, conf[config.GROUP])
        self._leases: dict[float, ProcessLease] = {}
        """By claim time."""
        self._beat_at = 0.0
        self._versions: dict[str, int] = {}
        """Of leases, as they were read in this round."""
        self._process = LeadingProcess(
            self.listening.open, self._lease, self._version_of, self.listening.send, self.listening.counters
        )
        self._thread = threading.Thread(target=self._run, name="heliograph-group-leader", daemon=True)

    # -- from other threads

    def add(self, declaration: Declaration, owner: LeadershipListener) -> Leading:
        """Watch which process leads a group, and lead it when it is this process's turn.  One caller at a time."""
        group = Leading(
            self._log, declaration, self._conf, owner,
            key=self._key, process=self._process,
        )  # fmt: skip
        self._new.put(group)
        if self._thread.ident is None:
            self._thread.start()
        self._waker.wake()
        return group

    def look_now(self, groups: Iterable[Leading]) -> None:
        """Look at the leaders' records without waiting: something suggests that they have changed."""
        for group in groups:
            group.look_at = 0.0
            self._new.put(group)
        self._waker.wake()

    def log_grown(self, ends: Mapping[int, int]) -> None:
        """Shards of the log end there now.  Members that wait for events hear of it, if this process leads."""
        self._growth.put(ends)
        self._waker.wake()

    def close(self, *, timeout_s: float) -> None:
        """Resign where it leads, taking all partitions back in good order within the time given, and end the thread."""
        self._close_by = time.monotonic() + timeout_s
        self._waker.wake()
        if self._thread.ident is None:
            self._release()
        elif self._thread is not threading.current_thread():
            self._thread.join()

    @property
    def _is_closing(self) -> bool:
        return self._close_by < float("inf")

    # -- the thread

    def _run(self) -> None:
        try:
            while not self._is_done():
                self._step()
                self._wait()
        except Closed:
            LOG.info("The log was closed, so this process leads no group any more.")
        except Exception:
            LOG.exception("This process will not lead any group any more")
        finally:
            for group in self._groups.values():
                group.close()
            # Nothing is led any more.
            with contextlib.suppress(LogError, Closed):
                for lease in self._leases.values():
                    self._log.put_records([(lease.name, None, lease.version)])
            self._release()

    def _release(self) -> None:
        self.listening.close()
        self._waker.close()
        self._selector.close()

    def _step(self) -> None:
        now = time.monotonic()
        self._versions.clear()
        if now >= self._beat_at:
            self._renew_leases(now)
        with contextlib.suppress(queue.Empty):
            while True:
                group = self._new.get_nowait()
                self._groups.setdefault(group.name, group)
                self._touched[group] = None
        if now >= self._look_round_at:
            self._look_round(now)
        if now >= self._tell_at and not self._growth.empty():
            self._tell_at = now + _TELL_S
            self._tell_growth(now)
        while self._due and self._due[0][0] <= now:
            at, _, group = heapq.heappop(self._due)
            if at == group.scheduled and not self._is_later(group, now):
                self._touched[group] = None
        self._work_on(now)
        self.listening.look_after_strangers(time.monotonic())

    def _work_on(self, now: float) -> None:
        """Let groups do what they have to do.  Not all at once: signs of life, and what members ask for, go first."""
        groups: list[Leading] = []
        commits: list[Commit] = []
        while self._touched and sum(len(commit.writes) for commit in commits) < _WRITES_PER_ROUND:
            group = next(iter(self._touched))
            del self._touched[group]
            groups.append(group)
            commit = self._guard(group, group.step, now, may_claim=not self._is_closing)
            if commit is not None:
                commits.append(commit)
        if commits:
            self._write_together(commits)
        for group in groups:
            self._after(group)

    def _is_later(self, group: Leading, now: float) -> bool:
        """Whether the group has time after all, because leases were renewed meanwhile; then it is noted again."""
        due = group.next_due()
        if due <= now:
            return False
        group.scheduled = due
        heapq.heappush(self._due, (due, next(self._serial), group))
        return True

    def _after(self, group: Leading) -> None:
        """Send what the group has to say, and note when it is due next."""
        self.listening.send(group)
        led = self._led.setdefault(group.lease, {})
        if group.leader is not None:
            led[group] = None
            self._beat_at = min(self._beat_at, time.monotonic() + group.lease.beat_s)
            if group.leader.is_outdated:
                self._outdated[group] = None
                self._look_round_at = 0.0
        else:
            led.pop(group, None)
        due = group.next_due()
        if due != group.scheduled or due <= time.monotonic():
            group.scheduled = due
            heapq.heappush(self._due, (due, next(self._serial), group))

    def _guard(self, group: Leading, call: Callable[..., T], *arguments: object, **named: object) -> T | None:
        """Call something of a group; None when it failed.  The others go on."""
        try:
            return call(*arguments, **named)
        except LogReplaced as error:
            self._log_trouble("Group %s is gone with its log: %s", group.name, error)
            group.replaced()
        except LogError as error:
            self._log_trouble("Group %s: the log cannot be used now: %s", group.name, error)
            group.failed()
        except OSError as error:
            LOG.error("Group %s: this process cannot lead: %s", group.name, error)
            group.cannot_listen()
        except Closed:
            raise
        except Exception:
            LOG.exception("Group %s: this process will not lead it any more", group.name)
            group.give_up()
        return None

    def _is_done(self) -> bool:
        """When closing: whether everything that can be left in order is."""
        if not self._is_closing:
            return False
        now, commits = time.monotonic(), []
        for group in self._groups.values():
            leader = group.leader
            if leader is None:
                continue
            if leader.holders() and now < self._close_by and not leader.is_silent(now):
                leader.retire(now)
                self._touched[group] = None
            else:
                commits.append(group.resign(leader, now))
                self.listening.send(group)
        if commits:
            self._write_together(commits)
        for commit in commits:
            if commit.group.leader is not None:
                LOG.warning("Group %s: the leader could not resign, others wait for the claim time.", commit.group.name)
                commit.group.end()
        return all(group.leader is None for group in self._groups.values())

    def _wait(self) -> None:
        now = time.monotonic()
        deadline = self._due[0][0] if self._due else now + _IDLE_S
        if any(self._led.values()):
            deadline = min(deadline, self._look_round_at, self._beat_at)
        if not self._growth.empty():
            deadline = min(deadline, self._tell_at)
        if self._touched:
            deadline = now
        timeout_s = min(max(deadline - now, 0.0), 0.01 if self._is_closing else _IDLE_S)
        for key, _ in self._selector.select(timeout_s):
            if key.data is self._waker:
                self._waker.clear()
            elif key.data is None:
                self.listening.accept()
            else:
                for group in self.listening.serve(key.data):
                    self.listening.send(group)  # a lease counts from when it was asked for
                    self._touched[group] = None

    # -- leases

    def _lease(self, settings: LeaseSettings) -> ProcessLease:
        """The lease for groups of such times, which is made when there is none.  Raises LogError."""
        lease = self._leases.get(settings.claim_time_s)
        if lease is None or lease.is_lost:
            lease = ProcessLease(f"{LEASES}{uuid.uuid4().hex}")
            (version,) = self._log.put_records([lease.renewal(time.monotonic(), time.time_ns())])
            lease.written(version)
            self._leases[settings.claim_time_s] = lease
            self._beat_at = 0.0
        return lease

    def _version_of(self, name: str) -> int:
        if name not in self._versions:
            record = self._log.get_record(name)
            self._versions[name] = 0 if record is None else record.version
        return self._versions[name]

    def _renew_leases(self, now: float) -> None:
        """Give a sign of life for each claim time that groups are led under."""
        self._beat_at = float("inf")
        for claim_time_s, lease in self._leases.items():
            led = {
                times: groups for times, groups in self._led.items() if groups and times.claim_time_s == claim_time_s
            }
            if not led or lease.is_lost:
                continue
            is_lost = False
            try:
                is_lost = self._renew_lease(lease)
                self._beat_at = min(self._beat_at, now + min(times.beat_s for times in led))
            except LogError as error:
                self._log_trouble("Groups: the log cannot be used now: %s", error)
                self._beat_at = min(self._beat_at, now + min(times.watch_s for times in led))
            if is_lost:
                for group in itertools.chain.from_iterable(led.values()):
                    self._guard(group, group.refused)
                    self._touched[group] = None

    def _renew_lease(self, lease: ProcessLease) -> bool:
        """Whether the lease is lost.  Raises LogError: what became of it is not known."""
        if lease.is_uncertain:
            record = self._log.get_record(lease.name)
            lease.observed(*((None, 0) if record is None else (record.value, record.version)))
        if lease.is_lost:
            return True
        try:
            (version,) = self._log.put_records([lease.renewal(time.monotonic(), time.time_ns())])
        except RecordConflict:
            lease.refused()
        except LogError:
            lease.unknown()
            raise
        else:
            lease.written(version)
        return lease.is_lost

    # -- for all groups at once

    def _look_round(self, now: float) -> None:
        """Look what there is to hand out, and what operators want."""
        self._look_round_at = now + config.RENEW_PARTITIONS_INTERVAL_S
        if not any(self._led.values()):
            return
        try:
            changes = self._log.get_record(CHANGES)
            states = self._log.state()
        except LogReplaced as error:
            self._log_trouble("The groups are gone with their log: %s", error)
            for group in itertools.chain.from_iterable(self._led.values()):
                group.replaced()
                self._touched[group] = None
            return
        except LogError as error:
            self._log_trouble("Groups: the log cannot be used now: %s", error)
            return
        found = (0 if changes is None else changes.version), [(one.start, one.end) for one in states]
        reads_all, has_moved = found[0] != self._known[0] or now >= self._read_all_at, found[1] != self._known[1]
        self._known = found
        if reads_all:
            self._read_all_at = now + _READ_ALL_S
        outdated, self._outdated = self._outdated, {}
        for group in itertools.chain.from_iterable(self._led.values()) if reads_all or has_moved else outdated:
            leader = group.leader
            if leader is not None:
                is_new = self._guard(
                    group, group.renew, leader, states, now, has_moved=has_moved, reads_declaration=reads_all
                )
                if is_new is not False:
                    self._touched[group] = None

    def _tell_growth(self, now: float) -> None:
        ends: dict[int, int] = {}
        with contextlib.suppress(queue.Empty):
            while True:
                ends.update(self._growth.get_nowait())
        for group in self._groups.values():
            if group.leader is not None:
                group.leader.on_log_grown(ends, now)
                self._touched[group] = None

    def _stands(self, overthrows: tuple[str, int]) -> bool:
        """Whether a dead process's lease is still there: a write before this one may have taken it away."""
        return self._versions.get(overthrows[0], overthrows[1]) == overthrows[1]

    def _write_together(self, commits: Sequence[Commit]) -> None:
        overthrown = {commit.overthrows for commit in commits if commit.overthrows and self._stands(commit.overthrows)}
        writes: list[Write] = [write for commit in commits for write in commit.writes]
        try:
            versions = iter(self._log.put_records([*writes, *((name, None, at) for name, at in overthrown)]))
        except RecordConflict:
            if len(commits) == 1:
                self._guard(commits[0].group, commits[0].group.refused)
                return
            for commit in commits:
                self._write_together([commit])
        except LogError as error:
            self._log_trouble("Groups: the log cannot be used now: %s", error)
            for commit in commits:
                commit.group.unknown()
        else:
            for commit in commits:
                version = next(versions)
                for _ in commit.writes[1:]:
                    next(versions)
                self._guard(commit.group, commit.written, version)
            self._versions.update((name, 0) for name, _ in overthrown)
        self._touched |= dict.fromkeys(commit.group for commit in commits)
