"""One candidate in an election: what to ask of the database next, and whether it leads.  No I/O, no clock.

The lease is one object.  Its value names the candidate that put it there, and with which attempt; its version rises
with every renewal.  Everything is decided by compare-and-set on that version.

=========  ==============================================  ============================================================
state      what it does                                    what leads to another state
=========  ==============================================  ============================================================
watching   looks at the lease every quarter of its length  there is none: creates it, leading
                                                           the same version for a whole lease, the longer one when its
                                                           own and that of the holder differ: takes it over, leading
                                                           it is our own after all: leading, if that attempt still lasts
leading    renews it every quarter of its length           refused, another has taken it: watching
                                                           not renewed for nine tenths of its length: watching
resigning  deletes it, if it is its own                    done, or it belongs to another: gone
gone       nothing
=========  ==============================================  ============================================================

A call whose answer is lost may have been carried out.  So the next look decides: a lease with our own mark is ours, and
lasts from before the attempt that it names.  The *token* is the version with which the lease was gained.  It is higher
than that of every leader before, so a store that remembers the highest one it has seen can refuse a former leader
that does not know yet that it was replaced.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from pubsub_api.core.leases import LeaseProgress, LeaseWrites, longer_lease_s

RENEWALS_PER_LEASE = 4
HOLDER_PART = 0.9
"""The holder counts a shorter lease than the others, because clocks do not run at the same speed."""
_ATTEMPTS_MAX = 16
"""Attempts that are recognised: one that was not answered may be carried out after several later ones."""
_KEY = "lease"

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
        self._until: float | None = None
        self._token = 0
        self.leader: str | None = None
        """The holder of the lease when it was last looked at."""
        self.renewals = 0
        self.conflicts = 0
        """Writes that came too late, because another candidate was faster."""

    # -- what the candidate knows

    def is_leader(self, now: float) -> bool:
        return self._state == "leading" and self._until is not None and now < self._until

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

    def found(self, version: int | None, value: Any, now: float) -> None:
        """The answer to a look: the lease as it is, None when there is none.  ``now``: when it was known."""
        self._asked = None
        self._progress.observe({} if version is None else {_KEY: version}, now)
        fields = value if isinstance(value, dict) else {}
        self.leader = fields.get("holder") if version is not None else None
        is_own = version is not None and fields.get("mark") == self._mark
        outcome = self._writes.settle(fields.get("attempt") if is_own else None, version or 0)
        if self._state == "resigning":
            self._next = DatabaseCall("delete", expected_version=version)
            self._state = "resigning" if is_own else "gone"
        elif version is not None and is_own:
            self._lead(version, now, is_remembered=outcome == "done")
        else:
            self._watch()
            is_own_past = bool(self._place) and fields.get("place") == self._place
            if version is None:
                self._next = DatabaseCall("create")
            elif is_own_past or self._progress.idle_s(_KEY) >= longer_lease_s(self._lease_s, fields.get("lease")):
                self._next = DatabaseCall("set", expected_version=version)
            else:
                self._due = now + self._interval_s

    def written(self, version: int, now: float) -> None:
        """The answer to a create, set or delete that was carried out."""
        asked, self._asked = self._asked, None
        self._writes.done(version)
        self.renewals += asked is not None and asked.kind == "set"
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

    def _lead(self, version: int, now: float, *, is_remembered: bool = True) -> None:
        """The lease is ours, with that version.  ``is_remembered``: it is known when the attempt began that put it."""
        was_leader, begun = self.is_leader(now), self._writes.renewed_at
        self.leader = self._holder
        self._next = DatabaseCall("set", expected_version=version)
        if not is_remembered or now >= begun + HOLDER_PART * self._lease_s:
            self._state, self._due, self._until = "watching", None, None  # ours, but over: it must be won again
            return
        if not was_leader:
            self._token = version
        self._state, self._until = "leading", begun + HOLDER_PART * self._lease_s
        self._due = max(now, begun + self._interval_s)

    def _watch(self) -> None:
        self._state, self._until = "watching", None
        self._next, self._due = DatabaseCall("look"), None
