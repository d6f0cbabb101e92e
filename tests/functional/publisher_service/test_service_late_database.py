"""A publisher service whose database is not there when it starts: it serves workers, and begins its upkeep later."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Iterator

import pytest

from heliograph.main import main
from nb_api.loading import open_db
from publisher_service.service import PublisherService
from pubsub_api.errors import DriverNotFound, InvalidConfig
from tests.helpers.server_process import ServerProcess
from tests.helpers.servers import RedisServer
from tests.helpers.servers_db import PostgresServer
from tests.helpers.service_nodes import START_S, Host, ServiceProcess
from tests.helpers.waiting import wait_until


@contextlib.contextmanager
def away(kind: str) -> Iterator[tuple[str, ServerProcess]]:
    """The URL of a database whose server is not running, and the server, to be restarted."""
    server: ServerProcess
    if kind == "redis":
        server = RedisServer().reserve()
        url = server.new_prefix()
    else:
        server = PostgresServer().start()
        url = server.new_database()
        server.kill()
    try:
        yield url, server
    finally:
        server.stop()


def wait_attempts(service: ServiceProcess, count: int) -> None:
    wait_until(lambda: service.report()["database"]["failed_attempts"] >= count, START_S, f"{count} attempts")


def status(host: Host) -> tuple[int, list[str]]:
    """The exit code of `heliograph status`, and the problems it names."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        code = main(["status", "--config-file", str(host.config_file), "--json"])
    return code, json.loads(printed.getvalue())["problems"]


@pytest.mark.parametrize("kind", ["redis", "postgres"])
def test_a_service_begins_its_upkeep_when_the_database_comes(kind: str) -> None:
    with away(kind) as (url, server), Host(database=url) as host:
        service, subscriber, worker = host.service(), host.subscriber(), host.worker()
        worker.send("worker/0", 1, 10)
        wait_until(lambda: subscriber.last("worker/0") == 10, START_S, "workers to be served meanwhile")
        wait_attempts(service, 4)
        report = service.report()
        assert report["ok"] is True
        assert report["database"]["problem"]
        assert "leader" not in report["database"]
        assert 1 <= service.log().count("The database cannot be used") < 4, "not one warning per attempt"
        code, problems = status(host)
        assert (code, len(problems)) == (1, 1)
        assert problems[0].startswith("the database: ")
        server.restart()
        wait_until(lambda: service.report()["database"].get("leader"), START_S, "the service to be elected")
        db = open_db(None, host.conf(), with_outbox=True)
        with contextlib.closing(db):
            db.create("port", "p1", {"up": True}, topic="tenant-7")
            wait_until(lambda: not db.unpublished(), START_S, "the outbox to be swept")
        wait_until(lambda: subscriber.count("tenant-7") == 1, START_S, "what was swept")
        assert service.report()["database"]["problem"] is None
        assert status(host) == (0, [])
        assert service.stop() == 0


def test_a_service_whose_database_never_comes_stops_in_good_order() -> None:
    with away("redis") as (url, _), Host(database=url) as host:
        service = host.service()
        wait_attempts(service, 1)
        assert service.stop() == 0


@pytest.mark.parametrize(("url", "error"), [("no-such://database", DriverNotFound), ("sqlite:", InvalidConfig)])
def test_a_database_that_can_never_be_used_is_refused_at_the_start(url: str, error: type[Exception]) -> None:
    with Host(database=url) as host, pytest.raises(error), PublisherService(host.conf()):
        pass
