"""What the Redis driver makes of topics, batches, TLS and its configuration, on a real server."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from random import Random

import pytest

from pubsub_api import loading
from pubsub_api.core.topics import check_filter, check_topic, matches
from pubsub_api.driver import Disconnected
from pubsub_api.errors import InvalidConfig, InvalidTopic
from pubsub_api.testing.frames import Frames, header
from tests.helpers.paths import TLS
from tests.helpers.redis_ends import PATIENT, Ends, build, is_answered, reason
from tests.helpers.servers import RedisServer, TlsProxy
from tests.helpers.waiting import wait_until


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


class TestChannels:
    def test_overlapping_filters_deliver_one_copy(self, shared_server: RedisServer, ends: Ends) -> None:
        frames = Frames()
        publisher, _ = ends.publisher(shared_server.address)
        subscriber, heard = ends.subscriber(shared_server.address, "o/#", "o/+", "+/x", "o/x", "#", "sentinel")
        sent = []
        for leaving in ("o/x", "o/+", "#", "+/x"):
            sent += [frames.data(topic) for topic in ("o/x", "o/y", "o", "sentinel") for _ in range(3)]
            publisher.send_many([(header(frame).topic, frame) for frame in sent[-12:]])
            heard.wait_frames(len(sent))
            assert subscriber.unregister_topic(leaving)
        publisher.send("sentinel", sentinel := frames.data("sentinel"))
        heard.wait_frame(sentinel)
        assert heard.frames == [*sent, sentinel]

    def test_subscriptions_that_come_and_go_neither_lose_nor_repeat(
        self, shared_server: RedisServer, ends: Ends
    ) -> None:
        frames = Frames()
        publisher, _ = ends.publisher(shared_server.address)
        subscriber, heard = ends.subscriber(shared_server.address, "c/#")
        sent = []
        for number in range(300):
            publisher.send("c/x", frame := frames.data("c/x"))
            sent.append(frame)
            changed = ("c/x", "c/+", "+/x", "#")[number % 4]
            assert subscriber.register_topic(changed) or subscriber.unregister_topic(changed)
        assert heard.wait_frames(len(sent)) == sent

    def test_who_listens_to_everything_hears_no_queries_and_no_replies(
        self, shared_server: RedisServer, ends: Ends
    ) -> None:
        frames = Frames()
        publisher, _ = ends.publisher(shared_server.address)
        publisher.serve(lambda query: [frames.reply(query)])
        _, everything = ends.subscriber(shared_server.address, "#", "+", "+/#")
        subscriber, heard = ends.subscriber(shared_server.address, "t")
        wait_until(lambda: is_answered(subscriber, heard), 30, "an answer")
        publisher.send("t", frame := frames.data("t"))
        assert everything.wait_frames(1) == [frame]
        assert everything.foreign == []

    def test_bytes_that_are_no_query_disturb_no_responder(self, shared_server: RedisServer, ends: Ends) -> None:
        frames = Frames()
        publisher, _ = ends.publisher(shared_server.address)
        publisher.serve(lambda query: [frames.reply(query)])
        subscriber, heard = ends.subscriber(shared_server.address, "t")
        with shared_server.client() as client:
            for garbage in (b"", b"x", b"x" * 16, b"x" * 1000):
                wait_until(lambda: client.publish("heliograph:$ask:#", garbage), 60, "somebody to hear it")  # noqa: B023
        wait_until(lambda: is_answered(subscriber, heard), 30, "an answer")

    def test_prefixes_keep_buses_apart_on_one_server(self, shared_server: RedisServer, ends: Ends) -> None:
        prefixes = ["a:", "a:b", "a*:", "a%5Bbc%5D:", "ab:", "a%5C%5C:", "$:", ""]
        urls = [f"{shared_server.address}?channel_prefix={prefix}" for prefix in prefixes if prefix]
        listeners = [ends.subscriber(url, "x", "w/+", "w/x/#")[1] for url in urls]
        own = []
        for url in urls:
            publisher, _ = ends.publisher(url)
            frames = Frames()
            pairs = [(topic, frames.data(topic)) for topic in ("x", "w/x", "w/x/y")]
            publisher.send_many(pairs)
            own.append([frame for _, frame in pairs])
        for listener, expected in zip(listeners, own, strict=True):
            assert listener.wait_frames(3) == expected

    def test_no_filter_misses_what_it_matches(self, shared_server: RedisServer, ends: Ends) -> None:
        random = Random("filters")
        topics, filters = hostile_names(random, "topic", 60), hostile_names(random, "filter", 60)
        publisher, _ = ends.publisher(shared_server.address)
        listeners = {wanted: ends.subscriber(shared_server.address, wanted, "the-end")[1] for wanted in filters[:40]}
        frames = Frames()
        sent = {topic: frames.data(topic) for topic in [*topics, "the-end"]}
        publisher.send_many(list(sent.items()))
        for wanted, heard in listeners.items():
            heard.wait_frame(sent["the-end"])
            missed = [topic for topic in topics if matches(wanted, topic) and sent[topic] not in heard.frames]
            assert missed == [], f"filter {wanted!r}"
            assert len(heard.frames) == len(set(heard.frames)), f"filter {wanted!r} delivers twice"

    def test_thousands_of_filters_are_all_in_effect_when_the_link_is_up(
        self, shared_server: RedisServer, ends: Ends
    ) -> None:
        filters = [f"many/{number}" for number in range(3_000)] + [f"more/{number}/#" for number in range(1_000)]
        publisher, _ = ends.publisher(shared_server.address)
        _, heard = ends.subscriber(shared_server.address, *filters)
        frames = Frames()
        sent = [frames.data(wanted.replace("#", "x")) for wanted in filters]
        publisher.send_many([(header(frame).topic, frame) for frame in sent])
        assert heard.wait_frames(len(sent)) == sent


def hostile_names(random: Random, kind: str, count: int) -> list[str]:
    """Distinct valid topics, or filters, of the characters that a glob pattern gives a meaning."""
    levels = ["a", "b", "[a", "a]", "[ab]", "[^a]", "a-b", "\\", "\\a", "a\\", "^", "-", "{a}", "é"]
    wild = ["+", "+", "+"] if kind == "filter" else []
    found: dict[str, None] = {}
    while len(found) < count:
        name = "/".join(random.choice([*levels, *wild]) for _ in range(random.randint(1, 3)))
        if kind == "filter" and random.random() < 0.5:
            name += "/#"
        try:
            found[check_filter(name) if kind == "filter" else check_topic(name)] = None
        except InvalidTopic:
            continue
    return list(found)


class TestSending:
    def test_what_was_sent_arrives_although_the_publisher_is_closed_at_once(
        self, shared_server: RedisServer, ends: Ends
    ) -> None:
        publisher, _ = ends.publisher(f"{shared_server.address}?{PATIENT}")
        _, heard = ends.subscriber(f"{shared_server.address}?{PATIENT}", "t")
        frames = Frames()
        sent = [frames.data("t", 1000) for _ in range(5_000)]
        publisher.send_many([("t", frame) for frame in sent])
        publisher.close()
        assert heard.wait_frames(len(sent)) == sent

    def test_more_frames_than_the_server_may_owe_answers_for(
        self, shared_server: RedisServer, ends: Ends, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("heliograph_drivers.pubsub.redis.config.UNANSWERED_MAX", 7)
        publisher, _ = ends.publisher(f"{shared_server.address}?{PATIENT}")
        _, heard = ends.subscriber(shared_server.address, "t")
        frames = Frames()
        sent = [frames.data("t") for _ in range(500)]
        publisher.send_many([("t", frame) for frame in sent[:250]])
        for frame in sent[250:]:
            publisher.send("t", frame)
        assert heard.wait_frames(len(sent)) == sent

    def test_two_servers_are_heard_and_one_of_them_left(self, shared_server: RedisServer, ends: Ends) -> None:
        with RedisServer() as second:
            frames = Frames()
            publishers = [ends.publisher(server.address)[0] for server in (shared_server, second)]
            subscriber, heard = ends.subscriber(shared_server.address, "t")
            assert subscriber.register_listen_address(second.address)
            assert not subscriber.register_listen_address(second.address.removesuffix("/0"))
            heard.wait_connected(second.address)
            for publisher in publishers:
                publisher.send("t", frame := frames.data("t"))
                heard.wait_frame(frame)
            assert subscriber.unregister_listen_address(second.address)
            assert isinstance(heard.links[-1], Disconnected)
            publishers[1].send("t", unheard := frames.data("t"))
            publishers[0].send("t", frame := frames.data("t"))
            heard.wait_frame(frame)
            assert unheard not in heard.frames
            second.kill()
            publishers[0].send("t", frame := frames.data("t"))
            heard.wait_frame(frame)
            ends.close()


class TestTls:
    def context(self, *, asks_for_certificate: bool) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(TLS / "ca.pem"))
        context.load_cert_chain(TLS / "server.pem", TLS / "server-key.pem")
        if asks_for_certificate:
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    @pytest.mark.parametrize("is_mutual", [False, True])
    def test_frames_and_queries_are_encrypted(self, shared_server: RedisServer, ends: Ends, *, is_mutual: bool) -> None:
        frames = Frames()
        with TlsProxy(shared_server.port, self.context(asks_for_certificate=is_mutual)) as proxy:
            url = f"rediss://127.0.0.1:{proxy.port}/0?tls_ca_file={TLS / 'ca.pem'}&{PATIENT}"
            if is_mutual:
                url += f"&tls_cert_file={TLS / 'client.pem'}&tls_key_file={TLS / 'client-key.pem'}"
            publisher, _ = ends.publisher(url)
            assert publisher.address == f"rediss://127.0.0.1:{proxy.port}/0"
            publisher.serve(lambda query: [frames.reply(query, size=300_000)])
            subscriber, heard = ends.subscriber(url, "t/#")
            sent = [frames.data("t/x", size) for size in (10, 20_000, 1_000_000, 10) for _ in range(10)]
            publisher.send_many([("t/x", frame) for frame in sent])
            assert heard.wait_frames(len(sent)) == sent
            wait_until(lambda: is_answered(subscriber, heard), 30, "an answer")
            ends.close()

    def test_a_server_that_cannot_prove_itself_is_refused(self, shared_server: RedisServer, ends: Ends) -> None:
        with TlsProxy(shared_server.port, self.context(asks_for_certificate=False)) as proxy:
            _, reports = ends.publisher(f"rediss://127.0.0.1:{proxy.port}/0?{PATIENT}", is_up=False)
            assert "certificate" in reason(reports).lower()
            ends.close()


class TestConfiguration:
    @pytest.mark.parametrize(
        ("url", "address"),
        [
            ("redis://", "redis://127.0.0.1:6379/0"),
            ("redis://host", "redis://host:6379/0"),
            ("redis://host:1234/7", "redis://host:1234/7"),
            ("redis://[::1]:1234", "redis://[::1]:1234/0"),
            ("redis://user:p%40ss@host/1", "redis://host:6379/1"),
        ],
    )
    def test_addresses_are_complete_and_carry_no_credentials(self, url: str, address: str) -> None:
        driver = build(url)
        assert driver.listen_addresses() == [address]
        assert driver.get_publisher().address == address

    @pytest.mark.parametrize(
        "url",
        [
            "redis://host:0",
            "redis://host/one",
            "redis://host/-1",
            "redis://host/0#part",
            "redis://host?nonsense=1",
            "redis://host?url=redis://other",
            "redis://host?password=x",
            "redis://host?link_timeout",
            "redis://host?link_timeout=soon",
            "redis://host?link_timeout=0",
            "redis://host?link_timeout=1&link_timeout=2",
            "redis://host?note_arrivals=perhaps",
            "redis://host?tls_ca_file=ca.pem",
            "rediss://host?tls_ca_file=/no/such/file",
            f"rediss://host?tls_cert_file={TLS / 'client.pem'}",
        ],
    )
    def test_a_wrong_url_is_refused(self, url: str) -> None:
        with pytest.raises(InvalidConfig):
            build(url)

    def test_options_of_a_url_are_typed(self) -> None:
        conf = loading.conf_from_url("redis://host?link_timeout=2&note_arrivals=true")
        assert (conf.pubsub.link_timeout, conf.redis.note_arrivals) == (2.0, True)

    @pytest.mark.parametrize(
        "address", ["redis://user:hunter2@host:1/0", "zmq://host:1", "redis://host:99999", "redis://h/x"]
    )
    def test_a_bad_listen_address_is_refused_and_its_password_not_shown(self, address: str) -> None:
        with pytest.raises(InvalidConfig) as caught:
            build("redis://").get_subscriber().register_listen_address(address)
        assert "hunter2" not in str(caught.value)
