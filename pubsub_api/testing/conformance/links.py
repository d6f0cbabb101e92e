"""Links: addresses, what is reported of them, and coming back."""

from __future__ import annotations

import pytest

from pubsub_api.driver import Connected, Disconnected, Subscribed
from pubsub_api.errors import AddressInUse, InvalidConfig
from pubsub_api.testing.conformance.base import ConformanceBase
from pubsub_api.testing.conformance.stage import Stage
from pubsub_api.testing.conformance.topics import SENTINEL, wait_silenced
from pubsub_api.testing.receivers import eventually


def skip_unless_bind_based(stage: Stage) -> None:
    if not stage.capabilities.bind_based:
        pytest.skip("the driver is connect-based: an address has no single owner")


class LinkConformance(ConformanceBase):
    def test_connected_means_that_the_filters_are_in_effect(self, stage: Stage) -> None:
        speaker = stage.publisher()
        for number in range(self.link_rounds):
            listener = stage.subscriber(f"round/{number}", f"round/{number}/#", f"+/{number}/x")
            listener.heard.wait_frame(speaker.send(f"round/{number}"))
            listener.heard.wait_frame(speaker.send(f"round/{number}/x"))
            listener.api.close()

    def test_connected_is_reported_once_per_link(self, stage: Stage) -> None:
        speaker = stage.publisher()
        listener = stage.subscriber("t")
        for _ in range(10):
            listener.heard.wait_frame(speaker.send("t"))
        assert listener.heard.links == [Connected(address) for address in listener.addresses]

    def test_registering_an_address_says_whether_it_is_new(self, stage: Stage) -> None:
        (address,) = stage.addresses([stage.publisher()])
        listener = stage.unstarted_subscriber("t")
        assert listener.api.register_listen_address(address)
        assert not listener.api.register_listen_address(address)
        assert listener.api.unregister_listen_address(address)
        assert not listener.api.unregister_listen_address(address)
        listener.listen_to([address])
        listener.start()
        assert not listener.api.register_listen_address(address)

    def test_a_bad_address_is_refused(self, stage: Stage) -> None:
        listener = stage.unstarted_subscriber()
        for bad in ("", "nonsense", "://", "no-such-transport://x"):
            with pytest.raises(InvalidConfig):
                listener.api.register_listen_address(bad)

    def test_an_address_registered_on_a_running_subscriber_delivers(self, stage: Stage) -> None:
        first = stage.publisher()
        listener = stage.unstarted_subscriber("t")
        listener.start()
        assert listener.api.is_running
        (address,) = stage.addresses([first])
        listener.api.register_listen_address(address)
        listener.heard.wait_connected(address)
        listener.heard.wait_frame(first.send("t"))

    def test_a_second_publisher_can_be_added_at_run_time(self, stage: Stage) -> None:
        skip_unless_bind_based(stage)
        first = stage.publisher()
        listener = stage.subscriber("t")
        second = stage.second_publisher()
        assert second.address != first.address
        listener.listen_to([second.address])
        listener.heard.wait_connected(second.address)
        listener.heard.wait_frame(second.send("t"))
        listener.heard.wait_frame(first.send("t"))
        listener.add_topic("late")
        for speaker in (first, second):
            assert listener.heard.count_links(Subscribed(speaker.address, "late")) == 1
            listener.heard.wait_frame(speaker.send("late"))

    def test_an_unregistered_address_is_left_and_the_others_stay(self, stage: Stage) -> None:
        skip_unless_bind_based(stage)
        first, second = stage.publisher(), stage.second_publisher()
        listener = stage.subscriber("t", SENTINEL)
        assert listener.api.unregister_listen_address(first.address)

        def is_left() -> bool:
            frame = first.send("t")
            listener.heard.wait_frame(second.send(SENTINEL))
            return frame not in listener.heard.frames

        eventually(is_left, "nothing more arrives from the address that was left")
        assert listener.api.register_listen_address(first.address)
        listener.heard.wait_connected(first.address, count=2)
        listener.heard.wait_frame(first.send("t"))

    def test_a_connect_based_address_can_be_left_and_taken_again(self, stage: Stage) -> None:
        if stage.capabilities.bind_based:
            pytest.skip("the driver is bind-based: other tests show it")
        speaker = stage.publisher()
        listener = stage.subscriber("t", SENTINEL)
        (address,) = listener.addresses
        assert listener.api.unregister_listen_address(address)
        assert listener.api.register_listen_address(address)
        listener.heard.wait_connected(address, count=2)
        listener.heard.wait_frame(speaker.send("t"))
        assert listener.api.unregister_topic("t")
        wait_silenced(speaker, listener, "t")

    def test_an_address_is_owned_by_one_publisher(self, stage: Stage, driver_url: str) -> None:
        skip_unless_bind_based(stage)
        first = stage.publisher()
        listener = stage.subscriber("t")
        rival = stage.unopened_publisher(stage.at(self.url_at(driver_url, first.address)))
        with pytest.raises(AddressInUse):
            rival.api.initialize(rival.reports.on_link)
        listener.heard.wait_frame(first.send("t"))

    def test_a_subscriber_may_be_there_first(self, stage: Stage, driver_url: str) -> None:
        if not stage.capabilities.bind_based:
            listener = stage.subscriber("t")
            listener.heard.wait_frame(stage.publisher().send("t"))
            return
        url = self.lasting_url(driver_url)
        gone = stage.publisher(stage.at(url))
        address = gone.address
        gone.api.close()
        listener = stage.unstarted_subscriber("t")
        listener.api.register_listen_address(address)
        listener.api.daemonize()
        assert listener.api.is_running
        speaker = stage.publisher(stage.at(url))
        assert speaker.address == address
        listener.heard.wait_connected(address)
        listener.heard.wait_frame(speaker.send("t"))

    def test_frames_flow_again_when_a_publisher_comes_back(self, stage: Stage, driver_url: str) -> None:
        skip_unless_bind_based(stage)
        url = self.lasting_url(driver_url)
        speaker = stage.publisher(stage.at(url))
        address = speaker.address
        listener = stage.subscriber("t")
        listener.heard.wait_frame(speaker.send("t"))
        for restarts in (1, 2):
            speaker.api.close()
            if "disconnect" in stage.capabilities.reports:
                listener.heard.wait_link(Disconnected(address, ""), count=restarts)
            speaker = stage.publisher(stage.at(url))
            listener.heard.wait_connected(address, count=1 + restarts)
            listener.heard.wait_frame(speaker.send("t"))
        kinds = [type(report) for report in listener.heard.links if not isinstance(report, Subscribed)]
        if "disconnect" in stage.capabilities.reports:
            assert kinds == [Connected, Disconnected, Connected, Disconnected, Connected]

    def test_filters_changed_while_the_link_is_down_hold_when_it_is_up(self, stage: Stage, driver_url: str) -> None:
        skip_unless_bind_based(stage)
        url = self.lasting_url(driver_url)
        speaker = stage.publisher(stage.at(url))
        address = speaker.address
        listener = stage.subscriber("t", "dropped", SENTINEL)
        speaker.api.close()
        if "disconnect" in stage.capabilities.reports:
            listener.heard.wait_link(Disconnected(address, ""))
        listener.api.register_topic("meanwhile/#")
        listener.api.unregister_topic("dropped")
        speaker = stage.publisher(stage.at(url))
        listener.heard.wait_connected(address, count=2)
        listener.heard.wait_frame(speaker.send("meanwhile/x"))
        wait_silenced(speaker, listener, "dropped")
