"""The durability service over real drivers: kinds of durability, late joiners, restarts, deletion, snapshots."""

from __future__ import annotations

import json
import pathlib
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

import pubsub_api
from durability_service.client import Within
from durability_service.core.effects import StoreOperation
from durability_service.core.namespaces import Kind
from durability_service.errors import NoAligner, NoService, StoreFailed, StoreInUse
from durability_service.service import DurabilityService
from durability_service.serving.sampling import event_of
from durability_service.storage.store import SampleStore
from pubsub_api.core.durability import HistoryOutcome
from pubsub_api.errors import WaitTimeout
from pubsub_api.testing.fast_conf import fast_conf
from tests.functional.conftest import Bus
from tests.helpers.durability_domain import TIMEOUT_S, Domain, durability_conf, stored_samples
from tests.helpers.servers import free_port
from tests.helpers.waiting import wait_until


@pytest.fixture
def domain(bus: Bus, tmp_path: pathlib.Path) -> Iterator[Domain]:
    made = Domain(bus.url, tmp_path, is_bind_based=bus.is_bind_based)
    yield made
    made.close()


@pytest.fixture
def local(tmp_path: pathlib.Path) -> Iterator[Domain]:
    """Where the driver does not matter."""
    made = Domain(f"memory://{tmp_path.name}", tmp_path, is_bind_based=False)
    yield made
    made.close()


def event(key: str, value: Any, *, topic: str = "orders/eu", action: Any = "set") -> pubsub_api.Event:
    return pubsub_api.Event(topic=topic, table="order", key=key, action=action, value=value)


def publish(publisher: pubsub_api.Publisher, *events: pubsub_api.Event) -> None:
    publisher.send_events(list(events))
    publisher.flush(timeout_s=TIMEOUT_S)


def wait_samples(domain: Domain, count: int) -> None:
    domain.wait_complete(samples=count)


def test_a_late_joiner_gets_what_was_published_before_and_after(domain: Domain) -> None:
    publisher = domain.publisher()
    domain.start("a")
    domain.start("b")
    domain.wait_complete()
    publish(publisher, *(event(f"k{number}", number) for number in range(20)))
    publish(publisher, event("k3", "newer"), event("k4", None, action="delete"))
    wait_samples(domain, 20)
    publisher.confirm(caches=2, timeout_s=TIMEOUT_S, addresses=domain.addresses)
    seen: list[pubsub_api.Event] = []
    with domain.reader(["orders/#"], seen) as reader:
        assert reader.wait_for_historical_data(TIMEOUT_S) is HistoryOutcome.COMPLETE
        assert len(seen) == 20
        assert {one.key: one.value for one in seen}["k3"] == "newer"
        assert [one.action for one in seen if one.key == "k4"] == ["delete"]
        publish(publisher, event("k5", "live"))
        wait_until(lambda: seen and seen[-1].value == "live", TIMEOUT_S, "the live event")
    assert len(seen) == 21
    publisher.close()


def test_persistent_data_outlives_everybody(domain: Domain) -> None:
    publisher = domain.publisher()
    domain.start("a")
    domain.wait_complete()
    publish(publisher, event("k1", {"up": True}), event("k2", 2))
    publisher.confirm(caches=1, timeout_s=TIMEOUT_S, addresses=domain.addresses)
    stamps: list[pubsub_api.Event] = []
    with domain.reader(["orders/#"], stamps) as reader:
        assert reader.wait_for_historical_data(TIMEOUT_S) is HistoryOutcome.COMPLETE
    publisher.close()
    domain.stop("a")
    domain.start("a")
    seen: list[pubsub_api.Event] = []
    with domain.reader(["orders/#"], seen) as reader:
        assert reader.wait_for_historical_data(TIMEOUT_S) is HistoryOutcome.COMPLETE
    assert sorted(seen, key=lambda one: one.key) == sorted(stamps, key=lambda one: one.key)
    assert [one.value for one in sorted(seen, key=lambda one: one.key)] == [{"up": True}, 2]


def test_a_new_service_takes_over_what_the_others_have(domain: Domain) -> None:
    publisher = domain.publisher()
    domain.start("a", store=False)
    domain.wait_complete()
    publish(publisher, *(event(f"k{number}", number) for number in range(10)))
    wait_samples(domain, 10)
    publisher.close()
    domain.start("b")
    wait_samples(domain, 10)
    domain.stop("a")
    wait_until(lambda: domain.services["b"].status().name_spaces[0].master == "b", TIMEOUT_S, "b to lead")
    seen: list[pubsub_api.Event] = []
    with domain.reader(["#"], seen) as reader:
        assert reader.wait_for_historical_data(TIMEOUT_S) is HistoryOutcome.COMPLETE
    assert len(seen) == 10


def test_deleted_history_stays_deleted_also_in_a_service_that_was_away(domain: Domain) -> None:
    publisher = domain.publisher()
    domain.start("a")
    domain.start("b")
    domain.wait_complete()
    publish(publisher, event("k1", 1), event("k2", 2, topic="other"))
    wait_samples(domain, 2)
    domain.stop("b")
    with domain.client() as client:
        client.delete_historical_data(["orders/#"], timeout_s=TIMEOUT_S)
    publish(publisher, event("k3", 3))
    domain.start("b")
    wait_samples(domain, 2)
    with domain.client() as client:
        outcome, samples = client.history(["#"], timeout_s=TIMEOUT_S)
    assert outcome is HistoryOutcome.COMPLETE
    assert sorted(one.key for one in samples) == ["k2", "k3"]
    publisher.close()


def test_without_a_service_that_is_said_soon(domain: Domain) -> None:
    seen: list[pubsub_api.Event] = []
    publisher = domain.publisher()
    hasty = pubsub_api.open(conf=durability_conf(domain.url, no_service_time=0.5))
    with hasty as session, domain.reader(["orders/#"], seen, session=session) as reader:
        assert reader.wait_for_historical_data(TIMEOUT_S) is HistoryOutcome.NO_SERVICE
        publish(publisher, event("k1", "live"))
        wait_until(lambda: [one.value for one in seen] == ["live"], TIMEOUT_S, "live events all the same")
    publisher.close()


# -- what does not depend on the driver


def newest_values(domain: Domain) -> list[Any]:
    with domain.client() as client:
        outcome, samples = client.history(["#"], timeout_s=TIMEOUT_S)
    assert outcome is HistoryOutcome.COMPLETE
    return [event_of(one).value for one in samples]


def test_events_that_come_while_the_disk_is_busy_are_gathered(local: Domain, monkeypatch: pytest.MonkeyPatch) -> None:
    is_fast = threading.Event()
    is_fast.set()
    do = SampleStore.do

    def do_when_fast(store: SampleStore, operations: Sequence[StoreOperation]) -> None:
        assert is_fast.wait(TIMEOUT_S)
        do(store, operations)

    monkeypatch.setattr(SampleStore, "do", do_when_fast)
    publisher = local.publisher()
    service = local.start("a")
    local.wait_complete()
    is_fast.clear()
    publish(publisher, event("k", 0))
    wait_until(lambda: service.status().lag > 0, TIMEOUT_S, "the disk to be busy")
    for number in range(1, 11):
        publish(publisher, event("k", number))
    wait_until(lambda: service.status().counters["replaced_at_once"] >= 9, TIMEOUT_S, "the newest of ten")
    wait_until(lambda: newest_values(local) == [10], TIMEOUT_S, "readers to get what is not on disk yet")
    is_fast.set()
    publisher.confirm(caches=1, timeout_s=TIMEOUT_S, addresses=local.addresses)
    publisher.close()
    local.stop("a")
    local.start("a")
    local.wait_complete()
    assert newest_values(local) == [10]


def test_volatile_topics_are_not_kept_and_transient_ones_not_written(local: Domain) -> None:
    kinds = ["fleeting/#=VOLATILE", "memory/#=TRANSIENT"]
    publisher = local.publisher()
    local.start("a", kinds=kinds)
    local.wait_complete()
    publish(publisher, event("k1", 1, topic="fleeting/x"), event("k2", 2, topic="memory/x"), event("k3", 3))
    publisher.confirm(caches=0, timeout_s=TIMEOUT_S)
    wait_samples(local, 2)
    wait_until(lambda: local.services["a"].status().lag == 0, TIMEOUT_S, "the disk")
    local.stop("a")
    with SampleStore(local.directory / "a.db") as store:
        assert [one.key for one in stored_samples(store)] == ["k3"]
    publisher.close()


def test_history_is_as_deep_as_the_topic_says(local: Domain) -> None:
    publisher = local.publisher()
    local.start("a", depths=["deep=3"])
    local.wait_complete()
    publish(publisher, *(event("k", number, topic=topic) for number in range(5) for topic in ("deep", "flat")))
    wait_samples(local, 4)
    seen: list[pubsub_api.Event] = []
    with local.reader(["#"], seen) as reader:
        assert reader.wait_for_historical_data(TIMEOUT_S) is HistoryOutcome.COMPLETE
    assert [one.value for one in seen if one.topic == "deep"] == [2, 3, 4]
    assert [one.value for one in seen if one.topic == "flat"] == [4]
    publisher.close()


def test_transient_local_data_comes_from_the_publisher_and_goes_with_it(local: Domain) -> None:
    publisher = local.publisher()
    publish(publisher, event("k1", 1), event("k2", 2))
    seen: list[pubsub_api.Event] = []
    with local.reader(["orders/#"], seen, kind=Kind.TRANSIENT_LOCAL) as reader:
        assert reader.wait_for_historical_data(TIMEOUT_S) is HistoryOutcome.COMPLETE
        wait_until(lambda: len(seen) == 2, TIMEOUT_S, "the publisher's own history")
    publisher.close()
    seen.clear()
    with local.reader(["orders/#"], seen, kind=Kind.TRANSIENT_LOCAL) as reader:
        assert reader.wait_for_historical_data(TIMEOUT_S) is HistoryOutcome.COMPLETE
    assert seen == []


def test_without_a_publisher_transient_local_data_is_not_waited_for(tmp_path: pathlib.Path) -> None:
    """Where publishers bind, nobody may be there to say what it remembers."""
    url = f"zmq://127.0.0.1:{free_port()}"
    seen: list[pubsub_api.Event] = []
    with pubsub_api.open(conf=durability_conf(url, no_service_time=0.3)) as session:
        reader = session.subscriber(["orders/#"], seen.append, past=Kind.TRANSIENT_LOCAL)
        assert reader.wait_for_historical_data(10 * TIMEOUT_S) is HistoryOutcome.NO_SERVICE
        with pubsub_api.open(conf=fast_conf(url)) as other:
            publish(other.publisher(), event("k1", 1))
            wait_until(lambda: seen, TIMEOUT_S, "what the publisher remembers")
            wait_until(
                lambda: reader.wait_for_historical_data(0.0) is HistoryOutcome.COMPLETE,
                TIMEOUT_S,
                "history to be complete",
            )
        reader.close()


def test_a_snapshot_is_a_store(local: Domain) -> None:
    publisher = local.publisher()
    local.start("a", snapshot_directory=str(local.directory / "snapshots"))
    local.wait_complete()
    publish(publisher, event("k1", 1), event("k2", 2, topic="other"))
    wait_samples(local, 2)
    with local.client() as client:
        path = client.snapshot(["orders/#"], timeout_s=TIMEOUT_S)
    with SampleStore(path) as store:
        assert [one.key for one in stored_samples(store)] == ["k1"]
    publisher.close()


def test_incompatible_services_say_so_and_leave_each_other_alone(local: Domain) -> None:
    publisher = local.publisher()
    local.start("a", name_spaces=["all"])
    local.start("b", name_spaces=["everything"])
    for node in ("a", "b"):
        status = wait_until(
            lambda node=node: [one for one in local.services[node].status().peers if one.incompatibility],  # type: ignore[misc]
            TIMEOUT_S,
            "the clash to be reported",
        )
        assert "intersect" in status[0].incompatibility
    publish(publisher, event("k1", 1))
    for node in ("a", "b"):
        wait_until(
            lambda node=node: local.services[node].status().name_spaces[0].samples == 1,  # type: ignore[misc]
            TIMEOUT_S,
            "live data to flow",
        )
    publisher.close()


def test_samples_are_given_to_nobody_when_their_lifespan_is_over(
    local: Domain, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("durability_service.config.EXPIRY_ROUND_S", 0.2)
    publisher = local.publisher()
    local.start("a", lifespans=["brief/#=0.5"])
    local.wait_complete()
    publish(publisher, event("k1", 1, topic="brief/x"), event("k2", 2))
    publisher.confirm(caches=1, timeout_s=TIMEOUT_S)
    local.wait_complete(samples=1)
    assert local.services["a"].status().name_spaces[0].counters["expired"] == 1
    with local.client() as client:
        assert [one.key for one in client.history(["#"], timeout_s=TIMEOUT_S)[1]] == ["k2"]
    publisher.close()


def test_a_part_of_history_can_be_asked_for(local: Domain) -> None:
    publisher = local.publisher()
    local.start("a", depths=["#=5"])
    local.wait_complete()
    publish(publisher, *(event(key, number) for number in range(3) for key in ("k1", "k2")))
    wait_samples(local, 6)
    with local.client() as client:
        whole = client.history(["#"], timeout_s=TIMEOUT_S)[1]
        stamps = sorted(one.timestamp for one in whole)
        middle = client.history(["#"], timeout_s=TIMEOUT_S, within=Within(since=stamps[2], until=stamps[4]))[1]
        assert sorted(one.timestamp for one in middle) == stamps[2:5]
        newest = client.history(["#"], timeout_s=TIMEOUT_S, within=Within(newest=1))[1]
    assert sorted(one.timestamp for one in newest) == stamps[4:]
    publisher.close()


def test_confirmation_by_services_counts_only_those_that_keep_data_as_they_should(local: Domain) -> None:
    publisher = local.publisher()
    local.start("a")
    local.start("b", store=False)  # holds PERSISTENT data in memory only
    local.wait_complete()
    publish(publisher, event("k1", 1))
    publisher.confirm(caches=2, services=1, timeout_s=TIMEOUT_S)
    publish(publisher, event("k2", 2))
    with pytest.raises(WaitTimeout, match="2 caches, 2 of them durably"):
        publisher.confirm(caches=2, services=2, timeout_s=1.0)
    local.start("c")
    publisher.confirm(services=2, timeout_s=TIMEOUT_S)
    publisher.close()


def test_the_number_of_services_may_come_from_the_configuration(local: Domain) -> None:
    local.start("a")
    local.wait_complete()
    with pubsub_api.open(conf=fast_conf(local.url, min_services=2)) as session:
        publisher = session.publisher()
        publish(publisher, event("k1", 1))
        with pytest.raises(WaitTimeout, match="2 of them durably"):
            publisher.confirm(timeout_s=0.5)
        local.start("b")
        publisher.confirm(timeout_s=TIMEOUT_S)


def test_a_service_that_must_not_wait_for_an_aligner_ends_with_an_error(local: Domain) -> None:
    conf = durability_conf(local.url, node="a", require_aligner=True, initial_discovery_period=0.1)
    conf.set_override("aligner", False, group="durability_policy:default")
    with DurabilityService(conf) as service, pytest.raises(NoAligner, match="no service may lead all"):
        service.wait(TIMEOUT_S)


def test_a_lazy_service_fetches_when_somebody_wants_to_read(local: Domain) -> None:
    publisher = local.publisher()
    local.start("a")
    local.wait_complete()
    publish(publisher, event("k1", 1))
    wait_samples(local, 1)
    lazy_conf = durability_conf(local.url, node="lazy", store="")
    lazy_conf.set_override("alignee", "LAZY", group="durability_policy:default")
    with DurabilityService(lazy_conf) as lazy:
        wait_until(lambda: lazy.status().name_spaces[0].phase == "DORMANT", TIMEOUT_S, "the lazy one to rest")
        assert lazy.status().name_spaces[0].samples == 0
        with local.client() as client:
            assert client.history(["#"], timeout_s=TIMEOUT_S)[0] is HistoryOutcome.COMPLETE
        wait_until(lambda: lazy.status().name_spaces[0].is_complete, TIMEOUT_S, "the lazy one to fetch")
        assert lazy.status().name_spaces[0].samples == 1
    publisher.close()


def test_a_store_is_not_shared(local: Domain) -> None:
    local.start("a")
    with pytest.raises(StoreInUse):
        local.start("a")


def test_a_store_that_is_removed_under_a_service_confirms_nothing_more(local: Domain) -> None:
    service = local.start("n1")
    publisher = local.publisher()
    local.wait_complete()
    publisher.send_event(event("before", 1))
    publisher.confirm(caches=1, timeout_s=TIMEOUT_S)
    for file in local.directory.glob("n1.db*"):
        file.unlink()
    publisher.send_event(event("after", 2))
    with pytest.raises(StoreFailed, match="is gone"):
        service.wait(TIMEOUT_S)
    with pytest.raises(WaitTimeout):
        publisher.confirm(caches=1, timeout_s=0.5)
    publisher.close()


def test_nobody_to_delete_is_an_error(local: Domain) -> None:
    with local.client() as client, pytest.raises(NoService, match="no durability service answered"):
        client.delete_historical_data(["a"], timeout_s=0.5)


def test_the_lease_is_renewed_and_the_trace_is_json(local: Domain, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("durability_service.config.WATCHDOG_INTERVAL_S", 0.05)
    lease, trace = local.directory / "lease", local.directory / "trace.json"
    local.start("a", lease_file=str(lease), tracing_file=str(trace), tracing_verbosity="FINEST")
    local.wait_complete()
    first = wait_until(lambda: lease.exists() and lease.stat().st_mtime_ns, TIMEOUT_S, "the lease")
    wait_until(lambda: lease.stat().st_mtime_ns > first, TIMEOUT_S, "its renewal")
    local.stop("a")  # all is written then
    lines = [json.loads(line) for line in trace.read_text().splitlines()]
    assert "complete" in {line["what"] for line in lines}
    assert {line["node"] for line in lines} == {"a"}
