"""Addresses of the ZeroMQ driver: where it binds, what it listens to, and who owns a socket file."""

from __future__ import annotations

import contextlib
import os
import pathlib
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator

import pytest

import pubsub_api
from pubsub_api import loading
from pubsub_api.errors import AddressInUse, InvalidConfig, WaitTimeout
from pubsub_api.testing.child import ChildProcess
from pubsub_api.testing.conformance.stage import Speaker, Stage
from tests.helpers.servers import free_port
from tests.helpers.waiting import wait_until
from tests.helpers.zmq_tools import URL, RawSockets, driver_at, open_stage

WAIT_S = 60.0


@pytest.fixture
def stage() -> Iterator[Stage]:
    with open_stage() as stage:
        yield stage


class TestAddresses:
    def test_an_ephemeral_port_is_told(self, stage: Stage) -> None:
        first, second = stage.publisher(), stage.publisher()
        assert first.address != second.address
        assert not first.address.endswith(":0")
        assert stage.driver.listen_addresses() == []

    def test_the_addresses_come_from_the_configuration(self) -> None:
        conf = loading.conf_from_url("zmq://127.0.0.1:7001")
        conf.set_override("publishers_ips", ["10.0.0.1", "::1", "host.example"], group="pubsub")
        driver = loading.build_driver(conf)
        assert driver.listen_addresses() == ["tcp://10.0.0.1:7001", "tcp://[::1]:7001", "tcp://host.example:7001"]

    def test_a_publisher_on_every_interface_names_the_local_one(self, stage: Stage) -> None:
        speaker = stage.publisher(driver_at("zmq://*:0"))
        assert speaker.address.startswith("tcp://127.0.0.1:")
        listener = stage.subscriber("t", to=[speaker])
        listener.heard.wait_frame(speaker.send("t"))

    def test_a_host_name_can_be_bound_to(self, stage: Stage) -> None:
        speaker = stage.publisher(driver_at("zmq://localhost:0"))
        assert speaker.address.startswith("tcp://localhost:")
        listener = stage.subscriber("t", to=[speaker])
        listener.heard.wait_frame(speaker.send("t"))

    def test_a_taken_port_is_named_with_what_to_do(self, stage: Stage) -> None:
        url = f"zmq://127.0.0.1:{free_port()}"  # which nobody else is given when it is free for a moment
        first = stage.publisher(driver_at(url))
        rival = stage.unopened_publisher(driver_at(url))
        with pytest.raises(AddressInUse, match=f"{first.address} .*publisher service"):
            rival.api.initialize(rival.reports.on_link)
        first.api.close()
        rival.api.initialize(rival.reports.on_link)
        assert rival.address == first.address

    def test_a_taken_query_port_is_refused_and_publishing_goes_on(self, stage: Stage) -> None:
        first = stage.publisher()
        port = first.address.rpartition(":")[2]
        speaker = stage.publisher(driver_at(f"{URL}?query_port={port}"))
        with pytest.raises(AddressInUse, match=port):
            speaker.api.serve(speaker.echo())
        listener = stage.subscriber("t", to=[speaker])
        listener.heard.wait_frame(speaker.send("t"))

    @pytest.mark.parametrize("host", ["203.0.113.77", "no-such-host.invalid"])
    def test_an_address_of_somebody_else_cannot_be_bound_to(self, stage: Stage, host: str) -> None:
        stranger = stage.unopened_publisher(driver_at(f"zmq://{host}:0"))
        with pytest.raises(InvalidConfig, match=host):
            stranger.api.initialize(stranger.reports.on_link)

    @pytest.mark.parametrize(
        "address",
        ["tcp://127.0.0.1", "tcp://:8866", "tcp://*:8866", "tcp://h:0", "tcp://h:99999", "ipc://relative", "udp://h:1",
         "ipc://host/path", "tcp://h:1/path", "ipc:///" + "x" * 200],
    )  # fmt: skip
    def test_what_cannot_be_listened_to_is_refused(self, stage: Stage, address: str) -> None:
        listener = stage.unstarted_subscriber("t")
        with pytest.raises(InvalidConfig):
            listener.api.register_listen_address(address)

    @pytest.mark.parametrize(
        "url",
        ["zmq://", "zmq://host:1/path", "zmq://user@host:1", "zmq://host:1#x", "zmq://host:1?nonsense=1",
         "zmq://host:1?send_hwm=0", "zmq://host:1?send_hwm=many", "zmq://host:1?send_wait=1&send_wait=2",
         "zmq://host:1?link_timeout=0", "zmq://host:1?send_hwm"],
    )  # fmt: skip
    def test_a_url_that_says_nothing_or_too_much_is_refused(self, url: str) -> None:
        with pytest.raises(InvalidConfig):
            driver_at(url)

    def test_a_url_sets_options(self) -> None:
        conf = driver_at("zmq://127.0.0.1:1?send_hwm=17&send_wait=0.5").conf
        assert (conf.zmq.send_hwm, conf.pubsub.send_wait) == (17, 0.5)


class TestSocketFile:
    def publisher_at(self, stage: Stage, path: pathlib.Path) -> Speaker:
        return stage.publisher(driver_at(f"zmq://{path}"))

    def test_only_the_user_may_open_it_and_it_goes_with_the_publisher(
        self, stage: Stage, tmp_path: pathlib.Path
    ) -> None:
        before = os.umask(0)
        try:
            speaker = self.publisher_at(stage, tmp_path / "s")
            speaker.api.serve(speaker.echo())
        finally:
            os.umask(before)
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
        assert modes == {"s": 0o600, "s.query": 0o600}
        speaker.api.close()
        assert list(tmp_path.iterdir()) == []

    def test_that_of_a_killed_process_is_replaced(self, stage: Stage, tmp_path: pathlib.Path) -> None:
        path = tmp_path / "s"
        with ChildProcess("publisher", f"zmq://{path}") as child:
            listener = stage.unstarted_subscriber("t")
            listener.listen_to([child.receive()["address"]])
            listener.start()
        assert path.is_socket()
        speaker = self.publisher_at(stage, path)
        listener.heard.wait_connected(speaker.address, count=2)
        listener.heard.wait_frame(speaker.send("t"))

    def test_that_of_a_living_process_is_left_alone(self, stage: Stage, tmp_path: pathlib.Path) -> None:
        path = tmp_path / "s"
        with ChildProcess("publisher", f"zmq://{path}") as child:
            listener = stage.unstarted_subscriber("t")
            listener.listen_to([child.receive()["address"]])
            listener.start()
            rival = stage.unopened_publisher(driver_at(f"zmq://{path}"))
            with pytest.raises(AddressInUse, match=str(path)):
                rival.api.initialize(rival.reports.on_link)
            child.ask(send="t", count=1, size=1)
            listener.heard.wait_frames(1)

    def test_a_file_that_is_no_socket_is_left_alone(self, stage: Stage, tmp_path: pathlib.Path) -> None:
        path = tmp_path / "precious"
        path.write_text("data")
        for place in (path, tmp_path / "missing" / "s"):
            rival = stage.unopened_publisher(driver_at(f"zmq://{place}"))
            with pytest.raises(InvalidConfig, match=place.name):
                rival.api.initialize(rival.reports.on_link)
        assert path.read_text() == "data"

    def test_the_multiproc_driver_lives_on_it(self, stage: Stage, tmp_path: pathlib.Path) -> None:
        conf = loading.conf_from_url(URL)
        conf.set_override("publisher_multiproc_socket", str(tmp_path / "workers"), group="pubsub")
        driver = loading.build_driver(conf, "zmq_pubsub_multiproc_driver")
        speaker = stage.publisher(driver)
        assert [speaker.address] == driver.listen_addresses() == [f"ipc://{tmp_path}/workers"]
        listener = stage.subscriber("t")
        listener.heard.wait_frame(speaker.send("t"))


def test_a_plain_publisher_is_named_by_the_error_of_who_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """It confirms no subscription, so nothing can be promised; what it sends is passed on all the same."""
    monkeypatch.setattr("heliograph_drivers.pubsub.zmq.link.BARRIER_TIMEOUT_S", 0.1)
    heard: list[pubsub_api.Event] = []
    with contextlib.closing(RawSockets()) as raw:
        publisher, address = raw.publisher()
        with (
            pubsub_api.open(URL) as session,
            session.subscriber(["t"], heard.append, addresses=[address]) as subscriber,
        ):
            asked = lambda: subscriber.statistics().driver["barriers_repeated"]  # noqa: E731
            wait_until(lambda: asked() >= 2, WAIT_S, "a publisher that is asked in vain")
            with pytest.raises(WaitTimeout, match="no publisher of Heliograph") as raised:
                subscriber.wait_ready(timeout_s=0.1)
            assert address in str(raised.value)

            def is_heard() -> bool:
                publisher.send_multipart([b"t\0", b"plain"])
                return any(event.value == b"plain" for event in heard)

            wait_until(is_heard, WAIT_S, "the plain message")


_IPV6_PROGRAM = """
import sys
import pubsub_api

with pubsub_api.open("zmq://only-six:0") as session:
    publisher = session.publisher()
    heard = []
    with session.subscriber(["t"], heard.append, addresses=[publisher.address]) as subscriber:
        subscriber.wait_ready(timeout_s=60)
        assert "only-six" in publisher.address, publisher.address
        print("ready")
"""


def test_a_host_name_that_has_an_ipv6_address_only_is_reached(tmp_path: pathlib.Path) -> None:
    """The name is given to the program by a table of hosts of its own."""
    hosts = tmp_path / "hosts"
    hosts.write_text("127.0.0.1 localhost\n::1 only-six\n")
    mount = f'mount --bind {hosts} /etc/hosts && exec "$@"'
    command = ["unshare", "--mount", "sh", "-c", mount, "sh"]
    try:
        subprocess.run([*command, "getent", "ahostsv6", "only-six"], check=True, capture_output=True)
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("needs IPv6, and root for a table of hosts of its own")
    done = subprocess.run([*command, sys.executable, "-c", _IPV6_PROGRAM], capture_output=True, text=True, check=False)
    assert done.stdout == "ready\n", done.stderr
