"""The ACL of a real Redis server holds for questions and answers, too, with the very lines of docs/security.md."""

from __future__ import annotations

import concurrent.futures
import contextlib
import pathlib
import re
from collections.abc import Callable, Iterator

import pytest
import redis

import pubsub_api
from durability_service.client import DurabilityClient
from nb_api import NbApi
from nb_api.db_api import Change
from nb_api.writing.publishing import DirectPublisher
from nb_api.writing.sweeper import OutboxSweeper
from publisher_service.sequencer import Sequencer
from publisher_service.upkeep.watching import OwnPublisher
from pubsub_api import Event, History, Publisher, config, loading
from pubsub_api.core import frame as frames
from pubsub_api.core import messages
from pubsub_api.core.clock import HybridClock
from pubsub_api.core.durability import HistoryOutcome
from pubsub_api.core.events import encode_event
from pubsub_api.core.frame import Kind
from pubsub_api.core.messages import Query
from pubsub_api.errors import NotPermitted
from pubsub_api.testing.frames import Frames
from tests.functional.conftest import Bus, Consumer
from tests.helpers.durability_domain import Domain, durability_conf
from tests.helpers.paths import ROOT
from tests.helpers.redis_ends import PATIENT, Ends
from tests.helpers.servers import RedisServer
from tests.helpers.waiting import WAIT_S, wait_until

SECURITY = ROOT / "docs" / "security.md"
GUID = bytes(16)


def acl_lines() -> list[str]:
    """What docs/security.md gives to ``ACL SETUSER``."""
    text = SECURITY.read_text().replace("\\\n", " ")
    return re.findall(r"^ACL SETUSER (.+)$", text, re.MULTILINE)


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    half = "half on >secret resetchannels &heliograph:$* &heliograph:$ask:* &heliograph:tenant-7/* +@all"
    with RedisServer(password="s3cr3t", acl=[*acl_lines(), half]) as server:
        yield server


UrlOf = Callable[[str], str]


@pytest.fixture
def url_of(server: RedisServer) -> UrlOf:
    return lambda user: f"redis://{user}:secret@127.0.0.1:{server.port}/0?{PATIENT}"


@pytest.fixture
def ends() -> Iterator[Ends]:
    ends = Ends()
    yield ends
    ends.close()


@pytest.fixture
def open_bus(url_of: UrlOf) -> Iterator[Callable[..., Bus]]:
    opened: list[Bus] = []

    def open_bus(user: str, options: str = "") -> Bus:
        opened.append(Bus("redis", url_of(user) + options))
        return opened[-1]

    yield open_bus
    for bus in opened:
        bus.close()


def event(topic: str, number: int) -> Event:
    return Event(topic=topic, table="port", key=f"p{number}", action="set", value=number, version=number)


def question(scope: str, *, header: str = "", topics: tuple[str, ...] = ("tenant-8/#",)) -> bytes:
    """Asks for all that the publisher remembers of another tenant's topics."""
    query = Query(id=1, topics=list(topics), history=True)
    query.scope = scope  # not checked here, as a liar would not
    return frames.pack(Kind.QUERY, GUID, header or scope, messages.encode(query))


def test_a_tenant_is_repaired_and_told_its_history_by_a_publisher_of_all(open_bus: Callable[..., Bus]) -> None:
    publisher = open_bus("platform").session().publisher()
    publisher.send_events(
        [event(topic, number) for topic in ("tenant-7/port", "tenant-8/port") for number in (1, 2, 3)]
    )
    consumer = Consumer()
    subscriber = open_bus("tenant-7").session().subscriber(["tenant-7/#"], consumer.on_event, past=History())
    subscriber.wait_ready(timeout_s=WAIT_S)
    wait_until(lambda: len(consumer.events) == 3, WAIT_S, "its own history")
    assert {item.topic for item in consumer.events} == {"tenant-7/port"}
    assert subscriber.statistics().driver["messages_refused"] == 0


def test_the_publisher_of_a_tenant_answers_who_asks_for_its_topics(open_bus: Callable[..., Bus]) -> None:
    publisher = open_bus("tenant-7", "&answer_scopes=tenant-7/%23").session().publisher()
    publisher.send_events([event("tenant-7/port", number) for number in (1, 2, 3)])
    for user, filters in (("tenant-7", ["tenant-7/port"]), ("platform", ["tenant-7/#", "tenant-8/#"])):
        consumer = Consumer()
        subscriber = open_bus(user).session().subscriber(filters, consumer.on_event, past=History())
        subscriber.wait_ready(timeout_s=WAIT_S)
        wait_until(lambda: len(consumer.events) == 3, WAIT_S, f"the history, by {user}")  # noqa: B023


@pytest.mark.parametrize("scope", ["tenant-8/#", "tenant-8/port", "#", "$control"])
def test_a_tenant_cannot_ask_in_the_scope_of_others(
    open_bus: Callable[..., Bus], url_of: UrlOf, ends: Ends, scope: str
) -> None:
    publisher = open_bus("platform").session().publisher()
    publisher.send_event(event("tenant-8/port", 1))
    asked_before = publisher.statistics().questions.queries
    asker, heard = ends.subscriber(url_of("tenant-7"), "tenant-7/#")
    asker.query(question(scope, topics=("tenant-8/port",)))
    # The channel of the answer and the question itself are refused.
    wait_until(lambda: asker.counters["messages_refused"] == 2, WAIT_S, "the refusals")
    asker.query(question("tenant-7/#", topics=("tenant-7/#",)))
    assert heard.wait_frames(1)  # an answer that came later
    assert publisher.statistics().questions.queries == asked_before + 1
    assert not [frame for frame in heard.frames if b"tenant-8" in frame]


def test_a_question_that_lies_about_its_scope_is_refused(
    open_bus: Callable[..., Bus], url_of: UrlOf, ends: Ends
) -> None:
    publisher = open_bus("platform").session().publisher()
    publisher.send_event(event("tenant-8/port", 1))
    asker, heard = ends.subscriber(url_of("tenant-7"), "tenant-7/#")
    for body in ("tenant-8/#", "#", "$control", "tenant-7/#"):
        asker.query(question(body, header="tenant-7/#"))
    wait_until(lambda: publisher.statistics().questions.bad_queries == 4, WAIT_S, "the refusals")
    with redis.Redis.from_url(url_of("tenant-7").partition("?")[0]) as stranger:
        assert stranger.publish("heliograph:$ask:tenant-7/#", GUID + question("tenant-8/#")) >= 1
    wait_until(lambda: publisher.statistics().driver["not_queries"] == 1, WAIT_S, "that of another scope's frame")
    assert not heard.frames


@pytest.mark.parametrize(
    "pattern", ["heliograph:$reply:*", "heliograph:*", "heliograph:$ask:*", "heliograph:$reply:#/*"]
)
def test_a_tenant_cannot_listen_to_the_questions_and_answers_of_others(url_of: UrlOf, pattern: str) -> None:
    with redis.Redis.from_url(url_of("tenant-7").partition("?")[0]) as stranger, stranger.pubsub() as channel:
        channel.psubscribe(pattern)
        with pytest.raises(redis.exceptions.NoPermissionError):
            channel.parse_response()


def test_a_frame_in_the_channel_of_another_topic_reaches_nobody(url_of: UrlOf, ends: Ends) -> None:
    listener, heard = ends.subscriber(url_of("platform"), "#")
    publisher, _ = ends.publisher(url_of("tenant-7"))
    made = Frames()
    own = made.data("tenant-7/port")
    publisher.send("tenant-7/port", made.data("tenant-8/port"))
    publisher.send("tenant-7/port", made.data("$control"))
    publisher.send("tenant-7/port", own)
    heard.wait_frame(own)
    assert heard.frames == [own]
    assert listener.counters["frames_misplaced"] == 2


def send_refused(publisher: Publisher, topic: str) -> int:
    """Send events until it is known that the program may not; returns how many were accepted before."""
    accepted = 0

    def is_known() -> bool:
        nonlocal accepted
        try:
            publisher.send_event(event(topic, accepted + 1))
        except NotPermitted:
            return True
        accepted += 1
        return False

    wait_until(is_known, WAIT_S, "the refusal")
    return accepted


def test_a_flush_tells_what_the_server_refuses(open_bus: Callable[..., Bus]) -> None:
    publisher = open_bus("half").session().publisher()
    publisher.send_event(event("tenant-7/port", 1))
    publisher.flush(timeout_s=WAIT_S)
    publisher.send_event(event("tenant-8/port", 1))
    with pytest.raises(NotPermitted, match="tenant-8/port"):
        publisher.flush(timeout_s=WAIT_S)
    assert publisher.statistics().refused == 1
    publisher.flush(timeout_s=WAIT_S)


def test_what_the_server_refused_is_not_kept_and_not_told(open_bus: Callable[..., Bus]) -> None:
    """The publisher hears all questions, so that nothing but its cache keeps the events from others."""
    publisher = open_bus("half").session().publisher()
    publisher.send_event(event("tenant-7/port", 1))
    accepted = send_refused(publisher, "tenant-8/port")
    wait_until(lambda: publisher.statistics().refused == accepted, WAIT_S, "all of them to be dropped")
    with pytest.raises(NotPermitted, match="tenant-8/port"):
        publisher.flush(timeout_s=WAIT_S)
    publisher.flush(timeout_s=WAIT_S)
    consumer = Consumer()
    subscriber = open_bus("platform").session().subscriber(["#"], consumer.on_event, past=History())
    subscriber.wait_ready(timeout_s=WAIT_S)
    wait_until(lambda: consumer.events, WAIT_S, "the history")
    publisher.send_event(event("tenant-7/port", 2))
    wait_until(lambda: len(consumer.events) == 2, WAIT_S, "an event on a topic that is allowed")
    assert {item.topic for item in consumer.events} == {"tenant-7/port"}
    assert publisher.heads() == {"tenant-7/port": 2}
    assert publisher.statistics().cache.frames == 2


def test_after_a_permission_is_given_nothing_looks_lost(open_bus: Callable[..., Bus], server: RedisServer) -> None:
    publisher = open_bus("half").session().publisher()
    consumer = Consumer()
    subscriber = (
        open_bus("platform").session().subscriber(["tenant-9/#"], consumer.on_event, on_resync=consumer.on_resync)
    )
    subscriber.wait_ready(timeout_s=WAIT_S)
    send_refused(publisher, "tenant-9/port")
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", "half", "&heliograph:tenant-9/*")

    def is_sent() -> bool:
        try:
            publisher.send_event(event("tenant-9/port", 1000))
        except NotPermitted:
            return False
        return True

    wait_until(is_sent, WAIT_S, "the topic to be tried again")
    publisher.send_event(event("tenant-9/port", 1001))
    wait_until(lambda: consumer.versions == [1000, 1001], WAIT_S, "both events")
    assert len(consumer.resyncs) == 1
    assert subscriber.statistics().repair.gaps == 0


def test_a_service_goes_on_with_what_is_permitted(open_bus: Callable[..., Bus]) -> None:
    publisher = open_bus("half").session().publisher()
    sequencer = Sequencer(publisher, None, event_bytes_max=1000, streams_max=10)
    worker = bytes(16)
    encoded = [encode_event(event("tenant-8/port", 1), 1)]

    def take(number: int) -> tuple[int, str]:
        return sequencer.take(worker, number, [("tenant-8/port", encoded), ("tenant-7/port", encoded)], b"")

    assert take(1) == (0, "")
    refusing: list[Callable[[], tuple[int, str]]] = [sequencer.flush, lambda: take(2)]
    for number, call in enumerate(refusing, 1):
        refused, reason = call()
        assert refused == 1
        assert "tenant-8/port" in reason
        assert sequencer.counters.refused_events == number
    assert sequencer.flush() == (0, "")
    assert set(publisher.heads()) == {"tenant-7/port"}


def test_a_refusal_is_told_to_workers_and_to_the_service_itself_whoever_flushes_first(
    open_bus: Callable[..., Bus],
) -> None:
    sequencer = Sequencer(open_bus("half").session().publisher(), None, event_bytes_max=1000, streams_max=10)
    encoded = [encode_event(event("tenant-8/port", 1), 1)]
    assert sequencer.take(bytes(16), 1, [("tenant-8/port", encoded)], b"") == (0, "")
    assert sequencer.publish([("tenant-7/port", encoded)])[0] == 1
    refused, reason = sequencer.flush()
    assert refused == 1
    assert "tenant-8/port" in reason
    assert sequencer.flush() == (0, "")


def test_what_a_service_publishes_itself_and_may_not_is_named(open_bus: Callable[..., Bus]) -> None:
    publisher = open_bus("half").session().publisher()
    own = OwnPublisher(Sequencer(publisher, None, event_bytes_max=1000, streams_max=10), HybridClock(skew_max_ns=0))
    topics = ("tenant-7/port", "tenant-8/port")
    changes = [Change(number, "create", "port", topic, topic, number) for number, topic in enumerate(topics, 1)]
    for _ in range(2):
        (refusal,) = own.publish(changes)
        assert (refusal.revision, refusal.key) == (2, "tenant-8/port")
        own.flush(timeout_s=WAIT_S)


def test_a_refusal_is_told_to_each_thread_that_flushes(url_of: UrlOf) -> None:
    """As those of a process that hand over and sweep: neither confirms what was refused because the other was told."""
    with pubsub_api.open(url_of("half")) as session:
        publisher = DirectPublisher(session.publisher)
        assert publisher.publish([Change(1, "create", "port", "p", "tenant-8/port", 1)]) == []

        def flush() -> str:
            try:
                publisher.flush(timeout_s=WAIT_S)
            except NotPermitted as error:
                return str(error)
            return ""

        with concurrent.futures.ThreadPoolExecutor(1) as other:
            assert "tenant-8/port" in other.submit(flush).result()
            assert "tenant-8/port" in flush()
            assert other.submit(flush).result() == flush() == ""
        publisher.close()


def test_a_sweep_names_what_is_not_permitted_and_publishes_the_rest(url_of: UrlOf, tmp_path: pathlib.Path) -> None:
    conf = loading.conf_from_url(url_of("half"))
    conf.set_override("enable_df_pub_sub", True, group=config.GROUP)
    conf.set_override("pub_sub_use_multiproc", False, group=config.GROUP)
    with NbApi.open(conf=conf, url=f"sqlite://{tmp_path}/objects.db") as nb:
        assert nb.publisher is not None
        conf.set_override("outbox_age", 0.1, group="db")
        for tenant in ("tenant-7", "tenant-8"):
            nb.db.create("port", tenant, 1, topic=f"{tenant}/port")
        sweeper = OutboxSweeper(nb.db, nb.publisher, conf)
        wait_until(lambda: len(nb.db.unpublished(older_than_s=0.1)) == 2, WAIT_S, "both to be old")
        for swept in (1, 0):
            assert sweeper.sweep() == swept
            assert [refusal.key for refusal in sweeper.refused.values()] == ["tenant-8"]
            assert [change.key for change in nb.db.unpublished()] == ["tenant-8"]


def test_a_tenant_is_told_nothing_by_a_durability_service(url_of: UrlOf, tmp_path: pathlib.Path) -> None:
    """Its questions are in no scope: neither they nor a channel for the answers are open to a tenant."""
    topics = ["tenant-7/port", "tenant-8/port"]
    with contextlib.ExitStack() as stack:
        domain = Domain(url_of("platform"), tmp_path, is_bind_based=False)
        stack.callback(domain.close)
        publisher = stack.enter_context(domain.publisher())
        publisher.send_events([event(topic, 1) for topic in topics])
        domain.start("a")
        domain.wait_complete(samples=2)
        session = stack.enter_context(pubsub_api.open(conf=durability_conf(url_of("tenant-7"))))
        with contextlib.closing(DurabilityClient(session)) as client:
            assert client.status(timeout_s=1.0) == []
            for topic in topics:
                assert client.history([topic], timeout_s=1.0) == (HistoryOutcome.NO_SERVICE, [])
        with contextlib.closing(domain.client()) as client:
            assert client.history(topics, timeout_s=WAIT_S)[0] is HistoryOutcome.COMPLETE
