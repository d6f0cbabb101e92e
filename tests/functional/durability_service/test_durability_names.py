"""Two services of one name, as on a machine that was cloned, and services that clash: said, and never in silence."""

from __future__ import annotations

import json
import logging
import pathlib
import shutil

import pytest

import pubsub_api
from durability_service.errors import NameInUse
from durability_service.service import DurabilityService
from heliograph import exits
from tests.functional.heliograph.test_cli import Command, run
from tests.functional.heliograph.test_cli_durability import PATIENCE_S, configured
from tests.helpers.durability_domain import TIMEOUT_S, Domain, durability_conf
from tests.helpers.servers import RedisServer
from tests.helpers.waiting import wait_until


def test_of_two_services_with_one_name_the_younger_ends_and_both_say_so(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    domain = Domain(f"memory://{tmp_path.name}", tmp_path, is_bind_based=False)
    domain.start("a").close()
    shutil.copy(tmp_path / "a.db", tmp_path / "clone.db")
    del domain.services["a"]
    elder = domain.start("a")
    domain.start("b")
    domain.wait_complete()
    publisher = domain.publisher()
    with caplog.at_level(logging.ERROR):
        clone = DurabilityService(durability_conf(domain.url, store=str(tmp_path / "clone.db")))  # the name is in it
        assert clone.node == "a"
        with pytest.raises(NameInUse, match="named 'a'"):
            clone.wait(TIMEOUT_S)
    assert [record for record in caplog.records if "another service is named" in record.getMessage()]
    assert not clone.status().name_spaces[0].is_complete
    clone.close()
    assert elder.status().counters["name_clashes"] >= 1
    publisher.send_event(pubsub_api.Event(topic="orders/eu", table="order", key="k", action="set", value=1))
    publisher.confirm(services=2, timeout_s=TIMEOUT_S)
    domain.wait_complete(samples=1)
    publisher.close()
    domain.close()


def test_the_command_fails_with_a_name_that_is_taken_and_the_status_with_services_that_clash(
    redis_server: RedisServer, tmp_path: pathlib.Path
) -> None:
    where = configured(tmp_path, redis_server)
    other = tmp_path / "other.conf"
    text = pathlib.Path(where[1]).read_text()
    other.write_text(text.replace("durability.db", "other.db") + "depths = #=17\n")
    with Command("durability-service", "--node", "n1", "--json", *where) as service:
        service.next_record()
        wait_until(
            lambda: run("durability", "status", *where).process.returncode == exits.OK, PATIENCE_S, "a complete set"
        )
        clone = run("durability-service", "--node", "n1", "--store", str(tmp_path / "clone.db"), *where)
        assert clone.process.returncode == exits.USAGE
        assert "another service is named 'n1'" in clone.errors
        with Command("durability-service", "--node", "n2", "--json", "--config-file", str(other)) as clashing:
            clashing.next_record()

            def is_said() -> bool:
                shown = run("durability", "status", "--json", *where)
                peers = [one for line in shown.out for one in json.loads(line)["fellows"]]
                return any(one["incompatibility"] for one in peers) and shown.process.returncode == exits.FAILED

            wait_until(is_said, PATIENCE_S, "the clash to be told")
