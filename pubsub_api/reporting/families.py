"""From statistics to metrics, without a library: names, kinds, explanations, and the text that Prometheus reads.

Statistics are dataclasses or mappings of numbers, nested as they like.  A mapping inside a dataclass is one metric with
the label ``kind``, and a `DurationHistogram` is a histogram of seconds.  One name is one family, with one explanation,
whatever number of objects it is told of.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, NamedTuple

from pubsub_api.reporting.help_texts import HELP
from pubsub_api.runtime.durations import BOUNDS_S, DurationHistogram

Kind = Literal["counter", "gauge", "histogram"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

# What may go down.  Everything else only ever grows.
_GAUGES = {
    "publisher": {"streams", "backlog_bytes", "cache.frames", "cache.bytes"},
    "subscriber": {
        "links_up", "links_down", "lag", "queue_bytes", "repair.parked_bytes", "peers.streams", "peers.publishers",
    },
    "cache": {"frames", "bytes"},
    "member": {"streams", "waiting", "hung", "is_leading", "standing_by"},
    "nb": {"sweeper.refused"},
    "local_cache": {"objects", "tombstones", "position", "newest", "telling.untold", "telling.subscriptions"},
    "controller": {
        "has_begun", "ready", "running", "waiting", "following.unmapped", "oldest_ready_s", "oldest_running_s",
        "times.waited_max_s", "times.run_max_s",
    },
    "fleet": {"bytes", "members"},
    "log": {"events", "bytes", "sealed_bytes", "segments"},
    "group": {"lag", "oldest_seconds", "members", "missing", "expired"},
    "publisher_service": {"workers", "workers_remembered", "database_revision", "outbox"},
    "durability": {"lag", "peers", "troubles"},
    "name_space": {"samples", "conflicts"},
    "process": {"start_time_seconds"},
}  # fmt: skip
_ELSEWHERE = {"local_cache": {"bus"}}
"""Statistics of an object that has a role of its own."""
_UNNAMED = {
    "publisher": {"questions"},
    "subscriber": {"intake", "repair", "peers"},
    "member": {"links", "log"},
    "local_cache": {"telling"},
    "controller": {"queue", "following", "times"},
}
"""Parts whose numbers have names of metrics without them: dashboards and alerts know the numbers by these names."""
_NAMES = {
    "publisher": {"cache.frames": "cached_frames", "cache.bytes": "cached_bytes"},
    "subscriber": {"history.events": "historical"},
    "member": {"log.errors": "log_errors"},
    "local_cache": {"indexes.errors": "index_errors", "indexes.conflicts": "index_conflicts"},
}


class Reading(NamedTuple):
    """The statistics of one object, and the labels that tell it from others of its role."""

    role: str
    labels: Mapping[str, str]
    statistics: object


class MetricSample(NamedTuple):
    labels: Mapping[str, str]
    value: float | DurationHistogram


@dataclasses.dataclass
class Family:
    """All samples of one name, which for a counter is without ``_total``."""

    name: str
    kind: Kind
    help: str
    samples: list[MetricSample]


def gather(readings: Iterable[Reading]) -> list[Family]:
    """The readings by name, in the order in which names are met first."""
    families: dict[str, Family] = {}
    for reading in readings:
        for path, value in _numbers(reading.role, reading.statistics):
            name = name_of(reading.role, path)
            family = families.get(name)
            if family is None:
                kind: Kind = "histogram" if isinstance(value, DurationHistogram) else kind_of(reading.role, path)
                family = families[name] = Family(name, kind, help_of(reading.role, path), [])
            if isinstance(value, Mapping):
                family.samples += [
                    MetricSample({**reading.labels, "kind": str(label)}, one) for label, one in value.items()
                ]
            else:
                family.samples.append(MetricSample(reading.labels, value))
    return list(families.values())


def name_of(role: str, path: str) -> str:
    """Of the metric; for a counter without ``_total``."""
    part, _, rest = path.partition(".")
    named = _NAMES.get(role, {}).get(path) or (rest if part in _UNNAMED.get(role, ()) else path)
    return f"heliograph_{role}_{named.replace('.', '_')}"


def kind_of(role: str, path: str) -> Kind:
    is_gauge = path in _GAUGES.get(role, ()) or path.rpartition(".")[2].startswith("is_")
    return "gauge" if is_gauge else "counter"


def help_of(role: str, path: str) -> str:
    """A sentence.  What is not explained, a number of a program's own, is at least named."""
    return HELP.get(role, {}).get(path) or f"The number {path} that a {role.replace('_', ' ')} tells."


def _numbers(role: str, statistics: object, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Path and number, or path and mapping of numbers."""
    for name, value in _items(statistics):
        path = f"{prefix}{name}"
        if path in _ELSEWHERE.get(role, ()):
            continue
        if isinstance(value, bool | int | float | DurationHistogram):
            yield path, value
        elif isinstance(value, Mapping):
            yield path, {kind: one for kind, one in value.items() if isinstance(one, int | float)}
        elif dataclasses.is_dataclass(value):
            yield from _numbers(role, value, f"{path}.")


def _items(statistics: object) -> Iterator[tuple[str, Any]]:
    if isinstance(statistics, Mapping):
        yield from statistics.items()
    else:
        for field in dataclasses.fields(statistics):  # type: ignore[arg-type]  # what else it is fails here, loudly
            yield field.name, getattr(statistics, field.name)


def exposition(families: Iterable[Family]) -> str:
    """The text format of Prometheus, version 0.0.4."""
    lines = []
    for family in families:
        name = f"{family.name}_total" if family.kind == "counter" else family.name
        lines.append(f"# HELP {name} {_escaped(family.help)}")
        lines.append(f"# TYPE {name} {family.kind}")
        for sample in family.samples:
            if isinstance(sample.value, DurationHistogram):
                lines += _histogram_lines(name, sample.labels, sample.value)
            else:
                lines.append(f"{name}{_labels(sample.labels)} {_number(sample.value)}")
    return "".join(f"{line}\n" for line in lines)


def buckets(histogram: DurationHistogram) -> list[tuple[str, float]]:
    """Upper bound, as Prometheus writes it, and how many took at most that long."""
    bounds = [*map(str, BOUNDS_S), "+Inf"]
    return list(zip(bounds, itertools.accumulate(histogram.counts), strict=True))


def _histogram_lines(name: str, labels: Mapping[str, str], histogram: DurationHistogram) -> list[str]:
    shown = [f"{name}_bucket{_labels({**labels, 'le': bound})} {count}" for bound, count in buckets(histogram)]
    return [
        *shown,
        f"{name}_sum{_labels(labels)} {_number(histogram.sum_s)}",
        f"{name}_count{_labels(labels)} {histogram.count}",
    ]


def _labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    shown = ((name, _escaped(value).replace('"', '\\"')) for name, value in labels.items())
    return "{" + ",".join(f'{name}="{value}"' for name, value in shown) + "}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _number(value: float) -> str:
    if not isinstance(value, int) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if isinstance(value, int) or value.is_integer() else repr(value)
