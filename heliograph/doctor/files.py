"""Checks of the configuration: can it be read, do the values fit, and is every name in it one that exists."""

from __future__ import annotations

import contextlib
import difflib
import importlib.metadata
import itertools

from oslo_config import cfg

from heliograph.doctor.findings import Finding, Patient
from pubsub_api import config, loading
from pubsub_api.errors import DriverDependencyMissing, DriverNotFound, HeliographError

_GROUPS_OF_OTHERS = frozenset({"DEFAULT", config.OLD_GROUP})
"""A Dragonflow file's own groups hold many options that are none of ours."""


def check_configuration(patient: Patient) -> list[Finding]:
    """Read files and URL; leaves ``conf``."""
    try:
        patient.conf = patient.read_conf()
    except DriverDependencyMissing as error:
        return [Finding("configuration", "failed", str(error), "install what the message names")]
    except DriverNotFound as error:
        return [Finding("configuration", "failed", str(error), "heliograph drivers lists what is installed")]
    except HeliographError as error:
        return [Finding("configuration", "failed", str(error), "correct what the message names")]
    driver = patient.conf[config.GROUP].pub_sub_driver
    return [Finding("configuration", "ok", f"driver {driver}; from {patient.source}")]


def check_names(patient: Patient) -> list[Finding]:
    """Options in the files that nobody reads: a misspelt one would have no effect, and nobody would say so."""
    if patient.conf is None or not patient.config_files:
        return []
    known = known_options()
    strange = [
        _strange(group, name, known)
        for path in patient.config_files
        for group, names in read_names(path).items()
        for name in names or [""]
        if _is_strange(group, name, known)
    ]
    if strange:
        fix = "correct the spelling, or remove them; etc/heliograph.conf shows every option"
        return [Finding("option names", "warning", f"nobody reads {'; '.join(strange)}", fix)]
    return [Finding("option names", "ok", "every option in the files is known")]


def known_options() -> dict[str, set[str]]:
    """Group -> names of the options that anything installed reads, by what it lists for oslo-config-generator, and of
    those that drivers of other packages have."""
    groups = [
        status.driver_class.options.items() for status in loading.available_drivers().values() if status.driver_class
    ]
    for entry in importlib.metadata.entry_points(group="oslo.config.opts"):
        if entry.name.startswith("heliograph."):
            with contextlib.suppress(ImportError):  # of a driver whose library is not installed: it reads nothing
                groups.append(entry.load()())
    known: dict[str, set[str]] = {}
    for group, options in itertools.chain.from_iterable(groups):
        known.setdefault(group, set()).update(option.name for option in options)
    return known


def read_names(path: str) -> dict[str, list[str]]:
    """Group -> names as they stand in a file that was read without error before."""
    sections: dict[str, dict[str, list[str]]] = {}
    cfg.ConfigParser(path, sections).parse()
    return {group: list(options) for group, options in sections.items()}


def _is_strange(group: str, name: str, known: dict[str, set[str]]) -> bool:
    if group in known:
        return bool(name) and name.replace("-", "_") not in known[group]
    # A group of a program that shares the file is not ours to judge, unless it looks like a misspelt one of ours.
    return group not in _GROUPS_OF_OTHERS and bool(difflib.get_close_matches(group, known, cutoff=0.75))


def _strange(group: str, name: str, known: dict[str, set[str]]) -> str:
    near = difflib.get_close_matches(name, known[group], n=1) if group in known else []
    groups = difflib.get_close_matches(group, known, n=1) if group not in known else []
    guess = f" (is {near[0]} meant?)" if near else f" (is [{groups[0]}] meant?)" if groups else ""
    return f"[{group}] {name}{guess}"
