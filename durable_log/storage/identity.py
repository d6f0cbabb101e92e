"""What makes a log that log and no other: an identity, made by chance when the log is made.

A number proves nothing by itself: an offset belongs to a log, a segment to a log.  A log that was repaired after a loss
gets a new identity, because offsets may be used again that others have seen; the former ones are its ancestors, whose
segments are its own.
"""

from __future__ import annotations

import secrets
from typing import NamedTuple

_IDENTITY_BYTES = 16
_SHORT = 8


class Lineage(NamedTuple):
    identity: str
    ancestors: frozenset[str] = frozenset()

    def owns(self, identity: str) -> bool:
        """Whether what has this identity, in full or as `short` gives it, is of this log."""
        return any(one.startswith(identity) for one in (self.identity, *self.ancestors)) if identity else False


def new_identity() -> str:
    """Of a log that is made now."""
    return secrets.token_hex(_IDENTITY_BYTES)


def short(identity: str) -> str:
    """What stands of an identity in the names of files, so that one sees whose they are without opening them."""
    return identity[:_SHORT]
