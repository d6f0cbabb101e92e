"""Limits the sessions of one peer, so that no peer alone can use up all sessions of a publisher.  Sans-IO."""

from __future__ import annotations

import collections

CONNECTION_SESSIONS_MAX = 64
"""A subscriber needs one session on its connection, and has some from before interruptions that are not forgotten
yet."""


class PeerSessions:
    """Counts sessions by connection and by host.  A host gets at most half of all sessions."""

    def __init__(self, sessions_max: int) -> None:
        self._host_max = max(1, sessions_max // 2)
        self._by_connection: collections.Counter[str] = collections.Counter()
        self._by_host: collections.Counter[str] = collections.Counter()

    def refusal(self, connection: str) -> str | None:
        """The limit that another session of this connection would exceed; None when it would exceed none.

        ``connection`` is the address and port of the peer; empty when they are not known.
        """
        if not connection:
            return None
        if self._by_connection[connection] >= CONNECTION_SESSIONS_MAX:
            return f"the number of sessions of one connection ({CONNECTION_SESSIONS_MAX})"
        if self._by_host[_host(connection)] >= self._host_max:
            return f"the number of sessions of one host ({self._host_max})"
        return None

    def add(self, connection: str) -> None:
        if connection:
            self._by_connection[connection] += 1
            self._by_host[_host(connection)] += 1

    def remove(self, connection: str) -> None:
        if connection:
            _count_down(self._by_connection, connection)
            _count_down(self._by_host, _host(connection))


def _host(connection: str) -> str:
    return connection.rpartition(":")[0]


def _count_down(counts: collections.Counter[str], name: str) -> None:
    counts[name] -= 1
    if not counts[name]:
        del counts[name]
