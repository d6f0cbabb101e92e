"""The Redis driver against real servers that are late, killed, frozen, strict or slow.

What every driver must do is in the conformance suite; here is what only a server in the middle can do to a driver.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

import pytest

from pubsub_api.driver import Asked, Connected, Disconnected, SendRefused, Subscribed
from pubsub_api.errors import TransportUnavailable
from pubsub_api.testing.frames import Frames
from pubsub_api.testing.receivers import RecordingReceiver, send_until_accepted
from tests.helpers.redis_ends import NERVOUS, PATIENT, Ends, is_answered, reason, refusal
from tests.helpers.servers import RedisServer, TalkingServer
from tests.helpers.waiting import WAIT_S, wait_until

PATIENT_TO_CONNECT = NERVOUS.replace("connect_timeout=0.5", "connect_timeout=60")
"""The first thing that goes wrong is that a server which was there falls silent."""
PATIENT_BUT_TO_SEND = PATIENT.replace("link_timeout=360", "link_timeout=3")


@pytest.fixture
def ends() -> Iterator[Ends]:
    ends = Ends()
    yield ends
    ends.close()


@pytest.fixture(scope="module")
def shared_server() -> Iterator[RedisServer]:
    """For tests that leave the server as it was."""
    with RedisServer() as server:
        yield server


@pytest.fixture
def server() -> Iterator[RedisServer]:
    """For tests that do something to it."""
    with RedisServer() as server:
        yield server


@pytest.fixture(scope="module")
def strict_server() -> Iterator[RedisServer]:
    """One that wants a login, and has users who may do less than others."""
    commands = "-@all +ping +publish +subscribe +psubscribe +unsubscribe +punsubscribe"
    users = [
        f"bus on >word resetchannels &heliograph:* &heliograph:w/* &heliograph:$ask:* {commands}",
        f"listener on >word resetchannels &heliograph:* {commands} -publish",
        f"stranger on >word resetchannels &other:* {commands}",
    ]
    with RedisServer(password="s3cr3t", acl=users) as server:
        yield server


class TestServerComesAndGoes:
    def test_both_ends_wait_for_a_server_that_is_absent(self, ends: Ends) -> None:
        server = RedisServer().reserve()
        url = f"{server.address}?{PATIENT}"
        try:
            publisher, reports = ends.publisher(url, is_up=False)
            assert isinstance(reports.links[0], Disconnected)
            with pytest.raises(TransportUnavailable, match="cannot be reached"):
                publisher.send("t", Frames().data("t"))
            subscriber, heard = ends.subscriber(url, "t", is_up=False)
            assert "cannot be reached" in reason(heard)
            with pytest.raises(TransportUnavailable):
                subscriber.query(Frames().query(1))
            server.restart()
            reports.wait_connected(server.address)
            heard.wait_connected(server.address)
            frame = Frames().data("t")
            publisher.send("t", frame)
            heard.wait_frame(frame)
            for seen in (reports, heard):
                assert [type(link) for link in seen.links] == [Disconnected, Connected]
        finally:
            ends.close()
            server.stop()

    def test_closing_does_not_wait_for_a_server_that_is_absent(self, ends: Ends) -> None:
        before = set(threading.enumerate())
        server = RedisServer().reserve()
        ends.publisher(server.address, is_up=False)
        _, heard = ends.subscriber(server.address, "t", is_up=False)
        reason(heard)
        ends.close()
        assert set(threading.enumerate()) <= before
        server.stop()

    def test_a_killed_server_is_noticed_by_idle_ends_and_found_again(self, server: RedisServer, ends: Ends) -> None:
        url, frames = f"{server.address}?{PATIENT}", Frames()
        publisher, reports = ends.publisher(url)
        publisher.serve(lambda query: [frames.reply(query)])
        subscriber, heard = ends.subscriber(url, "t", "w/#")
        for restarts in (1, 2):
            server.kill()
            for seen in (reports, heard):
                seen.wait_link(Disconnected(server.address, ""), count=restarts)
            with pytest.raises(TransportUnavailable):
                publisher.send("t", frames.data("t"))
            server.restart()
            for seen in (reports, heard):
                seen.wait_connected(server.address, count=1 + restarts)
            for topic in ("t", "w", "w/x/y"):
                frame = frames.data(topic)
                publisher.send(topic, frame)
                heard.wait_frame(frame)
            wait_until(lambda: is_answered(subscriber, heard), 30, "queries to be answered again")
        for seen in (reports, heard):
            changes = [type(report) for report in seen.links if not isinstance(report, Asked)]
            assert changes == [Connected, Disconnected, Connected, Disconnected, Connected]

    def test_filters_changed_while_the_server_is_away_are_in_effect_when_it_is_back(
        self, server: RedisServer, ends: Ends
    ) -> None:
        url, frames = f"{server.address}?{PATIENT}", Frames()
        publisher, reports = ends.publisher(url)
        subscriber, heard = ends.subscriber(url, "dropped", "sentinel")
        server.kill()
        heard.wait_link(Disconnected(server.address, ""))
        assert subscriber.register_topic("meanwhile/#")
        assert subscriber.unregister_topic("dropped")
        server.restart()
        for seen in (reports, heard):
            seen.wait_connected(server.address, count=2)
        sent = [(topic, frames.data(topic)) for topic in ("dropped", "meanwhile/x", "sentinel")]
        publisher.send_many(sent)
        assert heard.wait_frames(2) == [sent[1][1], sent[2][1]]

    def test_a_connection_that_the_server_kills_is_noticed(self, shared_server: RedisServer, ends: Ends) -> None:
        url = f"{shared_server.address}?{PATIENT}"
        _, reports = ends.publisher(url)
        _, heard = ends.subscriber(url, "t")
        with shared_server.client() as client:
            client.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
            client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        for seen in (reports, heard):
            seen.wait_connected(shared_server.address, count=2)
            assert [type(link) for link in seen.links] == [Connected, Disconnected, Connected]

    def test_a_port_where_something_else_answers_is_no_server(self, ends: Ends) -> None:
        with TalkingServer(b"HTTP/1.1 400 Bad Request\r\n\r\n") as other:
            url = f"redis://127.0.0.1:{other.port}/0?{NERVOUS}"
            publisher, reports = ends.publisher(url, is_up=False)
            assert isinstance(reports.links[0], Disconnected)
            with pytest.raises(TransportUnavailable):
                publisher.send("t", Frames().data("t"))
            _, heard = ends.subscriber(url, "t", is_up=False)
            assert "cannot be reached" in reason(heard)
            ends.close()


class TestFrozenServer:
    def test_silence_is_noticed_at_both_ends_and_ends(self, server: RedisServer, ends: Ends) -> None:
        url, frames = f"{server.address}?{NERVOUS}", Frames()
        publisher, reports = ends.publisher(url)
        _, heard = ends.subscriber(url, "t")
        server.freeze()
        try:
            assert server.address in refusal(publisher)
            for seen in (reports, heard):
                assert reason(seen)
        finally:
            server.thaw()

        def flows() -> bool:
            sent.append(frames.data("t"))
            send_until_accepted(publisher, "t", sent[-1])
            return not set(heard.frames).isdisjoint(sent)

        sent: list[bytes] = []
        wait_until(flows, 60, "frames to flow again")

    def test_an_idle_publisher_notices_too(self, server: RedisServer, ends: Ends) -> None:
        _, reports = ends.publisher(f"{server.address}?{PATIENT_TO_CONNECT}")
        server.freeze()
        try:
            assert "did not answer" in reason(reports)
        finally:
            server.thaw()
        reports.wait_connected(server.address, count=2)

    def test_frames_that_nobody_reads_block_no_longer_than_the_limit(self, server: RedisServer, ends: Ends) -> None:
        publisher, reports = ends.publisher(f"{server.address}?{PATIENT_BUT_TO_SEND}")
        server.freeze()
        try:
            assert "did not" in refusal(publisher, frame=Frames().data("t", 1024 * 1024))
            assert isinstance(reports.links[0], Connected)
        finally:
            server.thaw()

    def test_unanswered_frames_are_bounded(
        self, server: RedisServer, ends: Ends, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("heliograph_drivers.pubsub.redis.config.UNANSWERED_MAX", 3)
        publisher, _ = ends.publisher(f"{server.address}?{PATIENT_BUT_TO_SEND}")
        server.freeze()
        try:
            frame = Frames().data("t")
            for _ in range(3):
                publisher.send("t", frame)
            with pytest.raises(TransportUnavailable, match="did not answer"):
                publisher.send("t", frame)
        finally:
            server.thaw()

    def test_a_frozen_server_does_not_hold_up_the_start(self, server: RedisServer, ends: Ends) -> None:
        server.freeze()
        try:
            _, reports = ends.publisher(f"{server.address}?{NERVOUS}", is_up=False)
            assert isinstance(reports.links[0], Disconnected)
        finally:
            server.thaw()
        reports.wait_connected(server.address)


class TestStrictServer:
    def url(self, server: RedisServer, login: str) -> str:
        return f"redis://{login}@127.0.0.1:{server.port}/0?{PATIENT}"

    @pytest.mark.parametrize("login", [":s3cr3t", "default:s3cr3t", "bus:word"])
    def test_a_sound_login_is_all_it_takes(self, strict_server: RedisServer, ends: Ends, login: str) -> None:
        url, frames = self.url(strict_server, login), Frames()
        publisher, _ = ends.publisher(url)
        publisher.serve(lambda query: [frames.reply(query)])
        subscriber, heard = ends.subscriber(url, "t", "w/#")
        frame = frames.data("w/x")
        publisher.send("w/x", frame)
        heard.wait_frame(frame)
        wait_until(lambda: is_answered(subscriber, heard), 30, "an answer")
        assert subscriber.unregister_topic("w/#")
        assert publisher.address == strict_server.address

    @pytest.mark.parametrize("login", [":wr0ng", "bus:wr0ng", "nobody:wr0ng", ""])
    def test_a_wrong_login_is_named_and_not_shown(self, strict_server: RedisServer, ends: Ends, login: str) -> None:
        url = self.url(strict_server, login)
        publisher, reports = ends.publisher(url, is_up=False)
        _, heard = ends.subscriber(url, "t", is_up=False)
        for seen in (reports, heard):
            assert "refused the login" in reason(seen)
            assert "wr0ng" not in reason(seen)
        with pytest.raises(TransportUnavailable, match="refused the login"):
            publisher.send("t", Frames().data("t"))

    def test_each_frame_that_lacks_permission_is_reported_also_when_none_follows(
        self, strict_server: RedisServer, ends: Ends
    ) -> None:
        publisher, reports = ends.publisher(self.url(strict_server, "listener:word"))
        sent = [Frames().data("t", size) for size in (10, 100_000, 10)]
        for frame in sent:
            publisher.send("t", frame)
        wait_until(lambda: len(reports.links) == 4, WAIT_S, "the refusals")
        refused = [report for report in reports.links if isinstance(report, SendRefused)]
        assert [report.frame for report in refused] == sent
        assert all("topic 't': NOPERM" in report.reason for report in refused)
        assert publisher.counters["frames_refused"] == 3

    def test_a_refused_query_leaves_the_link_alone(
        self, strict_server: RedisServer, ends: Ends, caplog: pytest.LogCaptureFixture
    ) -> None:
        publisher, _ = ends.publisher(self.url(strict_server, "bus:word"))
        subscriber, heard = ends.subscriber(self.url(strict_server, "listener:word"), "t")
        subscriber.query(Frames().query(1))
        wait_until(lambda: "NOPERM" in caplog.text, 30, "the refusal in the log")
        frame = Frames().data("t")
        publisher.send("t", frame)
        heard.wait_frame(frame)
        assert heard.links == [Connected(strict_server.address)]

    def test_a_refused_subscription_is_not_passed_over(self, strict_server: RedisServer, ends: Ends) -> None:
        _, heard = ends.subscriber(self.url(strict_server, "stranger:word"), "t", is_up=False)
        assert "refused a subscription" in reason(heard)
        assert Connected(strict_server.address) not in heard.links


class BlockingReceiver(RecordingReceiver):
    """Does not return from its first calls with frames until it is released, or some time has passed."""

    def __init__(self, calls: int, timeout_s: float) -> None:
        super().__init__()
        self.is_blocking = threading.Event()
        self.release = threading.Event()
        self._calls = calls
        self._timeout_s = timeout_s

    def on_frames(self, frames: Sequence[bytes]) -> None:
        super().on_frames(frames)
        self.is_blocking.set()
        if self._calls:
            self._calls -= 1
            self.release.wait(self._timeout_s)


class TestSlowSubscriber:
    def test_a_slow_receiver_is_not_taken_for_a_silent_server(
        self, shared_server: RedisServer, ends: Ends, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("heliograph_drivers.pubsub.redis.config.HEALTH_INTERVAL_S", 0.2)
        url, frames = f"{shared_server.address}?link_timeout=30&connect_timeout=60", Frames()
        publisher, _ = ends.publisher(f"{shared_server.address}?{PATIENT}")
        heard = BlockingReceiver(calls=1, timeout_s=5.5)
        subscriber, _ = ends.subscriber(url, "t", heard=heard)
        for number in range(4):  # so large that answers come behind frames, while the receiver is busy with others
            publisher.send_many([("t", frames.data("t", 1_000_000)) for _ in range(3)])
            assert subscriber.register_topic(f"other/{number}")
        heard.wait_frames(12)
        heard.wait_link(Subscribed(shared_server.address, "other/3"))
        assert not [link for link in heard.links if isinstance(link, Disconnected)]

    def test_being_cut_off_by_the_server_is_reported(self, ends: Ends) -> None:
        with RedisServer(config={"client-output-buffer-limit": "pubsub 1mb 0 0"}) as server:
            url, frames = f"{server.address}?{PATIENT}", Frames()
            publisher, _ = ends.publisher(url)
            heard = BlockingReceiver(calls=1, timeout_s=100)
            ends.subscriber(url, "t", heard=heard)
            publisher.send("t", frames.data("t"))
            assert heard.is_blocking.wait(30)

            sent = 1

            def is_cut() -> bool:
                nonlocal sent
                publisher.send_many([("t", frames.data("t", 100_000)) for _ in range(20)])
                sent += 20
                with server.client() as client:
                    return int(client.info("stats")["pubsub_channels"]) == 0

            def has_read_all() -> bool:
                with server.client() as client:
                    return int(client.info("commandstats")["cmdstat_publish"]["calls"]) == sent

            wait_until(is_cut, 60, "the server to cut the subscriber off")
            wait_until(has_read_all, 60, "nothing on its way that would have it cut off again")
            heard.release.set()
            heard.wait_connected(server.address, count=2)
            assert [type(link) for link in heard.links] == [Connected, Disconnected, Connected]
            assert "closed the connection" in reason(heard) or "lost while reading" in reason(heard)
            last = frames.data("t")
            publisher.send("t", last)
            heard.wait_frame(last)
            ends.close()
