"""No descriptors, no threads: an error that says so, nothing left open, and a process that goes on.

Each test runs a program in a process of its own, because what is scarce is scarce for all of it.
"""

from __future__ import annotations

import contextlib
import pathlib
import socket
import subprocess
import sys
import textwrap
import threading

import pytest

from nb_api.core import directory
from publisher_service import health
from pubsub_api.reporting.answering import ASKERS_MAX
from tests.helpers.nb_tools import open_nb, sqlite_url
from tests.helpers.waiting import wait_until

TIMEOUT_S = 120.0
WAIT_S = 60.0

FEW_DESCRIPTORS = """
    import contextlib, resource
    import pubsub_api
    from pubsub_api.errors import LimitReached

    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
"""


def run(program: str, *arguments: str) -> str:
    """What a program printed.  It must end well."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), *arguments],
        capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("url", "end"),
    [("zmq://127.0.0.1:0", "publisher().flush(timeout_s=30)"), ("zmq://127.0.0.1:1", 'subscriber(["#"], print)')],
    ids=["publisher", "subscriber"],
)
def test_a_process_without_descriptors_gets_an_error_for_another_end_on_zmq(url: str, end: str) -> None:
    program = (
        FEW_DESCRIPTORS
        + f"""
    with contextlib.ExitStack() as opened:
        for number in range(1000):
            try:
                session = opened.enter_context(pubsub_api.open("{url}"))
                session.{end}
            except LimitReached as error:
                print(number, error)
                break
    with pubsub_api.open("zmq://127.0.0.1:0") as session:
        session.publisher().flush(timeout_s=30)
    """
    )
    number, _, error = run(program).partition(" ")
    assert int(number) >= 1
    assert "ulimit -n" in error


def test_links_for_which_no_descriptors_are_left_are_told() -> None:
    program = (
        FEW_DESCRIPTORS
        + """
    with pubsub_api.open("zmq://127.0.0.1:1") as session:
        addresses = [f"tcp://127.0.0.1:{port}" for port in range(1, 40)]
        subscriber = session.subscriber(["#"], print, addresses=addresses)
        try:
            subscriber.wait_ready(timeout_s=1)
        except pubsub_api.errors.WaitTimeout:
            print(subscriber.statistics().driver["link_failures"])
    """
    )
    assert int(run(program)) >= 1


def test_strangers_who_take_all_descriptors_of_a_zmq_publisher_are_cut() -> None:
    program = (
        FEW_DESCRIPTORS
        + """
    with pubsub_api.open("zmq://127.0.0.1:0") as session:
        publisher = session.publisher()
        print(publisher.address, flush=True)
        while input():
            print(publisher.statistics().driver["connections_cut"], flush=True)
    """
    )
    with contextlib.ExitStack() as opened:
        child = opened.enter_context(
            subprocess.Popen(
                [sys.executable, "-c", textwrap.dedent(program)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )  # fmt: skip
        )
        assert child.stdin is not None
        assert child.stdout is not None
        opened.callback(child.kill)
        host, _, port = child.stdout.readline().strip().removeprefix("tcp://").rpartition(":")
        for _ in range(100):
            opened.enter_context(socket.create_connection((host, int(port))))

        def cut() -> int:
            assert child.stdin is not None
            assert child.stdout is not None
            child.stdin.write("?\n")
            child.stdin.flush()
            return int(child.stdout.readline())

        wait_until(lambda: cut() >= 50, WAIT_S, "those beyond the limit to be cut")
        child.stdin.write("\n")
        child.stdin.flush()
        assert child.wait(TIMEOUT_S) == 0


@pytest.mark.parametrize("threads", [0, 1])
@pytest.mark.parametrize("driver", ["zmq", "zenoh", "longpoll"])
def test_a_publisher_whose_thread_cannot_be_started_leaves_its_port_free(driver: str, threads: int) -> None:
    program = """
    import resource, socket, sys, threading
    import pubsub_api
    from pubsub_api.errors import LimitReached
    from pubsub_api.testing.ports import free_port

    url = f"{sys.argv[1]}://127.0.0.1:{free_port()}"
    with pubsub_api.open(url) as session:  # what is loaded once is loaded before memory gets scarce
        session.publisher().flush(timeout_s=30)
    used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    stack = 1 << 30  # so large that there is room for so many threads and no more
    resource.setrlimit(resource.RLIMIT_AS, (used + int((int(sys.argv[2]) + 0.75) * stack), resource.RLIM_INFINITY))
    usual = threading.stack_size(stack)
    try:
        with pubsub_api.open(url) as session:
            session.publisher()
    except LimitReached as error:
        print(error)
    threading.stack_size(usual)
    with pubsub_api.open(url) as session:
        session.publisher().flush(timeout_s=30)
    print("again")
    """
    error, again = run(program, driver, str(threads)).splitlines()
    assert "thread" in error
    assert again == "again"


NO_DESCRIPTOR = """
    import os, resource, sys
    import pubsub_api
    from tests.helpers.waiting import wait_until

    usual = resource.getrlimit(resource.RLIMIT_NOFILE)

    def take_descriptors():
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, usual[1]))  # what is open stays so, and nothing else is opened

    def give_descriptors():
        resource.setrlimit(resource.RLIMIT_NOFILE, usual)

    def event(number):
        return pubsub_api.Event(topic="t", table="t", key="k", action="set", value=number, version=number)
"""

NO_THREAD = """
    import resource, sys, threading
    import pubsub_api
    from pubsub_api.errors import LimitReached
    from tests.helpers.waiting import wait_until

    def take_threads():
        used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 28), resource.RLIM_INFINITY))
        threading.stack_size(1 << 30)  # more than there is

    def give_threads():
        threading.stack_size(0)
"""


def test_a_redis_subscriber_without_descriptors_connects_again_when_there_are_some() -> None:
    program = (
        NO_DESCRIPTOR
        + """
    import signal
    from pubsub_api.testing.fast_conf import fast_conf
    from tests.helpers.servers import RedisServer

    with RedisServer() as server, pubsub_api.open(conf=fast_conf(server.address)) as session:
        got = []
        publisher = session.publisher()
        subscriber = session.subscriber(["t"], lambda one: got.append(one.value))
        subscriber.wait_ready(timeout_s=60)
        failures = lambda end: end.statistics().driver["link_failures"]
        before = failures(subscriber), failures(publisher)
        take_descriptors()
        os.kill(server.pid, signal.SIGKILL)
        wait_until(lambda: failures(subscriber) >= before[0] + 3, 60, "attempts of the subscriber in vain")
        wait_until(lambda: failures(publisher) >= before[1] + 3, 60, "attempts of the publisher in vain")
        give_descriptors()
        server.restart()
        wait_until(lambda: subscriber.statistics().links_up == 1, 60, "the link")

        def is_heard():
            publisher.send_event(event(len(got) + 1))
            return bool(got)

        wait_until(is_heard, 60, "an event")
    print("heard")
    """
    )
    assert run(program).splitlines()[-1] == "heard"


def test_a_worker_without_descriptors_connects_again_when_there_are_some() -> None:
    program = (
        NO_DESCRIPTOR
        + """
    from pubsub_api.publishing import multiproc
    from tests.helpers.service_nodes import Host

    with Host() as host, multiproc.worker_publisher(host.conf()) as worker:
        service = host.service()
        worker.send_event(event(1))
        worker.flush(timeout_s=60)
        take_descriptors()
        service.kill()
        before = worker.statistics().link.refusals
        wait_until(lambda: worker.statistics().link.refusals >= before + 2, 60, "attempts in vain")
        give_descriptors()
        host.service()
        worker.send_event(event(2))
        worker.flush(timeout_s=60)
    print("flushed")
    """
    )
    assert run(program).splitlines()[-1] == "flushed"


def test_a_health_endpoint_without_descriptors_or_threads_answers_when_there_are_some(tmp_path: pathlib.Path) -> None:
    program = (
        NO_DESCRIPTOR
        + NO_THREAD
        + """
    import logging, pathlib, socket
    from publisher_service import health
    from pubsub_api.errors import HeliographError
    from pubsub_api.reporting.answering import ASKERS_MAX

    class Told(logging.Handler):
        def emit(self, record):
            told.append(record.getMessage())

    path = pathlib.Path(sys.argv[1])
    told = []
    logging.getLogger("pubsub_api.reporting").addHandler(Told())
    server = health.serve_unix(path, lambda: {"ok": True})
    assert health.ask(path, timeout_s=60) == {"ok": True}
    with socket.socket(socket.AF_UNIX) as asker:
        take_descriptors()
        asker.connect(str(path))  # the system has set a descriptor aside for the first one
        wait_until(lambda: "cannot accept a connection" in "".join(told), 60, "no descriptor")
        give_descriptors()
        assert health._read_all(asker) == b'{"ok": true}\\n'
    take_threads()
    try:
        health.ask(path, timeout_s=60)
    except HeliographError as error:
        print("no thread")
    give_threads()
    for _ in range(2 * ASKERS_MAX):
        assert health.ask(path, timeout_s=60) == {"ok": True}
    server.close()
    print("closed")
    """
    )
    assert run(program, str(tmp_path / "health")).splitlines() == ["no thread", "closed"]


def test_a_report_that_fails_is_told_and_takes_no_place(tmp_path: pathlib.Path) -> None:
    def report() -> dict[str, object]:
        raise ValueError("not today")

    path = tmp_path / "health"
    with contextlib.closing(health.serve_unix(path, report)):
        for _ in range(2 * ASKERS_MAX):
            assert health.ask(path, timeout_s=WAIT_S) == {"ok": False, "problem": "ValueError: not today"}


def test_a_writer_whose_threads_cannot_be_started_is_published_once_they_can(tmp_path: pathlib.Path) -> None:
    program = (
        NO_THREAD
        + """
    from tests.helpers.nb_tools import memory_bus, open_nb

    with open_nb(sys.argv[1], memory_bus()) as nb:
        nb.create("net", "n", 0, topic="t")  # what is loaded once is loaded before memory gets scarce
        nb.flush(timeout_s=60)
    with open_nb(sys.argv[1], memory_bus()) as nb:
        take_threads()
        nb.create("port", "p1", 1, topic="t")
        print(nb.statistics().handover.left)
        nb.flush(timeout_s=60)
        give_threads()
        nb.create("port", "p2", 2, topic="t")
        wait_until(lambda: not nb.db.unpublished(), 60, "both to be published")
    """
    )
    assert run(program, f"sqlite://{tmp_path}/objects.db").split() == ["1"]


def test_a_worker_whose_thread_cannot_be_started_tries_again_with_the_next_event() -> None:
    program = (
        NO_DESCRIPTOR
        + NO_THREAD
        + """
    from pubsub_api.publishing import multiproc
    from tests.helpers.service_nodes import Host

    with Host() as host, multiproc.worker_publisher(host.conf()) as worker:
        host.service()
        for take, give in ((take_threads, give_threads), (take_descriptors, give_descriptors)):
            take()
            try:
                worker.send_event(event(1))
            except LimitReached as error:
                print("refused")
            give()
        worker.send_event(event(2))
        worker.flush(timeout_s=60)
    print("flushed")
    """
    )
    assert run(program).split() == ["refused", "refused", "flushed"]


def test_a_publisher_that_cannot_be_registered_is_made_again_with_the_next_change(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, refused = threading.Thread.start, []

    def start_some(thread: threading.Thread) -> None:
        if thread.name.startswith("registration-") and not refused:
            refused.append(thread.name)
            raise RuntimeError("can't start new thread")  # as the interpreter says it
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_some)
    with open_nb(sqlite_url(tmp_path), "zmq://127.0.0.1:0", pub_sub_use_multiproc=False) as nb:
        nb.create("port", "p1", 1, topic="t")
        nb.flush(timeout_s=WAIT_S)
        assert refused
        nb.create("port", "p2", 2, topic="t")
        wait_until(lambda: nb.get_all(directory.TABLE), WAIT_S, "the entry in the directory")
        wait_until(lambda: not nb.db.unpublished(), WAIT_S, "both to be published")


def test_a_redis_publisher_whose_threads_cannot_be_started_leaves_nothing_open() -> None:
    program = (
        NO_THREAD
        + """
    import os
    from tests.helpers.servers import RedisServer

    with RedisServer() as server, pubsub_api.open(server.address) as session:
        session.publisher().close()  # what is loaded once is loaded before memory gets scarce
        before = len(os.listdir("/proc/self/fd"))
        take_threads()
        try:
            session.publisher()
        except LimitReached as error:
            print(len(os.listdir("/proc/self/fd")) - before)
        give_threads()
        session.publisher().flush(timeout_s=60)
    """
    )
    assert run(program).split() == ["0"]
