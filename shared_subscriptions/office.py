"""The office of a group's leader: a thread that watches who leads, and leads when it is its turn.

Every member has one, and so has `heliograph group serve`.  While another process leads, the office looks at the
leader's record now and then and tells its owner where to find the leader.  When it leads itself, it listens for
members, lets the core decide, and stores progress together with its registration, all or nothing.

One thread does everything here, so the core needs no lock.  A log that does not answer makes a leader silent, which is
right: it cannot renew its registration either.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import queue
import selectors
import socket
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping

import msgspec
from oslo_config import cfg

from durable_log import config as log_config
from durable_log.errors import LogError, LogReplaced, RecordConflict
from durable_log.log_api import LogApi
from pubsub_api.errors import Closed, FrameError, UndecodableBody
from pubsub_api.seldom import SeldomLog
from shared_subscriptions import config, wire
from shared_subscriptions.core import candidate as candidates
from shared_subscriptions.core import declaration as declarations
from shared_subscriptions.core import messages as m
from shared_subscriptions.core.candidate import Candidate, Claim, LeaderRecord, Role, Seen
from shared_subscriptions.core.declaration import Declaration
from shared_subscriptions.core.leader import Leader
from shared_subscriptions.core.queue import QueueLeader
from shared_subscriptions.core.streams import StreamInfo, StreamRecord
from shared_subscriptions.names import Names
from shared_subscriptions.records import GroupStatus, decode_stream, encode_status, encode_stream
from shared_subscriptions.sockets import Connection, Waker, listen
from shared_subscriptions.status import describe, without_times

LOG = logging.getLogger(__name__)

OnLeader = Callable[[LeaderRecord | None], None]
OnRule = Callable[[str, Declaration | None], None]
IsOwn = Callable[[str], bool]

_IDLE_S = 0.5
_TELL_S = 0.002
"""Members are told that the log has grown this often at most."""
_CONNECTIONS_MAX = 4096
_STRANGERS_MAX = 64
"""Connections on which nothing valid has come yet.  The oldest of them makes room for a new one."""
_STRANGER_S = 5.0
"""How long one may remain so: a member greets at once."""
_COMPLAIN_S = 60.0
"""Between two complaints about the same."""
_GONE_S = 60.0
"""Between looks at a log that another one has replaced: this does not pass, but a store may be put back."""
_ACCEPT_PAUSE_S = 1.0
"""Before the next attempt to accept, when the process has no descriptor left."""


class Office:
    """One group, one process.  ``on_leader`` is told who leads, ``on_rule`` when this office begins to lead a group or,
    with None, ends; ``on_standby`` when the leader wants this process to stand by to record, or with None no longer;
    ``on_destroyed`` that the group is gone.  ``is_own`` says whether a borrower is of this process.  All are called
    from the office's thread."""

    def __init__(
        self,
        log: LogApi,
        declaration: Declaration,
        conf: cfg.ConfigOpts,
        *,
        on_leader: OnLeader = lambda _leader: None,
        on_rule: OnRule = lambda _group, _declaration: None,
        on_standby: OnRule = lambda _group, _declaration: None,
        on_destroyed: Callable[[], None] = lambda: None,
        is_own: IsOwn = lambda _borrower: False,
    ) -> None:
        self.counters: Counter[str] = Counter()
        self._log_trouble = SeldomLog(LOG)
        self._log = log
        self._group = declaration.name
        self._incarnation = declaration.incarnation
        self._names = Names(declaration.name)
        self._conf = conf[config.GROUP]
        self._record_bytes_max = log.conf[log_config.GROUP].record_bytes_max
        self._complain_at = 0.0
        self._lease = declaration.lease
        self._settings = dataclasses.replace(config.leader_settings(conf), lease=self._lease)
        self._on_leader, self._on_rule, self._on_destroyed = on_leader, on_rule, on_destroyed
        self._on_standby, self._is_own = on_standby, is_own
        self._is_standing_by = False
        me = LeaderRecord(id=uuid.uuid4().hex, key=os.urandom(wire.KEY_BYTES), incarnation=self._incarnation)
        self._candidate = Candidate(me, self._lease)
        self._leader: Leader | None = None
        self._told: LeaderRecord | None = None
        self._look_at = self._renew_at = self._commit_at = 0.0
        self._commit_early_at = self._beat_at = 0.0
        self._is_urgent = self._is_touched = False
        self._said: GroupStatus | None = None
        """What is stored of the group, without times."""
        self._listener: socket.socket | None = None
        self._accept_at = 0.0
        """Accepting pauses until then; 0 when it does not."""
        self._connections: dict[socket.socket, Connection] = {}
        self._strangers: dict[Connection, float] = {}
        """Since when, the oldest first."""
        self._homes: dict[str, Connection] = {}
        self._selector = selectors.DefaultSelector()
        self._waker = Waker(self._selector)
        self._is_closing = False
        self._close_by = 0.0
        self._growth: queue.SimpleQueue[Mapping[int, int]] = queue.SimpleQueue()
        self._tell_at = 0.0
        self._thread = threading.Thread(target=self._run, name=f"heliograph-group-{self._group}", daemon=True)

    # -- from other threads

    def start(self) -> None:
        self._thread.start()

    def look_now(self) -> None:
        """Look at the leader's record without waiting: something suggests that it has changed."""
        self._look_at = 0.0
        self._waker.wake()

    def log_grown(self, ends: Mapping[int, int]) -> None:
        """Shards of the log end there now.  Members that wait for events hear of it, if this office leads."""
        if self._leader is not None:
            self._growth.put(ends)
            self._waker.wake()

    @property
    def is_leading(self) -> bool:
        return self._leader is not None

    def close(self, *, timeout_s: float) -> None:
        """Resign if it leads, taking all streams back in good order within the time given, and end the thread."""
        self._close_by = time.monotonic() + timeout_s
        self._is_closing = True
        self._waker.wake()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()

    # -- the thread

    def _run(self) -> None:
        try:
            while not self._is_done():
                self._step()
                self._wait()
        except Closed:
            LOG.info("Group %s: the log was closed, so this office closes.", self._group)
        except Exception:
            LOG.exception("Group %s: this process will not lead any more", self._group)
        finally:
            self._leave_office()
            self._stand_by(None)
            self._waker.close()
            self._selector.close()

    def _step(self) -> None:
        now = time.monotonic()
        try:
            if self._leader is None or self._candidate.role is Role.UNCERTAIN:
                self._watch(now)
            if self._leader is not None:
                self._lead(self._leader, time.monotonic())
        except LogReplaced as error:
            self.counters["log_errors"] += 1
            self._log_trouble("Group %s is gone with its log: %s", self._group, error)
            self._leave_office()
            self._on_destroyed()
            self._look_at = now + _GONE_S
        except LogError as error:
            self.counters["log_errors"] += 1
            self._log_trouble("Group %s: the log cannot be used now: %s", self._group, error)
            self._look_at = self._renew_at = now + self._lease.watch_s
        except OSError as error:
            self.counters["socket_errors"] += 1
            LOG.error("Group %s: this process cannot lead: %s", self._group, error)
            self._look_at = now + _IDLE_S
        self._look_after_strangers(time.monotonic())
        self._send_out()

    def _is_done(self) -> bool:
        """When closing: whether everything that can be left in order is."""
        leader = self._leader
        if not self._is_closing:
            return False
        if leader is None:
            return True
        now = time.monotonic()
        if leader.holders() and now < self._close_by and not leader.is_silent(now):
            leader.retire(now)
            return False
        self._resign(leader, now)
        return True

    def _wait(self) -> None:
        if self._is_closing and self._leader is None:
            return
        now = time.monotonic()
        deadline = self._look_at
        if self._leader is not None:
            deadline = min(self._leader.next_deadline(), self._renew_at, self._next_commit())
            if not self._growth.empty():
                deadline = min(deadline, self._tell_at)
            if self._candidate.role is Role.UNCERTAIN:
                deadline = min(deadline, self._look_at)
        timeout_s = 0.01 if self._is_closing else min(max(deadline - now, 0.0), _IDLE_S)
        for key, _ in self._selector.select(timeout_s):
            if key.data is self._waker:
                self._waker.clear()
            elif key.data is None:
                self._accept()
            else:
                self._serve(key.data)

    # -- who leads

    def _watch(self, now: float) -> None:
        if now < self._look_at:
            return
        self._look_at = now + self._lease.watch_s
        record = self._log.get_record(self._names.leader)
        seen = None if record is None else Seen(_decode(record.value), record.version)
        if seen is not None and seen.record.incarnation != self._incarnation:
            self._on_destroyed()  # and declared anew: who leads that leads another group
            self._look_at = time.monotonic() + _IDLE_S
            return
        now = time.monotonic()
        self._candidate.observed(seen, now)
        self._after_change()
        if self._candidate.wants_to_claim(now) and not self._is_closing:
            self._claim()

    def _claim(self) -> None:
        group = self._log.get_record(self._names.group)
        if group is None or declarations.decode(group.value).incarnation != self._incarnation:
            self._on_destroyed()
            self._look_at = time.monotonic() + _IDLE_S
            return
        self._listen()
        self._note_time()
        claim = self._candidate.claim(time.monotonic())
        # The declaration is written again, as it is: a group that was destroyed a moment ago must not get a leader.
        self._write(claim, [(self._names.group, group.value, group.version)])
        self._after_change()

    def _listen(self) -> None:
        if self._listener is None:
            self._listener = listen(self._conf.bind_address)
            self._selector.register(self._listener, selectors.EVENT_READ, None)
            host = self._conf.advertised_address or self._conf.bind_address
            endpoint = f"{host}:{self._listener.getsockname()[1]}"
            self._candidate.me = msgspec.structs.replace(self._candidate.me, endpoint=endpoint)

    def _after_change(self) -> None:
        """The candidate has learnt something: take or leave the office, and tell the owner."""
        role = self._candidate.role
        if role is Role.LEADING and self._leader is None:
            self._take_office()
        elif role is Role.LEADING and self._leader is not None:
            self._leader.renewed(self._candidate.renewed_at)
        elif role in (Role.WATCHING, Role.RETIRED) and self._leader is not None:
            LOG.warning("Group %s: somebody else leads now.", self._group)
            self._leave_office()
        self._stand_by(self._candidate.leader if role is Role.WATCHING else None)
        found = self._candidate.leader
        is_same = self._told is not None and found is not None and self._told.id == found.id
        if found != self._told and not is_same:
            self._told = found
            self._on_leader(found)

    def _stand_by(self, leader: LeaderRecord | None) -> None:
        """Begin or end to stand by, as the leader's record says."""
        is_wanted = leader is not None and bool(leader.standby) and self._is_own(leader.standby)
        if is_wanted == self._is_standing_by:
            return
        declaration = self._read_declaration() if is_wanted else None
        self._is_standing_by = declaration is not None
        self._on_standby(self._group, declaration)

    def _name_standby(self, leader: Leader) -> None:
        """Say in the leader's record who stands by: the member of another process that is here longest."""
        me = self._candidate.me
        standing = leader.members.get(me.standby)
        if standing is not None and not standing.is_expelled:
            return
        others = [one for one in leader.members.values() if not one.is_expelled and not self._is_own(one.id)]
        chosen = min(others, key=lambda one: one.joined, default=None)
        self._candidate.me = msgspec.structs.replace(me, standby=chosen.id if chosen is not None else "")

    def _take_office(self) -> None:
        declaration = self._read_declaration()
        if declaration is None:
            self._on_destroyed()
            return
        stored = {
            self._names.stream_number(record.name): decode_stream(record.value)
            for record in self._log.list_records(self._names.streams)
        }
        predecessor = self._candidate.predecessor
        self._leader = (QueueLeader if declaration.mode == "queue" else Leader)(
            self._candidate.epoch, self._settings, declaration, stored, now=time.monotonic(),
            held_until=self._candidate.renewed_at + self._lease.leader_hold_s,
            waits_for=predecessor.leases if predecessor else (),
        )  # fmt: skip
        self.counters["terms"] += 1
        self._renew_at = self._commit_at = self._beat_at = 0.0
        self._said = None
        LOG.info("Group %s: this process leads, in epoch %d.", self._group, self._candidate.epoch)
        self._on_rule(self._group, declaration)

    def _leave_office(self) -> None:
        if self._leader is not None:
            self._leader = None
            self._on_rule(self._group, None)
        for connection in list(self._connections.values()):
            self._hang_up(connection)
        if self._listener is not None:
            if not self._accept_at:
                self._selector.unregister(self._listener)
            self._accept_at = 0.0
            self._listener.close()
            self._listener = None

    def _resign(self, leader: Leader, now: float) -> None:
        self._note_time()
        claim = self._candidate.resignation(tuple(leader.holders()), now)
        leader.fall_silent("the leader resigned", is_final=False)
        self._send_out()
        try:
            self._commit(leader, claim)
        except LogError as error:
            LOG.warning("Group %s: the leader could not resign, others wait for the claim time: %s", self._group, error)

    # -- leading

    def _lead(self, leader: Leader, now: float) -> None:
        if now >= self._renew_at or leader.is_outdated:
            self._renew_at = now + self._conf.renew_streams_interval
            if not self._renew(leader, now):
                return
        if now >= self._tell_at and not self._growth.empty():
            self._tell_at = now + _TELL_S
            leader.on_log_grown(self._grown(), now)
        counted = leader.counters.total()
        leader.poll(now)
        self._is_touched |= leader.counters.total() != counted
        if now >= self._next_commit() and self._candidate.role is Role.LEADING:
            self._name_standby(leader)
            self._note_time()
            self._commit(leader, self._candidate.renewal(now))
            self._after_change()

    def _grown(self) -> dict[int, int]:
        ends: dict[int, int] = {}
        with contextlib.suppress(queue.Empty):
            while True:
                ends.update(self._growth.get_nowait())
        return ends

    def _next_commit(self) -> float:
        if self._leader is not None and self._leader.wants_to_store:
            return 0.0
        if self._is_urgent:
            return self._commit_early_at
        is_changed = self._is_touched or (self._leader is not None and self._leader.has_changes)
        return self._commit_at if is_changed else self._beat_at

    def _note_time(self) -> None:
        self._candidate.me = msgspec.structs.replace(self._candidate.me, renewed_ns=time.time_ns())

    def _renew(self, leader: Leader, now: float) -> bool:
        """Look what there is to hand out, and what operators want.  False when the group is gone."""
        declaration = self._read_declaration()
        if declaration is None:
            self._end_group(leader)
            return False
        infos = {
            state.shard * declaration.lanes + lane: StreamInfo(state.start, state.end)
            for state in self._log.state()
            for lane in range(declaration.lanes)
            if state.end > 0
        }
        self._is_touched |= infos.keys() != leader.streams.keys() or declaration != leader.declaration
        leader.on_declaration(declaration, now)
        leader.on_streams(infos, now)
        return True

    def _read_declaration(self) -> Declaration | None:
        """None when the group is gone, or was declared anew: then it is another one."""
        record = self._log.get_record(self._names.group)
        found = None if record is None else declarations.decode(record.value)
        return found if found is not None and found.incarnation == self._incarnation else None

    def _end_group(self, leader: Leader) -> None:
        LOG.warning("Group %s was destroyed.", self._group)
        leader.fall_silent("the group was destroyed", is_final=True)
        self._send_out()
        self._candidate.refused()
        self._leave_office()
        self._on_destroyed()

    def _commit(self, leader: Leader, claim: Claim) -> None:
        now = time.monotonic()
        self._beat_at = now + self._lease.beat_s
        self._commit_at = min(self._beat_at, now + self._conf.commit_interval)
        self._commit_early_at = now + self._conf.commit_interval / 10
        self._is_urgent = self._is_touched = False
        changes, deleted = leader.changes()
        values = {number: self._encode(number, record) for number, record in changes.items()}
        records = {number: record for number, record in changes.items() if values[number] is not None}
        writes: list[tuple[str, bytes | None, int | None]] = [
            (self._names.stream(number), values[number], None) for number in records
        ]
        writes += [(self._names.stream(number), None, None) for number in deleted]
        status = describe(leader, self.counters, self._candidate.me.endpoint, now)
        said = without_times(status)
        value = encode_status(status, bytes_max=self._record_bytes_max) if said != self._said else None
        if value is not None:
            writes.append((self._names.status, value, None))
        if self._write(claim, writes):
            self._said = said
            leader.renewed(self._candidate.renewed_at)
            leader.stored(records, deleted, time.monotonic())
        elif self._read_declaration() is None:
            self._end_group(leader)

    def _encode(self, number: int, record: StreamRecord) -> bytes | None:
        """What is stored of a stream: all, or as much as a record may hold; None when that says nothing."""
        value, is_whole = encode_stream(record, bytes_max=self._record_bytes_max)
        if value is None or not is_whole:
            self.counters["records_cut" if value is not None else "records_too_large"] += 1
            now = time.monotonic()
            if now >= self._complain_at:
                self._complain_at = now + _COMPLAIN_S
                LOG.error(
                    "Group %s: the progress of stream %d is larger than [log] record_bytes_max = %d and is stored %s; "
                    "after a crash more is delivered again. Too many events are done before older ones are.",
                    self._group, number, self._record_bytes_max, "in part" if value is not None else "not at all",
                )  # fmt: skip
        return value

    def _write(self, claim: Claim, more: list[tuple[str, bytes | None, int | None]]) -> bool:
        """Write the leader's record with others.  False when somebody else leads.  Raises LogError: nobody knows."""
        registration = (self._names.leader, candidates.encode(claim.record), claim.expected)
        try:
            versions = self._log.put_records([registration, *more])
        except RecordConflict:
            self._candidate.refused()
            return False
        except LogError:
            self._candidate.unknown()
            self._look_at = 0.0
            raise
        self._candidate.written(versions[0])
        return True

    # -- members

    def _accept(self) -> None:
        assert self._listener is not None
        try:
            end, _ = self._listener.accept()
        except OSError as error:
            self.counters["socket_errors"] += 1
            LOG.debug("Group %s: a member's connection could not be accepted: %s", self._group, error)
            self._pause_accepting()
            return
        if len(self._connections) >= _CONNECTIONS_MAX:
            self.counters["refused_connections"] += 1
            end.close()
            return
        if len(self._strangers) >= _STRANGERS_MAX:
            self._turn_away(next(iter(self._strangers)))
        connection = Connection(end, self._candidate.me.key, bytes_max=self._conf.message_bytes_max, is_stranger=True)
        self._connections[end] = connection
        self._strangers[connection] = time.monotonic()
        self._selector.register(end, selectors.EVENT_READ, connection)

    def _pause_accepting(self) -> None:
        """The one who waits to be accepted makes the selector return at once, again and again."""
        if self._listener is not None and not self._accept_at:
            self._selector.unregister(self._listener)
            self._accept_at = time.monotonic() + _ACCEPT_PAUSE_S

    def _look_after_strangers(self, now: float) -> None:
        for connection in [one for one, since in self._strangers.items() if now - since > _STRANGER_S]:
            self._turn_away(connection)
        if self._accept_at and now >= self._accept_at:
            self._accept_at = 0.0
            if self._listener is not None:
                self._selector.register(self._listener, selectors.EVENT_READ, None)

    def _turn_away(self, connection: Connection) -> None:
        self.counters["strangers_turned_away"] += 1
        self._hang_up(connection)

    def _serve(self, connection: Connection) -> None:
        connection.flush()
        try:
            bodies = connection.receive()
            messages = [m.decode_to_leader(body) for body in bodies]
        except FrameError as error:
            self.counters["bad_messages"] += 1
            LOG.warning("Group %s: a member's connection was closed: %s", self._group, error)
            self._hang_up(connection)
            return
        now = time.monotonic()
        if messages:
            self._strangers.pop(connection, None)
        for message in messages:
            self._homes[message.borrower] = connection
            if self._leader is not None:
                self._leader.on_message(message, now)
                self._is_touched |= not isinstance(message, m.Ping)
                self._is_urgent |= isinstance(message, m.Disconnect) or getattr(message, "finished", False)
        self._after_io(connection)

    def _send_out(self) -> None:
        if self._leader is None:
            return
        said, self._leader.messages = self._leader.messages, []
        used = set()
        for message in said:
            connection = self._homes.get(message.borrower)
            if connection is not None:
                connection.send(m.encode(message))
                used.add(connection)
        for connection in used:
            connection.flush()
            self._after_io(connection)

    def _after_io(self, connection: Connection) -> None:
        if not connection.is_open:
            self._hang_up(connection)
            return
        writing = selectors.EVENT_WRITE if connection.wants_to_write else 0
        self._selector.modify(connection.end, selectors.EVENT_READ | writing, connection)

    def _hang_up(self, connection: Connection) -> None:
        """The connection is over.  Whether the member lives is for its lease to say."""
        self._strangers.pop(connection, None)
        if self._connections.pop(connection.end, None) is None:
            return
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(connection.end)
        connection.close()
        for borrower in [borrower for borrower, home in self._homes.items() if home is connection]:
            del self._homes[borrower]


def _decode(value: bytes) -> LeaderRecord:
    try:
        return candidates.decode(value)
    except UndecodableBody as error:
        raise LogError(f"{error}; a newer release may have written it") from error
