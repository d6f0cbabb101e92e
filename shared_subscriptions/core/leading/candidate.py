"""Which process leads: one record per group, written by compare-and-set, and a lease that is judged by watching it.

A leader writes its record with whatever it stores of the group, and renews a record of its process, which that one
names (`process_lease`); every write raises a version.  The others watch.  When both versions have not changed for the
claim time, by the watcher's own clock, the group's record is claimed with the version last seen, and the process's
record is deleted with it: of several that try, one succeeds.  The version of a successful claim is the leader's
*epoch*.  No clock of another host is ever looked at.

A write whose outcome is not known is settled by reading the record (`pubsub_api.core.leases`).  Until then a leader
goes on being leader only as long as its last certain write allows.
"""

from __future__ import annotations

import dataclasses
import enum

import msgspec

from pubsub_api.core.leases import LeaseWrites
from shared_subscriptions.core import coding
from shared_subscriptions.core.leading.process_lease import ProcessLease
from shared_subscriptions.core.settings import LeaseSettings


class CandidateRole(enum.Enum):
    WATCHING = "watching"
    LEADING = "leading"
    UNCERTAIN = "uncertain"
    """A write may have happened or not."""
    RETIRED = "retired"


class LeaderRecord(msgspec.Struct, frozen=True):
    """The registration of a group's leader."""

    id: str
    endpoint: str = ""
    """Where borrowers reach it."""
    key: bytes = b""
    """What messages to and from it are signed with."""
    beat: int = 0
    is_vacant: bool = False
    """The leader has resigned: any process may claim the record at once."""
    leases: tuple[str, ...] = ()
    """Borrowers that hold leases of a leader that resigned."""
    incarnation: str = ""
    """Of the declaration of the group that it leads."""
    standby: str = ""
    """The borrower whose process stands by to record, should the leader die; empty when there is none."""
    is_recording: bool = False
    """The leader's process hears, and records, what is published from now on: the standby is not needed any more."""
    renewed_ns: int = 0
    """When it was written, by the leader's clock: for people to read.  Nothing is decided by it."""
    lease: str = ""
    """Name of the record that is renewed for all groups of the process; empty when there is none but this one."""


@dataclasses.dataclass(frozen=True)
class SeenRecord:
    """A record as it was read."""

    record: LeaderRecord
    version: int
    lease_version: int = 0
    """Of the record that is its lease; 0 when it has none, or that is gone."""


@dataclasses.dataclass(frozen=True)
class Claim:
    """Write this record if it still has that version."""

    record: LeaderRecord
    expected: int
    overthrows: tuple[str, int] | None = None
    """With it, delete the record of that name if it still has that version."""


encode = coding.encode
decode = coding.decoder(LeaderRecord, "a leader's record")


class Candidate:
    """One process that may lead a group.  Sans-IO: the owner reads and writes the record and reports what came of it.

    ``me`` states the identity, unique to this candidate, and where it is reached.
    """

    def __init__(self, me: LeaderRecord, settings: LeaseSettings) -> None:
        self.role = CandidateRole.WATCHING
        self.leader: LeaderRecord | None = None
        """The leader that the record names, as far as this process knows; None when there is none."""
        self.epoch = 0
        self.predecessor: LeaderRecord | None = None
        """The leader that resigned and made room for us; None when its lease ran out, or there never was one."""
        self.me = me
        """What this candidate writes of itself.  It may learn where it is reached after it was made."""
        self.sign_of_life: ProcessLease | None = None
        """The lease of the process that ``me`` names; set it before `claim`."""
        self._settings = settings
        self._writes = LeaseWrites()
        self._lease_version = 0
        self._seen_at = float("-inf")
        self._claim: Claim | None = None
        """What was written last, as long as that matters."""
        self._was_leading = False

    @property
    def renewed_at(self) -> float:
        """When the last write that is known to have succeeded began, of the record or of the sign of life: what a
        leader may do is counted from there."""
        sign = self.sign_of_life
        return self._writes.renewed_at if sign is None else max(self._writes.renewed_at, sign.renewed_at)

    @property
    def is_overthrown(self) -> bool:
        """Whether the sign of life was deleted by a process that took over: nothing can be led under it any more."""
        return self.sign_of_life is not None and self.sign_of_life.is_lost

    # -- watching

    def observed(self, seen: SeenRecord | None, now: float) -> None:
        """The record was read."""
        if self.role is CandidateRole.UNCERTAIN:
            self._settle(seen)
        if self.role is CandidateRole.RETIRED:
            return
        if self.role is CandidateRole.LEADING:
            if seen is not None and seen.version == self._writes.version and not self.is_overthrown:
                return
            self._depose()
        self.leader = None if seen is None or seen.record.is_vacant else seen.record
        version, lease_version = (0, 0) if seen is None else (seen.version, seen.lease_version)
        has_changed = version != self._writes.version or lease_version not in (self._lease_version, 0)
        if has_changed or self._seen_at == float("-inf"):  # a lease that is gone is no sign of life
            self._writes.version, self._seen_at = version, now
        self._lease_version = lease_version
        self.predecessor = seen.record if seen is not None and seen.record.is_vacant else None

    def wants_to_claim(self, now: float) -> bool:
        """Whether there is no leader, or it has been silent for the claim time."""
        if self.role is not CandidateRole.WATCHING or self._seen_at == float("-inf"):
            return False
        return self.leader is None or now >= self._seen_at + self._settings.claim_time_s

    def claim(self, now: float) -> Claim:
        """What to write in order to lead.  Report the outcome with `written`, `refused` or `unknown`."""
        overthrows = None
        if self.leader is not None and self._lease_version:
            overthrows = self.leader.lease, self._lease_version
        return self._write(msgspec.structs.replace(self.me, beat=1), now, overthrows)

    # -- leading

    def renewal(self, now: float) -> Claim:
        """What to write in order to go on leading; other records may be written in the same breath."""
        assert self.leader is not None
        return self._write(msgspec.structs.replace(self.me, beat=self.leader.beat + 1), now)

    def resignation(self, leases: tuple[str, ...], now: float) -> Claim:
        """What to write in order to resign.  The next leader must respect these leases."""
        return self._write(msgspec.structs.replace(self.me, is_vacant=True, leases=leases), now)

    def _write(self, record: LeaderRecord, now: float, overthrows: tuple[str, int] | None = None) -> Claim:
        self._claim = Claim(record, self._writes.version, overthrows)
        self._writes.begin(record, now)
        return self._claim

    def written(self, version: int) -> None:
        """The write succeeded."""
        self._writes.done(version)
        self._succeeded()

    def _succeeded(self) -> None:
        assert self._claim is not None
        record, self._claim = self._claim.record, None
        if record.is_vacant:
            self.role = CandidateRole.RETIRED
            self.leader = None
            return
        if self.role is not CandidateRole.LEADING:
            self.epoch = self._writes.version
        self.role = CandidateRole.LEADING
        self.leader = record

    def refused(self) -> None:
        """Another process wrote the record first."""
        self._claim = None
        self._depose()

    def unknown(self) -> None:
        """Whether the write succeeded is not known.  Read the record next."""
        self._was_leading = self.role is CandidateRole.LEADING
        self.role = CandidateRole.UNCERTAIN
        self._writes.unknown()

    def _settle(self, seen: SeenRecord | None) -> None:
        """Find out what became of the write.  Whether a leader was overtaken is seen by the version."""
        if self._writes.settle(*((None, 0) if seen is None else (seen.record, seen.version))) == "done":
            self.role = CandidateRole.LEADING if self._was_leading else CandidateRole.WATCHING
            self._succeeded()
            return
        self._claim = None
        if self._was_leading:
            self.role = CandidateRole.LEADING
        else:
            self._depose()

    def _depose(self) -> None:
        self.role = CandidateRole.WATCHING
        self.leader = None
        self._seen_at = float("-inf")
