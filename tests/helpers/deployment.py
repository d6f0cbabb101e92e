"""What etc/ says about running the daemons: units of systemd, containers of compose and of Kubernetes."""

from __future__ import annotations

import configparser
import dataclasses
import shlex
from typing import Any

import yaml

from tests.helpers.paths import ROOT

ETC = ROOT / "etc"
UNITS = sorted((ETC / "systemd").glob("*.service"))
SPARK_MANIFESTS = ETC / "kubernetes" / "pipeline.yaml"
MANIFESTS = sorted(set((ETC / "kubernetes").glob("*.yaml")) - {SPARK_MANIFESTS})
COMPOSE = ETC / "container" / "compose.yaml"
CONTAINERFILE = ETC / "container" / "Containerfile"
SPARK_CONTAINERFILE = ETC / "container" / "Containerfile.spark"


@dataclasses.dataclass(frozen=True)
class Container:
    """A container of a Kubernetes workload."""

    workload: str
    name: str
    arguments: list[str]
    description: dict[str, Any]


def unit_of(path: Any) -> configparser.ConfigParser:
    unit = configparser.ConfigParser(strict=False, interpolation=None, comment_prefixes="#")
    unit.optionxform = str  # type: ignore[method-assign,assignment]  # systemd knows upper and lower case
    unit.read(path)
    return unit


def arguments_of_unit(path: Any) -> list[str]:
    """What the unit gives to ``heliograph``."""
    env, program, *arguments = shlex.split(unit_of(path)["Service"]["ExecStart"])
    assert (env, program) == ("/usr/bin/env", "heliograph")
    return arguments


def manifests() -> list[dict[str, Any]]:
    return [document for path in MANIFESTS for document in yaml.safe_load_all(path.read_text())]


def spark_manifests() -> list[dict[str, Any]]:
    """What runs jobs of Spark, and ends when they have."""
    return list(yaml.safe_load_all(SPARK_MANIFESTS.read_text()))


def workloads() -> list[dict[str, Any]]:
    return [document for document in manifests() if document["kind"] in ("StatefulSet", "DaemonSet", "Deployment")]


def containers() -> list[Container]:
    return [
        Container(workload["metadata"]["name"], container["name"], container["args"], container)
        for workload in workloads()
        for container in workload["spec"]["template"]["spec"]["containers"]
    ]


def configuration() -> str:
    """The file that all pods read."""
    (text,) = [document["data"]["heliograph.conf"] for document in manifests() if document["kind"] == "ConfigMap"]
    return str(text)


def compose() -> dict[str, Any]:
    parsed: dict[str, Any] = yaml.safe_load(COMPOSE.read_text())
    return parsed
