"""CURVE on the ZeroMQ driver: who has the keys gets through, who has not does not, and says so."""

from __future__ import annotations

import pathlib
import shutil
from collections.abc import Iterator

import pytest
import zmq
import zmq.auth

from pubsub_api.driver import Connected, Disconnected
from pubsub_api.errors import InvalidConfig
from pubsub_api.testing.conformance.stage import Listener, Speaker, Stage, wait_routed
from tests.helpers.waiting import wait_until
from tests.helpers.zmq_tools import URL, driver_at, listener_at, open_stage

WAIT_S = 60.0


class Keys:
    """Certificates of a publisher, of two subscribers, and of somebody else.  The first subscriber is allowed."""

    def __init__(self, directory: pathlib.Path) -> None:
        self.allowed = directory / "allowed"
        self.allowed.mkdir()
        for name in ("server", "other", "client", "stranger"):
            _public, secret = zmq.auth.create_certificates(directory, name)
            pathlib.Path(secret).chmod(0o600)
        self.directory = directory
        self.allow("client")

    def allow(self, name: str) -> None:
        """At once: who looks meanwhile finds the whole file, or none."""
        new = self.allowed / f"{name}.new"
        shutil.copy(self.directory / f"{name}.key", new)
        new.rename(new.with_suffix(".key"))

    def revoke(self, name: str) -> None:
        (self.allowed / f"{name}.key").unlink()

    def overwrite(self, name: str, content: str) -> None:
        """Write to the file in place: the directory does not change."""
        path = self.allowed / f"{name}.key"
        inode = path.stat().st_ino
        with path.open("r+") as file:
            file.write(content)
            file.truncate()
        assert path.stat().st_ino == inode

    def server(self, *, allowed: bool = True) -> str:
        """The URL of a publisher."""
        url = f"{URL}?curve_server_secret_key_file={self.directory}/server.key_secret"
        return f"{url}&curve_allowed_keys_dir={self.allowed}" if allowed else url

    def client(self, name: str, server: str = "server") -> str:
        """The URL of a subscriber."""
        return (
            f"{URL}?curve_secret_key_file={self.directory}/{name}.key_secret"
            f"&curve_server_public_key_file={self.directory}/{server}.key"
        )


@pytest.fixture
def keys(tmp_path: pathlib.Path) -> Keys:
    return Keys(tmp_path)


@pytest.fixture
def stage(keys: Keys) -> Iterator[Stage]:
    """A stage whose subscribers have the right keys."""
    with open_stage(keys.client("client")) as stage:
        yield stage


@pytest.fixture
def speaker(stage: Stage, keys: Keys) -> Speaker:
    speaker = stage.publisher(driver_at(keys.server()))
    speaker.api.serve(speaker.echo())
    return speaker


def check_refused(stage: Stage, speaker: Speaker, refused: Listener) -> None:
    """The refusal is reported once, nothing gets through, and who is allowed is not disturbed."""
    refused.heard.wait_link(Disconnected(speaker.address, ""))
    friend = stage.subscriber("t", to=[speaker])
    friend.heard.wait_frame(speaker.send("t"))
    assert refused.heard.frames == []
    assert [type(report) for report in refused.heard.links] == [Disconnected]


def test_the_right_keys_open_frames_and_queries(stage: Stage, speaker: Speaker) -> None:
    listener = stage.subscriber("t")
    listener.heard.wait_frame(speaker.send("t"))
    wait_routed(listener, [speaker])


@pytest.mark.parametrize("client", ["a stranger's key", "another server's key", "no key"])
def test_a_subscriber_without_the_right_keys_is_refused(
    stage: Stage, speaker: Speaker, keys: Keys, client: str
) -> None:
    urls = {
        "a stranger's key": keys.client("stranger"),
        "another server's key": keys.client("client", "other"),
        "no key": URL,
    }
    with open_stage(urls[client]) as outside:
        check_refused(stage, speaker, listener_at(outside, speaker.address, "t"))


def test_a_subscriber_with_keys_does_not_trust_an_open_publisher(stage: Stage) -> None:
    impostor = stage.publisher(driver_at(URL))
    listener = listener_at(stage, impostor.address, "t")
    listener.heard.wait_link(Disconnected(impostor.address, ""))
    impostor.send("t")
    assert listener.heard.frames == []


def test_a_key_can_be_allowed_while_the_publisher_runs(stage: Stage, speaker: Speaker, keys: Keys) -> None:
    with open_stage(keys.client("stranger")) as outside:
        listener = listener_at(outside, speaker.address, "t")
        listener.heard.wait_link(Disconnected(speaker.address, ""))
        keys.allow("stranger")
        listener.heard.wait_connected(speaker.address)
        listener.heard.wait_frame(speaker.send("t"))


def check_cut(listener: Listener, speaker: Speaker, cut: int) -> None:
    """Its connections end, and it does not come back.  ``cut`` is how many there were."""
    wait_until(lambda: speaker.api.counters["connections_cut"] >= cut, WAIT_S, "the connections to be cut")
    refused = speaker.api.counters["keys_refused"]
    wait_until(lambda: speaker.api.counters["keys_refused"] > refused, WAIT_S, "the key to be refused")
    wait_until(lambda: isinstance(listener.heard.links[-1], Disconnected), WAIT_S, "the listener to be told")
    before = len(listener.heard.frames)
    speaker.send("t")
    assert len(listener.heard.frames) == before


def test_a_key_that_is_taken_away_loses_its_connection(stage: Stage, speaker: Speaker, keys: Keys) -> None:
    keys.allow("stranger")
    with open_stage(keys.client("stranger")) as outside:
        listener = listener_at(outside, speaker.address, "t")
        listener.heard.wait_connected(speaker.address)
        friend = stage.subscriber("t", to=[speaker])
        keys.revoke("stranger")
        check_cut(listener, speaker, 2)
        friend.heard.wait_connected(speaker.address, 2)
        friend.heard.wait_frame(speaker.send("t"))


def test_a_key_file_overwritten_in_place_is_noticed(stage: Stage, speaker: Speaker, keys: Keys) -> None:
    listener = stage.subscriber("t", to=[speaker])
    with open_stage(keys.client("stranger")) as outside:
        keys.overwrite("client", (keys.directory / "stranger.key").read_text())
        check_cut(listener, speaker, 1)
        listener_at(outside, speaker.address, "t").heard.wait_connected(speaker.address)


def test_a_broken_key_file_allows_nobody_and_leaves_the_others_in_effect(
    stage: Stage, speaker: Speaker, keys: Keys
) -> None:
    keys.allow("stranger")
    listener = stage.subscriber("t", to=[speaker])
    with open_stage(keys.client("stranger")) as outside:
        keys.overwrite("client", "half a certificate")
        check_cut(listener, speaker, 1)
        assert speaker.api.counters["keys_unreadable"] == 1
        listener_at(outside, speaker.address, "t").heard.wait_connected(speaker.address)


def test_a_directory_of_keys_that_is_gone_allows_nobody(stage: Stage, speaker: Speaker, keys: Keys) -> None:
    listener = stage.subscriber("t", to=[speaker])
    keys.allowed.rename(keys.directory / "elsewhere")
    check_cut(listener, speaker, 1)
    (keys.directory / "elsewhere").rename(keys.allowed)
    listener.heard.wait_connected(speaker.address, 2)


def test_a_publisher_with_the_keys_of_a_subscriber_only_does_not_listen_in_clear(keys: Keys) -> None:
    driver = driver_at(keys.client("client"))
    with pytest.raises(InvalidConfig, match="listen unencrypted"):
        driver.get_publisher()


def test_a_subscriber_with_the_keys_of_a_publisher_only_does_not_trust_everybody(keys: Keys) -> None:
    driver = driver_at(keys.server())
    with pytest.raises(InvalidConfig, match="trust publishers without a key"):
        driver.get_subscriber()


def test_without_a_list_the_publishers_key_is_enough(stage: Stage, keys: Keys) -> None:
    speaker = stage.publisher(driver_at(keys.server(allowed=False)))
    with open_stage(keys.client("stranger")) as anybody:
        listener = listener_at(anybody, speaker.address, "t")
        listener.heard.wait_link(Connected(speaker.address))
        listener.heard.wait_frame(speaker.send("t"))


@pytest.mark.parametrize(
    "options",
    [
        "curve_secret_key_file={0}/client.key_secret",
        "curve_server_public_key_file={0}/server.key",
        "curve_allowed_keys_dir={0}/allowed",
        "curve_server_secret_key_file={0}/missing",
        "curve_server_secret_key_file={0}/server.key",
        "curve_server_secret_key_file={0}/broken.key",
        "curve_server_secret_key_file={0}/mixed.key",
        "curve_server_secret_key_file={0}/server.key_secret&curve_allowed_keys_dir={0}/missing",
    ],
)
def test_keys_that_do_not_fit_together_are_refused(keys: Keys, options: str) -> None:
    (keys.directory / "broken.key").write_text('curve\n    public-key = "short"\n    secret-key = "\u00fc"\n')
    other_secret = (keys.directory / "other.key_secret").read_text().splitlines()[-1]
    (keys.directory / "mixed.key").write_text((keys.directory / "server.key").read_text() + other_secret)
    with pytest.raises(InvalidConfig):
        driver_at(f"{URL}?{options.format(keys.directory)}")
