"""Life of the two ends: start, close, threads, configuration."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence

import pytest
from oslo_config import cfg

from pubsub_api.driver import LinkReport, PubSubApi, SubscriberApi
from pubsub_api.errors import Closed
from pubsub_api.testing.conformance.base import ConformanceBase
from pubsub_api.testing.conformance.stage import Stage, wait_routed
from pubsub_api.testing.receivers import WAIT_S, RecordingReceiver, eventually


def python_threads() -> set[threading.Thread]:
    """The threads that Python code has started, without those of foreign libraries, which appear as dummies."""
    return {thread for thread in threading.enumerate() if not isinstance(thread, threading._DummyThread)}


class ClosingReceiver(RecordingReceiver):
    """Closes its subscriber from within the callback."""

    def __init__(self) -> None:
        super().__init__()
        self.subscriber: SubscriberApi | None = None
        self.is_done = threading.Event()

    def on_frames(self, frames: Sequence[bytes]) -> None:
        super().on_frames(frames)
        if self.subscriber is not None:
            self.subscriber.close()
        self.is_done.set()


class FailingReceiver(RecordingReceiver):
    """Raises in every call, which the contract forbids."""

    def on_frames(self, frames: Sequence[bytes]) -> None:
        super().on_frames(frames)
        raise ValueError("a receiver that raises in on_frames, on purpose")

    def on_link(self, report: LinkReport) -> None:
        super().on_link(report)
        raise ValueError("a receiver that raises in on_link, on purpose")


class FailingLender(FailingReceiver):
    """Raises also on a thread that the driver lends."""

    def on_frames_lent(self, frames: Sequence[bytes], relieve: Callable[[], None]) -> bool:  # noqa: ARG002
        self.on_frames(frames)
        return False


class FailingKeeper(FailingReceiver):
    """Lets the driver replace the lent thread before it raises."""

    def on_frames_lent(self, frames: Sequence[bytes], relieve: Callable[[], None]) -> bool:
        relieve()
        self.on_frames(frames)
        return True


class SolitaryReceiver(RecordingReceiver):
    """Counts calls that begin while another call runs."""

    def __init__(self) -> None:
        super().__init__()
        self._busy = threading.Lock()
        self.collisions = 0

    def on_frames(self, frames: Sequence[bytes]) -> None:
        with self._alone():
            super().on_frames(frames)

    def on_link(self, report: LinkReport) -> None:
        with self._alone():
            super().on_link(report)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        is_free = self._busy.acquire(blocking=False)
        self.collisions += not is_free
        try:
            threading.Event().wait(0.0005)  # time for another thread to call
            yield
        finally:
            if is_free:
                self._busy.release()


class LifecycleConformance(ConformanceBase):
    def test_the_capabilities_are_sound(self, stage: Stage) -> None:
        capabilities = stage.capabilities
        assert capabilities == stage.driver.capabilities
        assert capabilities.frame_bytes_max >= 64 * 1024
        assert {"connect", "subscribed"} <= capabilities.reports
        assert all(isinstance(address, str) and address for address in stage.driver.listen_addresses())

    def test_the_options_state_what_they_mean(self, driver: PubSubApi) -> None:
        for group, options in type(driver).options.items():
            for option in options:
                assert option.help, f"[{group}] {option.name} has no help"

    def test_what_is_counted_is_named_from_the_start_and_never_shrinks(self, stage: Stage) -> None:
        unused = stage.unopened_publisher().api, stage.unstarted_subscriber("t").api
        names = [set(end.counters) for end in unused]
        speaker = stage.publisher()
        listener = stage.subscriber("t", to=[speaker])
        listener.heard.wait_frame(speaker.send("t"))
        ends = speaker.api, listener.api
        before = [dict(end.counters) for end in ends]
        for end in (listener.api, speaker.api):
            end.close()
        after = [dict(end.counters) for end in ends]
        assert [set(counted) for counted in before] == [set(counted) for counted in after] == names
        for earlier, later in zip(before, after, strict=True):
            assert all(0 <= count <= later[name] for name, count in earlier.items())

    def test_is_running_from_daemonize_to_close(self, stage: Stage) -> None:
        stage.publisher()
        listener = stage.unstarted_subscriber("t")
        listener.listen_to(stage.addresses(stage.speakers))
        states = [listener.api.is_running]
        for step in (listener.start, listener.api.close):
            step()
            states.append(listener.api.is_running)
        assert states == [False, True, False]

    def test_close_may_be_called_at_any_time_and_twice(self, stage: Stage) -> None:
        speaker = stage.publisher()
        listener = stage.subscriber("t")
        for unused in (stage.unopened_publisher().api, stage.unstarted_subscriber("t").api, speaker.api, listener.api):
            unused.close()
            unused.close()

    def test_close_ends_every_thread(self, stage: Stage) -> None:
        before = python_threads()
        speaker = stage.publisher()
        if stage.capabilities.queries:
            speaker.api.serve(speaker.echo())
        listener = stage.subscriber("t")
        listener.heard.wait_frame(speaker.send("t"))
        listener.api.close()
        speaker.api.close()
        eventually(lambda: python_threads() <= before, f"the threads {python_threads() - before} end")

    def test_no_call_comes_after_close(self, stage: Stage) -> None:
        speaker = stage.publisher()
        witness = stage.subscriber("t")
        listener = stage.subscriber("t")
        is_over = threading.Event()

        def send_on() -> None:
            while not is_over.is_set():
                witness.heard.wait_frame(speaker.send("t"))

        sender = threading.Thread(target=send_on)
        sender.start()
        try:
            listener.heard.wait_frames(20)
            listener.api.close()
            calls = listener.heard.calls
            heard = len(witness.heard.frames)
            witness.heard.wait_frames(heard + 20)
        finally:
            is_over.set()
            sender.join()
        assert listener.heard.calls == calls

    def test_close_from_within_the_receiver_does_not_deadlock(self, stage: Stage) -> None:
        speaker = stage.publisher()
        receiver = ClosingReceiver()
        listener = stage.unstarted_subscriber("t", receiver=receiver)
        receiver.subscriber = listener.api
        before = python_threads()
        listener.listen_to(stage.addresses(stage.speakers))
        listener.start()
        speaker.send("t")
        assert receiver.is_done.wait(WAIT_S), "close() within on_frames did not return"
        eventually(lambda: not listener.api.is_running, "the subscriber stops")
        listener.api.close()
        eventually(lambda: python_threads() <= before, "the threads end")
        assert len(receiver.frames) == 1

    @pytest.mark.parametrize("receiver_class", [FailingReceiver, FailingLender, FailingKeeper])
    def test_a_receiver_that_raises_is_counted_and_goes_on_hearing(
        self, stage: Stage, receiver_class: type[FailingReceiver]
    ) -> None:
        before = python_threads()
        speaker = stage.publisher()
        receiver = receiver_class()
        listener = stage.unstarted_subscriber("t", receiver=receiver)
        assert listener.api.receiver_errors == 0
        listener.listen_to(stage.addresses(stage.speakers))
        listener.start()
        for _ in range(3):
            receiver.wait_frame(speaker.send("t"))
        eventually(lambda: listener.api.receiver_errors == receiver.calls, "every call that raised is counted")
        assert receiver.calls >= 4
        assert listener.api.is_running
        listener.api.close()
        speaker.api.close()
        eventually(lambda: python_threads() <= before, "the threads end")

    def test_the_receiver_is_called_by_one_thread_at_a_time(self, stage: Stage) -> None:
        speakers = [stage.publisher(), stage.second_publisher()]
        receiver = SolitaryReceiver()
        listener = stage.unstarted_subscriber("t", receiver=receiver)
        listener.listen_to(stage.addresses(speakers))
        listener.start()
        if stage.capabilities.queries:
            for speaker in speakers:
                speaker.api.serve(speaker.echo(3))
            wait_routed(listener, speakers)
        for number in range(50):
            if stage.capabilities.queries:
                listener.ask()
            listener.api.register_topic(f"more/{number}")
            sent = [speaker.send("t") for speaker in speakers]
        for frame in sent:
            receiver.wait_frame(frame)
        listener.api.close()
        assert receiver.collisions == 0

    def test_a_closed_publisher_refuses_to_send(self, stage: Stage) -> None:
        speaker = stage.publisher()
        speaker.api.close()
        with pytest.raises(Closed):
            speaker.api.send("t", speaker.frames.data("t"))
        with pytest.raises(Closed):
            speaker.api.send_many([("t", speaker.frames.data("t"))])

    def test_a_closed_subscriber_refuses_to_work(self, stage: Stage) -> None:
        stage.publisher()
        listener = stage.subscriber("t")
        listener.api.close()
        with pytest.raises(Closed):
            listener.api.register_topic("u")
        if stage.capabilities.queries:
            with pytest.raises(Closed):
                listener.ask()

    def test_closing_one_end_leaves_the_others_alone(self, stage: Stage) -> None:
        speaker = stage.publisher()
        staying, leaving = stage.subscriber("t"), stage.subscriber("t")
        leaving.api.close()
        staying.heard.wait_frame(speaker.send("t"))
        other = stage.second_publisher()
        other.api.close()
        staying.heard.wait_frame(speaker.send("t"))

    def test_driver_objects_are_independent(self, stage: Stage, driver_url: str) -> None:
        confs = [self.make_conf(driver_url) for _ in range(2)]
        drivers = [self.make_driver(conf) for conf in confs]
        assert [driver.conf for driver in drivers] == confs
        speaker = stage.publisher()
        listener = stage.subscriber("t")
        rest = stage.unopened_publisher(drivers[0])
        rest.api.close()
        listener.heard.wait_frame(speaker.send("t"))

    def test_the_configuration_is_not_global(self, driver_url: str) -> None:
        before = dict(cfg.CONF.items())
        self.make_driver(self.make_conf(driver_url))
        assert dict(cfg.CONF.items()) == before
