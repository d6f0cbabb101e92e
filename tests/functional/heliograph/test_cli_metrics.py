"""What the daemons really tell over HTTP, and what ships for it: the dashboard and the alert rules."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
import yaml

from heliograph import exits
from heliograph.main import main
from nb_api.fleet import FleetObserver
from nb_api.loading import open_db
from tests.functional.heliograph.test_cli import PATIENCE_S, Command
from tests.helpers import documents, scraping
from tests.helpers.paths import ROOT
from tests.helpers.waiting import wait_until

DASHBOARD = ROOT / "etc" / "grafana" / "heliograph.json"
ALERTS = ROOT / "etc" / "prometheus" / "heliograph-alerts.yml"
_METRIC = re.compile(r"\bheliograph_[a-z0-9_]+\b")
_RATE_INTERVAL = "5m"


class Daemon(NamedTuple):
    words: tuple[str, ...]
    roles: frozenset[str]
    """Of the metrics that it tells."""


DAEMONS = {
    "publisher-service": Daemon(
        ("publisher-service", "--config-file", "{directory}/heliograph.conf"),
        frozenset({"publisher", "publisher_service", "process", "fleet"}),
    ),
    "durability-service": Daemon(
        ("durability-service", "--bus", "zmq://{directory}/durability", "--node", "n1"),
        frozenset({"durability", "name_space", "process"}),
    ),
    "cache": Daemon(
        ("cache", "--topics", "#", "--bus", "zmq://{directory}/cache", "--listen", "ipc://{directory}/bus"),
        frozenset({"cache", "process"}),
    ),
    "log record": Daemon(
        ("log", "record", "#", "--log", "sqlite://{directory}/log.db", "--bus", "zmq://{directory}/bus"),
        frozenset({"recorder", "log", "log_maintenance", "subscriber", "process"}),
    ),
    "group serve": Daemon(
        ("group", "serve", "g", "--log", "sqlite://{directory}/groups.db", "--bus", "zmq://{directory}/bus"),
        frozenset({"group", "log", "process"}),
    ),
    "controller": Daemon(
        ("controller", "--db", "sqlite://{directory}/objects.db"), frozenset({"nb", "local_cache", "process"})
    ),
}


class Told(NamedTuple):
    """What one daemon told."""

    scrape: scraping.Scrape
    status: dict[str, Any]
    healthz: int


def _ask(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


@pytest.fixture(scope="module")
def directory() -> Iterator[pathlib.Path]:
    with tempfile.TemporaryDirectory(prefix="hg-") as name:
        path = pathlib.Path(name)
        (path / "heliograph.conf").write_text(
            f"[pubsub]\npub_sub_driver = zmq\npublisher_transport = ipc\nenable_df_pub_sub = true\n"
            f"publisher_multiproc_socket = {path}/publisher\n[zmq]\nipc_path = {path}/bus\n"
            f"[db]\nurl = sqlite://{path}/objects.db\n"
        )
        with contextlib.closing(open_db(f"sqlite://{path}/objects.db")) as db:
            db.create("port", "p1", 1, topic="t")
        assert main(["group", "declare", "g", "#", "--log", f"sqlite://{path}/groups.db"]) == exits.OK
        yield path


@pytest.fixture(scope="module")
def told(directory: pathlib.Path) -> dict[str, Told]:
    """All daemons at once, each asked once it is there, and ended in good order."""
    found = {}
    with contextlib.ExitStack() as stack:
        running = {}
        for name, daemon in DAEMONS.items():
            words = [word.format(directory=directory) for word in daemon.words]
            telling = ("--metrics-address", "0", "--fleet", f"sqlite://{directory}/objects.db", "--fleet-name", name)
            running[name] = stack.enter_context(Command(*words, "--json", *telling))
        for name, command in running.items():
            found[name] = _ask_all(name, command)
        _check_fleet(directory, running)
        for command in running.values():
            command.process.send_signal(signal.SIGTERM)
        codes = {name: command.wait() for name, command in running.items()}
    assert codes == {name: exits.INTERRUPTED if name == "controller" else exits.OK for name in DAEMONS}
    return found


def _check_fleet(directory: pathlib.Path, running: dict[str, Command]) -> None:
    """Every daemon tells of itself in the database, as well."""
    with contextlib.closing(open_db(f"sqlite://{directory}/objects.db", must_exist=True)) as db:
        wait_until(lambda: db.reports().keys() == running.keys(), PATIENCE_S, "the reports of all daemons")
        for member in FleetObserver(db).look().members:
            assert member.report is not None
            assert member.report.pid == running[member.name].process.pid
            assert bool(member.report.copies) == (member.name == "controller")


def _ask_all(name: str, command: Command) -> Told:
    def address() -> str:
        assert command.process.poll() is None, command.errors
        return next(iter(re.findall(r"metrics at (http://\S+)/metrics", command.errors)), "")

    wait_until(lambda: bool(address()), PATIENCE_S, f"the endpoint of {name}")
    url = address()

    def has_all() -> bool:
        roles = {one["role"] for one in json.loads(_ask(f"{url}/status")[1])["objects"]} | {"process"}
        return DAEMONS[name].roles <= roles

    wait_until(has_all, PATIENCE_S, f"everything that {name} tells")
    if name == "publisher-service":
        wait_until(
            lambda: "heliograph_publisher_service_outbox" in _ask(f"{url}/metrics")[1], PATIENCE_S, "the database"
        )
    return Told(
        scraping.check(_ask(f"{url}/metrics")[1]), json.loads(_ask(f"{url}/status")[1]), _ask(f"{url}/healthz")[0]
    )


@pytest.mark.parametrize("name", DAEMONS)
def test_a_daemon_tells_how_it_is(told: dict[str, Told], name: str) -> None:
    one = told[name]
    assert one.healthz == 200
    assert {"ok", "pid", "host", "uptime_s", "problems"} <= one.status.keys()
    for role in DAEMONS[name].roles:
        assert any(metric.startswith(f"heliograph_{role}_") for metric in one.scrape.kinds), role
    assert "heliograph_process_source_failures_total" in one.scrape.kinds
    [failures] = [
        value for key, value in one.scrape.values.items() if key[0] == "heliograph_process_source_failures_total"
    ]
    assert failures == 0


@pytest.fixture(scope="module")
def names(told: dict[str, Told]) -> dict[str, str]:
    """Every name that a daemon told, with its kind."""
    return {metric: kind for one in told.values() for metric, kind in one.scrape.kinds.items()}


def _expressions(dashboard: dict[str, Any]) -> list[str]:
    return [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]


def _check_expression(expression: str, names: dict[str, str]) -> None:
    used = _METRIC.findall(expression)
    assert used, expression
    for metric in used:
        assert metric in names, f"{metric} is told by no process: {expression}"
        is_grown = re.search(rf"\b(?:rate|increase)\({metric}\b", expression) is not None
        assert is_grown == (names[metric] == "counter"), f"{metric} is a {names[metric]}: {expression}"
    for opening, closing in ("()", "[]", "{}"):
        assert expression.count(opening) == expression.count(closing), expression


def test_the_dashboard_shows_what_is_told(names: dict[str, str]) -> None:
    dashboard = json.loads(DASHBOARD.read_text())
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for expression in _expressions(dashboard):
        _check_expression(expression, names)
    for panel in panels:
        assert panel["type"] == "row" or (panel["targets"] and panel["description"]), panel["title"]
        assert all(target["datasource"]["uid"] == "${datasource}" for target in panel.get("targets", ()))
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, f"{panel['title']} lies over another panel"
        assert all(x < 24 for x, _ in cells)
        taken |= cells


def test_the_alerts_are_about_what_is_told_and_are_explained(names: dict[str, str]) -> None:
    rules = [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]
    for rule in rules:
        _check_expression(rule["expr"], names)
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert rule["annotations"].keys() == {"summary", "description"}
    explained = [row[0].strip("`") for row in documents.table("docs/metrics.md", "Alerts")]
    assert explained == [rule["alert"] for rule in rules]


_NEEDS_PROMTOOL = pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not on the path")

FIRING = {
    "HeliographNotReady": ("heliograph_process_is_ready{}", "0x60"),
    "HeliographEventsLost": ("heliograph_subscriber_lost_total{}", "0 0 5x58"),
    "HeliographResyncsOften": ("heliograph_subscriber_resyncs_total{}", "0+1x60"),
    "HeliographLinksDown": ("heliograph_subscriber_links_down{}", "1x60"),
    "HeliographFramesRefused": ('heliograph_subscriber_bad_frames_total{kind="BadSignature"}', "0+3x60"),
    "HeliographCallbackBehind": ("heliograph_subscriber_lag{}", "20000x60"),
    "HeliographPublisherCannotSend": ("heliograph_publisher_send_failures_total{}", "0+2x60"),
    "HeliographCopyNotComplete": ("heliograph_local_cache_is_synced{}", "0x60"),
    "HeliographOutboxGrows": ("heliograph_publisher_service_outbox{}", "2000x60"),
    "HeliographServiceFailed": ("heliograph_publisher_service_is_well{}", "0x60"),
    "HeliographGroupBehind": ("heliograph_group_oldest_seconds{}", "0+60x60"),
    "HeliographGroupNotLed": ("heliograph_group_is_led{}", "0x60"),
    "HeliographLogHasHoles": ("heliograph_recorder_missing_total{}", "0+1x60"),
    "HeliographHistoryNotComplete": ("heliograph_name_space_is_complete{}", "0x60"),
    "HeliographHistoryConflict": ("heliograph_name_space_conflicts{}", "1x60"),
}
"""Alert -> what is told, minute by minute, of a process to which it has to be raised."""
WELL = {"is_ready": "1x60", "is_synced": "1x60", "is_well": "1x60", "is_led": "1x60", "is_complete": "1x60"}
"""Of a process to which none is: these fields, and of all others 0."""


@_NEEDS_PROMTOOL
def test_each_alert_is_raised_to_whom_it_concerns_and_to_no_other(tmp_path: pathlib.Path) -> None:
    series, expected = [], []
    for alert, (metric, bad) in FIRING.items():
        labels = f'instance="{alert}"'
        name, _, rest = metric.partition("{")
        good = next((values for field, values in WELL.items() if name.endswith(field)), "0x60")
        for instance, values in ((labels, bad), ('instance="well"', good)):
            series.append({"series": f"{name}{{{', '.join(filter(None, (instance, rest[:-1])))}}}", "values": values})
        expected.append({"expr": f'count(ALERTS{{alertname="{alert}", alertstate="firing"}})', "eval_time": "40m",
                         "exp_samples": [{"labels": "{}", "value": 1}]})  # fmt: skip
    expected.append({"expr": 'count(ALERTS{instance="well"})', "eval_time": "40m", "exp_samples": []})
    # Lost once, long ago: over.
    expected[1] = {**expected[1], "eval_time": "5m"}
    file = tmp_path / "tests.yml"
    test = {"interval": "1m", "input_series": series, "promql_expr_test": expected}
    file.write_text(yaml.safe_dump({"rule_files": [str(ALERTS)], "evaluation_interval": "1m", "tests": [test]}))
    done = subprocess.run(
        ["promtool", "test", "rules", os.fspath(file)], capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_has_been_tried() -> None:
    rules = [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]
    assert list(FIRING) == [rule["alert"] for rule in rules]


@_NEEDS_PROMTOOL
def test_promtool_accepts_rules_and_expressions(tmp_path: pathlib.Path) -> None:
    subprocess.run(["promtool", "check", "rules", str(ALERTS)], check=True, timeout=PATIENCE_S)
    expressions = _expressions(json.loads(DASHBOARD.read_text()))
    rules = [
        {"record": f"panel:{number}", "expr": expression.replace("$__rate_interval", _RATE_INTERVAL)}
        for number, expression in enumerate(expressions)
    ]
    file = tmp_path / "panels.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    subprocess.run(["promtool", "check", "rules", os.fspath(file)], check=True, timeout=PATIENCE_S)
