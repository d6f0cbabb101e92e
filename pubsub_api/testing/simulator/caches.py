"""A stand-alone cache: it stores the frames of all publishers and answers queries."""

from __future__ import annotations

from collections.abc import Iterable

from pubsub_api.core import frame as frames
from pubsub_api.core import messages
from pubsub_api.core.sending.cache import FrameCache
from pubsub_api.core.sending.replies import Responder, find
from pubsub_api.core.settings import CacheSettings, FrameSettings
from pubsub_api.testing.simulator.world import World


class SimCache:
    def __init__(self, world: World, name: str, settings: CacheSettings, frame: FrameSettings) -> None:
        self.world = world
        self.name = name
        self.settings = settings
        self.is_cut = False
        """No node can reach it, and no node notices."""
        self.is_alive = True
        self.cache = FrameCache(settings)
        self._guid = world.random.randbytes(frames.GUID_BYTES)
        self._frame = frame

    def store(self, frame: bytes) -> None:
        if self.is_alive:
            self.cache.store(self._unpack(frame), frame, self.world.now)

    def answer(self, query_frame: bytes) -> Iterable[bytes]:
        header = self._unpack(query_frame)
        query = messages.decode(messages.Query, query_frame, header)
        responder = Responder(
            guid=self._guid,
            name=self.name,
            is_publisher=False,
            frame=self._frame,
            reply_bytes_max=self.settings.reply_bytes_max,
        )
        return responder.pack(query.id, find(self.cache, query), int(self.world.now * 1e9), query.scope)

    def crash(self) -> None:
        self.is_alive = False
        self.world.note(self.name, "crashes")

    def restart(self) -> None:
        """Restart without any frames."""
        self.is_alive = True
        self.cache = FrameCache(self.settings)
        self._guid = self.world.random.randbytes(frames.GUID_BYTES)
        self.world.note(self.name, "restarts, empty")

    def cut(self) -> None:
        self.is_cut = True
        self.world.note(self.name, "is cut off")

    def mend(self) -> None:
        self.is_cut = False
        self.world.note(self.name, "can be reached again")

    def _unpack(self, frame: bytes) -> frames.Header:
        return frames.unpack(frame, bytes_max=self._frame.bytes_max, key=self._frame.key)
