"""Access control of a real Zenoh router holds for questions and answers, with the very rules of docs/security.md."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest
import zenoh

from pubsub_api import Event, History
from pubsub_api.core import frame as frames
from pubsub_api.core import messages
from pubsub_api.core.frame import Kind
from pubsub_api.core.messages import Query
from tests.functional.conftest import Bus, Consumer
from tests.helpers.paths import ROOT
from tests.helpers.servers import free_port
from tests.helpers.waiting import WAIT_S, wait_joined, wait_until
from tests.helpers.zenoh_ends import Ends

SECURITY = ROOT / "docs" / "security.md"
GUID = bytes(16)
USERS = "platform:secret\ntenant-7:secret\n"


@pytest.fixture(scope="module")
def router(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of a router with the rules of the documentation."""
    (rules,) = re.findall(r"```json5\n(.+?)```", SECURITY.read_text(), re.DOTALL)
    users = tmp_path_factory.mktemp("zenoh") / "users"
    users.write_text(USERS)
    port = free_port()
    config = zenoh.Config.from_json5(rules)
    for key, value in {
        "mode": '"router"',
        "listen/endpoints": f'["tcp/127.0.0.1:{port}"]',
        "scouting/multicast/enabled": "false",
        "transport/link/tx/lease": "60000",  # a loaded machine is no lost link
        "transport/auth/usrpwd/user": '"router"',
        "transport/auth/usrpwd/password": '"secret"',
        "transport/auth/usrpwd/dictionary_file": f'"{users}"',
    }.items():
        config.insert_json5(key, value)
    with zenoh.open(config):
        yield port


OpenBus = Callable[..., Bus]


@pytest.fixture
def open_bus(router: int) -> Iterator[OpenBus]:
    opened: list[Bus] = []

    def open_bus(user: str, options: str = "") -> Bus:
        opened.append(Bus("zenoh", f"zenoh://{user}:secret@127.0.0.1:{router}?mode=client{options}"))
        return opened[-1]

    yield open_bus
    for bus in opened:
        bus.close()


@pytest.fixture
def ends() -> Iterator[Ends]:
    ends = Ends()
    yield ends
    ends.close()


def event(topic: str, number: int) -> Event:
    return Event(topic=topic, table="port", key=f"p{number}", action="set", value=number, version=number)


def question(scope: str, *topics: str, header: str = "") -> bytes:
    """Asks for all that the publisher remembers."""
    query = Query(id=1, topics=list(topics), history=True)
    query.scope = scope  # not checked here, as a liar would not
    return frames.pack(Kind.QUERY, GUID, header or scope, messages.encode(query))


def test_a_tenant_is_told_its_history_by_a_publisher_of_all(open_bus: OpenBus) -> None:
    publisher = open_bus("platform").session().publisher()
    topics = ("tenant-7/port", "tenant-8/port")
    publisher.send_events([event(topic, number) for topic in topics for number in (1, 2, 3)])
    consumer = Consumer()
    subscriber = open_bus("tenant-7").session().subscriber(["tenant-7/#"], consumer.on_event, past=History())
    wait_joined(subscriber, None)
    wait_until(lambda: len(consumer.events) == 3, WAIT_S, "its own history")
    publisher.send_events([event(topic, 4) for topic in topics])
    wait_until(lambda: len(consumer.events) == 4, WAIT_S, "what follows")
    assert {item.topic for item in consumer.events} == {"tenant-7/port"}


def test_a_tenant_s_publisher_is_heard_and_answers_who_asks_for_its_topics(open_bus: OpenBus) -> None:
    publisher = open_bus("tenant-7", "&answer_scopes=tenant-7/%23").session().publisher()
    publisher.send_events([event("tenant-7/port", number) for number in (1, 2, 3)])
    for user, filters in (("tenant-7", ["tenant-7/port"]), ("platform", ["tenant-7/#", "tenant-8/#"])):
        consumer = Consumer()
        subscriber = open_bus(user).session().subscriber(filters, consumer.on_event, past=History())
        wait_joined(subscriber, None)
        wait_until(lambda: len(consumer.events) == 3, WAIT_S, f"the history, by {user}")  # noqa: B023
    for number in range(4, 12):  # more than it takes to declare a publisher
        publisher.send_event(event("tenant-7/port", number))
        wait_until(lambda: len(consumer.events) == number, WAIT_S, "what follows")  # noqa: B023


def test_a_tenant_cannot_ask_in_the_scope_of_others(
    open_bus: OpenBus, router: int, ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("heliograph_drivers.pubsub.zenoh.config.QUERY_TIMEOUT_S", 60.0)
    publisher = open_bus("platform").session().publisher()
    publisher.send_events([event("tenant-8/port", 1), event("tenant-7/port", 1)])
    url = f"zenoh://tenant-7:secret@127.0.0.1:{router}?mode=client"
    asker, heard = ends.subscriber(url, "tenant-7/#", address=f"tcp/127.0.0.1:{router}")
    asked_before = publisher.statistics().questions.queries
    for scope in ("tenant-8/#", "tenant-8/port", "#", "$control"):
        asker.query(question(scope, "tenant-8/port"))
    for scope in ("tenant-8/#", "#", "$control", "tenant-7/#"):
        asker.query(question(scope, "tenant-8/#", header="tenant-7/#"))
    asker.query(question("tenant-7/#", "tenant-7/#"))
    heard.wait_frames(1)
    wait_until(lambda: publisher.statistics().questions.bad_queries == 4, WAIT_S, "the liars to be refused")
    assert publisher.statistics().questions.queries == asked_before + 1
    assert not [frame for frame in heard.frames if b"tenant-8" in frame]


def test_what_a_tenant_may_not_publish_reaches_nobody_also_not_by_repair(open_bus: OpenBus) -> None:
    """With answers for everything, as one that does not mind the rules would offer them."""
    own = open_bus("tenant-7", "&answer_scopes=%23,tenant-7/%23,tenant-8/%23").session().publisher()
    consumer = Consumer()
    own.send_events([event(topic, 1) for topic in ("tenant-7/port", "tenant-8/port")])
    filters = ["tenant-7/#", "tenant-8/#"]
    session = open_bus("platform").session(ready_timeout=2.0)  # what may not be published is not told by anybody
    subscriber = session.subscriber(filters, consumer.on_event, past=History())
    wait_joined(subscriber, None)
    for number in range(2, 8):
        own.send_events([event(topic, number) for topic in ("tenant-8/port", "tenant-7/port")])
        wait_until(lambda: number in consumer.versions, WAIT_S, "what is permitted")  # noqa: B023
    assert {item.topic for item in consumer.events} == {"tenant-7/port"}
