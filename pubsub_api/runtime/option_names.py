"""Checks of the option names in configuration files: a misspelt name must not be ignored in silence."""

from __future__ import annotations

import difflib
import os
from collections.abc import Collection, Iterable
from typing import NamedTuple

from oslo_config import cfg

from pubsub_api.errors import InvalidConfig

_ENVIRONMENT = "the environment"


def read_names(path: str) -> dict[str, list[str]]:
    """Group -> option names in a file.  The file must have been read without error before."""
    sections: dict[str, dict[str, list[str]]] = {}
    cfg.ConfigParser(path, sections).parse()
    return {group: list(options) for group, options in sections.items()}


def nearest(name: str, known: Iterable[str], *, cutoff: float = 0.6) -> str:
    """The known name that is most similar to this one, empty when none is similar."""
    return next(iter(difflib.get_close_matches(name, list(known), n=1, cutoff=cutoff)), "")


def is_known(name: str, known: Collection[str]) -> bool:
    return name.replace("-", "_") in known


def hint_for(name: str, known: Iterable[str]) -> str:
    """Which option may be meant; empty when none is similar."""
    near = nearest(name, known)
    return f"is {near} meant?" if near else ""


def names_of(options: Iterable[cfg.Opt]) -> set[str]:
    """Every name under which a file may give these options."""
    names = {option.dest for option in options}
    return names | {old.name.replace("-", "_") for option in options for old in option.deprecated_opts if old.name}


class _GivenName(NamedTuple):
    """The name of an option that a file or the environment sets."""

    name: str
    shown: str
    source: str
    """The path of the file, or `_ENVIRONMENT`."""


def _given_names(conf: cfg.ConfigOpts, group: str) -> list[_GivenName]:
    """The names of a group in the files of ``conf``, and in the environment if ``conf`` reads it."""
    given = [
        _GivenName(name, f"[{group}] {name}", path)
        for path in conf.config_file or ()
        for name in read_names(path).get(group, ())
    ]
    if getattr(conf, "_use_env", True):  # oslo.config has no public name for it
        prefix = f"OS_{group.upper()}__"
        names = sorted(name for name in os.environ if name.startswith(prefix))
        given += [_GivenName(name.removeprefix(prefix).lower(), name, _ENVIRONMENT) for name in names]
    return given


def refuse_unknown(conf: cfg.ConfigOpts, group: str, options: Collection[cfg.Opt]) -> None:
    """Raises InvalidConfig for names of that group, in files of ``conf`` and in the environment, that are none of these
    options.  The error lists all of them.

    Unknown names of other groups are accepted: they may belong to another program that shares the file.
    """
    known, read_from_environment = names_of(options), {option.dest for option in options}

    def is_read(given: _GivenName) -> bool:
        return is_known(given.name, read_from_environment if given.source == _ENVIRONMENT else known)

    unknown = [given for given in _given_names(conf, group) if not is_read(given)]
    if unknown:
        raise InvalidConfig(" ".join(_explain(given, known) for given in unknown))


def _explain(given: _GivenName, known: Iterable[str]) -> str:
    hint = hint_for(given.name, known)
    return f"{given.shown}, in {given.source}, is no option{f': {hint}' if hint else '.'}"
