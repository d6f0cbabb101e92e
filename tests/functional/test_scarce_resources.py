"""No descriptors, no threads: an error that says so, nothing left open, and a process that goes on.

Each test runs a program in a process of its own, because what is scarce is scarce for all of it.
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import textwrap

import pytest

from tests.waiting import wait_until

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


def test_a_process_without_descriptors_gets_an_error_for_another_zmq_publisher() -> None:
    program = (
        FEW_DESCRIPTORS
        + """
    with contextlib.ExitStack() as opened:
        for number in range(100):
            try:
                session = opened.enter_context(pubsub_api.open("zmq://127.0.0.1:0"))
                session.publisher().flush(timeout_s=30)
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


def test_a_process_without_descriptors_gets_an_error_for_another_zmq_subscriber() -> None:
    program = (
        FEW_DESCRIPTORS
        + """
    with contextlib.ExitStack() as opened:
        for number in range(100):
            try:
                session = opened.enter_context(pubsub_api.open("zmq://127.0.0.1:1"))
                session.subscriber(["#"], print)
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
