"""A writer and two controllers: one follows a tenant, the other a host whose ports decide which matter."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Sequence

from nb_api import CacheChange, Created, Deleted, LocalCache, NbApi, Resynced

TIMEOUT_S = 30.0


class Host:
    """Follows the bindings of one host, and the tenants of the ports that are bound there."""

    def __init__(self, nb: NbApi, name: str) -> None:
        self.tenants: dict[str, str] = {}
        self.is_bound = threading.Event()
        self.cache = LocalCache(nb, topics=[name], on_changes=self.on_changes)

    def on_changes(self, changes: Sequence[CacheChange]) -> None:
        for change in changes:
            if isinstance(change, Resynced) or change.object.table != "binding":
                continue
            if isinstance(change, Created):
                self.tenants[change.object.key] = change.object.value
                self.cache.add_topic(change.object.value)
                self.is_bound.set()
            elif isinstance(change, Deleted):
                tenant = self.tenants.pop(change.object.key)
                if tenant not in self.tenants.values():
                    self.cache.remove_topic(tenant)


def main() -> None:
    with tempfile.TemporaryDirectory() as directory, NbApi.open(f"sqlite://{directory}/objects.db") as nb:
        nb.create("net", "n7", {"mtu": 1500}, topic="tenant-7")
        nb.create("net", "n8", {"mtu": 9000}, topic="tenant-8")
        host = Host(nb, "host-1")
        with host.cache, LocalCache(nb, tables=["net"], topics=["tenant-8"]) as follower:
            follower.wait_synced(timeout_s=TIMEOUT_S)
            host.cache.wait_synced(timeout_s=TIMEOUT_S)
            nb.create("binding", "port-1", "tenant-7", topic="host-1")
            for change in follower.changes(timeout_s=0.2):
                print("the follower of tenant-8:", type(change).__name__)
            host.is_bound.wait(TIMEOUT_S)
            host.cache.wait_synced(timeout_s=TIMEOUT_S)
            print("host-1 knows the networks", [found.key for found in host.cache.get_all("net")])


if __name__ == "__main__":
    main()
