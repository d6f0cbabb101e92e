"""A cache that outlives the publisher: a subscriber that comes late still gets what was published.  Needs no set-up.

On ZeroMQ a cache has an address of its own, and a subscriber listens to it as to a publisher.  With a broker between,
as on Redis, no address would be needed.
"""

from __future__ import annotations

import pubsub_api
from pubsub_api import Event

CHANGES = 5


def main() -> None:
    with pubsub_api.open("zmq://127.0.0.1:0") as session:
        publisher = session.publisher(name="example")
        cache = session.cache(["tenant-7/#"], name="near", addresses=[publisher.address])
        for version in range(1, CHANGES + 1):
            publisher.send_event(Event(topic="tenant-7/port", table="port", key="p1", action="set", version=version))
        # Sent again, under the same numbers, until the cache has them: it may have come too late for the first ones.
        publisher.confirm(caches=1, timeout_s=60, addresses=[cache.address])
        publisher.close()
        print(f"the publisher is gone, the cache holds {cache.statistics().frames} frames")
        late = session.subscriber(["tenant-7/#"], addresses=[cache.address], past="all")
        for event in late:
            print(f"{event.topic}: {event.table}/{event.key} has version {event.version}")
            if event.version == CHANGES:
                late.close()


if __name__ == "__main__":
    main()
