"""Live events on their way into the core: recorded, acknowledged, and asked for again when the bus gave them up."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence

from durability_service import config
from durability_service.core.effects import Live
from durability_service.serving.durable_ranges import DurableRanges
from durability_service.serving.sampling import SampleRecorder, StreamRange
from durable_log.core.holes import Holes
from pubsub_api.core.receiving.instream import Delivery
from pubsub_api.core.receiving.resync_requests import LostRange

_TOKENS_MAX = 1_000_000


class LiveEvents:
    """Not thread-safe, but for `record`: the owner calls under its lock.  ``keeps`` says whether a topic is kept."""

    def __init__(self, ranges: DurableRanges, depth_of: Callable[[str], int], keeps: Callable[[str], bool]) -> None:
        self._ranges = ranges
        self._keeps = keeps
        self._recorder = SampleRecorder(depth_of, config.GATHER_BYTES_MAX)
        self._token = 0
        self._tokens: OrderedDict[int, list[StreamRange]] = OrderedDict()
        self._missing = Holes(
            ranges_max=config.MISSING_RANGES_MAX,
            interval_s=config.ASK_AGAIN_INTERVAL_S,
            attempts_max=config.ASK_AGAIN_ATTEMPTS_MAX,
        )
        self._recovered = 0

    def news(self, deliveries: Sequence[Delivery]) -> list[Delivery]:
        """Those that are to be kept and are not durable yet: frames come again when another subscriber missed them."""
        kept = {topic for topic in {header.topic for _, header, _ in deliveries} if self._keeps(topic)}
        return [
            delivery
            for delivery in deliveries
            if (header := delivery[1]).topic in kept
            and not self._ranges.has((header.guid, header.topic), header.first + delivery[2], header.last)
        ]

    def record(self, deliveries: Iterable[Delivery]) -> bool:
        """Make samples of events; `take` has them.  True when so much was recorded that they should be taken."""
        self._recorder.add(deliveries)
        return self._recorder.is_full

    def take(self) -> Live | None:
        """What was recorded since the last call, for the core; None when there is nothing."""
        samples, ranges = self._recorder.take()
        if not samples:
            return None
        self._token += 1
        self._tokens[self._token] = ranges
        if len(self._tokens) > _TOKENS_MAX:
            self._tokens.popitem(last=False)
        return Live(samples, self._token)

    def acknowledged(self, token: int) -> None:
        """What was taken under this token is durable."""
        for guid, topic, first, last in self._tokens.pop(token, ()):
            self._ranges.add((guid, topic), first, last)

    # -- what the bus gave up

    def lost(self, ranges: Iterable[LostRange], now: float) -> bool:
        """Ask for these again later, if they are to be kept.  False when none is."""
        lost = [one for one in ranges if self._keeps(one.topic)]
        self._missing.add(lost, now)
        return bool(lost)

    def take_missing(self, now: float) -> list[LostRange]:
        """What is to be asked for now."""
        due = self._missing.take_due(self._ranges.missing_of, now)
        self._missing.given_up.clear()  # which are counted
        return due

    def take_recovered(self) -> bool:
        """Whether events have come, since the last call, that the bus had given up."""
        before, self._recovered = self._recovered, self._missing.recovered_ranges
        return self._recovered > before

    def next_deadline(self) -> float:
        return self._missing.next_deadline()

    def counters(self) -> dict[str, int]:
        return {
            "undecodable_frames": self._recorder.undecodable,
            "replaced_at_once": self._recorder.replaced,
            "streams_confirmed": len(self._ranges),
            "streams_forgotten": self._ranges.forgotten,
            "ranges_missing": len(self._missing),
            "ranges_recovered": self._missing.recovered_ranges,
            "ranges_forgotten": self._missing.forgotten_ranges,
        }
