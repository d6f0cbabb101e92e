"""A table that remembers which of its rows were used."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Recording(dict[K, V]):
    def __init__(self, table: Mapping[K, V]) -> None:
        super().__init__(table)
        self.used: set[K] = set()

    def __getitem__(self, key: K) -> V:
        self.used.add(key)
        return super().__getitem__(key)
