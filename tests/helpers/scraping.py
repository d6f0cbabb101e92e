"""Reads what processes tell to Prometheus, and refuses what Prometheus would refuse or lose without a word."""

from __future__ import annotations

import re
from typing import NamedTuple

from prometheus_client.parser import text_string_to_metric_families

_NAME = re.compile(r"[a-z_][a-z0-9_]*")


class Scrape(NamedTuple):
    kinds: dict[str, str]
    """Name, as a query has it, -> counter, gauge or histogram."""
    values: dict[tuple[str, tuple[tuple[str, str], ...]], float]
    """Name and sorted labels -> value."""

    def value(self, name: str, /, **labels: str) -> float:
        return self.values[name, tuple(sorted(labels.items()))]


def check(text: str) -> Scrape:
    """The samples of a scrape.  Each name is described once, by a sentence, and each sample is there once."""
    described = [line.split(" ", 3) for line in text.splitlines() if line.startswith("# HELP ")]
    typed = [line.split(" ")[2] for line in text.splitlines() if line.startswith("# TYPE ")]
    names = [words[2] for words in described]
    assert names == typed, "each name has one HELP and one TYPE, in this order"
    assert len(set(names)) == len(names), "no name is described twice"
    for _, _, name, sentence in described:
        assert _NAME.fullmatch(name), name
        assert sentence.endswith("."), f"{name}: {sentence}"
        assert len(sentence.split()) >= 4, f"{name}: {sentence}"
    kinds: dict[str, str] = {}
    values: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
    for family in text_string_to_metric_families(text):
        assert family.type in ("counter", "gauge", "histogram"), family
        kinds.update(
            dict.fromkeys([f"{family.name}_total"] if family.type == "counter" else [family.name], family.type)
        )
        for sample in family.samples:
            key = sample.name, tuple(sorted(sample.labels.items()))
            assert key not in values, f"{key} is there twice"
            values[key] = sample.value
    assert set(kinds) == set(names), "every family was read"
    return Scrape(kinds, values)
