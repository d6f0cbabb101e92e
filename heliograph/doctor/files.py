"""Checks of the configuration: can it be read, are the values valid, and does every name in it exist."""

from __future__ import annotations

import contextlib
import importlib.metadata
import itertools

from heliograph.doctor.findings import CheckContext, Finding
from pubsub_api import config, loading
from pubsub_api.errors import DriverDependencyMissing, DriverNotFound, HeliographError
from pubsub_api.runtime.option_names import hint_for, is_known, names_of, nearest, read_names

_FOREIGN_GROUPS = frozenset({"DEFAULT", config.OLD_GROUP})
"""Groups of a Dragonflow file, which has many options that are not Heliograph's."""


def check_configuration(context: CheckContext) -> list[Finding]:
    """Read files and URL.  Sets ``context.conf``."""
    try:
        context.conf = context.read_conf()
    except DriverDependencyMissing as error:
        return [Finding("configuration", "failed", str(error), "install what the message names")]
    except DriverNotFound as error:
        return [Finding("configuration", "failed", str(error), "heliograph drivers lists what is installed")]
    except HeliographError as error:
        return [Finding("configuration", "failed", str(error), "correct what the message names")]
    driver = context.conf[config.GROUP].pub_sub_driver
    return [Finding("configuration", "ok", f"driver {driver}; from {context.source}")]


def check_names(context: CheckContext) -> list[Finding]:
    """Find options in the files that no module reads: a misspelt option has no effect."""
    if context.conf is None or not context.config_files:
        return []
    known = known_options()
    strange = [
        _strange(group, name, known)
        for path in context.config_files
        for group, names in read_names(path).items()
        for name in names or [""]
        if _is_strange(group, name, known)
    ]
    if strange:
        fix = "correct the spelling, or remove them; docs/options.md lists every option"
        return [Finding("option names", "warning", f"unknown: {'; '.join(strange)}", fix)]
    return [Finding("option names", "ok", "every option in the files is known")]


def known_options() -> dict[str, set[str]]:
    """Group -> names of the options that installed modules read: those listed for oslo-config-generator, and those of
    drivers of other packages."""
    groups = [
        status.driver_class.options.items() for status in loading.available_drivers().values() if status.driver_class
    ]
    for entry in importlib.metadata.entry_points(group="oslo.config.opts"):
        if entry.name.startswith("heliograph."):
            with contextlib.suppress(ImportError):  # a driver whose library is not installed reads nothing
                groups.append(entry.load()())
    known: dict[str, set[str]] = {}
    for group, options in itertools.chain.from_iterable(groups):
        known.setdefault(group, set()).update(names_of(options))
    return known


def _is_strange(group: str, name: str, known: dict[str, set[str]]) -> bool:
    if group in known:
        return bool(name) and not is_known(name, known[group])
    # Another program may share the file: an unknown group counts only when it looks like a misspelt one of ours.
    return group not in _FOREIGN_GROUPS and bool(nearest(group, known, cutoff=0.75))


def _strange(group: str, name: str, known: dict[str, set[str]]) -> str:
    near_group = nearest(group, known) if group not in known else ""
    hint = f"is [{near_group}] meant?" if near_group else hint_for(name, known.get(group, ()))
    return f"[{group}] {name} ({hint.rstrip('.')})" if hint else f"[{group}] {name}"
