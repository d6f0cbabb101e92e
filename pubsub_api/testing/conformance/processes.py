"""Several processes: frames reach other processes, which go on when one of them is killed or stopped."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pubsub_api.driver import Disconnected
from pubsub_api.testing.child import START_S, ChildProcess
from pubsub_api.testing.conformance.base import ConformanceBase
from pubsub_api.testing.conformance.stage import Stage
from pubsub_api.testing.frames import header
from pubsub_api.testing.receivers import eventually


class ProcessConformance(ConformanceBase):
    @pytest.fixture
    def publisher_process(self, driver_url: str) -> Iterator[ChildProcess]:
        """A publisher in another process.  Its first message has its address."""
        if not self.multi_process:
            pytest.skip("the driver connects no processes")
        with ChildProcess("publisher", driver_url) as child:
            yield child

    def test_frames_from_another_process_arrive_in_order(self, stage: Stage, publisher_process: ChildProcess) -> None:
        listener = stage.unstarted_subscriber("remote/#")
        listener.listen_to([publisher_process.receive()["address"]])
        listener.start()
        for window in range(1, 5):
            publisher_process.ask(send="remote/x", count=250, size=200)
            listener.heard.wait_frames(250 * window)
        assert [header(frame).first for frame in listener.heard.frames] == list(range(1, 1001))

    def test_a_query_is_answered_by_another_process(self, stage: Stage, publisher_process: ChildProcess) -> None:
        if not stage.capabilities.queries:
            pytest.skip("the driver has no queries")
        listener = stage.unstarted_subscriber("t")
        listener.listen_to([publisher_process.receive()["address"]])
        listener.start()
        guid = publisher_process.ask(send="t", count=1, size=1)["guid"]
        numbers: list[int] = []

        def is_answered() -> bool:
            numbers.append(listener.ask())
            return any(listener.answers(number) for number in numbers)

        eventually(is_answered, "an answer from another process")
        answers = [answer for number in numbers for answer in listener.answers(number)]
        assert {answer[0].hex() for answer in answers} == {guid}

    def test_a_killed_publisher_is_replaced(self, stage: Stage, driver_url: str) -> None:
        if not self.multi_process:
            pytest.skip("the driver connects no processes")
        url = self.lasting_url(driver_url)
        listener = stage.unstarted_subscriber("t")
        with ChildProcess("publisher", url) as predecessor:
            address = predecessor.receive()["address"]
            listener.listen_to([address])
            listener.start()
            predecessor.ask(send="t", count=10, size=10)
            listener.heard.wait_frames(10)
        is_link_lost = stage.capabilities.bind_based
        if is_link_lost and "disconnect" in stage.capabilities.reports:
            listener.heard.wait_link(Disconnected(address, ""))
        with ChildProcess("publisher", url) as successor:
            assert successor.receive()["address"] == address
            listener.heard.wait_connected(address, count=2 if is_link_lost else 1)
            guid = successor.ask(send="t", count=10, size=10)["guid"]
            frames = listener.heard.wait_frames(20)
        assert [header(frame).guid.hex() for frame in frames[10:]] == [guid] * 10

    def test_a_stopped_subscriber_goes_on(self, stage: Stage, driver_url: str) -> None:
        if not self.multi_process:
            pytest.skip("the driver connects no processes")
        speaker = stage.publisher()
        (address,) = stage.addresses([speaker])
        with ChildProcess("subscriber", driver_url, address, "t") as child:
            child.receive()
            speaker.send("t")
            eventually(lambda: child.ask(heard="t")["numbers"] == [1], "the first frame", START_S)
            child.stop()
            for _ in range(200):
                speaker.send("t", 1000)
            child.resume()
            later = header(speaker.send("t")).first

            def hears_later_frames() -> bool:
                speaker.send("t")
                return int(max(child.ask(heard="t")["numbers"])) >= later

            eventually(hears_later_frames, "frames sent after the stop", START_S)
            numbers = child.ask(heard="t")["numbers"]
            assert numbers == sorted(set(numbers))

    def test_a_killed_subscriber_does_not_disturb_the_publisher(self, stage: Stage, driver_url: str) -> None:
        if not self.multi_process:
            pytest.skip("the driver connects no processes")
        speaker = stage.publisher()
        staying = stage.subscriber("t")
        with ChildProcess("subscriber", driver_url, staying.addresses[0], "t") as child:
            child.receive()
            staying.heard.wait_frame(speaker.send("t"))
            child.kill()
        for _ in range(100):
            staying.heard.wait_frame(speaker.send("t"))
