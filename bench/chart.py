"""Draws a results file as a PNG next to it: events/s of every case, and how far each target is met.

    python -m bench.chart RESULTS.json PICTURE.svg

draws only the first of the two, small, for the documentation.
"""

from __future__ import annotations

import json
import math
import pathlib
import sys
from typing import Any

OURS_COLOUR, RAW_COLOUR, MISSED_COLOUR = "#1b6ca8", "#b0b8c0", "#c0503c"


def draw(results: pathlib.Path) -> pathlib.Path:
    """Returns the path of the picture.  Raises ImportError when matplotlib is not installed."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    outcomes = json.loads(results.read_text())["outcomes"]
    bars = _rates(outcomes)
    checks = [check for outcome in outcomes for check in outcome["checks"]]
    heights = [max(1.0, 0.32 * len(bars)), max(1.0, 0.32 * len(checks))]
    figure, (upper, lower) = pyplot.subplots(
        2, 1, figsize=(11, sum(heights) + 2), height_ratios=heights, layout="constrained"
    )
    _draw_rates(upper, bars)
    _draw_checks(lower, checks)
    path = results.with_suffix(".png")
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
    return path


def _rates(outcomes: list[dict[str, Any]]) -> list[tuple[str, float]]:
    return [
        (f"{outcome['scenario']}, {outcome['driver']}: {row['case']}", row["events/s"])
        for outcome in outcomes
        for row in outcome["rows"]
        if "events/s" in row
    ]


def _draw_rates(axes: Any, bars: list[tuple[str, float]]) -> None:
    labels = [label for label, _ in bars]
    colours = [OURS_COLOUR if "heliograph" in label else RAW_COLOUR for label in labels]
    drawn = axes.barh(range(len(bars)), [rate for _, rate in bars], color=colours)
    axes.bar_label(drawn, labels=[f"{rate:,.0f}" for _, rate in bars], padding=3, fontsize=8)
    axes.set_yticks(range(len(bars)), labels, fontsize=8)
    axes.invert_yaxis()
    axes.margins(x=0.15)
    axes.set_title("events per second, medians", loc="left")


def _draw_checks(axes: Any, checks: list[dict[str, Any]]) -> None:
    """How many times better than wanted, on a logarithmic scale: to the right of the line a target is met."""
    scores = [_score(check) for check in checks]
    colours = [OURS_COLOUR if check["met"] else MISSED_COLOUR for check in checks]
    drawn = axes.barh(range(len(checks)), scores, color=colours)
    wanted = [f"{c['measured']:.2f} (wanted {c['relation']} {c['bound']:g} {c['unit']})" for c in checks]
    axes.bar_label(drawn, labels=wanted, padding=3, fontsize=8)
    axes.set_yticks(range(len(checks)), [f"{c['driver']}: {c['what']}" for c in checks], fontsize=8)
    axes.invert_yaxis()
    axes.axvline(0, color="black", linewidth=0.8)
    axes.margins(x=0.4)
    axes.set_title("targets: to the right of the line is met (powers of two)", loc="left")


def _score(check: dict[str, Any]) -> float:
    measured, bound = check["measured"], check["bound"]
    if not bound or measured <= 0 or not math.isfinite(measured):
        return 1.0 if check["met"] else -1.0
    times = measured / bound if check["relation"] == ">=" else bound / measured
    return max(-3.0, min(3.0, math.log2(times)))


def draw_rates(results: pathlib.Path, path: pathlib.Path) -> None:
    """Raises ImportError when matplotlib is not installed."""
    import matplotlib

    matplotlib.use("Agg")
    # Text stays text, and the same results give the same file.
    matplotlib.rcParams |= {"svg.fonttype": "none", "svg.hashsalt": "heliograph"}
    from matplotlib import pyplot

    bars = _rates(json.loads(results.read_text())["outcomes"])
    figure, axes = pyplot.subplots(figsize=(9, 0.27 * len(bars) + 0.4), layout="constrained")
    _draw_rates(axes, [(label.replace("throughput, ", ""), rate) for label, rate in bars])
    axes.set_title("")
    axes.set_xticks([])
    axes.tick_params(left=False)
    axes.spines[:].set_visible(False)
    title = "Events per second, Heliograph and the same transports by hand"
    figure.savefig(path, metadata={"Title": title, "Date": None})
    pyplot.close(figure)


if __name__ == "__main__":
    draw_rates(*map(pathlib.Path, sys.argv[1:3]))
