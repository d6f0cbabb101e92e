"""``heliograph durability-service`` and ``heliograph durability`` in processes of their own."""

from __future__ import annotations

import json
import pathlib
import signal

import pytest

import pubsub_api
from durability_service.storage.store import SampleStore
from heliograph import exits
from heliograph.main import main
from tests.functional.heliograph.test_cli import Command, run
from tests.helpers.durability_domain import stored_samples
from tests.helpers.nb_tools import open_nb
from tests.helpers.servers import RedisServer, free_port
from tests.helpers.waiting import wait_until

PATIENCE_S = 90.0


def configured(directory: pathlib.Path, server: RedisServer) -> list[str]:
    file = directory / "heliograph.conf"
    file.write_text(
        f"""
[pubsub]
pub_sub_driver = redis
[redis]
url = {server.address}
channel_prefix = {directory.name}:
[durability]
initial_discovery_period = 0.2
no_service_time = {PATIENCE_S}
store = {directory}/durability.db
admin_key = only-for-tests-of-durability
snapshot_directory = {directory}/snapshots
"""
    )
    return ["--config-file", str(file)]


def test_the_service_from_its_start_to_its_end(
    redis_server: RedisServer, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = configured(tmp_path, redis_server)

    def ask(*words: str) -> list[str]:
        """The lines of a command that needs no process of its own."""
        assert main([*words, *where]) == exits.OK
        return capsys.readouterr().out.splitlines()

    with Command("durability-service", "--node", "n1", "--json", *where) as service:
        assert service.next_record()["node"] == "n1"
        wait_until(lambda: main(["durability", "status", *where]) == exits.OK, PATIENCE_S, "a complete set")
        capsys.readouterr()
        with pubsub_api.open(config_files=[where[1]]) as session:
            publisher = session.publisher(name="p")
            publisher.send_event(pubsub_api.Event(topic="a/x", table="t", key="k", action="set", value=[1, 2]))
            publisher.confirm(caches=1, timeout_s=PATIENCE_S)
        assert [json.loads(line)["value"] for line in ask("durability", "history", "a/#", "--json")] == [[1, 2]]
        heard = run("subscribe", "a/#", "--durability", "persistent", "--count", "1", "--json", *where)
        assert [json.loads(line)["value"] for line in heard.out if "value" in line] == [[1, 2]]
        (status,) = [json.loads(line) for line in ask("durability", "status", "--json")]
        assert status["name_spaces"][0]["master"] == "n1"
        assert status["name_spaces"][0]["samples"] == 1
        (snapshot,) = [json.loads(line) for line in ask("durability", "snapshot", "#", "--json")]
        with SampleStore(snapshot["snapshot"]) as store:
            assert len(stored_samples(store)) == 1
        with open_nb(f"sqlite://{tmp_path}/objects.db") as nb:
            revision = nb.create("port", "p1", 1, topic="tenant-7")
        (made,) = ask("durability", "checkpoint", "#", "--db", f"sqlite://{tmp_path}/objects.db", "--json")
        assert json.loads(made) == {
            "revision": revision, "objects": 1, "published": 1, "deleted": 0, "pages": 1,
        }  # fmt: skip
        database = f"sqlite://{tmp_path}/objects.db"
        with Command("durability", "checkpoint", "#", "--every", "0.1", "--db", database, "--json", *where) as maker:
            found = [maker.next_record() for _ in range(2)]
            maker.process.send_signal(signal.SIGTERM)
            assert maker.wait() == exits.OK
        assert [one["published"] for one in found] == [0, 0]
        refused = run("durability", "delete", "a/#", *where)
        assert refused.process.returncode == exits.USAGE
        assert "would delete the history of a/#, 1 samples now, in all services" in refused.errors
        (shown_only,) = [json.loads(line) for line in ask("durability", "delete", "a/#", "--dry-run", "--json")]
        assert shown_only["dry_run"]
        assert len(ask("durability", "history", "a/#")) == 1
        ask("durability", "delete", "a/#", "--yes")
        assert ask("durability", "history", "a/#") == []
        service.process.send_signal(signal.SIGTERM)
        assert service.wait() == exits.OK
    with SampleStore(tmp_path / "durability.db") as store:
        assert {sample.topic for sample in stored_samples(store)} == {"tenant-7", "heliograph/checkpoint"}


def test_without_a_service_the_command_says_so() -> None:
    shown = run("durability", "status", "--timeout", "0.5", "--bus", f"zmq://127.0.0.1:{free_port()}")
    assert shown.process.returncode == exits.ENVIRONMENT
    assert "no durability service answered" in shown.errors
