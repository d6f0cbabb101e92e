"""What must still be true when the manifest of a log is changed: a process that was replaced changes nothing."""

from __future__ import annotations

from typing import NamedTuple

from durable_log.errors import LeaseLost


class Fence(NamedTuple):
    """A record of the log begins with this mark; compared in the transaction of the change."""

    record: str
    mark: bytes

    def check(self, value: bytes | None) -> None:
        """``value`` is what the record has in that transaction.  Raises LeaseLost."""
        if value is None or not bytes(value).startswith(self.mark):
            raise lease_lost()


def lease_lost() -> LeaseLost:
    return LeaseLost(
        "another process has taken over the sealing of this log, because this one did not renew its lease in time: "
        "nothing was changed"
    )
