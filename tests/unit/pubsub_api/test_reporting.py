"""What a process tells of itself: metrics that Prometheus can read, health, readiness, and limits of the endpoint."""

from __future__ import annotations

import contextlib
import json
import math
import pathlib
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry, generate_latest

import pubsub_api
from nb_api import LocalCache
from nb_api import metrics as nb_metrics
from pubsub_api import metrics, reporting
from pubsub_api.errors import AddressInUse, Closed, InvalidConfig
from pubsub_api.reporting.answering import ASKERS_MAX
from pubsub_api.reporting.http import parse_address
from pubsub_api.runtime.durations import DurationCounter
from tests.helpers import metric_help, scraping
from tests.helpers.nb_tools import open_nb, sqlite_url

WAIT_S = 60.0


@pytest.fixture
def endpoint() -> Iterator[reporting.Endpoint]:
    with reporting.serve("127.0.0.1:0", reporting.ProcessReport(name="me")) as endpoint:
        yield endpoint


def ask(endpoint: reporting.Endpoint, path: str, method: str = "GET") -> tuple[int, str]:
    request = urllib.request.Request(endpoint.url + path, method=method)
    try:
        with urllib.request.urlopen(request, timeout=WAIT_S) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_the_texts_are_those_of_the_documentation() -> None:
    assert metric_help.FILE.read_text() == metric_help.text(), "run python -m tests.helpers.code_map"


def test_durations_are_told_as_a_histogram(endpoint: reporting.Endpoint) -> None:
    counter = DurationCounter()
    for seconds in (0.0003, 0.0003, 0.02, 1000.0):
        counter.add(seconds)
    registry = CollectorRegistry()
    for report in (endpoint.report, metrics.report_of(registry)):
        report.add("nb", lambda: {"commit_seconds": counter.read()})
    name = "heliograph_nb_commit_seconds"
    for text in (ask(endpoint, "/metrics")[1], generate_latest(registry).decode()):
        told = scraping.check(text)
        assert told.kinds[name] == "histogram"
        bounds = {"0.00025": 0, "0.0005": 2, "0.025": 3, "60.0": 3, "+Inf": 4}
        found = {le: told.value(f"{name}_bucket", number="0", name="", le=le) for le in bounds}
        assert found == bounds
        assert told.value(f"{name}_count", number="0", name="") == 4
        assert told.value(f"{name}_sum", number="0", name="") == pytest.approx(1000.0206)
    assert counter.read().at_most(0.5) == 0.0005
    assert counter.read().at_most(1.0) == math.inf


def test_two_sessions_are_told_apart_and_no_sample_is_lost(endpoint: reporting.Endpoint) -> None:
    registry = CollectorRegistry()
    with pubsub_api.open("memory://one") as one, pubsub_api.open("memory://two") as two:
        for session in (one, two):
            endpoint.report.add_session(session)
            metrics.register(session, registry)
            session.publisher(name="api")
            session.cache(["#"])
        one.publisher(name='quo"te\\and\nline').send_event(
            pubsub_api.Event(topic="t", table="t", key="k", action="set", value=1)
        )
        scraped = scraping.check(ask(endpoint, "/metrics")[1])
        by_library = scraping.check(generate_latest(registry).decode())
    name = "heliograph_publisher_events_total"
    assert scraped.value(name, session="0", number="2", name='quo"te\\and\nline') == 1
    assert scraped.value(name, session="1", number="0", name="api") == 0
    assert [key for key in scraped.values if key[0] == name] == [key for key in by_library.values if key[0] == name]
    assert scraped.kinds == by_library.kinds
    assert scraped.kinds["heliograph_cache_bytes"] == "gauge"
    assert scraped.kinds["heliograph_cache_stored_total"] == "counter"


def test_writers_and_copies_in_any_number(tmp_path: pathlib.Path, endpoint: reporting.Endpoint) -> None:
    registry = CollectorRegistry()
    with open_nb(sqlite_url(tmp_path)) as nb, LocalCache(nb) as first, LocalCache(nb) as second:
        endpoint.report.add("nb", nb.statistics)
        registrations = [nb_metrics.register(nb, registry=registry)]
        for cache in (first, second):
            cache.wait_synced(timeout_s=WAIT_S)
            endpoint.report.add("local_cache", cache.statistics)
            registrations.append(nb_metrics.register(cache, registry=registry))
        scraped = scraping.check(ask(endpoint, "/metrics")[1])
        assert scraped.value("heliograph_local_cache_is_synced", number="1", name="") == 1
        assert scraped.value("heliograph_local_cache_is_synced", number="2", name="") == 1
        assert scraping.check(generate_latest(registry).decode()).kinds == scraped.kinds
        for registration in registrations:
            registration.close()
        assert "local_cache" not in generate_latest(registry).decode()


def test_who_is_closed_is_forgotten_and_who_fails_is_counted(endpoint: reporting.Endpoint) -> None:
    def closed() -> dict[str, int]:
        raise Closed("gone")

    def failing() -> dict[str, int]:
        raise ZeroDivisionError("oops")

    endpoint.report.add("mine", closed)
    endpoint.report.add("mine", failing)
    endpoint.report.add(
        "mine", lambda: {"things": 3, "is_open": True, "by_kind": {"a": 1, "b": 2}, "text": "no number"}
    )
    scraped = scraping.check(ask(endpoint, "/metrics")[1])
    assert scraped.value("heliograph_mine_things_total", number="2", name="") == 3
    assert scraped.value("heliograph_mine_is_open", number="2", name="") == 1
    assert scraped.value("heliograph_mine_by_kind_total", number="2", name="", kind="b") == 2
    assert scraped.value("heliograph_process_source_failures_total", name="me", role="program") == 1


@pytest.mark.parametrize("told", [5, None, {"things": 1}.items()])
def test_a_source_that_tells_no_numbers_silences_no_other(endpoint: reporting.Endpoint, told: object) -> None:
    endpoint.report.add("mine", lambda: told)
    endpoint.report.add("mine", lambda: {"things": 3})
    status, text = ask(endpoint, "/metrics")
    scraped = scraping.check(text)
    assert status == 200
    assert scraped.value("heliograph_mine_things_total", number="1", name="") == 3
    assert scraped.value("heliograph_process_source_failures_total", name="me", role="program") == 1
    assert [one["labels"]["number"] for one in json.loads(ask(endpoint, "/status")[1])["objects"]] == ["1"]


def test_a_number_that_is_not_finite_is_null_in_json(endpoint: reporting.Endpoint) -> None:
    numbers = {"rate": math.nan, "is_high": math.inf, "by_kind": {"a": -math.inf, "b": 1.5}}
    endpoint.report.add("mine", lambda: numbers)

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    status = json.loads(ask(endpoint, "/status")[1], parse_constant=refuse)
    assert status["objects"][0]["statistics"] == {"rate": None, "is_high": None, "by_kind": {"a": None, "b": 1.5}}
    metrics_status, text = ask(endpoint, "/metrics")
    assert metrics_status == 200
    assert 'heliograph_mine_is_high{number="0",name=""} +Inf' in text
    assert 'heliograph_mine_rate_total{number="0",name=""} NaN' in text


def test_health_readiness_and_status(endpoint: reporting.Endpoint) -> None:
    problems = {"copy": "", "engine": ""}
    endpoint.report.add_check("copy", lambda: problems["copy"])
    endpoint.report.add_check("engine", lambda: problems["engine"], is_vital=True)
    assert [ask(endpoint, path) for path in ("/healthz", "/readyz")] == [(200, "ok\n")] * 2
    problems["copy"] = "not complete"
    assert ask(endpoint, "/healthz") == (200, "ok\n")
    assert ask(endpoint, "/readyz") == (503, "copy: not complete\n")
    code, text = ask(endpoint, "/status")
    status = json.loads(text)
    assert (code, status["ok"], status["problems"], status["name"]) == (503, False, ["copy: not complete"], "me")
    problems["engine"] = "stopped"
    assert ask(endpoint, "/healthz") == (503, "engine: stopped\n")
    del problems["engine"]  # a check that raises is a finding
    assert ask(endpoint, "/healthz") == (503, "engine: KeyError: 'engine'\n")


def test_other_questions(endpoint: reporting.Endpoint) -> None:
    assert ask(endpoint, "/nothing")[0] == 404
    assert ask(endpoint, "/metrics?x=1")[0] == 200
    assert ask(endpoint, "/metrics", "HEAD") == (200, "")
    assert ask(endpoint, "/metrics", "DELETE")[0] == 405
    host, port = parse_address(endpoint.url.removeprefix("http://"))
    with socket.create_connection((host, port), timeout=WAIT_S) as asker:
        asker.sendall(b"nonsense\r\n\r\n")
        assert asker.recv(12) == b"HTTP/1.1 400"


def test_who_says_nothing_is_sent_away_and_holds_up_nobody(endpoint: reporting.Endpoint) -> None:
    host, port = parse_address(endpoint.url.removeprefix("http://"))
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(socket.create_connection((host, port), timeout=WAIT_S)) for _ in range(3)]
        assert ask(endpoint, "/healthz")[0] == 200
        assert [sock.recv(1) for sock in silent] == [b""] * 3
    for _ in range(2 * ASKERS_MAX):  # none of them kept a place
        assert ask(endpoint, "/healthz")[0] == 200


def test_clients_that_are_slow_make_room_for_a_probe(endpoint: reporting.Endpoint) -> None:
    host, port = parse_address(endpoint.url.removeprefix("http://"))
    with contextlib.ExitStack() as stack:
        slow = [stack.enter_context(socket.create_connection((host, port), timeout=WAIT_S)) for _ in range(ASKERS_MAX)]
        for sock in slow:
            sock.sendall(b"GET /healthz")
        for _ in range(3):
            assert ask(endpoint, "/healthz")[0] == 200
        assert slow[0].recv(1) == b"", "the one that was there for longest"


@pytest.mark.parametrize(
    ("text", "address"),
    [("9100", ("127.0.0.1", 9100)), ("0.0.0.0:9100", ("0.0.0.0", 9100)), ("[::1]:9100", ("::1", 9100))],
)
def test_an_address_is_on_loopback_unless_it_says_otherwise(text: str, address: tuple[str, int]) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize("text", ["", "x", ":9100", "localhost", "127.0.0.1:", "127.0.0.1:65536", "1:2:x"])
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(InvalidConfig, match="no address for metrics"):
        parse_address(text)


def test_an_address_that_is_taken(endpoint: reporting.Endpoint) -> None:
    with pytest.raises(AddressInUse, match="metrics cannot be served"):
        reporting.serve(endpoint.url.removeprefix("http://"))
    endpoint.close()
    endpoint.close()
    with pytest.raises(urllib.error.URLError):
        ask(endpoint, "/healthz")
