"""Helpers to declare options: one spelling for times, sizes, counts and files, with the unit in the help text.

An option that `advanced` has marked is left out of ``etc/heliograph.conf``; ``docs/options.md`` lists all of them.
"""

from __future__ import annotations

import urllib.parse
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import SplitResult

from oslo_config import cfg, types

from pubsub_api.errors import InvalidConfig

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB
DAY_S = 86_400.0


def seconds(name: str, default: float, low: float, high: float, help_text: str, **more: Any) -> cfg.Opt:
    """A time.  ``more`` are further arguments for oslo.config, here and below."""
    return cfg.Opt(name, type=types.Float(min=low, max=high), default=default, help=f"{help_text} Seconds.", **more)


def count(name: str, default: int, low: int, high: int, help_text: str, **more: Any) -> cfg.Opt:
    """A number of things."""
    return cfg.Opt(name, type=types.Integer(min=low, max=high), default=default, help=help_text, **more)


def size(name: str, default: int, help_text: str, *, low: int = KIB, high: int = 64 * GIB, **more: Any) -> cfg.Opt:
    """A number of bytes."""
    return count(name, default, low, high, f"{help_text} Bytes.", **more)


def flag(name: str, default: bool, help_text: str, **more: Any) -> cfg.Opt:
    """Yes or no."""
    return cfg.Opt(name, type=types.Boolean(), default=default, help=help_text, **more)


def text(name: str, default: str | None, help_text: str, **more: Any) -> cfg.Opt:
    """A name, an address, a file or a password."""
    return cfg.Opt(name, type=types.String(), default=default, help=help_text, **more)


def tls_files() -> tuple[cfg.Opt, ...]:
    """The certificates of drivers that can encrypt: used in one group for the bus, and in one for databases."""
    return (
        text("tls_ca_file", None, "PEM file of the authorities that may sign the other side's certificate."),
        text("tls_cert_file", None, "PEM file of our own certificate."),
        text("tls_key_file", None, "PEM file of the private key of tls_cert_file."),
    )


def refuse_tls(conf: cfg.ConfigOpts, group: str, driver: str) -> None:
    """For a driver that cannot use certificates.  Raises InvalidConfig when the configuration has some."""
    for name in TLS_NAMES:
        if name in conf[group] and conf[group][name]:
            raise InvalidConfig(f"[{group}] {name} is set, but {driver} makes no use of it: it would encrypt nothing")


def advanced(*options: cfg.Opt) -> tuple[cfg.Opt, ...]:
    """The same options, marked as those that few sites need."""
    for option in options:
        option.advanced = True
    return options


TLS_NAMES = (*(option.name for option in tls_files()), "tls_client_auth")


def override_from_query(conf: cfg.ConfigOpts, url: SplitResult, known: Mapping[str, Sequence[cfg.Opt]]) -> None:
    """Set the options that a URL gives after its ``?``.  ``known``: group -> options that may be given.

    Raises InvalidConfig, without showing a password, for pairs that cannot be read, an unknown name, a name that is
    given twice and a value out of bounds.
    """
    where = f"{url.scheme} URL"
    options = {option.name: (group, option) for group, listed in known.items() for option in listed}
    try:
        given = urllib.parse.parse_qsl(url.query, keep_blank_values=True, strict_parsing=bool(url.query))
    except ValueError as error:
        raise InvalidConfig(f"{where}: after the ? come option=value pairs, not {url.query!r}") from error
    seen: set[str] = set()
    for name, value in given:
        if name not in options or name in seen:
            listed = f"is no option there; options are {', '.join(sorted(options))}"
            raise InvalidConfig(f"{where}: {name!r} {'is given twice' if name in seen else listed}")
        seen.add(name)
        group, option = options[name]
        try:
            conf.set_override(name, option.type(value), group=group)
        except ValueError as error:
            raise InvalidConfig(f"{where}: {name}={'***' if option.secret else value}: {error}") from error
