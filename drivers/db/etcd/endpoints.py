"""Which member of the cluster is asked, and whether all that are listed are members of one cluster.

One endpoint is used until it fails; then the next in the list that has not failed lately.  One that has failed is asked
again when its pause is over, or when no other is left.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping

from heliograph_drivers.db.etcd.config import EtcdEndpoint, EtcdSettings
from nb_api.errors import DbError, DbUnavailable
from pubsub_api.errors import HeliographError, InvalidConfig
from pubsub_api.runtime.rate_limited_log import RateLimitedLog

LOG = logging.getLogger(__name__)

PAUSE_S = 5.0
"""For so long an endpoint that has failed is the last choice.  A member is back some seconds after it was restarted."""
LEADER_PAUSE_S = 0.1
"""Until members that elect a leader are asked again."""


class Endpoints:
    """Every method may be called from any thread.  Nothing blocks."""

    def __init__(self, listed: tuple[EtcdEndpoint, ...]) -> None:
        self.listed = listed
        self.cluster_id: int | None = None
        """Of the cluster that is used, None while no member has said it."""
        self._current = listed[0]
        self._failed_at: dict[EtcdEndpoint, float] = {}
        self._log_change = RateLimitedLog(LOG)

    @property
    def are_several(self) -> bool:
        return len(self.listed) > 1

    def choose(self, tried: Collection[EtcdEndpoint]) -> EtcdEndpoint | None:
        """The best of those that were not tried, None when all were."""
        first = self.listed.index(self._current)
        ring = [one for one in self.listed[first:] + self.listed[:first] if one not in tried]
        sound = [one for one in ring if not self.is_aside(one)]
        if sound:
            return sound[0]
        return min(ring, key=lambda one: self._failed_at.get(one, 0.0), default=None)

    def is_aside(self, endpoint: EtcdEndpoint) -> bool:
        """Whether it has failed lately.  A single endpoint is used in any case."""
        failed_at = self._failed_at.get(endpoint)
        return self.are_several and failed_at is not None and time.monotonic() < failed_at + PAUSE_S

    def failed(self, endpoint: EtcdEndpoint) -> None:
        self._failed_at[endpoint] = time.monotonic()

    def works(self, endpoint: EtcdEndpoint) -> None:
        """It has answered."""
        self._failed_at.pop(endpoint, None)
        if endpoint != self._current:
            self._log_change("etcd at %s cannot be used for now; %s is used instead", self._current, endpoint)
            self._current = endpoint


class Effort:
    """One request and its attempts, which share its time: at most ``operation_timeout`` for all of them.

    While other endpoints are left to be asked, one has only its share of that.
    """

    def __init__(self, endpoints: Endpoints, settings: EtcdSettings, *, is_repeatable: bool) -> None:
        self._endpoints = endpoints
        self._settings = settings
        self.is_repeatable = is_repeatable
        self.deadline = time.monotonic() + settings.operation_timeout_s
        self.tried: dict[EtcdEndpoint, DbError | InvalidConfig] = {}
        self._is_any_alive = False
        self.is_sent = False
        """The request itself is on its way: it may be done."""

    def connect_timeout_s(self) -> float:
        return max(0.001, min(self._settings.connect_timeout_s, self._share_s()))

    def request_deadline(self) -> float:
        return time.monotonic() + self._share_s() if self.is_repeatable else self.deadline

    def _share_s(self) -> float:
        left = max(1, len(self._endpoints.listed) - len(self.tried))
        return max(0.0, self.deadline - time.monotonic()) / left

    def failed(self, endpoint: EtcdEndpoint, error: DbError | InvalidConfig, *, is_alive: bool = False) -> None:
        """The next attempt is for another one.  ``is_alive``: it is there, but cannot do it at the moment."""
        self.tried[endpoint] = error
        self._is_any_alive |= is_alive
        self._endpoints.failed(endpoint)

    def can_begin_again(self) -> bool:
        """Whether to ask all of them once more: members elect a new leader, and there is time."""
        if not self._is_any_alive or time.monotonic() + LEADER_PAUSE_S >= self.deadline:
            return False
        self.tried.clear()
        self._is_any_alive = False
        return True

    def error(self) -> HeliographError:
        """What has come of it when no endpoint is left."""
        errors = list(self.tried.values())
        if len(errors) == 1 or all(isinstance(error, InvalidConfig) for error in errors):
            return errors[-1]
        address = self._settings.address
        reasons = "; ".join(str(error).removeprefix(f"{address}: ") for error in errors)
        return DbUnavailable(f"{address}: no endpoint can be used: {reasons}")


def judge_clusters(found: Mapping[EtcdEndpoint, int], known: int | None, listed_count: int) -> int | None:
    """The cluster to use, from what each endpoint that answers says its cluster is; None when none does.

    A cluster that was put back from a backup has another number: that is believed when more than half of the endpoints
    say so and none contradicts; whether the history is the same is for the revisions to tell.

    Raises InvalidConfig for endpoints of different clusters.
    """
    numbers = set(found.values())
    if len(numbers) > 1:
        told = ", ".join(f"{endpoint} is of {number:x}" for endpoint, number in found.items())
        raise InvalidConfig(
            f"the endpoints are members of different clusters: {told}. Name members of one cluster in [db] url; one "
            "that was restored from a snapshot alone is a cluster of its own"
        )
    if not numbers:
        return known
    [number] = numbers
    if known is None or number == known or 2 * len(found) > listed_count:
        return number
    told = ", ".join(map(str, found))
    raise InvalidConfig(
        f"{told}: a member of cluster {number:x}, not of {known:x}, whose members do not answer. If the cluster was "
        "restored, start its other members; if not, take this one out of [db] url"
    )
