"""How the records of a group are named in the log."""

from __future__ import annotations

PREFIX = "group/"
CHANGES = "groups/changes"
"""Written with every wish of an operator, so that leaders of many groups need not read all declarations to see one."""

LEASES = "groups/lease/"
"""Of processes that lead."""


class Names:
    """The records of one group."""

    def __init__(self, group: str) -> None:
        self.group = f"{PREFIX}{group}"
        """Its declaration."""
        self.leader = f"{PREFIX}{group}/leader"
        self.status = f"{PREFIX}{group}/status"
        """What the leader tells operators."""
        self.jobs = f"{PREFIX}{group}/jobs"
        """What jobs know that are no members, and take ranges of the log by themselves."""
        self.redriven = f"{PREFIX}{group}/redriven"
        """Up to where its dead letters were redriven."""
        self.partitions = f"{PREFIX}{group}/stream/"

    def partition(self, number: int) -> str:
        return f"{self.partitions}{number:05d}"

    def is_partition(self, name: str) -> bool:
        return name.startswith(self.partitions)

    def partition_number(self, name: str) -> int:
        return int(name[len(self.partitions) :])


def group_of(name: str) -> str | None:
    """The group that a record declares; None when it is another kind of record."""
    group = name.removeprefix(PREFIX)
    return group if name.startswith(PREFIX) and "/" not in group else None
