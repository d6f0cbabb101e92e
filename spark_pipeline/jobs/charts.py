"""Charts as SVG inside of a page: plain text that needs no script."""

from __future__ import annotations

import html
from collections.abc import Sequence

_WIDTH, _HEIGHT = 900, 120


def bars(rows: Sequence[tuple[str, float, str]]) -> str:
    """A bar per row: its name, how long it is, and what is written behind it."""
    if not rows:
        return "<p>No events.</p>"
    largest = max(*(value for _, value, _ in rows), 1e-9)
    parts = [f'<svg width="760" height="{24 * len(rows)}" role="img">']
    for line, (name, value, label) in enumerate(rows):
        width = 400 * max(value, 0) / largest
        y = 24 * line
        parts.append(
            f'<text x="190" y="{y + 16}" text-anchor="end">{html.escape(name)}</text>'
            f'<rect x="200" y="{y + 4}" width="{width:.1f}" height="16"/>'
            f'<text x="{206 + width:.1f}" y="{y + 16}">{html.escape(label)}</text>'
        )
    return "".join((*parts, "</svg>"))


def timeline(title: str, starts: Sequence[str], series: Sequence[tuple[str, Sequence[float]]], *, bad: bool) -> str:
    """Columns over time, one per period, of one or several series that stand in front of each other: give the largest
    first.  The largest value is written above, each value is shown where the mouse rests."""
    if not starts:
        return ""
    largest = max((value for _, values in series for value in values), default=0)
    width = _WIDTH / len(starts)
    parts = [
        f"<figure><figcaption>{html.escape(title)}, at most {_number(largest)}</figcaption>"
        f'<svg width="{_WIDTH}" height="{_HEIGHT + 20}" role="img">'
    ]
    for number, start in enumerate(starts):
        said = ", ".join(f"{name} {_number(values[number])}" for name, values in series)
        parts.append(f"<g><title>{html.escape(f'{start}: {said}')}</title>")
        # As high as the chart, so that a small value can be pointed at.
        parts.append(f'<rect class="back" x="{number * width:.1f}" y="0" width="{width:.1f}" height="{_HEIGHT}"/>')
        for place, (_, values) in enumerate(series):
            height = _HEIGHT * max(values[number], 0) / (largest or 1)
            parts.append(
                f'<rect class="{"bad" if bad else f"series{place}"}" x="{number * width:.1f}" '
                f'y="{_HEIGHT - height:.1f}" width="{max(width - 1, 1):.1f}" height="{height:.1f}"/>'
            )
        parts.append("</g>")
    parts.append(f'<text x="0" y="{_HEIGHT + 15}">{html.escape(starts[0])}</text>')
    parts.append(f'<text x="{_WIDTH}" y="{_HEIGHT + 15}" text-anchor="end">{html.escape(starts[-1])}</text>')
    return "".join((*parts, "</svg></figure>"))


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"
