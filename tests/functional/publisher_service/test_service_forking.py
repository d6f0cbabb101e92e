"""Workers that fork while they publish: no hang, no loss, nothing twice.  Real forks, real servers, real load."""

from __future__ import annotations

import collections
import contextlib
import http
import http.client
import itertools
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

import pubsub_api
from pubsub_api.testing.fast_conf import fast_conf
from tests.helpers.forking_worker import HANG_S
from tests.helpers.service_nodes import CALM, START_S, Host
from tests.helpers.waiting import wait_until

ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}


class Collector:
    """A subscriber to everything a host publishes: the numbers of each topic, as they came."""

    def __init__(self, host: Host) -> None:
        self.numbers: dict[str, list[int]] = collections.defaultdict(list)
        self.resyncs: list[str] = []
        self._session = pubsub_api.open(conf=fast_conf(host.url, **CALM))
        self._subscriber = self._session.subscriber(
            ["#"],
            lambda event: self.numbers[event.topic].append(event.version),
            on_resync=lambda resync: self.resyncs.append(resync.reason.value),
        )
        self._subscriber.wait_ready(timeout_s=START_S)

    def count(self) -> int:
        return sum(map(len, list(self.numbers.values())))

    def close(self) -> None:
        self._session.close()


@contextlib.contextmanager
def collecting(host: Host) -> Iterator[Collector]:
    collector = Collector(host)
    try:
        yield collector
    finally:
        collector.close()


def run_forking_worker(host: Host, role: str, count: int) -> dict[str, Any]:
    finished = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.helpers.forking_worker", role, host.config_file, str(count)],
        env=ENVIRONMENT, stdout=subprocess.PIPE, timeout=30 * HANG_S, check=True,
    )  # fmt: skip
    outcome: dict[str, Any] = json.loads(finished.stdout)
    return outcome


def check_forks(role: str, count: int) -> dict[str, Any]:
    """Fork so many times, in that way, and check every event of every process.  Returns the service's report."""
    with Host() as host:
        service = host.service()
        with collecting(host) as collector:
            outcome = run_forking_worker(host, role, count)
            sent: dict[str, list[int]] = outcome["sent"]
            assert outcome["codes"] == [0] * count
            wait_until(lambda: collector.count() >= sum(map(len, sent.values())), START_S, "every event")
            assert {topic: sorted(numbers) for topic, numbers in collector.numbers.items()} == {
                topic: sorted(numbers) for topic, numbers in sent.items()
            }
            for topic in ("parent/0", "parent/1"):
                assert collector.numbers[topic] == sent.get(topic, []), "in order, each once"
            assert collector.resyncs == ["initial"]
        report = service.report()
        assert report["hop"]["duplicate_batches"] == 0
        assert report["hop"]["bad_connections"] == 0
        return report


def test_forks_while_other_threads_publish() -> None:
    report = check_forks("fork", 150)
    assert report["hop"]["connections"] >= 165, "every child and grandchild has a connection of its own"


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_processes_of_multiprocessing(method: str) -> None:
    check_forks(f"multiprocessing-{method}", 3)


@contextlib.contextmanager
def gunicorn(host: Host, workers: int) -> Iterator[int]:
    """A pre-fork server; yields its port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        # It is handed the socket, so that nobody else can take the port and no connection is refused before it is up.
        listener.set_inheritable(True)
        process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "gunicorn", "--preload", "--workers", str(workers),
             "--bind", f"fd://{listener.fileno()}", "--log-level", "warning", "tests.helpers.prefork_app:application"],
            env=ENVIRONMENT | {"HELIOGRAPH_TEST_CONFIG": str(host.config_file)}, pass_fds=[listener.fileno()],
        )  # fmt: skip
        try:
            yield int(listener.getsockname()[1])
        finally:
            process.terminate()
            process.wait(START_S)


class Clients:
    """Four at a time, until enough requests were answered and every worker of the server has answered one."""

    def __init__(self, port: int, *, requests_min: int, workers: int) -> None:
        self._port = port
        self._requests_min = requests_min
        self._workers = workers
        self._numbers = itertools.count(1)
        self._pids: set[bytes] = set()
        self._deadline = time.monotonic() + START_S
        self.sent: list[int] = []
        self.failures: list[str] = []

    def run(self) -> None:
        threads = [threading.Thread(target=self._run) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(self._pids) == self._workers

    def _run(self) -> None:
        while len(self.sent) < self._requests_min or len(self._pids) < self._workers:
            if time.monotonic() > self._deadline:
                return
            number = next(self._numbers)
            connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=START_S)
            try:
                connection.request("GET", f"/{number}")
                response = connection.getresponse()
                self._pids.add(response.read())
                if response.status != http.HTTPStatus.OK:
                    self.failures.append(f"{number}: {response.status}")
            finally:
                connection.close()
            self.sent.append(number)


def test_a_prefork_server_under_load() -> None:
    with Host() as host:
        host.service()
        with collecting(host) as collector, gunicorn(host, workers=3) as port:
            clients = Clients(port, requests_min=600, workers=3)
            clients.run()
            assert clients.failures == []
            wait_until(lambda: len(collector.numbers["request"]) >= len(clients.sent), START_S, "every request's event")
            assert sorted(collector.numbers["request"]) == sorted(clients.sent)
            assert collector.numbers["master"] == [1], "what the master sent is not sent again by its workers"
