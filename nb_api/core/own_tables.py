"""Tables that Heliograph keeps for itself, among the user's own in the same database."""

from __future__ import annotations

OWN_PREFIX = "heliograph."


def is_own(table: str) -> bool:
    """Whether the objects of a table are Heliograph's bookkeeping: followed only by caches that name the table."""
    return table.startswith(OWN_PREFIX)
