"""The conformance suite finds drivers that are wrong.  Each of these is right but for one thing."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

import pytest

from pubsub_api import loading
from pubsub_api.driver import Connected, LinkReport, PubSubApi, SubscriberApi
from pubsub_api.testing.conformance import DriverConformance
from pubsub_api.testing.conformance.stage import Stage
from pubsub_api.testing.faults import Faults
from pubsub_api.testing.faulty import FaultyPubSub, FaultySubscriber
from pubsub_api.testing.receivers import RecordingReceiver

URL = "memory://suite"


class WrongSubscriber(FaultySubscriber):
    """A subscriber without faults, to be made wrong."""


class PrefixSubscriber(WrongSubscriber):
    def register_topic(self, topic_filter: str) -> bool:
        is_new = super().register_topic(topic_filter)
        if not topic_filter.endswith(("#", "+")):
            super().register_topic(f"{topic_filter}/#")
        return is_new


class ForgetfulSubscriber(WrongSubscriber):
    def register_topic(self, topic_filter: str) -> bool:
        super().register_topic(topic_filter)
        return True


class LaxSubscriber(WrongSubscriber):
    def register_topic(self, topic_filter: str) -> bool:
        return "//" in topic_filter or super().register_topic(topic_filter)


class BackwardsSubscriber(WrongSubscriber):
    """Pairs of frames are turned round."""

    _kept: bytes | None = None

    def on_frames(self, frames: Sequence[bytes]) -> None:
        for frame in frames:
            if self._kept is None:
                self._kept = frame
            else:
                super().on_frames([frame, self._kept])
                self._kept = None


class TruncatingSubscriber(WrongSubscriber):
    def on_frames(self, frames: Sequence[bytes]) -> None:
        super().on_frames([frame[:-1] for frame in frames])


class StutteringSubscriber(WrongSubscriber):
    def on_link(self, report: LinkReport) -> None:
        super().on_link(report)
        if isinstance(report, Connected) and self._receiver is not None:
            self._receiver.on_link(report)


class DeafSubscriber(WrongSubscriber):
    def unregister_topic(self, topic_filter: str) -> bool:
        return topic_filter is not None


class DeadOnArrival(WrongSubscriber):
    @property
    def is_running(self) -> bool:
        return False


class WrongPubSub(FaultyPubSub):
    def __init__(self, inner: PubSubApi, subscriber_class: type[WrongSubscriber]) -> None:
        super().__init__(inner, Faults())
        self._subscriber_class = subscriber_class

    def get_subscriber(self) -> WrongSubscriber:
        inner: SubscriberApi = self._inner.get_subscriber()
        return self._subscriber_class(inner, self.faults)


def stage_of(subscriber_class: type[WrongSubscriber]) -> Stage:
    def make(url: str) -> PubSubApi:
        return WrongPubSub(loading.build_driver(loading.conf_from_url(url)), subscriber_class)

    return Stage(make(URL), make, URL)


CASES: dict[Callable[..., None], type[WrongSubscriber]] = {
    DriverConformance.test_an_exact_filter_is_no_prefix: PrefixSubscriber,
    DriverConformance.test_registering_says_whether_it_is_new: ForgetfulSubscriber,
    DriverConformance.test_a_topic_can_come_back: DeafSubscriber,
    DriverConformance.test_a_bad_filter_is_refused: LaxSubscriber,
    DriverConformance.test_frames_of_several_topics_keep_their_order: BackwardsSubscriber,
    DriverConformance.test_send_many_keeps_the_order_across_topics: BackwardsSubscriber,
    DriverConformance.test_a_frame_sent_after_connected_arrives_unchanged: TruncatingSubscriber,
    DriverConformance.test_connected_is_reported_once_per_link: StutteringSubscriber,
    DriverConformance.test_is_running_from_daemonize_to_close: DeadOnArrival,
}


@pytest.mark.parametrize("test", CASES, ids=lambda test: test.__name__)
def test_a_wrong_driver_fails(test: Callable[..., None]) -> None:
    with contextlib.closing(stage_of(CASES[test])) as stage, pytest.raises((AssertionError, pytest.fail.Exception)):
        test(DriverConformance(), stage)


@pytest.mark.parametrize("test", CASES, ids=lambda test: test.__name__)
def test_a_right_driver_passes(test: Callable[..., None]) -> None:
    with contextlib.closing(stage_of(WrongSubscriber)) as stage:
        test(DriverConformance(), stage)


def test_a_wait_in_vain_says_what_it_waited_for() -> None:
    receiver = RecordingReceiver()
    receiver.on_link(Connected("here"))
    with pytest.raises(TimeoutError, match=r"2 frames: not within 0.01 s; so far 0 frames.*Connected\("):
        receiver.wait_frames(2, timeout_s=0.01)
