"""The directory of publishers: what an entry is, which publishers are listened to, and which are taken for dead.  No
I/O, no clock.

An entry is an object of the table `TABLE` whose key is the publisher's GUID.  Subscribers do not judge leases: they
listen to what is there, and go on listening for a while to what is gone.  Only a *collector* judges, by progress that
it observes, and it acts by compare-and-set.  So a database that takes no writes evicts no publisher, and a live
publisher that was evicted by mistake has put its entry back before a subscriber has stopped listening to it.
"""

from __future__ import annotations

import ipaddress
import urllib.parse
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from nb_api.core.changes import DbObject
from nb_api.core.own_tables import OWN_PREFIX
from pubsub_api.core.leases import LeaseProgress

TABLE = f"{OWN_PREFIX}publishers"


class DirectoryEntry(msgspec.Struct, frozen=True):
    """A publisher.  ``renewals`` is only there to make every renewal a change."""

    name: str
    guid: str
    """Hexadecimal."""
    address: str
    """Where it is listened to, with the port that it really has."""
    renewals: int = 0


def read_entry(found: DbObject) -> DirectoryEntry | None:
    """None for what is no entry: others may write to the database, too."""
    try:
        entry = msgspec.convert(found.value, DirectoryEntry)
    except msgspec.ValidationError:
        return None
    return entry if entry.guid == found.key and entry.address else None


def normalise(address: str) -> str:
    """The same text for addresses that are the same without a look-up: case, a last slash, ways to write an IP."""
    try:
        parts = urllib.parse.urlsplit(address)
        host, port = parts.hostname, parts.port
    except ValueError:
        return address
    if not host:
        return address.rstrip("/")
    try:
        host = str(ipaddress.ip_address(host))
    except ValueError:
        host = host.rstrip(".")
    netloc = (f"[{host}]" if ":" in host else host) + ("" if port is None else f":{port}")
    return parts._replace(scheme=parts.scheme.lower(), netloc=netloc, path=parts.path.rstrip("/")).geturl()


class Update(NamedTuple):
    """What a subscriber has to do."""

    added: list[str]
    removed: list[str]


class DirectoryCore:
    """Which addresses one subscriber listens to.  ``static`` are those it listens to anyway."""

    def __init__(self, static: Iterable[str], *, grace_s: float, publishers_max: int) -> None:
        self._static = {normalise(address) for address in static}
        self._grace_s = grace_s
        self._publishers_max = publishers_max
        self._listening: dict[str, str] = {}
        """Normalised address -> the address as it was added."""
        self._gone_since: dict[str, float] = {}
        self.entries: dict[str, DirectoryEntry] = {}
        """What the directory said last, by GUID."""
        self.invalid = 0
        self.ignored = 0

    def update(self, found: Iterable[DbObject], now: float) -> Update:
        """The whole directory as it is now."""
        entries = {one.key: read_entry(one) for one in found}
        self.invalid = sum(entry is None for entry in entries.values())
        known = [entry for entry in entries.values() if entry is not None]
        known.sort(key=lambda entry: entry.guid)
        self.ignored = max(0, len(known) - self._publishers_max)
        self.entries = {entry.guid: entry for entry in known[: self._publishers_max]}
        wanted = {normalise(entry.address): entry.address for entry in self.entries.values()}
        added = {key: wanted[key] for key in wanted.keys() - self._listening.keys() - self._static}
        removed = self._expired(wanted.keys(), now)
        self._listening.update(added)
        return Update(sorted(added.values()), sorted(self._listening.pop(key) for key in removed))

    def _expired(self, wanted: Iterable[str], now: float) -> list[str]:
        """What has been gone for long enough."""
        missing = self._listening.keys() - set(wanted)
        self._gone_since = {key: self._gone_since.get(key, now) for key in missing}
        expired = [key for key, since in self._gone_since.items() if now - since >= self._grace_s]
        for key in expired:
            del self._gone_since[key]
        return expired


class CollectorCore:
    """Which entries are to be deleted.  Any process may collect: an entry that was renewed meanwhile is not deleted."""

    def __init__(self, *, lease_s: float, gap_max_s: float) -> None:
        self._lease_s = lease_s
        self._progress = LeaseProgress(gap_max_s=gap_max_s)

    def dead(self, found: Iterable[DbObject], now: float) -> list[DbObject]:
        """``found`` is the whole directory, read before ``now``."""
        entries = {one.key: one for one in found}
        self._progress.observe({key: one.version for key, one in entries.items()}, now)
        return [one for key, one in entries.items() if self._progress.idle_s(key) >= self._lease_s]
