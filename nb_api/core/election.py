"""One candidate in an election: what to ask of the database next, and whether it leads.  No I/O, no clock.

The lease is one object in the database.  Its value names the candidate that wrote it and the number of that attempt.
Its version rises with every write, and every write is a compare-and-set on that version.

=========  ==============================================  ============================================================
state      what it does                                    what leads to another state
=========  ==============================================  ============================================================
watching   looks at the lease every quarter of its length  there is none, or it was deleted: creates it, leading
                                                           the same is found for a whole lease, be it a version or,
                                                           where one has vanished, no lease: writes it, leading
                                                           it is our own: leading while that attempt lasts, else
                                                           writes it, leading
leading    renews it every quarter of its length           refused, because another has taken it: watching
                                                           not renewed for nine tenths of its length: watching
resigning  deletes it, if it is its own                    done, or it belongs to another: gone
gone       nothing
=========  ==============================================  ============================================================

`pubsub_api.core.leases` says why there are never two leaders.  When the option differs between the candidate and the
holder, a whole lease is the longer of the two.

A call that is not answered may have been carried out.  The next look tells: a lease with our own mark is ours, and
lasts from the beginning of the attempt that it names.

The *token* is the version with which the lead was gained.  It is higher than that of every leader before, so a store
that remembers the highest token it has seen can refuse a former leader that does not know yet that it was replaced.

A database may lose its history: a backup is put back, or everything is gone.  Two things follow.

- The lease may be missing, or be one of the past, while its holder leads until its next renewal.  So a lease that has
  vanished without a delete is waited for like one that is there, and so is a lease of our own that is found again after
  another one, or none, was found.
- Versions may be lower than before, and tokens must rise.  A leader that gains the lead with such a version adds the
  highest token that it knows of.  This *offset* is part of the lease, so that all that lead later add it too.
"""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple

from pubsub_api.core.leases import LeaseProgress, LeaseWrites, longer_lease_s

RENEWALS_PER_LEASE = 4
HOLDER_PART = 0.9
"""The holder counts a shorter lease than the others, because clocks do not run at the same speed."""
_ATTEMPTS_MAX = 16
"""Attempts that are recognised: one that was not answered may be carried out after several later ones."""
_KEY = "lease"
_OFFSET_MAX = 2**62
"""So that databases and programs can keep tokens in 64 bits."""

State = Literal["watching", "leading", "resigning", "gone"]
Kind = Literal["look", "create", "set", "delete"]


class DatabaseCall(NamedTuple):
    """A call to the database, about one record or, to look, about all.  Answer it with `found`, `written`, `refused` or
    `failed`."""

    kind: Kind
    key: str = ""
    """Of the record, where a core has several."""
    value: Any = None
    expected_version: int | None = None


class ElectionCore:
    """``mark`` is a name that no other candidate and no earlier incarnation of this one has.  ``place`` is where no
    other candidate can be at the same time: a lease from there is that of an earlier incarnation, which has ended."""

    def __init__(self, holder: str, mark: str, lease_s: float, *, place: str = "") -> None:
        self._place = place
        self._holder = holder
        self._mark = mark
        self._lease_s = lease_s
        self._interval_s = lease_s / RENEWALS_PER_LEASE
        self._progress = LeaseProgress()
        self._state: State = "watching"
        self._next: DatabaseCall | None = DatabaseCall("look")
        self._due: float | None = None
        """When the next call is to be made; None for at once."""
        self._asked: DatabaseCall | None = None
        """The call that is not answered yet."""
        self._attempt = 0
        self._writes = LeaseWrites(remembered_max=_ATTEMPTS_MAX)
        self._unbroken = 0
        """The first attempt that was followed by no lease but our own.  A lease that names an earlier one is one of the
        past, which the database got back."""
        self._until = -math.inf
        """When the lead ends unless the lease is renewed."""
        self._token = 0
        self._offset = self._highest = 0
        """What is added to versions for tokens, and the highest token that any leader may have had."""
        self._seen = 0
        """The version of the lease when it was last seen or written, 0 when it was given back since."""
        self._seen_lease_s = lease_s
        """How long the lease that was last seen may last."""
        self.leader: str | None = None
        """The holder of the lease when it was last looked at."""
        self.renewals = 0
        self.conflicts = 0
        """Writes that came too late, because another candidate was faster."""

    # -- what the candidate knows

    def is_leader(self, now: float) -> bool:
        return self._state == "leading" and now < self._until

    def token(self, now: float) -> int | None:
        return self._token if self.is_leader(now) else None

    def lead_ends(self, now: float) -> float | None:
        """When it will not lead any more unless the lease is renewed; None while it does not lead."""
        return self._until if self.is_leader(now) else None

    @property
    def is_gone(self) -> bool:
        return self._state == "gone"

    # -- what it does

    def due(self, now: float) -> float:
        """When `next_call` has something to do."""
        return now if self._due is None else self._due

    def next_call(self, now: float) -> DatabaseCall | None:
        """What to ask of the database now, None when nothing is due or the last call is not answered yet."""
        if self._state == "leading" and not self.is_leader(now):
            self._watch()  # too late for a renewal; a look tells whose the lease is
        if self._asked is not None or self._state == "gone" or now < self.due(now):
            return None
        call = self._next or DatabaseCall("look")
        if call.kind in ("create", "set"):
            self._attempt += 1
            self._writes.begin(self._attempt, now)
            call = call._replace(
                value={
                    "holder": self._holder,
                    "mark": self._mark,
                    "attempt": self._attempt,
                    "place": self._place,
                    "lease": self._lease_s,
                    **({"offset": self._offset} if self._offset else {}),
                }
            )
        self._asked = call
        return call

    def resign(self) -> None:
        """Give the lease back, so that others need not wait for its end.  It does not lead from now on."""
        if self._state in ("resigning", "gone"):
            return
        is_holder = self._state == "leading"
        self._state, self._due = "resigning", None
        self._next = (
            DatabaseCall("delete", expected_version=self._writes.version) if is_holder else DatabaseCall("look")
        )

    # -- answers

    def found(self, version: int | None, value: Any, now: float, deleted_version: int | None = None) -> None:
        """The answer to a look: the lease as it is, None when there is none, and the version with which it was deleted.
        ``now``: when it was known."""
        self._asked = None
        self._progress.observe({_KEY: version or 0}, now)
        fields = value if isinstance(value, dict) else {}
        self.leader = fields.get("holder") if version is not None else None
        is_own = version is not None and fields.get("mark") == self._mark
        is_past = version is not None and self._note(version, fields)
        attempt = fields.get("attempt") if is_own else None
        if is_own:
            is_past |= not isinstance(attempt, int) or attempt < self._unbroken
        if is_past or not is_own:
            self._unbroken = self._attempt + 1
        outcome = self._writes.settle(attempt, version or 0)
        if self._state == "resigning":
            self._next = DatabaseCall("delete", expected_version=version)
            self._state = "resigning" if is_own else "gone"
        elif version is not None and is_own and not (is_past and self._is_over(outcome == "done", now)):
            self._lead(version, now, is_remembered=outcome == "done")
        else:
            self._watch()
            if version is None:
                may_last = self._may_have_vanished(deleted_version)
            else:
                may_last = is_past or not self._place or fields.get("place") != self._place
            if may_last and self._progress.idle_s(_KEY) < self._seen_lease_s:
                self._due = now + self._interval_s
            else:
                self._next = DatabaseCall("create" if version is None else "set", expected_version=version)

    def written(self, version: int, now: float) -> None:
        """The answer to a create, set or delete that was carried out."""
        asked, self._asked = self._asked, None
        self._writes.done(version)
        self._progress.observe({}, now)
        self.renewals += asked is not None and asked.kind == "set"
        self._seen, self._unbroken = version, self._attempt
        if self._state != "resigning":
            self._lead(version, now)
        elif asked is not None and asked.kind == "delete":
            self._state = "gone"
        else:
            self._next = DatabaseCall("delete", expected_version=version)  # it was on its way when we resigned

    def refused(self, now: float) -> None:
        """The answer to a create, set or delete that came too late."""
        self._asked = None
        self.conflicts += 1
        if self._state == "resigning" or (self._writes.is_uncertain and self.is_leader(now)):
            self._next, self._due = DatabaseCall("look"), None  # perhaps by an attempt of our own that was not answered
        else:
            self._watch()

    def failed(self, now: float) -> None:
        """No answer.  What was asked may have been done or not; only a look can tell."""
        asked, self._asked = self._asked, None
        if asked is not None and asked.kind != "look":
            self._writes.unknown()
        self._next, self._due = DatabaseCall("look"), now + self._interval_s / 4

    def _note(self, version: int, fields: dict[str, Any]) -> bool:
        """The lease was seen.  Whether it is one of the past: another candidate may have gained a later one."""
        offset = fields.get("offset")
        self._offset = offset if isinstance(offset, int) and 0 < offset <= _OFFSET_MAX else 0
        is_past = version + self._offset < self._highest
        self._highest = max(self._highest, version + self._offset)
        self._seen, self._seen_lease_s = version, longer_lease_s(self._lease_s, fields.get("lease"))
        return is_past

    def _may_have_vanished(self, deleted_version: int | None) -> bool:
        """There is no lease.  Whether one was seen that its holder has not given back."""
        if deleted_version is not None and deleted_version > self._seen:
            self._seen = 0
        return self._seen > 0

    def _lead(self, version: int, now: float, *, is_remembered: bool = True) -> None:
        """The lease is ours, with that version.  ``is_remembered``: it is known when the attempt began that put it."""
        was_leader, begun = self.is_leader(now), self._writes.renewed_at
        self.leader = self._holder
        self._next = DatabaseCall("set", expected_version=version)
        if self._is_over(is_remembered, now):
            self._state, self._due = "watching", None  # ours, but over: it must be won again
            return
        self._state, self._until = "leading", begun + HOLDER_PART * self._lease_s
        self._due = max(now, begun + self._interval_s)
        if not was_leader:
            if version + self._offset < self._highest:
                self._offset, self._due = self._highest, now  # which the next renewal writes
            self._token = version + self._offset
        self._highest = max(self._highest, version + self._offset)

    def _is_over(self, is_remembered: bool, now: float) -> bool:
        return not is_remembered or now >= self._writes.renewed_at + HOLDER_PART * self._lease_s

    def _watch(self) -> None:
        self._state, self._next, self._due = "watching", DatabaseCall("look"), None
