"""Compares copies of the same objects, by the digests that members report.

A member reads the digest of a copy and its other numbers at different moments.  So only copies are compared that have
not changed for some reports: complete copies that have heard of the same changes must hold the same objects.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from heliograph.output import counted

if TYPE_CHECKING:
    from nb_api.fleet import CopyReport, FleetMember

SETTLED_REPORTS = 3
"""A copy has settled when this many reports in a row have the same revision and digest of it."""


class _SeenCopy(NamedTuple):
    reported: tuple[int, str]
    """The newest revision and the digest."""
    since: int
    """The number of the first report with these."""


class CopyComparison:
    """Remembers what members have reported.  Use it from one thread."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str, int], _SeenCopy] = {}

    def observe(self, members: Sequence[FleetMember]) -> dict[str, str]:
        """Member key -> how its copies compare with those of others; members without a comparable copy are left out."""
        found = list(self._copies(members))
        self._seen = {place: seen for _, place, _, seen, _ in found}
        groups: dict[Hashable, Counter[str]] = {}
        for _, _, copy, _, is_settled in found:
            if is_settled:
                groups.setdefault(_group(copy), Counter())[copy.digest] += 1
        verdicts: dict[str, str] = {}
        for member, _, copy, _, is_settled in found:
            verdict = _verdict(groups[_group(copy)], copy.digest) if is_settled else "changing"
            verdicts[member.key] = f"{verdicts[member.key]}; {verdict}" if member.key in verdicts else verdict
        return verdicts

    def _copies(
        self, members: Sequence[FleetMember]
    ) -> Iterator[tuple[FleetMember, tuple[str, str, int], CopyReport, _SeenCopy, bool]]:
        for member in members:
            report = member.report
            for number, copy in enumerate(report.copies if report is not None else ()):
                if report is not None and copy.digest and copy.is_complete and not copy.is_cut:
                    place = (member.key, report.incarnation, number)
                    seen = self._seen.get(place)
                    if seen is None or seen.reported != (copy.newest, copy.digest):
                        seen = _SeenCopy((copy.newest, copy.digest), report.count)
                    yield member, place, copy, seen, report.count - seen.since >= SETTLED_REPORTS


def _group(copy: CopyReport) -> Hashable:
    return (copy.newest, None if copy.tables is None else tuple(copy.tables), tuple(copy.topics))


def _verdict(digests: Counter[str], digest: str) -> str:
    same, others = digests[digest] - 1, digests.total() - digests[digest]
    if others:
        return f"DIFFERS from {counted(others, 'other')}, same as {same}"
    return f"same as {counted(same, 'other')}" if same else "no other to compare"
