"""From what a journal told to what the next publisher tells its subscribers of its former lives."""

from __future__ import annotations

from publisher_service.journal import RecoveredJournal, Stretch
from pubsub_api.core import frame as frames
from pubsub_api.core.events import pack_body
from pubsub_api.core.frame import Kind
from pubsub_api.core.publisher import Predecessor
from pubsub_api.core.settings import FrameSettings


def predecessor_of(recovered: RecoveredJournal, settings: FrameSettings) -> Predecessor | None:
    """The last life of the journal with those before it, and its events as frames; None when there was none."""
    former: Predecessor | None = None
    for life in recovered.lives:
        is_last = life is recovered.lives[-1]
        former = Predecessor(
            life.guid,
            life.heads,
            frames=rebuild(recovered.stretches, settings) if is_last else (),
            former=former,
        )
    return former


def rebuild(stretches: list[Stretch], settings: FrameSettings) -> list[bytes]:
    """The frames that hold these events.  Others than those that were sent, of the same numbers: that is what counts.

    What does not fit a frame under the present configuration is left out, and cannot be repaired.
    """
    room = settings.bytes_max - 2 * frames.FRAME_OVERHEAD_BYTES_MAX
    made = []
    for stretch in stretches:
        body = pack_body(stretch.encoded)
        if stretch.encoded and len(body) <= room:
            made.append(
                frames.pack(
                    Kind.DATA, stretch.guid, stretch.topic, body, first=stretch.first, after=stretch.first - 1,
                    count=len(stretch.encoded), timestamp=stretch.stamp, key=settings.key,
                )
            )  # fmt: skip
    return made
