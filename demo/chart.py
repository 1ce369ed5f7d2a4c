"""A bar chart as SVG text, without a plotting library."""

from __future__ import annotations

from dataclasses import dataclass
from xml.sax.saxutils import escape

_WIDTH = 980
_LEFT = 340
_ROW = 40
_TOP = 64
_BAR = 22
_TEXT = 190
"""Room for the figures after the longest bar."""


@dataclass(frozen=True)
class Bar:
    """One row.

    Attributes:
        label: name of the measurement.
        value, low, high: median, lowest and highest, in seconds.
        ratio: the value over the baseline's, measured in the same rounds.
        baseline: whether it is the baseline, which has a colour of its own.
    """

    label: str
    value: float
    low: float
    high: float
    ratio: float
    baseline: bool


def bars(title: str, rows: list[Bar]) -> str:
    """Draws horizontal bars with their spread and their ratio to the baseline."""
    longest = max(row.high for row in rows) or 1.0
    scale = (_WIDTH - _LEFT - _TEXT) / longest
    height = _TOP + _ROW * len(rows) + 30
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" '
        'font-family="sans-serif" font-size="14">',
        f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="24" y="34" font-size="18" font-weight="bold">{escape(title)}</text>',
    ]
    for i, row in enumerate(rows):
        y = _TOP + i * _ROW
        middle = y + _BAR / 2
        colour = "#8a8f98" if row.baseline else "#1f77b4"
        low, high = _LEFT + row.low * scale, _LEFT + row.high * scale
        parts += [
            f'<text x="{_LEFT - 12}" y="{middle + 5}" text-anchor="end">{escape(row.label)}</text>',
            f'<rect x="{_LEFT}" y="{y}" width="{max(row.value * scale, 1):.1f}" height="{_BAR}" '
            f'rx="3" fill="{colour}"/>',
            f'<line x1="{low:.1f}" x2="{high:.1f}" y1="{middle}" y2="{middle}" stroke="#222222" '
            'stroke-width="2"/>',
            f'<text x="{high + 8:.1f}" y="{middle + 5}">{row.value:.3f} s, '
            f'<tspan font-weight="bold">{row.ratio:.3f} x</tspan></text>',
        ]
    parts.append(
        f'<text x="24" y="{height - 10}" font-size="11" fill="#555555">median; the line spans '
        "lowest to highest; x: ratio to recomputing in the same rounds</text></svg>"
    )
    return "\n".join(parts)
