"""The Zenoh driver where it is Zenoh: routers, strangers on the same keys, users, forks, the end of the program.

What every driver must do is in the conformance suite.
"""

from __future__ import annotations

import logging
import pathlib
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator, Sequence

import pytest
import zenoh

from pubsub_api import loading
from pubsub_api.driver import Connected, Disconnected, Subscribed
from pubsub_api.errors import AddressInUse, InvalidConfig, TransportUnavailable, UsageError
from pubsub_api.testing.child import ChildProcess
from pubsub_api.testing.frames import Frames
from pubsub_api.testing.receivers import WAIT_S, RecordingReceiver, send_until_accepted
from tests.helpers.paths import TLS
from tests.helpers.servers import free_port
from tests.helpers.waiting import wait_until
from tests.helpers.zenoh_ends import QUICK, Ends, build, plain_session

SCRIPT_S = 100


@pytest.fixture
def ends() -> Iterator[Ends]:
    ends = Ends()
    yield ends
    ends.close()


class TestRouter:
    def test_both_ends_wait_for_a_router_that_is_absent(self, ends: Ends) -> None:
        port = free_port()
        url = f"zenoh://127.0.0.1:{port}?mode=client&connect_timeout=1&{QUICK}"
        publisher, reports = ends.publisher(url)
        subscriber, heard = ends.subscriber(url, "t", is_up=False)
        with pytest.raises(TransportUnavailable, match="not connected"):
            publisher.send("t", Frames().data("t"))
        with pytest.raises(TransportUnavailable):
            subscriber.query(Frames().query(1))
        ends.publisher(f"zenoh://127.0.0.1:{port}?mode=router")
        reports.wait_connected(publisher.address)
        heard.wait_connected(publisher.address)
        frame = Frames().data("t")
        send_until_accepted(publisher, "t", frame)
        heard.wait_frame(frame)

    def test_both_ends_come_back_when_the_router_was_killed(self, ends: Ends) -> None:
        router_url = f"zenoh://127.0.0.1:{free_port()}?mode=router"
        url = router_url.replace("router", f"client&{QUICK}")
        frames = Frames()
        with ChildProcess("publisher", router_url) as router:
            address = router.receive()["address"]
            publisher, reports = ends.publisher(url, is_up=True)
            _, heard = ends.subscriber(url, "t")
            publisher.send("t", frames.data("t"))
            heard.wait_frames(1)
            router.kill()
        for end in (reports, heard):
            end.wait_link(Disconnected(address, ""))
        with pytest.raises(TransportUnavailable):
            publisher.send("t", frames.data("t"))
        with ChildProcess("publisher", router_url) as router:
            router.receive()
            for end in (reports, heard):
                end.wait_connected(address, count=2)
            frame = frames.data("t")
            send_until_accepted(publisher, "t", frame)
            heard.wait_frame(frame)
            assert router.ask(send="t", count=1, size=1)["last"] == 1
            heard.wait_frames(3)
        assert [type(link) for link in heard.links][:3] == [Connected, Disconnected, Connected]

    def test_what_a_listener_may_hear_is_up_to_the_router(self, ends: Ends, tmp_path: pathlib.Path) -> None:
        """Access control is Zenoh's, and comes in by config_file."""
        rules = tmp_path / "router.json5"
        rules.write_text(
            """{access_control: {enabled: true, default_permission: "allow",
                rules: [{id: "r", permission: "deny", flows: ["ingress"], messages: ["declare_subscriber"],
                         key_exprs: ["$*heliograph/secret/**"]}],
                subjects: [{id: "all"}], policies: [{rules: ["r"], subjects: ["all"]}]}}"""
        )
        router, _ = ends.publisher(f"zenoh://127.0.0.1:0?mode=router&config_file={rules}")
        _, heard = ends.subscriber("zenoh://127.0.0.1:0?mode=router", "secret/#", "open", address=router.address)
        frames = Frames()
        router.send("secret/x", frames.data("secret/x"))
        frame = frames.data("open")
        router.send("open", frame)
        assert heard.wait_frames(1) == [frame]


class TestStrangers:
    def test_only_what_was_asked_for_crosses_the_wire(self, ends: Ends) -> None:
        """The one channel of a link would ask for everything, if it were not kept from others."""
        address = f"tcp/127.0.0.1:{free_port()}"
        with plain_session("peer", listen=[address]) as stranger:
            ends.subscriber("zenoh://127.0.0.1:0", "a/#", "b/+", "$control", address=address)
            expected = {"a": True, "a/x/y": True, "b/x": True, "b": False, "b/x/y": False, "c": False}
            publishers = {topic: stranger.declare_publisher(f"heliograph/{topic}") for topic in expected}
            publishers["$control"] = stranger.declare_publisher("heliograph@control")
            wait_until(lambda: publishers["$control"].matching_status.matching, 60, "the filters to arrive")
            actual = {topic: bool(publishers[topic].matching_status.matching) for topic in expected}
            assert actual == expected

    def test_many_filters_are_declared_by_their_beginnings(self, ends: Ends) -> None:
        address = f"tcp/127.0.0.1:{free_port()}"
        with plain_session("peer", listen=[address]) as stranger:
            subscriber, heard = ends.subscriber("zenoh://127.0.0.1:0", "alone/x", "$control", address=address)
            for number in range(3000):
                subscriber.register_topic(f"many/t/{number}")
            heard.wait_until(lambda: len(heard.links) == 3001, "all filters to be in effect")
            expected = {"many/t/7": True, "many/t/other": True, "many/x": False, "alone/x": True, "alone/y": False}
            publishers = {topic: stranger.declare_publisher(f"heliograph/{topic}") for topic in expected}
            actual = {topic: bool(publishers[topic].matching_status.matching) for topic in expected}
            assert actual == expected
            for number in range(3000):
                subscriber.unregister_topic(f"many/t/{number}")
            wait_until(lambda: not publishers["many/t/7"].matching_status.matching, WAIT_S, "the filters to go")
            assert publishers["alone/x"].matching_status.matching

    def test_a_plain_publisher_is_heard(self, ends: Ends) -> None:
        address = f"tcp/127.0.0.1:{free_port()}"
        with plain_session("peer", listen=[address]) as stranger:
            _, heard = ends.subscriber("zenoh://127.0.0.1:0", "a/#", address=address)
            frame = Frames().data("a")
            # A plain publisher confirms no subscription: that it has come must be asked here.
            watch = stranger.declare_publisher("heliograph/a")
            wait_until(lambda: watch.matching_status.matching, 60, "the filter to arrive")
            stranger.put("heliograph/a/b", b"hello")
            stranger.put("heliograph/a", frame)
            stranger.put("heliograph/b", b"not for us")
            stranger.delete("heliograph/a/b")
            heard.wait_until(lambda: len(heard.foreign) == 2, "two foreign messages")
        assert heard.foreign == [("a/b", b"hello"), ("a/b", None)]
        assert heard.frames == [frame]

    def test_a_plain_subscriber_reads_frames_and_no_control(self, ends: Ends) -> None:
        publisher, _ = ends.publisher("zenoh://127.0.0.1:0")
        frames = Frames()
        with plain_session("peer", connect=[publisher.address]) as stranger:
            channel = stranger.declare_subscriber("heliograph/**", zenoh.handlers.FifoChannel(1000))
            received: list[tuple[str, bytes]] = []

            def hears() -> bool:
                publisher.send("$control", frames.data("$control"))
                publisher.send("a/b", frame)
                while (sample := channel.try_recv()) is not None:
                    received.append((str(sample.key_expr), sample.payload.to_bytes()))
                return bool(received)

            frame = frames.data("a/b")
            wait_until(hears, WAIT_S, "a frame at the plain subscriber")
        assert set(received) == {("heliograph/a/b", frame)}

    def test_a_router_of_plain_zenoh_will_do(self, ends: Ends) -> None:
        """It answers no question of ours, and a link to it is up all the same, also before any publisher is."""
        port = free_port()
        url = f"zenoh://127.0.0.1:{port}?mode=client&{QUICK}"
        with plain_session("router", listen=[f"tcp/127.0.0.1:{port}"]):
            subscriber, heard = ends.subscriber(url, "t")
            publisher, _ = ends.publisher(url, is_up=True)
            frames = Frames()
            for number in range(1, 6):
                frame = frames.data("t")
                publisher.send("t", frame)
                heard.wait_frame(frame)
                subscriber.register_topic(f"more/{number}")
                heard.wait_link(Subscribed(publisher.address, f"more/{number}"))
                frame = frames.data(f"more/{number}")
                publisher.send(f"more/{number}", frame)
                heard.wait_frame(frame)


class TestSecurity:
    def test_tls_lets_in_who_trusts_the_authority(self, ends: Ends) -> None:
        own = f"tls_cert_file={TLS}/server.pem&tls_key_file={TLS}/server-key.pem"
        publisher, _ = ends.publisher(f"zenoh://127.0.0.1:0?{own}")
        assert publisher.address.startswith("tls/")
        url = f"zenoh://127.0.0.1:1?endpoints={publisher.address}&{QUICK}"
        _, trusting = ends.subscriber(f"{url}&tls_ca_file={TLS}/ca.pem", "t", address=publisher.address)
        _, doubting = ends.subscriber(url, "t", address=publisher.address, is_up=False)
        for _ in range(10):
            frame = Frames().data("t")
            publisher.send("t", frame)
            trusting.wait_frame(frame)
        assert doubting.calls == 0

    def test_a_user_is_let_in_by_name_and_password(self, ends: Ends, tmp_path: pathlib.Path) -> None:
        users = tmp_path / "users"
        users.write_text("ada:right\n")
        publisher, _ = ends.publisher(f"zenoh://127.0.0.1:0?password_file={users}")
        _, known = ends.subscriber(f"zenoh://ada:right@127.0.0.1:1?{QUICK}", "t", address=publisher.address)
        _, unknown = ends.subscriber(
            f"zenoh://ada:wrong@127.0.0.1:1?{QUICK}", "t", address=publisher.address, is_up=False
        )
        for _ in range(10):
            frame = Frames().data("t")
            publisher.send("t", frame)
            known.wait_frame(frame)
        assert unknown.calls == 0


class StuckReceiver(RecordingReceiver):
    """Blocks in its first call until it is released."""

    def __init__(self) -> None:
        super().__init__()
        self.is_stuck = threading.Event()
        self.release = threading.Event()

    def on_frames(self, frames: Sequence[bytes]) -> None:
        self.is_stuck.set()
        assert self.release.wait(WAIT_S)
        super().on_frames(frames)


class TestFlow:
    def test_a_receiver_that_is_stuck_loses_frames_and_holds_up_nobody(
        self, ends: Ends, caplog: pytest.LogCaptureFixture
    ) -> None:
        publisher, _ = ends.publisher("zenoh://127.0.0.1:0")
        stuck = StuckReceiver()
        subscriber, _ = ends.subscriber(
            f"zenoh://127.0.0.1:1?receive_queue_bytes_max={256 * 1024}", "t", address=publisher.address, heard=stuck
        )
        _, witness = ends.subscriber("zenoh://127.0.0.1:1", "t", address=publisher.address)
        frames = Frames()
        with caplog.at_level(logging.WARNING, logger="pubsub_api.driver_kit.inbox"):
            for _ in range(200):
                frame = frames.data("t", 10_000)
                publisher.send("t", frame)
                witness.wait_frame(frame)
            assert stuck.is_stuck.wait(WAIT_S)
            wait_until(lambda: "too slow" in caplog.text, WAIT_S, "the receiver to be behind")
            stuck.release.set()
            wait_until(lambda: "caught up" in caplog.text, WAIT_S, "the receiver to catch up")
        assert caplog.text.count("too slow") == 1
        frame = frames.data("t")
        publisher.send("t", frame)
        stuck.wait_frame(frame)
        assert len(stuck.frames) < 100
        assert 0 < subscriber.counters["frames_dropped"] <= 201 - len(stuck.frames)
        assert len(witness.wait_frames(201)) == 201

    def test_a_subscriber_that_is_frozen_does_not_hold_up_the_others(self, ends: Ends) -> None:
        publisher, _ = ends.publisher("zenoh://127.0.0.1:0")
        _, witness = ends.subscriber("zenoh://127.0.0.1:1", "t", address=publisher.address)
        frames = Frames()
        with ChildProcess("subscriber", "zenoh://127.0.0.1:1", publisher.address, "t") as frozen:
            frozen.receive()
            frozen.stop()
            for _ in range(200):
                frame = frames.data("t", 100_000)
                publisher.send("t", frame)
                witness.wait_frame(frame)
            frozen.resume()

    def test_order_holds_when_there_are_too_many_topics_for_declared_publishers(
        self, ends: Ends, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("heliograph_drivers.pubsub.zenoh.config.DECLARED_MAX", 4)
        publisher, _ = ends.publisher("zenoh://127.0.0.1:0")
        _, heard = ends.subscriber("zenoh://127.0.0.1:1", "#", address=publisher.address)
        frames = Frames()
        topics = [f"few/{number}" for number in range(4)] * 5 + [f"many/{number}" for number in range(20)] * 5
        sent = [(topic, frames.data(topic)) for topic in topics]
        publisher.send_many(sent)
        assert heard.wait_frames(len(sent)) == [frame for _, frame in sent]


FORKED = """
    import gc, os, signal, sys
    from pubsub_api import errors, loading
    from pubsub_api.testing.receivers import RecordingReceiver

    driver = loading.build_driver(loading.conf_from_url("zenoh://127.0.0.1:0"))
    publisher, subscriber, heard = driver.get_publisher(), driver.get_subscriber(), RecordingReceiver()
    publisher.initialize(heard.on_link)
    subscriber.initialize(heard)
    subscriber.register_topic("t")
    subscriber.register_listen_address(publisher.address)
    subscriber.daemonize()
    heard.wait_connected(publisher.address)
    pid = os.fork()
    if pid == 0:
        signal.alarm(30)
        for refused in (lambda: driver.get_publisher().initialize(print), lambda: publisher.send("t", b"")):
            try:
                refused()
                sys.exit(1)
            except errors.Forked as error:
                assert "spawn" in str(error) and "publisher service" in str(error)
        publisher.close()
        subscriber.close()
        del refused, publisher, subscriber, driver
        gc.collect()
        sys.exit(7)  # the interpreter of the child ends as usual: it frees objects and runs exit handlers
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 7, status
    subscriber.close()
    publisher.close()
    print("parent goes on")
"""

UNCLOSED = """
    from pubsub_api import loading
    from pubsub_api.testing.receivers import RecordingReceiver

    driver = loading.build_driver(loading.conf_from_url("zenoh://127.0.0.1:0"))
    publisher, subscriber, heard = driver.get_publisher(), driver.get_subscriber(), RecordingReceiver()
    publisher.initialize(heard.on_link)
    publisher.serve(lambda query: [])
    subscriber.initialize(heard)
    subscriber.register_topic("t")
    subscriber.register_listen_address(publisher.address)
    subscriber.daemonize()
    heard.wait_connected(publisher.address)
    print("the end")
"""


def run_script(script: str) -> str:
    """Run a program to its end in a process of its own; return what it printed.  Fails when it hangs or fails."""
    command = [sys.executable, "-c", textwrap.dedent(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SCRIPT_S, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


class TestProcess:
    def test_a_forked_child_is_refused_and_ends_as_usual(self) -> None:
        assert run_script(FORKED) == "parent goes on"

    def test_a_program_that_closes_nothing_ends(self) -> None:
        assert run_script(UNCLOSED) == "the end"


class TestConfiguration:
    @pytest.mark.parametrize(
        ("url", "reason"),
        [
            ("zenoh://", "host:port"),
            ("zenoh://127.0.0.1:1/path", "host:port"),
            ("zenoh://127.0.0.1:1?mode=queen", "mode"),
            ("zenoh://127.0.0.1:1?lease=soon", "lease"),
            ("zenoh://127.0.0.1:1?link_timeout=-1", "link_timeout"),
            ("zenoh://127.0.0.1:1?nonsense=1", "nonsense"),
            ("zenoh://127.0.0.1:1?link_timeout=1&link_timeout=2", "twice"),
            ("zenoh://127.0.0.1:1?link_timeout", "option=value"),
            ("zenoh://127.0.0.1:1?endpoints=here", "not an address"),
            ("zenoh://127.0.0.1:1?listen=tcp/127.0.0.1:70000", "not an address"),
            ("zenoh://127.0.0.1:1?key_prefix=a/*", "key_prefix"),
            ("zenoh://127.0.0.1:1?user=ada", "go together"),
            ("zenoh://127.0.0.1:1?config_file=/nowhere", "no file"),
            ("zenoh://127.0.0.1:0?mode=client", "router"),
            (f"zenoh://h:1?tls_ca_file={TLS}/ca.pem&endpoints=tcp/h:1&listen=tcp/h:1", "encrypted"),
            (f"zenoh://127.0.0.1:1?tls_cert_file={TLS}/server.pem", "go together"),
            ("zenoh://127.0.0.1:1?answer_scopes=a//b", "answer_scopes"),
        ],
    )
    def test_what_cannot_work_is_refused_with_the_reason(self, url: str, reason: str) -> None:
        with pytest.raises(InvalidConfig, match=reason):
            build(url)

    def test_an_error_does_not_show_a_password(self) -> None:
        conf = loading.conf_from_url("zenoh://ada:s3cr3t@127.0.0.1:1")
        assert conf.zenoh.password == "s3cr3t"
        with pytest.raises(InvalidConfig) as caught:
            loading.conf_from_url("zenoh://ada:s3cr3t@127.0.0.1:1?nonsense=1")
        assert "s3cr3t" not in str(caught.value)

    def test_a_file_that_is_no_configuration_is_refused(self, tmp_path: pathlib.Path) -> None:
        wrong = tmp_path / "wrong.json5"
        wrong.write_text("{ mode: ")
        with pytest.raises(InvalidConfig, match=r"config_file .*wrong\.json5"):
            build(f"zenoh://127.0.0.1:0?config_file={wrong}").get_publisher().initialize(print)

    def test_an_address_that_is_not_ours_is_refused(self) -> None:
        with pytest.raises(InvalidConfig, match="cannot listen"):
            build("zenoh://192.0.2.1:9999").get_publisher().initialize(print)

    def test_a_port_in_use_is_refused(self, ends: Ends) -> None:
        first, _ = ends.publisher("zenoh://127.0.0.1:0")
        with pytest.raises(AddressInUse, match="publisher_port"):
            ends.publisher(f"zenoh://{first.address.removeprefix('tcp/')}")

    def test_only_the_mode_decides_who_binds(self) -> None:
        binds = {mode: build(f"zenoh://127.0.0.1:1?mode={mode}").capabilities.bind_based for mode in
                 ("peer", "router", "client")}  # fmt: skip
        assert binds == {"peer": True, "router": True, "client": False}

    def test_addresses_come_from_the_options(self) -> None:
        assert build("zenoh://[::1]:5").listen_addresses() == ["tcp/[::1]:5"]
        assert build(f"zenoh://[::1]:5?tls_ca_file={TLS}/ca.pem").listen_addresses() == ["tls/[::1]:5"]
        assert build("zenoh://h:5?endpoints=tcp/a:1,ws/b:2").listen_addresses() == ["tcp/a:1", "ws/b:2"]
        assert build("zenoh://127.0.0.1:0").listen_addresses() == []  # only discovery can tell

    def test_a_publisher_on_every_network_tells_an_address_that_can_be_reached(self, ends: Ends) -> None:
        conf = loading.conf_from_url("zenoh://127.0.0.1:0")
        conf.set_override("publisher_bind_address", "*", group="pubsub")
        publisher = loading.build_driver(conf).get_publisher()
        try:
            publisher.initialize(print)
            assert publisher.address.startswith("tcp/127.0.0.1:")
            _, heard = ends.subscriber("zenoh://127.0.0.1:1", "t", address=publisher.address)
            assert heard.links == [Connected(publisher.address)]
        finally:
            publisher.close()

    def test_a_socket_file_is_an_address(self, ends: Ends, tmp_path: pathlib.Path) -> None:
        address = f"unixsock-stream/{tmp_path}/bus"
        publisher, _ = ends.publisher(f"zenoh://127.0.0.1:1?listen={address}")
        _, heard = ends.subscriber("zenoh://127.0.0.1:1", "t", address=address)
        frame = Frames().data("t")
        publisher.send("t", frame)
        assert heard.wait_frames(1) == [frame]

    def test_calls_in_the_wrong_order_are_refused(self) -> None:
        driver = build("zenoh://127.0.0.1:0")
        with pytest.raises(UsageError, match="initialize"):
            driver.get_publisher().send("t", b"")
        with pytest.raises(UsageError, match="initialize"):
            driver.get_subscriber().daemonize()
