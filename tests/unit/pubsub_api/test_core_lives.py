"""A publisher that died and lives again behind the same link: what it can prove of its former life spares a resync."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pytest

from pubsub_api.core import messages
from pubsub_api.core.sending.publisher import Predecessor, PublisherCore
from tests.unit.pubsub_api.core_rig import SUBSCRIBER, Rig, guid_of

BIND = dataclasses.replace(SUBSCRIBER, verify_after_reconnect=True)
Frames = Sequence[bytes]


def die(rig: Rig) -> None:
    """All publishers are gone, and with them the link."""
    rig.publishers.clear()
    rig.responders.clear()
    rig.disconnect()


def reborn(rig: Rig, former: PublisherCore, kept: Frames = (), before: Predecessor | None = None) -> PublisherCore:
    """Its next life, which nobody hears begin: the link is down."""
    return rig.publisher("host", predecessor=Predecessor(former.guid, former.heads(), kept, before), is_heard=False)


@pytest.fixture
def rig() -> Rig:
    return Rig(settings=BIND)


@pytest.fixture
def former(rig: Rig) -> PublisherCore:
    publisher = rig.publisher()
    rig.join()
    rig.deliver(*rig.publish(publisher, "a", 3))
    return publisher


def test_a_subscriber_that_had_everything_needs_no_resync(rig: Rig, former: PublisherCore) -> None:
    die(rig)
    successor = reborn(rig, former)
    rig.connect()
    rig.deliver(*rig.publish(successor, "a", 2))
    rig.run(60)
    assert rig.reasons == ["initial"]
    assert rig.numbers("a") == [1, 2, 3, 1, 2]
    assert rig.counters["verified_reconnects"] == 1
    assert rig.counters["restarts"] == 1
    assert rig.counters["silences"] == 0


def test_what_the_former_life_published_last_is_repaired_by_the_next(rig: Rig, former: PublisherCore) -> None:
    lost = rig.publish(former, "a", 2)
    die(rig)
    reborn(rig, former, lost)
    rig.connect()
    rig.run(5)
    assert rig.reasons == ["initial"]
    assert rig.numbers("a") == [1, 2, 3, 4, 5]
    assert rig.counters["closed_by_repair"] == 1


def test_what_nobody_has_kept_is_a_resync_that_names_it(rig: Rig, former: PublisherCore) -> None:
    rig.publish(former, "a", 2)
    die(rig)
    reborn(rig, former)
    rig.connect()
    rig.run(5)
    assert rig.reasons == ["initial", "loss"]
    assert [(lost.guid, lost.first, lost.last) for lost in rig.resyncs[-1].lost] == [(former.guid.hex(), 4, 5)]


def test_what_the_next_life_published_before_the_link_was_back_is_repaired(rig: Rig, former: PublisherCore) -> None:
    die(rig)
    successor = reborn(rig, former)
    rig.publish(successor, "a", 4)
    rig.publish(successor, "b", 1)
    rig.connect()
    rig.run(5)
    assert rig.reasons == ["initial"]
    assert rig.numbers("a") == [1, 2, 3, 1, 2, 3, 4]
    assert rig.numbers("b") == [1]


def test_data_that_outruns_the_answer_waits_for_it(rig: Rig, former: PublisherCore) -> None:
    die(rig)
    successor = reborn(rig, former)
    rig.publish(successor, "a", 2)
    asked, rig.responders[:] = list(rig.responders), []
    rig.deliver(*rig.publish(successor, "a", 2))
    assert rig.numbers("a") == [1, 2, 3]
    rig.responders[:] = asked
    rig.connect()
    rig.run(5)
    assert rig.reasons == ["initial"]
    assert rig.numbers("a") == [1, 2, 3, 1, 2, 3, 4]


def test_data_of_a_stranger_is_a_resync_when_nobody_answers(rig: Rig, former: PublisherCore) -> None:
    stranger = rig.publisher("elsewhere", is_heard=False, is_asked=False)
    rig.publish(stranger, "a", 2)
    rig.responders.clear()
    rig.deliver(*rig.publish(stranger, "a", 1))
    assert rig.reasons == ["initial"]
    rig.run(BIND.ready_timeout_s)
    assert rig.reasons == ["initial", "unknown stream"]
    assert rig.numbers("a") == [1, 2, 3, 3]


def test_data_of_a_stranger_is_a_resync_when_its_answer_proves_nothing(rig: Rig, former: PublisherCore) -> None:
    stranger = rig.publisher("elsewhere", is_heard=False, age_s=60)
    rig.publish(stranger, "a", 2)
    rig.deliver(*rig.publish(stranger, "a", 1))
    rig.run(0.01)
    assert rig.reasons == ["initial", "unknown stream"]


def test_two_lives_between_two_links_are_proven_as_one(rig: Rig, former: PublisherCore) -> None:
    die(rig)
    second = PublisherCore(former.settings, guid=guid_of(50), name="host", now=rig.now)
    published = rig.publish(second, "a", 2)
    reborn(rig, second, published, before=Predecessor(former.guid, former.heads()))
    rig.connect()
    rig.run(60)
    assert rig.reasons == ["initial"]
    assert rig.numbers("a") == [1, 2, 3, 1, 2]


def test_a_life_of_which_the_next_knows_nothing_is_a_resync(rig: Rig, former: PublisherCore) -> None:
    die(rig)
    rig.publisher("host", predecessor=Predecessor(guid_of(99), {"a": 1}), is_heard=False)
    rig.connect()
    rig.run(5)
    assert "initial" in rig.reasons
    assert len(rig.reasons) > 1


def test_a_heartbeat_that_is_heard_before_the_answer_is_no_restart(rig: Rig, former: PublisherCore) -> None:
    die(rig)
    successor = reborn(rig, former)
    asked, rig.responders[:] = list(rig.responders), []
    rig.now += BIND.max_idle_time_s
    rig.deliver(*(frame for _, frame in successor.poll(rig.now, rig.stamp)))
    rig.responders[:] = asked
    rig.connect()
    rig.run(60)
    assert rig.reasons == ["initial"]


def test_former_lives_are_told_for_a_while_only(rig: Rig) -> None:
    """For as long as subscribers remember a publisher that vanished."""
    settings = dataclasses.replace(rig.publisher().settings, forget_time_s=7.0)
    core = PublisherCore(settings, guid=guid_of(7), name="n", now=0.0, predecessor=Predecessor(guid_of(6), {"a": 3}))
    core.start(0.0, 1)
    query = messages.Query(id=1, topics=["#"])
    early, late = (b"".join(core.answer(query, stamp, 7.0)) for stamp in (7_000_000_000, 7_000_000_001))
    assert guid_of(6) in early
    assert guid_of(6) not in late


def test_an_answer_about_one_new_filter_tells_not_all_the_final_heads_of_a_former_life() -> None:
    rig = Rig("a")
    first = rig.publisher("host")
    rig.join()
    rig.deliver(*rig.publish(first, "a"))
    rig.publish(first, "a")  # and nothing of it, nor of the end, is heard
    rig.forget_told()
    rig.publishers.clear()
    rig.responders.clear()
    rig.publisher("host", predecessor=Predecessor(first.guid, first.heads()), is_heard=False)
    rig.subscriber.filter_added("c")
    rig.subscriber.filter_up("c", rig.now)
    rig.run(2.0)
    assert not rig.subscriber.publishers[first.guid].has_ended
    rig.run(60.0)
    assert rig.numbers("a") == []
    assert set(rig.reasons) & {"loss", "silence", "publisher restarted"}
