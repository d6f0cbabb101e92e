"""Publishers that end, restart or share a name; links that come back; filters that come and go."""

from __future__ import annotations

import dataclasses

import pytest

from pubsub_api.core.sending.publisher import Predecessor, PublisherCore
from tests.unit.pubsub_api.core_rig import ADDRESS, NO_REPAIR, SUBSCRIBER, Rig, guid_of

BIND = dataclasses.replace(SUBSCRIBER, verify_after_reconnect=True)


class PublisherAfter:
    """A publisher that knows the final heads of its former life."""

    def __init__(self, rig: Rig, former: bytes, heads: dict[str, int]) -> None:
        self.core = rig.publisher("host", predecessor=Predecessor(former, heads))


# -- publishers that end and start


def test_a_goodbye_shows_the_loss_of_the_last_event_and_ends_the_silence() -> None:
    rig = Rig(settings=NO_REPAIR)
    publisher = rig.publisher()
    rig.join()
    rig.publish(publisher, "a")
    rig.deliver(*(frame for _, frame in publisher.bye(rig.stamp)))
    rig.publishers.clear()
    rig.run(1)
    assert rig.reasons == ["initial", "loss"]
    rig.run(100)
    assert rig.reasons == ["initial", "loss"]


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_a_goodbye_counts_only_when_it_is_whole(lost: int) -> None:
    rig = Rig(settings=NO_REPAIR)
    publisher = rig.publisher()
    rig.join()
    for number in range(250):
        rig.deliver(*rig.publish(publisher, f"t/{number}"))
    goodbye = [frame for _, frame in publisher.bye(rig.stamp)]
    assert len(goodbye) == 3
    rig.deliver(*(frame for position, frame in enumerate(goodbye) if position != lost))
    rig.publishers.clear()
    rig.run(30)
    assert rig.reasons == ["initial", "silence"]
    rig.forget_told()
    rig.deliver(goodbye[lost])
    rig.run(30)
    assert rig.reasons == []


def test_a_restart_without_known_heads_is_a_resync() -> None:
    rig = Rig()
    former = rig.publisher()
    rig.join()
    rig.deliver(*rig.publish(former, "a", 3))
    rig.publishers.clear()
    rig.publisher("host")
    rig.run(1)
    assert rig.reasons == ["initial", "publisher restarted"]
    rig.publishers.clear()
    rig.forget_told()
    rig.run(14)
    assert rig.reasons == []


def test_a_restart_with_known_heads_that_match_is_no_resync() -> None:
    rig = Rig()
    former = rig.publisher()
    rig.join()
    rig.deliver(*rig.publish(former, "a", 3))
    rig.publishers.clear()
    successor = PublisherAfter(rig, former.guid, former.heads())
    rig.deliver(*rig.publish(successor.core, "a", 2))
    rig.run(60)
    assert rig.reasons == ["initial"]
    assert rig.numbers("a") == [1, 2, 3, 1, 2]
    assert rig.subscriber.counters.peers.restarts == 1


def test_a_restart_with_known_heads_shows_what_the_former_life_lost() -> None:
    rig = Rig(settings=NO_REPAIR)
    former = rig.publisher()
    rig.join()
    rig.deliver(*rig.publish(former, "a", 3))
    rig.publish(former, "a", 2)
    rig.publishers.clear()
    PublisherAfter(rig, former.guid, former.heads())
    rig.run(1)
    assert rig.reasons == ["initial", "loss"]
    assert [(lost.guid, lost.first, lost.last) for lost in rig.resyncs[-1].lost] == [(former.guid.hex(), 4, 5)]


def test_the_heads_of_a_predecessor_count_for_those_who_never_heard_of_it() -> None:
    rig = Rig()
    rig.join()
    PublisherAfter(rig, guid_of(77), {"a": 3})
    rig.run(1)
    assert rig.reasons == ["initial", "unknown stream"]
    assert rig.resyncs[-1].topics == ("a",)


def test_a_restart_whose_first_hello_was_lost_is_found_by_name() -> None:
    rig = Rig()
    former = rig.publisher()
    rig.join()
    rig.deliver(*rig.publish(former, "a"))
    rig.publishers.clear()
    rig.publisher("host", is_heard=False)
    rig.run(6)
    assert "publisher restarted" in rig.reasons


def test_a_restart_after_a_goodbye_is_no_resync() -> None:
    rig = Rig()
    former = rig.publisher()
    rig.join()
    rig.deliver(*rig.publish(former, "a"), *(frame for _, frame in former.bye(rig.stamp)))
    rig.publishers.clear()
    rig.deliver(*rig.publish(rig.publisher("host"), "a"))
    rig.run(60)
    assert rig.reasons == ["initial"]


def test_two_living_publishers_of_one_name_resync_once_and_are_left_in_peace() -> None:
    rig = Rig()
    one = rig.publisher("shared")
    rig.join()
    rig.publisher("shared")
    rig.run(30)
    assert rig.reasons == ["initial", "publisher restarted"]
    rig.deliver(*rig.publish(one, "a"))
    rig.run(60)
    assert rig.reasons == ["initial", "publisher restarted"]
    assert rig.numbers("a") == [1]


# -- links


def test_a_reconnect_is_a_resync_where_others_may_have_published() -> None:
    rig = Rig()
    rig.publisher()
    rig.join()
    rig.disconnect()
    rig.connect()
    rig.run(1)
    assert rig.reasons == ["initial", "reconnected"]


def shared(*, up_s: float) -> tuple[Rig, PublisherCore]:
    """A link to something shared, which was up for so long and has gone down."""
    rig = Rig()
    publisher = rig.publisher()
    rig.connect(arrivals="one")
    rig.run(up_s)
    rig.deliver(*rig.publish(publisher, "a", 2))
    rig.disconnect()
    rig.publish(publisher, "a", 3)
    return rig, publisher


def test_a_reconnect_is_verified_where_it_is_known_that_nobody_has_come() -> None:
    rig, _ = shared(up_s=SUBSCRIBER.silence_timeout_s)
    rig.connect(arrivals="one")
    rig.run(2)
    assert rig.reasons == ["initial"]
    assert rig.subscriber.counters.peers.verified_reconnects == 1
    assert rig.numbers("a") == [1, 2, 3, 4, 5]


def test_links_that_are_up_for_a_moment_only_are_verified_when_one_was_up_for_long() -> None:
    rig, _ = shared(up_s=SUBSCRIBER.silence_timeout_s)
    for _ in range(5):
        rig.connect(arrivals="one")
        rig.run(0.1)
        rig.disconnect()
    rig.connect(arrivals="one")
    rig.run(2)
    assert rig.reasons == ["initial"]


@pytest.mark.parametrize("arrivals", ["two", ""])
def test_a_reconnect_is_a_resync_where_somebody_has_come_or_nobody_can_tell(arrivals: str) -> None:
    rig, _ = shared(up_s=SUBSCRIBER.silence_timeout_s)
    rig.connect(arrivals=arrivals)
    rig.run(2)
    assert rig.reasons == ["initial", "reconnected"]


def test_a_reconnect_is_a_resync_where_not_everybody_was_heard_before() -> None:
    rig, _ = shared(up_s=SUBSCRIBER.silence_timeout_s - 1)
    rig.connect(arrivals="one")
    rig.run(2)
    assert rig.reasons == ["initial", "reconnected"]


def test_a_reconnect_is_a_resync_where_no_signs_of_life_were_heard_before() -> None:
    rig = Rig()
    publisher = rig.publisher()
    rig.connect(arrivals="one")
    for _ in range(20):
        rig.run(1, hellos=False)
        rig.deliver(*rig.publish(publisher, "a"))
    rig.disconnect()
    rig.connect(arrivals="one")
    rig.run(2)
    assert rig.reasons == ["initial", "reconnected"]


def test_a_reconnect_is_a_resync_where_nobody_has_come_and_somebody_does_not_answer() -> None:
    rig, _ = shared(up_s=SUBSCRIBER.silence_timeout_s)
    rig.responders.clear()
    rig.connect(arrivals="one")
    rig.run(3)
    assert "reconnected" in rig.reasons


def test_a_reconnect_that_lost_nothing_is_verified() -> None:
    rig = Rig(settings=BIND)
    publisher = rig.publisher()
    rig.join()
    rig.deliver(*rig.publish(publisher, "a", 2))
    rig.disconnect()
    missed = rig.publish(publisher, "a", 3)
    assert missed
    rig.connect()
    rig.run(2)
    assert rig.reasons == ["initial"]
    assert rig.subscriber.counters.peers.verified_reconnects == 1
    assert rig.numbers("a") == [1, 2, 3, 4, 5]


def test_a_reconnect_is_not_verified_when_a_publisher_does_not_answer() -> None:
    rig = Rig(settings=BIND)
    rig.publisher("one")
    rig.publisher("two")
    rig.join()
    del rig.responders[0]
    rig.disconnect()
    rig.connect()
    rig.run(2)
    assert rig.reasons == ["initial", "reconnected"]


def test_a_reconnect_is_not_verified_when_a_stranger_answers() -> None:
    """Somebody may have started, published and ended behind the link, and only its successor is there to ask."""
    rig = Rig(settings=BIND)
    former = rig.publisher()
    rig.join()
    rig.deliver(*(frame for _, frame in former.bye(rig.stamp)))
    rig.disconnect()
    rig.responders.clear()
    rig.publisher("host", is_heard=False)
    rig.connect()
    rig.run(2)
    assert rig.reasons == ["initial", "reconnected"]
    rig.disconnect()
    rig.connect()
    rig.run(2)
    assert rig.subscriber.counters.peers.verified_reconnects == 1


def test_a_filter_that_was_added_while_the_link_was_down_is_resynced() -> None:
    rig = Rig("a", settings=BIND)
    publisher = rig.publisher()
    rig.publish(publisher, "b", 3)
    rig.join()
    rig.disconnect()
    rig.subscriber.filter_added("b")
    rig.connect()
    rig.run(2)
    assert set(rig.resyncs[-1].topics) == {"a", "b"}
    rig.deliver(*rig.publish(publisher, "b"))
    assert rig.numbers("b") == [4]


def test_a_filter_that_joins_during_a_reconnect_is_resynced() -> None:
    rig = Rig("a", settings=BIND)
    rig.knows_responders = False
    rig.publisher()
    rig.join()
    rig.disconnect()
    rig.connect()
    rig.subscriber.filter_added("b")
    rig.subscriber.filter_up("b", rig.now)
    rig.settle()
    rig.run(2)
    assert rig.reasons == ["initial", "subscribed"]
    assert set(rig.resyncs[-1].topics) == {"a", "b"}


def test_link_removed_makes_the_next_one_new() -> None:
    rig = Rig()
    rig.join()
    rig.subscriber.link_removed(ADDRESS)
    rig.connect(ADDRESS)
    rig.run(1)
    assert rig.reasons == ["initial", "new link"]


# -- filters


def test_a_filter_that_is_added_resyncs_its_topics_only() -> None:
    rig = Rig("a")
    publisher = rig.publisher()
    rig.publish(publisher, "b/x", 4)
    rig.join()
    assert rig.subscriber.filter_added("b/#")
    assert not rig.subscriber.filter_added("b/#")
    rig.subscriber.filter_up("b/#", rig.now)
    rig.settle()
    rig.run(1)
    assert rig.reasons == ["initial", "subscribed"]
    assert rig.resyncs[-1].topics == ("b/#",)
    rig.deliver(*rig.publish(publisher, "b/x"))
    assert rig.numbers("b/x") == [5]


def test_a_filter_that_is_dropped_ends_its_streams_and_may_return() -> None:
    rig = Rig("a", "b")
    publisher = rig.publisher()
    rig.join()
    rig.deliver(*rig.publish(publisher, "a"), *rig.publish(publisher, "b"))
    assert rig.subscriber.filter_removed("b")
    assert not rig.subscriber.filter_removed("b")
    rig.deliver(*rig.publish(publisher, "a"), *rig.publish(publisher, "b", 3))
    assert rig.received == [("a", 1), ("b", 1), ("a", 2)]
    rig.subscriber.filter_added("b")
    rig.subscriber.filter_up("b", rig.now)
    rig.settle()
    rig.deliver(*rig.publish(publisher, "b"))
    rig.run(1)
    assert rig.reasons == ["initial", "subscribed"]
    assert rig.numbers("b") == [1, 5]


def test_dropping_a_filter_leaves_streams_that_another_filter_selects() -> None:
    rig = Rig("a/#", "a/b")
    publisher = rig.publisher()
    rig.join()
    rig.deliver(*rig.publish(publisher, "a/b"))
    rig.subscriber.filter_removed("a/b")
    rig.publish(publisher, "a/b")
    rig.deliver(*rig.publish(publisher, "a/b"))
    rig.run(1)
    assert rig.numbers("a/b") == [1, 2, 3]


def test_the_past_under_a_new_filter_is_not_repaired_when_a_publisher_did_not_answer() -> None:
    rig = Rig("a")
    publisher = rig.publisher()
    rig.join()
    rig.publish(publisher, "b", 50)
    answering, rig.responders = rig.responders, []
    rig.knows_responders = False
    rig.subscriber.filter_added("b")
    rig.subscriber.filter_up("b", rig.now)
    rig.settle()
    rig.run(1)
    rig.responders = answering
    rig.deliver(*rig.publish(publisher, "b"))
    rig.run(2)
    assert rig.numbers("b") == [51]
    assert rig.reasons == ["initial", "subscribed", "unknown stream"]
