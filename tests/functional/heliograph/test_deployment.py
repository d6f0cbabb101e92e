"""What the Kubernetes files describe, as processes of this machine: a loopback address stands for each pod's name."""

from __future__ import annotations

import contextlib
import functools
import json
import pathlib
import re
import urllib.request

from heliograph import exits
from tests.functional.heliograph.test_cli import PATIENCE_S, Command
from tests.helpers import deployment
from tests.helpers.deployment import Container
from tests.helpers.servers import free_port
from tests.helpers.waiting import wait_until

HMAC_KEY = "a key that is for this test only"


class Pods:
    """The containers of the files, with addresses, ports and directories of this machine in place of a cluster's."""

    def __init__(self, directory: pathlib.Path) -> None:
        self._directory = directory
        self._port = free_port()
        self._hosts: dict[str, str] = {}
        self._file = directory / "heliograph.conf"
        self._file.write_text(self._here(deployment.configuration()))

    def _host(self, pod: str) -> str:
        return self._hosts.setdefault(pod, f"127.0.0.{len(self._hosts) + 11}")

    def _here(self, text: str, pod: str = "") -> str:
        text = re.sub(r"(heliograph-\w+-\d)\.heliograph-\w+", lambda match: self._host(match[1]), text)
        text = text.replace("/run/heliograph", str(self._directory / "run"))
        text = text.replace("/var/lib/heliograph", str(self._directory / f"data-{pod}"))
        return text.replace(":8866", f":{self._port}")

    def environment(self, pod: str) -> dict[str, str]:
        file = self._directory / f"{pod}.conf"
        file.write_text(self._here(deployment.configuration(), pod))
        (self._directory / f"data-{pod}").mkdir(exist_ok=True)
        (self._directory / "run").mkdir(mode=0o700, exist_ok=True)
        return {
            "HELIOGRAPH_CONFIG": str(file),
            "HELIOGRAPH_DB": f"sqlite://{self._directory}/objects.db",
            "OS_PUBSUB__HMAC_KEY": HMAC_KEY,
            "OS_PUBSUB__LOCAL_IP": self._host(pod),
            # Pods have an address each, and 0.0.0.0 is all of this machine's.
            "OS_PUBSUB__PUBLISHER_BIND_ADDRESS": self._host(pod),
            "OS_PUBSUB__PUBLISHER_PORT": str(self._port),
        }

    def start(self, container: Container, number: int = 0) -> tuple[Command, str]:
        """The container's process, and where it says how it is."""
        pod = f"{container.workload}-{number}"
        metrics = f"{self._host(pod)}:{free_port()}"
        arguments = [
            argument.replace("$(POD_NAME)", pod).replace("0.0.0.0:9101", metrics) for argument in container.arguments
        ]
        return Command(*arguments, environment=self.environment(pod)), f"http://{metrics}/readyz"


def is_ready(command: Command, url: str) -> bool:
    assert command.process.poll() is None, command.errors
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:  # it does not listen yet, or says that it is not ready
        return False


def kept_by_services(environment: dict[str, str]) -> bool:
    with Command("durability", "history", "tenant-7", "--json", environment=environment) as history:
        assert history.wait() == exits.OK, history.errors
    return [json.loads(line)["key"] for line in history.out] == ["p1"]


def test_the_manifests_describe_a_system_that_works(tmp_path: pathlib.Path) -> None:
    pods = Pods(tmp_path)
    described = [container for container in deployment.containers() if "--metrics-address" in container.arguments]
    with contextlib.ExitStack() as stack:
        started = {}
        for container in described:
            for number in range(2 if container.workload == "heliograph-durability" else 1):
                command, url = pods.start(container, number)
                started[f"{container.workload}-{number}"] = stack.enter_context(command)
                wait_until(functools.partial(is_ready, command, url), PATIENCE_S, f"{container.workload} to be ready")
        environment = pods.environment("heliograph-api-0")
        arguments = ("db", "create", "port", "p1", '{"up": true}', "--topic", "tenant-7")
        with Command(*arguments, environment=environment) as writer:
            assert writer.wait() == exits.OK, writer.errors
        controller = started["heliograph-controller-0"]
        record = controller.next_record()
        while "created" not in record and record.get("key") != "p1":
            record = controller.next_record()
        wait_until(lambda: kept_by_services(environment), PATIENCE_S, "the event in the durability services")
