"""The names of statistics, as the pages that explain them write them."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterator

from pubsub_api.runtime.durations import DurationHistogram


def fields_of(statistics: type, prefix: str = "") -> Iterator[str]:
    """The names of all numbers, with dots for those that are nested; those of the bus have a page of their own."""
    for name, hint in typing.get_type_hints(statistics).items():
        if dataclasses.is_dataclass(hint) and isinstance(hint, type) and hint is not DurationHistogram:
            yield from fields_of(hint, f"{prefix}{name}.")
        else:
            yield prefix + name
