"""The long-poll driver on real sockets: connections, failure detection both ways, mailboxes and their policies."""

from __future__ import annotations

import contextlib
import logging
import os
import pathlib
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from pubsub_api.driver import Connected, Disconnected
from pubsub_api.errors import LimitReached
from pubsub_api.testing.child import ChildProcess
from pubsub_api.testing.frames import header
from tests.helpers.longpoll_ends import (  # noqa: F401
    QUICK,
    URL,
    BlockedReceiver,
    Ends,
    counters_of,
    ends,
    state_of,
)
from tests.helpers.nodes import PublisherNode, SubscriberNode, unexplained
from tests.helpers.paths import ROOT
from tests.helpers.servers import free_port
from tests.helpers.waiting import wait_until

TOPIC = "tenant-7/port"
CALM = {"max_idle_time": 0.5}
RARELY = {"max_idle_time": 60.0}


def established(address: str) -> int:
    """How many connections lead to the address, as the kernel counts them."""
    port = f":{int(address.rpartition(':')[2]):04X}"
    tables = [pathlib.Path("/proc/self/net", name).read_text().splitlines()[1:] for name in ("tcp", "tcp6")]
    rows = [line.split() for table in tables for line in table]
    return sum(row[1].endswith(port) and row[3] == "01" for row in rows)


# -- connections and subscriptions


def test_a_subscriber_has_one_connection_whatever_it_subscribes_to(ends: Ends) -> None:  # noqa: F811
    publisher = ends.publisher()
    publisher.serve(lambda query: [ends.frames.reply(query)])
    filters = [f"channel/key-{number}" for number in range(5000)]
    listeners = [ends.subscriber(publisher.address, *filters) for _ in range(3)]
    for subscriber, heard in listeners:
        subscriber.query(ends.frames.query(1))
        subscriber.register_topic("later/#")
        heard.wait_frames(1)
    [frame] = ends.send(publisher, "channel/key-4711")
    for _, heard in listeners:
        heard.wait_frame(frame)
    assert established(publisher.address) == 3
    assert state_of(publisher).sessions == 3
    wait_until(lambda: state_of(publisher).subscriptions == 15_003, 20, "the last filters")


def test_commands_go_in_batches(ends: Ends) -> None:  # noqa: F811
    publisher = ends.publisher()
    filters = [f"k/{number}" for number in range(5000)]
    subscriber, _ = ends.subscriber(publisher.address, *filters, url=f"{URL}?connect_timeout=60")
    [counters] = counters_of(subscriber)
    assert (counters.batches, counters.commands, counters.sessions) == (3, 5000, 1)


def test_a_burst_arrives_in_few_answers(ends: Ends) -> None:  # noqa: F811
    publisher = ends.publisher()
    subscriber, heard = ends.subscriber(publisher.address, "t")
    sent = ends.send(publisher, "t", 3000)
    assert heard.wait_frames(3000) == sent
    [counters] = counters_of(subscriber)
    assert counters.polls < 300
    assert counters.frames == 3000


def test_limits_of_the_publisher_refuse_and_the_subscriber_tries_again(
    ends: Ends, monkeypatch: pytest.MonkeyPatch  # noqa: F811
) -> None:  # fmt: skip
    monkeypatch.setattr("heliograph_drivers.pubsub.longpoll.config.SESSIONS_MAX", 1)
    publisher = ends.publisher(URL)
    first, _ = ends.subscriber(publisher.address, "t")
    _, waiting = ends.subscriber(publisher.address, "t", is_awaited=False)
    wait_until(lambda: state_of(publisher).counters.refused >= 2, 20, "two refusals")
    assert waiting.links == []
    first.close()
    waiting.wait_connected(publisher.address)
    waiting.wait_frame(ends.send(publisher, "t")[0])


def test_a_frame_that_grpc_cannot_carry_is_refused(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    publisher = ends.publisher()
    monkeypatch.setattr(sys.modules[type(publisher).__module__], "FRAME_BYTES_MAX", 1000)
    with pytest.raises(LimitReached, match="larger than gRPC carries"):
        publisher.send("t", ends.frames.data("t", 2000))


# -- failure detection


def test_a_subscriber_that_leaves_is_freed_at_once(ends: Ends) -> None:  # noqa: F811
    publisher = ends.publisher()
    subscriber, _ = ends.subscriber(publisher.address, "a", "b/#")
    assert state_of(publisher).subscriptions == 2
    subscriber.close()
    statistics = state_of(publisher)
    assert (statistics.sessions, statistics.subscriptions) == (0, 0)


def test_a_killed_subscriber_is_freed_in_time(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    monkeypatch.setattr("heliograph_drivers.pubsub.longpoll.config.SESSION_TIMEOUT_S", 2.0)
    publisher = ends.publisher(f"{URL}?{QUICK}")
    with ChildProcess("subscriber", f"{URL}?{QUICK}", publisher.address, "t", "u/#") as child:
        child.receive()
        wait_until(lambda: state_of(publisher).subscriptions == 2, 60, "the session, if need be once more")
        ends.send(publisher, "t", 10)
        child.kill()
        ends.send(publisher, "t", 10)
    wait_until(lambda: state_of(publisher).sessions == 0, 30, "the death to be noticed")
    statistics = state_of(publisher)
    assert (statistics.subscriptions, statistics.mailbox_bytes) == (0, 0)
    assert statistics.counters.sessions_dead >= 1


def test_a_subscriber_that_was_taken_for_dead_is_told_and_recovers(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    monkeypatch.setattr("heliograph_drivers.pubsub.longpoll.config.SESSION_TIMEOUT_S", 2.0)
    publisher = ends.publisher(f"{URL}?{QUICK}")
    with ChildProcess("subscriber", f"{URL}?{QUICK}", publisher.address, "t") as child:
        child.receive()

        def hears_after(number: int) -> bool:
            ends.send(publisher, "t")
            return any(heard > number for heard in child.ask(heard="t")["numbers"])

        wait_until(lambda: hears_after(0), 60, "the first frames")
        child.stop()
        wait_until(lambda: state_of(publisher).sessions == 0, 60, "its supposed death")
        assert state_of(publisher).counters.sessions_dead >= 1
        unheard = {header(frame).first for frame in ends.send(publisher, "t", 5)}
        child.resume()
        wait_until(lambda: state_of(publisher).sessions == 1, 60, "its new session")
        wait_until(lambda: hears_after(max(unheard)), 60, "frames of the new session")
        numbers = child.ask(heard="t")["numbers"]
        assert numbers == sorted(set(numbers))
        assert not set(numbers) & unheard, "what was published while it was dead to the publisher"


def test_an_idle_subscriber_is_never_taken_for_dead(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    monkeypatch.setattr("heliograph_drivers.pubsub.longpoll.config.POLL_GRACE_S", 60.0)
    monkeypatch.setattr("heliograph_drivers.pubsub.longpoll.config.POLLS_PER_TIMEOUT", 1200)
    publisher = ends.publisher(f"{URL}?link_timeout=60")
    subscriber, heard = ends.subscriber(publisher.address, "t", url=f"{URL}?link_timeout=60")
    wait_until(lambda: state_of(publisher).counters.polls > 30, 30, "thirty polls without mail")
    assert heard.links == [Connected(publisher.address)]
    assert state_of(publisher).counters.sessions_dead == 0
    [counters] = counters_of(subscriber)
    assert (counters.sessions, counters.failures) == (1, 0)


def test_a_frozen_publisher_is_noticed_and_its_session_resumed(ends: Ends) -> None:  # noqa: F811
    with ChildProcess("publisher", f"{URL}?link_timeout=1.5&retry_interval_max=30") as child:
        address = child.receive()["address"]
        subscriber, heard = ends.subscriber(address, "t", url=f"{URL}?{QUICK}")
        child.ask(send="t", count=3, size=10)
        heard.wait_frames(3)
        child.stop()
        heard.wait_link(Disconnected(address, ""), timeout_s=30)
        child.resume()
        heard.wait_connected(address, count=2, timeout_s=30)
        child.ask(send="t", count=3, size=10)
        numbers = [header(frame).first for frame in heard.wait_frames(6)]
        assert numbers == [1, 2, 3, 4, 5, 6]
        [counters] = counters_of(subscriber)
        assert counters.sessions == 1, "the same session"
        assert counters.resumed >= 1


def test_a_restarted_publisher_is_one_break_per_link(ends: Ends) -> None:  # noqa: F811
    """However many filters there are: the layer above tells the user which topics are concerned."""
    url = f"longpoll://127.0.0.1:{free_port()}"
    publisher = ends.publisher(url)
    address = publisher.address
    _, heard = ends.subscriber(address, "t", "u", "v/#", "#")
    publisher.close()
    heard.wait_link(Disconnected(address, ""))
    successor = ends.publisher(url)
    heard.wait_connected(address, count=2)
    for topic in ("t", "u", "v/x", "other"):
        heard.wait_frame(ends.send(successor, topic)[0])
    assert [type(report) for report in heard.links] == [Connected, Disconnected, Connected]
    assert len(heard.frames) == 4


# -- mailboxes


def test_a_slow_receiver_holds_up_its_mailbox_and_loses_nothing(ends: Ends) -> None:  # noqa: F811
    publisher = ends.publisher()
    heard = BlockedReceiver()
    ends.subscriber(publisher.address, "t", url=f"{URL}?receive_queue_bytes_max=262144", heard=heard)
    _, witness = ends.subscriber(publisher.address, "t")
    sent = []
    for _ in range(20):
        sent += ends.send(publisher, "t", 10, 10_000)
        witness.wait_frames(len(sent))
    assert state_of(publisher).mailbox_bytes > 1_000_000
    heard.gate.set()
    assert heard.wait_frames(200) == sent
    assert state_of(publisher).counters.resets == 0


def test_a_full_lossless_mailbox_is_a_reset_that_is_told(ends: Ends, caplog: pytest.LogCaptureFixture) -> None:  # noqa: F811
    publisher = ends.publisher(f"{URL}?mailbox_frames_max=100")
    heard = BlockedReceiver()
    subscriber, _ = ends.subscriber(
        publisher.address, "t", url=f"{URL}?receive_queue_bytes_max=262144", heard=heard
    )  # fmt: skip
    _, witness = ends.subscriber(publisher.address, "t")
    for number in range(40):
        ends.send(publisher, "t", 10, 10_000)
        witness.wait_frames(10 * (number + 1))
    statistics = state_of(publisher)
    assert statistics.counters.resets >= 1
    assert statistics.mailbox_frames <= 200
    heard.gate.set()
    heard.wait_connected(publisher.address, count=2)
    heard.wait_frame(ends.send(publisher, "t")[0])
    kinds = [type(report) for report in heard.links]
    assert kinds[:3] == [Connected, Disconnected, Connected]
    assert any("too many frames" in getattr(report, "reason", "") for report in heard.links)
    assert [counters.resets for counters in counters_of(subscriber)] >= [1]
    assert witness.links == [Connected(publisher.address)], "nobody else is concerned"
    assert any("reads too slowly" in record.getMessage() for record in caplog.records)


def test_a_sender_waits_a_moment_for_a_full_mailbox(ends: Ends) -> None:  # noqa: F811
    publisher = ends.publisher(f"{URL}?mailbox_frames_max=20&send_wait=60")
    _, heard = ends.subscriber(publisher.address, "t")
    sent = ends.send(publisher, "t", 2000)
    assert heard.wait_frames(2000) == sent
    assert state_of(publisher).counters.resets == 0


def test_a_reset_subscriber_is_repaired(ends: Ends) -> None:  # noqa: F811
    options = "mailbox_frames_max=10"
    with (
        PublisherNode(f"{URL}?{options}", batch_events_max=1, **CALM) as publisher,
        SubscriberNode(URL, [publisher.address], [TOPIC], **CALM) as subscriber,
    ):
        publisher.send(TOPIC, range(1, 11))
        wait_until(lambda: subscriber.last(TOPIC) == 10, 30, "the first events")
        subscriber.stop()
        publisher.send(TOPIC, range(11, 1001))
        wait_until(lambda: publisher.statistics()["driver"]["resets"] >= 1, 60, "a reset")
        subscriber.resume()
        wait_until(lambda: subscriber.last(TOPIC) == 1000, 60, "the last event")
        assert unexplained(subscriber.log(), TOPIC, range(1, 1001)) == []
        assert subscriber.numbers(TOPIC) == list(range(1, 1001)), "from the cache"


def frozen_flood(options: str, topics: list[str], **settings: Any) -> tuple[list[int], dict[str, Any], list[str]]:
    """What a subscriber that stood still saw of a flood: numbers, statistics, resyncs.

    However long it stood still, it does not ask for heads, which would be told beside the mail and before it.
    """
    with (
        PublisherNode(f"{URL}?{options}", batch_events_max=1, **RARELY, **settings) as publisher,
        SubscriberNode(URL, [publisher.address], topics, **RARELY, **settings) as subscriber,
    ):
        publisher.send(topics[0], range(1, 11))
        wait_until(lambda: subscriber.last(topics[0]) == 10, 30, "the first events")
        subscriber.stop()
        publisher.send(topics[0], range(11, 1001))
        subscriber.resume()
        wait_until(lambda: subscriber.last(topics[0]) == 1000, 60, "the last event")
        return subscriber.numbers(topics[0]), subscriber.statistics(), subscriber.resyncs()


def test_latest_topics_skip_without_looking_like_loss_also_when_signed() -> None:
    options = "latest_topics=state/%23"
    numbers, statistics, resyncs = frozen_flood(options, ["state/k1"], hmac_key="a-shared-secret-of-many-bytes")
    assert numbers == sorted(set(numbers))
    assert len(numbers) < 1000
    assert statistics["repair"]["skipped"] == 1000 - len(numbers)
    assert (statistics["repair"]["gaps"], statistics["lost"], statistics["bad_frames"]) == (0, 0, {})
    assert resyncs == ["initial"]


def test_lossy_topics_drop_the_oldest_and_say_so() -> None:
    options = "lossy_topics=log/%23&mailbox_frames_max=50"
    numbers, statistics, resyncs = frozen_flood(options, ["log/all"])
    assert numbers == sorted(set(numbers))
    assert len(numbers) < 1000
    assert statistics["repair"]["skipped"] == 1000 - len(numbers)
    assert (statistics["repair"]["gaps"], statistics["lost"], statistics["bad_frames"]) == (0, 0, {})
    assert resyncs == ["initial"]


# -- polls and the calls that carry them


def service_class(ends: Ends) -> Any:  # noqa: F811
    """Of the server of every publisher."""
    return type(ends.publisher()._service)


def count_calls(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> list[object]:  # noqa: F811
    """Grows with each call that carries polls to a publisher that begins after this."""
    calls: list[object] = []
    service = service_class(ends)
    serve = service._on_polls

    async def serve_counted(self: Any, requests: Any, context: Any) -> None:
        calls.append(context)
        await serve(self, requests, context)

    monkeypatch.setattr(service, "_on_polls", serve_counted)
    return calls


def test_the_polls_of_a_link_are_carried_by_one_call(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    calls = count_calls(ends, monkeypatch)
    publisher = ends.publisher()
    subscriber, heard = ends.subscriber(publisher.address, "t")
    for _ in range(20):
        heard.wait_frame(ends.send(publisher, "t")[0])
    [counters] = counters_of(subscriber)
    assert (len(calls), counters.failures) == (1, 0)
    assert counters.polls > 20


def test_a_publisher_may_end_the_call_after_any_answer(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    """As one does that has no place to read another request."""
    calls = count_calls(ends, monkeypatch)
    service = service_class(ends)
    read, reads = service._read_in_time, dict[object, None]()

    async def read_once(self: Any, context: Any) -> Any:
        if context in reads:
            return None
        reads[context] = None
        return await read(self, context)

    monkeypatch.setattr(service, "_read_in_time", read_once)
    publisher = ends.publisher()
    subscriber, heard = ends.subscriber(publisher.address, "t")
    for _ in range(20):
        heard.wait_frame(ends.send(publisher, "t")[0])
    [counters] = counters_of(subscriber)
    assert (counters.failures, counters.sessions, heard.links) == (0, 1, [Connected(publisher.address)])
    assert len(calls) > 1


def test_a_call_that_carries_one_poll_is_answered(ends: Ends) -> None:  # noqa: F811
    """Who makes one for each poll is served as well."""
    publisher = ends.publisher()
    import grpc

    name = os.urandom(16)
    with grpc.insecure_channel(publisher.address.removeprefix("longpoll://")) as channel:
        begin = msgspec.msgpack.encode([name, 0, 1, [[True, "t"]]])
        applied = msgspec.msgpack.decode(channel.unary_unary("/heliograph.longpoll.v1/Command")(begin, timeout=60))
        poll = channel.unary_unary("/heliograph.longpoll.v1/Poll").future(
            msgspec.msgpack.encode([name, applied[2], 1, 0, 60.0]), timeout=60
        )
        sent = ends.send(publisher, "t")
        status, _, first, runs, *_ = msgspec.msgpack.decode(poll.result())
        channel.unary_unary("/heliograph.longpoll.v1/Leave")(msgspec.msgpack.encode([name, applied[2]]), timeout=60)
    assert (status, first, runs) == (0, 1, [[1, sent]])


def test_a_poll_that_is_not_answered_in_time_loses_the_link(
    ends: Ends, monkeypatch: pytest.MonkeyPatch  # noqa: F811
) -> None:  # fmt: skip
    publisher = ends.publisher()
    monkeypatch.setattr("heliograph_drivers.pubsub.longpoll.config.POLL_GRACE_S", 0.1)
    _, heard = ends.subscriber(publisher.address, "t", url=f"{URL}?{QUICK}")
    with monkeypatch.context() as frozen:
        frozen.setattr(type(publisher._service), "_resolve", lambda *_: None)
        wait_until(lambda: any(isinstance(report, Disconnected) for report in heard.links), 60, "the loss")
    [report] = [report for report in heard.links if isinstance(report, Disconnected)][:1]
    assert "no answer to a poll within" in report.reason
    wait_until(lambda: heard.links[-1] == Connected(publisher.address), 60, "the link")
    heard.wait_frame(ends.send(publisher, "t")[0])


# -- strangers, forks and the end of the program


def test_garbage_is_refused_and_harms_nobody(ends: Ends) -> None:  # noqa: F811
    publisher = ends.publisher()
    import grpc  # behind the driver, which sets what gRPC reads when it is imported

    _, heard = ends.subscriber(publisher.address, "t")
    with grpc.insecure_channel(publisher.address.removeprefix("longpoll://")) as channel:
        for method in ("Command", "Poll", "Leave"):
            with pytest.raises(grpc.RpcError) as caught:
                channel.unary_unary(f"/heliograph.longpoll.v1/{method}")(b"garbage", timeout=60)
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        with pytest.raises(grpc.RpcError) as caught:
            channel.unary_unary("/heliograph.longpoll.v99/Poll")(b"", timeout=60)
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
        assert list(channel.unary_stream("/heliograph.longpoll.v1/Ask")(b"garbage", timeout=60)) == [b"\x00"]
    heard.wait_frame(ends.send(publisher, "t")[0])
    assert state_of(publisher).sessions == 1


def test_text_that_is_none_is_refused_like_other_garbage_and_writes_no_log(
    ends: Ends, caplog: pytest.LogCaptureFixture  # noqa: F811
) -> None:  # fmt: skip
    publisher = ends.publisher()
    import grpc

    batch = msgspec.msgpack.encode([bytes(16), 0, 1, [[True, "xxxx"]]]).replace(b"xxxx", b"\xff\xfe\xfd\xfc")
    with grpc.insecure_channel(publisher.address.removeprefix("longpoll://")) as channel:
        for _ in range(20):
            with pytest.raises(grpc.RpcError) as caught:
                channel.unary_unary("/heliograph.longpoll.v1/Command")(batch, timeout=60)
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert publisher.counters["requests_malformed"] == 20
    assert caplog.records == []


def test_one_peer_cannot_take_the_sessions_of_everybody(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    monkeypatch.setattr("heliograph_drivers.pubsub.longpoll.config.SESSIONS_MAX", 200)
    publisher = ends.publisher(URL)
    import grpc

    with grpc.insecure_channel(publisher.address.removeprefix("longpoll://")) as channel:
        command = channel.unary_unary("/heliograph.longpoll.v1/Command")
        names = [os.urandom(16) for _ in range(100)]
        answers = [
            msgspec.msgpack.decode(command(msgspec.msgpack.encode([name, 0, 1, [[True, "t"]]]), timeout=60))
            for name in names
        ]
        assert [answer[0] for answer in answers] == [0] * 64 + [5] * 36
        assert "of one connection" in answers[-1][4]
        _, heard = ends.subscriber(publisher.address, "t")
        heard.wait_frame(ends.send(publisher, "t")[0])
        for name in names:
            channel.unary_unary("/heliograph.longpoll.v1/Leave")(msgspec.msgpack.encode([name, 0]), timeout=60)
    assert publisher.counters["refused"] == 36


def test_a_request_that_is_too_large_is_refused_before_it_is_read(ends: Ends) -> None:  # noqa: F811
    publisher = ends.publisher()
    import grpc

    with grpc.insecure_channel(publisher.address.removeprefix("longpoll://")) as channel:
        with pytest.raises(grpc.RpcError) as caught:
            channel.unary_unary("/heliograph.longpoll.v1/Command")(bytes(3 << 20), timeout=60)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    _, heard = ends.subscriber(publisher.address, "t")
    heard.wait_frame(ends.send(publisher, "t")[0])


def test_requests_that_never_come_give_up_their_place(ends: Ends, caplog: pytest.LogCaptureFixture) -> None:  # noqa: F811
    """More of them than are read at the same time: the others get their turn all the same."""
    publisher = ends.publisher(f"{URL}?connect_timeout=0.5")
    import grpc

    release = threading.Event()
    calls: list[Any] = []

    def nothing() -> Iterator[bytes]:
        release.wait(60)
        yield from ()

    with contextlib.ExitStack() as opened:
        opened.callback(release.set)
        for _ in range(4):
            channel = grpc.insecure_channel(
                publisher.address.removeprefix("longpoll://"), options=[("grpc.use_local_subchannel_pool", 1)]
            )
            opened.enter_context(channel)
            poll = channel.stream_unary("/heliograph.longpoll.v1/Poll")
            calls += [poll.future(nothing(), timeout=60) for _ in range(50)]  # who forgets a call ends it
        wait_until(lambda: publisher.counters["requests_abandoned"] >= 128, 60, "those that do not come to be given up")
        _, heard = ends.subscriber(publisher.address, "t")
        sent: list[bytes] = []

        def is_heard() -> bool:
            sent.extend(ends.send(publisher, "t"))  # again, since a request of the listener may come too late as well
            return not set(heard.frames).isdisjoint(sent)

        wait_until(is_heard, 60, "a frame")
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


def test_filters_that_do_not_fit_one_request_go_in_several(
    ends: Ends, monkeypatch: pytest.MonkeyPatch  # noqa: F811
) -> None:  # fmt: skip
    monkeypatch.setattr("heliograph_drivers.pubsub.longpoll.config.COMMAND_BATCH_MAX", 65_536)
    publisher = ends.publisher()
    filters = [f"{number:05}/{'x' * 480}" for number in range(5000)]
    _, heard = ends.subscriber(publisher.address, *filters)
    heard.wait_frame(ends.send(publisher, filters[-1])[0])


def run_script(script: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GRPC_")}
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(script)],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip


def test_a_forked_child_may_end_in_the_usual_way() -> None:
    done = run_script("""
        import gc, os, sys
        import pubsub_api
        from pubsub_api import errors
        with pubsub_api.open("longpoll://127.0.0.1:0") as session:
            publisher = session.publisher()
            subscriber = session.subscriber(["t"], addresses=[publisher.address])
            subscriber.wait_ready(timeout_s=30)
            pid = os.fork()
            if pid == 0:
                try:
                    pubsub_api.open("longpoll://127.0.0.1:0").publisher()
                except errors.Forked as error:
                    assert "publisher service" in str(error)
                    gc.collect()
                    sys.exit(7)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
            publisher.send_event(pubsub_api.Event(topic="t", table="t", key="k", action="set", version=1))
            print(next(iter(subscriber)).key)
    """)
    assert (done.returncode, done.stdout, done.stderr) == (0, "k\n", "")


def test_a_program_that_imported_grpc_before_is_warned_when_it_forks() -> None:
    done = run_script("""
        import logging, os, sys
        import grpc
        import pubsub_api
        logging.basicConfig(stream=sys.stdout, format="%(message)s")
        with pubsub_api.open("longpoll://127.0.0.1:0") as session:
            publisher = session.publisher()
            for _ in range(2):
                pid = os.fork()
                if pid == 0:
                    os._exit(0)
                os.waitpid(pid, 0)
    """)
    assert done.returncode == 0
    assert done.stdout.count("Set GRPC_ENABLE_FORK_SUPPORT=0") == 1


def test_a_program_may_end_without_closing() -> None:
    done = run_script("""
        import pubsub_api
        session = pubsub_api.open("longpoll://127.0.0.1:0")
        publisher = session.publisher()
        subscriber = session.subscriber(["t"], addresses=[publisher.address])
        subscriber.wait_ready(timeout_s=30)
        print("end")
    """)
    assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")
