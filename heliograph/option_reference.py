"""The reference of all options: what the sample file shows, and the page ``docs/options.md``.

``python -m heliograph.option_reference`` writes the page again; ``./run genconfig`` writes both files.
"""

from __future__ import annotations

import importlib.metadata
import pathlib
from collections.abc import Iterator

from oslo_config import cfg

PAGE = pathlib.Path("docs/options.md")
_HEAD = """# All options

Generated from the code by `./run genconfig`. `etc/heliograph.conf` shows the options that most sites look at; here they
are **bold**. The others are advanced: their defaults fit nearly everywhere. A process refuses to start with an option
that is not on this page. The error names the most similar option.
"""


def all_options() -> dict[str, list[cfg.Opt]]:
    """Group -> its options, the advanced ones last."""
    found: dict[str, list[cfg.Opt]] = {}
    for entry in sorted(importlib.metadata.entry_points(group="oslo.config.opts"), key=lambda one: one.name):
        if entry.name.startswith("heliograph."):
            for group, options in entry.load()():
                found.setdefault(str(group), []).extend(options)
    first = sorted(found, key=lambda group: (group != "pubsub", group))
    return {group: sorted(found[group], key=lambda option: option.advanced) for group in first}


def visible() -> list[tuple[str, list[cfg.Opt]]]:
    """Entry point for oslo-config-generator: what the sample file shows."""
    shown = {group: [one for one in options if not one.advanced] for group, options in all_options().items()}
    return [(group, options) for group, options in shown.items() if options]


def page() -> str:
    """The text of the page."""
    return "".join(_lines())


def _lines() -> Iterator[str]:
    yield _HEAD
    for group, options in all_options().items():
        yield f"\n## [{group}]\n\n| option | default | meaning |\n| --- | --- | --- |\n"
        for option in options:
            name = option.name if option.advanced else f"**{option.name}**"
            yield f"| {name} | {_default(option)} | {_meaning(option)} |\n"


def _default(option: cfg.Opt) -> str:
    if option.default in (None, "", [], {}):
        return ""
    shown = ", ".join(option.default) if isinstance(option.default, list) else str(option.default)
    return f"`{shown}`"


def _meaning(option: cfg.Opt) -> str:
    choices = getattr(option.type, "choices", None)
    low, high = getattr(option.type, "min", None), getattr(option.type, "max", None)
    bounds = f" From {_number(low)} to {_number(high)}." if low is not None and high is not None else ""
    values = f" One of {', '.join(choices)}." if choices else ""
    return f"{option.help}{bounds}{values}".replace("|", "\\|").replace("*", "\\*").replace("<", "&lt;")


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:,g}"


if __name__ == "__main__":
    PAGE.write_text(page())
