"""Which endpoint is asked, and which cluster is believed."""

from __future__ import annotations

import pytest

from heliograph_drivers.db.etcd import endpoints
from heliograph_drivers.db.etcd.config import EtcdEndpoint
from heliograph_drivers.db.etcd.endpoints import Endpoints, judge_clusters
from pubsub_api.errors import InvalidConfig

A, B, C = (EtcdEndpoint(host, 2379) for host in "abc")


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock to be set."""
    time_s = [100.0]
    monkeypatch.setattr(endpoints.time, "monotonic", lambda: time_s[0])
    return time_s


def test_one_is_used_until_it_fails(now: list[float]) -> None:
    known = Endpoints((A, B, C))
    assert known.choose(()) == A
    known.failed(A)
    assert known.choose(()) == B
    known.works(B)
    now[0] += 10 * endpoints.PAUSE_S
    assert known.choose(()) == B  # nothing is gained by going back


def test_one_that_failed_is_asked_again_when_its_pause_is_over(now: list[float]) -> None:
    known = Endpoints((A, B, C))
    known.failed(A)
    known.works(B)
    now[0] += endpoints.PAUSE_S / 2
    known.failed(B)
    assert known.choose(()) == C
    assert known.choose({C}) == A  # failed longest ago
    assert known.choose({A, C}) == B
    assert known.choose({A, B, C}) is None
    now[0] += endpoints.PAUSE_S / 2
    known.failed(C)
    assert known.choose(()) == A


def test_a_single_one_is_used_in_any_case(now: list[float]) -> None:
    known = Endpoints((A,))
    known.failed(A)
    assert known.choose(()) == A
    assert not known.is_aside(A)


@pytest.mark.parametrize(
    ("found", "known", "believed"),
    [
        ({}, None, None),
        ({}, 7, 7),
        ({A: 7}, None, 7),
        ({A: 7, C: 7}, 7, 7),
        ({B: 7}, 7, 7),
        ({A: 8, B: 8}, 7, 8),  # more than half of them: the cluster was restored
    ],
)
def test_a_cluster_that_is_believed(found: dict[EtcdEndpoint, int], known: int | None, believed: int | None) -> None:
    assert judge_clusters(found, known, 3) == believed


@pytest.mark.parametrize(
    ("found", "known"),
    [({A: 7, B: 8}, None), ({A: 7, B: 8}, 7), ({A: 8, B: 8, C: 7}, 7), ({A: 8}, 7)],
)
def test_clusters_that_are_refused(found: dict[EtcdEndpoint, int], known: int | None) -> None:
    with pytest.raises(InvalidConfig, match=r"\[db\] url"):
        judge_clusters(found, known, 3)
