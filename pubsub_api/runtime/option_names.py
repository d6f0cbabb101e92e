"""Names of options as they stand in configuration files: a misspelt one must not have no effect in silence."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable

from oslo_config import cfg

from pubsub_api.errors import InvalidConfig
from pubsub_api.runtime.removed_options import REMOVED


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
    given_by = REMOVED.get(group, {}).get(name.replace("-", "_"))
    if given_by is not None:
        return f"it was removed, and follows from: {given_by}." if given_by else "it was removed, and is a constant."
    near = nearest(name, known)
    return f"is {near} meant?" if near else ""


def names_of(options: Iterable[cfg.Opt]) -> set[str]:
    """Every name under which a file may give these options."""
    names = {option.dest for option in options}
    return names | {old.name.replace("-", "_") for option in options for old in option.deprecated_opts if old.name}


def refuse_unknown(conf: cfg.ConfigOpts, group: str, options: Collection[cfg.Opt]) -> None:
    """Raises InvalidConfig for a name in a file of ``conf``, in that group, that is none of these options.

    Other groups are not looked at: they may belong to another program that shares the file.
    """
    known = names_of(options)
    for path in conf.config_file or ():
        unknown = [name for name in read_names(path).get(group, ()) if not is_known(name, known)]
        if unknown:
            hint = hint_for(group, unknown[0], known)
            others = f" Neither are {', '.join(unknown[1:])}." if unknown[1:] else ""
            raise InvalidConfig(
                f"[{group}] {unknown[0]}, in {path}, is no option{f': {hint}' if hint else '.'}{others} "
                'What became of options of earlier releases: docs/options.md, "Options that are gone"'
            )
