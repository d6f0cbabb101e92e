"""Decoding what was delivered: whole frames at once, and one by one the events of a frame in which one is broken."""

from __future__ import annotations

import dataclasses

from pubsub_api.core.errors import UndecodableBody
from pubsub_api.core.events import Event, decode_events, decode_one_by_one
from pubsub_api.core.receiving.instream import Delivery

_NAMED_MAX = 5
"""Events that are named in the log with what is wrong with them; a frame may hold thousands."""


@dataclasses.dataclass(frozen=True)
class Undecodable:
    """What cannot be decoded of a frame."""

    ranges: list[tuple[int, int]]
    """First and last number of each."""
    reason: str

    @property
    def count(self) -> int:
        return sum(last - first + 1 for first, last in self.ranges)


def decode(delivery: Delivery) -> tuple[list[Event], Undecodable | None]:
    """The events of a frame that were not delivered before, and what of them is lost because it cannot be decoded."""
    frame, header, already = delivery
    try:
        return decode_events(frame, header, skip=already), None
    except UndecodableBody:
        pass
    try:
        events, faults = decode_one_by_one(frame, header, skip=already)
    except UndecodableBody as error:
        return [], Undecodable([(header.first + already, header.last)], str(error))
    named = [f"number {number}: {fault}" for number, fault in faults[:_NAMED_MAX]]
    return events, Undecodable([(number, number) for number, _ in faults], "; ".join(named))
