"""Names of options as they stand in configuration files: a misspelt one must not have no effect in silence."""

from __future__ import annotations

import difflib
import os
from collections.abc import Collection, Iterable
from typing import NamedTuple

from oslo_config import cfg

from pubsub_api.errors import InvalidConfig
from pubsub_api.runtime.removed_options import REMOVED

_ENVIRONMENT = "the environment"


def read_names(path: str) -> dict[str, list[str]]:
    """Group -> names as they stand in a file that was read without error before."""
    sections: dict[str, dict[str, list[str]]] = {}
    cfg.ConfigParser(path, sections).parse()
    return {group: list(options) for group, options in sections.items()}


def nearest(name: str, known: Iterable[str], *, cutoff: float = 0.6) -> str:
    """The known name that is most like this one, empty when none is."""
    return next(iter(difflib.get_close_matches(name, list(known), n=1, cutoff=cutoff)), "")


def is_known(name: str, known: Collection[str]) -> bool:
    return name.replace("-", "_") in known


def hint_for(group: str, name: str, known: Iterable[str]) -> str:
    """What a name that is no option was, or what is meant by it; empty when nothing is like it."""
    if removed := removed_hint(group, name):
        return removed
    near = nearest(name, known)
    return f"is {near} meant?" if near else ""


def removed_hint(group: str, name: str) -> str:
    """What became of an option of earlier releases, empty when there was no such one."""
    given_by = REMOVED.get(group, {}).get(name.replace("-", "_"))
    if given_by is None:
        return ""
    return f"it was removed, and follows from: {given_by}." if given_by else "it was removed, and is a constant."


def names_of(options: Iterable[cfg.Opt]) -> set[str]:
    """Every name under which a file may give these options."""
    names = {option.dest for option in options}
    return names | {old.name.replace("-", "_") for option in options for old in option.deprecated_opts if old.name}


class _Given(NamedTuple):
    """A name as it was given."""

    group: str
    name: str
    shown: str
    place: str


def _given(conf: cfg.ConfigOpts, group: str) -> list[_Given]:
    """The names of a group in the files of ``conf``, and in the environment when that counts."""
    given = [
        _Given(group, name, f"[{group}] {name}", path)
        for path in conf.config_file or ()
        for name in read_names(path).get(group, ())
    ]
    if getattr(conf, "_use_env", True):  # oslo.config tells it nowhere else
        prefix = f"OS_{group.upper()}__"
        names = sorted(name for name in os.environ if name.startswith(prefix))
        given += [_Given(group, name.removeprefix(prefix).lower(), name, _ENVIRONMENT) for name in names]
    return given


def refuse_unknown(conf: cfg.ConfigOpts, group: str, options: Collection[cfg.Opt]) -> None:
    """Raises InvalidConfig for names in that group, in files of ``conf`` and in the environment, that are none of these
    options.  The error tells of all of them, and of all removed options of other groups.

    Other groups are no reason to refuse: they may belong to another program that shares the file.
    """
    known, read_from_environment = names_of(options), {option.dest for option in options}

    def is_read(one: _Given) -> bool:
        return is_known(one.name, read_from_environment if one.place == _ENVIRONMENT else known)

    unknown = [one for one in _given(conf, group) if not is_read(one)]
    if not unknown:
        return
    others = [(other, names) for other, names in REMOVED.items() if other != group]
    unknown += [one for other, names in others for one in _given(conf, other) if is_known(one.name, names)]
    first, *rest = unknown
    hint = hint_for(first.group, first.name, known)
    raise InvalidConfig(
        f"{first.shown}, in {first.place}, is no option{f': {hint}' if hint else '.'}{_told(rest, first.place, known)} "
        'What became of options of earlier releases: docs/options.md, "Options that are gone"'
    )


def _told(rest: Iterable[_Given], place: str, known: Iterable[str]) -> str:
    """A sentence about further names, each in a few words: an old file may have a hundred."""
    words = []
    for one in rest:
        hint = REMOVED.get(one.group, {}).get(one.name.replace("-", "_"))
        near = nearest(one.name, known) if hint is None else ""
        why = [f"in {one.place}"] if one.place != place else []
        why += [f"is {near} meant?"] if near else [] if hint is None else [hint or "a constant"]
        words.append(f"{one.shown} ({', '.join(why)})" if why else one.shown)
    return f" Neither are {'; '.join(words)}." if words else ""
