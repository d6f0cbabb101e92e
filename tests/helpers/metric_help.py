"""Makes the texts that explain metrics from the tables of the documentation.

``python -m tests.helpers.code_map`` writes `pubsub_api/reporting/help_texts.py` again; a test compares.
"""

from __future__ import annotations

import re

from tests.helpers import documents
from tests.helpers.paths import ROOT

FILE = ROOT / "pubsub_api" / "reporting" / "help_texts.py"
TABLES = {
    "publisher": ("docs/guarantees.md", "PublisherStatistics", "publisher"),
    "subscriber": ("docs/guarantees.md", "SubscriberStatistics", "subscriber"),
    "cache": ("docs/guarantees.md", "CacheStatistics", "reliability cache"),
    "member": ("docs/shared-subscriptions.md", "GroupSubscriberStatistics", "member of a group"),
    "nb": ("docs/statistics.md", "NbStatistics", "writer"),
    "local_cache": ("docs/statistics.md", "LocalCacheStatistics", "local cache"),
    "controller": ("docs/statistics.md", "ControllerStatistics", "controller"),
    "fleet": ("docs/statistics.md", "FleetReporterStatistics", "process that tells the fleet"),
    "recorder": ("docs/durable-log.md", "RecorderStatistics", "recorder of a log"),
    "log_maintenance": ("docs/durable-log.md", "MaintenanceStatistics", "maintenance of a log"),
    "log": ("docs/metrics.md", "Log", "durable log"),
    "group": ("docs/metrics.md", "Group", "group of consumers"),
    "publisher_service": ("docs/metrics.md", "Publisher service", "publisher service"),
    "durability": ("docs/metrics.md", "Durability service", "durability service"),
    "name_space": ("docs/metrics.md", "Name-space", "name-space of a durability service"),
    "process": ("docs/metrics.md", "Process", "process"),
}
"""Role -> page, heading, and what an object of the role is called."""

_HEAD = '''"""What each metric means.  Generated from the documentation by ``python -m tests.helpers.code_map``."""

from __future__ import annotations

HELP: dict[str, dict[str, str]] = {
'''


def text() -> str:
    lines = [_HEAD]
    for role, (page, heading, noun) in TABLES.items():
        lines.append(f'    "{role}": {{\n')
        for names, meaning, *_ in documents.table(page, heading):
            for name in re.findall(r"`([^`]+)`", names):
                lines += _entry(name, _sentence(noun, meaning))
        lines.append("    },\n")
    return "".join([*lines, "}\n"])


def _entry(name: str, sentence: str) -> list[str]:
    line = f'        "{name}": "{sentence}",\n'
    if len(line) <= 121:
        return [line]
    if len(sentence) <= 106:
        return [f'        "{name}": (\n', f'            "{sentence}"\n', "        ),\n"]
    words, parts = sentence.split(" "), [""]
    for word in words:
        if len(parts[-1]) + len(word) > 100:
            parts.append("")
        parts[-1] += f"{word} "
    parts[-1] = parts[-1].rstrip()
    return [f'        "{name}": (\n', *(f'            "{part}"\n' for part in parts), "        ),\n"]


def _sentence(noun: str, meaning: str) -> str:
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", meaning).replace("`", "").replace('"', "'").rstrip(".")
    return f"Of a {noun}: {plain[0].lower() if plain[1:2].islower() else plain[0]}{plain[1:]}."
