"""An event for which its program asks for more time."""

from __future__ import annotations

from tests.unit.shared_subscriptions.test_groups_core import delivery


def test_an_event_that_is_extended_is_out_from_then_on() -> None:
    partition = delivery("a", "b")
    first, second = partition.take(0.0, 2, is_exclusive=True)
    assert partition.extend(first, 8.0)
    assert partition.overstayed(10.0, 10.0) == [second]
    assert partition.overstayed(17.0, 10.0) == [second]
    assert partition.overstayed(18.0, 10.0) == [second, first]
    assert partition.ack(first)
    assert not partition.extend(first, 19.0)
    partition.time_out(second, 19.0)
    assert not partition.extend(second, 19.0), "it was taken back"
