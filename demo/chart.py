"""A bar chart as SVG text, without a plotting library."""

from __future__ import annotations

from xml.sax.saxutils import escape

_WIDTH = 860
_LEFT = 270
_ROW = 44
_TOP = 64
_BAR = 22

Bar = tuple[str, float, float, float]
"""Label, value, lowest and highest, in seconds."""


def bars(title: str, rows: list[Bar]) -> str:
    """Draws horizontal bars with their spread; all values in seconds."""
    longest = max(high for _, _, _, high in rows) or 1.0
    scale = (_WIDTH - _LEFT - 110) / longest
    height = _TOP + _ROW * len(rows) + 30
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" '
        'font-family="sans-serif" font-size="14">',
        f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="24" y="34" font-size="18" font-weight="bold">{escape(title)}</text>',
    ]
    for i, (label, value, low, high) in enumerate(rows):
        y = _TOP + i * _ROW
        middle = y + _BAR / 2
        colour = "#8a8f98" if i == 0 else "#1f77b4"
        parts += [
            f'<text x="{_LEFT - 12}" y="{middle + 5}" text-anchor="end">{escape(label)}</text>',
            f'<rect x="{_LEFT}" y="{y}" width="{max(value * scale, 1):.1f}" height="{_BAR}" '
            f'rx="3" fill="{colour}"/>',
            f'<line x1="{_LEFT + low * scale:.1f}" x2="{_LEFT + high * scale:.1f}" y1="{middle}" '
            f'y2="{middle}" stroke="#222222" stroke-width="2"/>',
            f'<text x="{_LEFT + high * scale + 8:.1f}" y="{middle + 5}">{value:.3f} s</text>',
        ]
    parts.append(
        f'<text x="24" y="{height - 10}" font-size="11" fill="#555555">median; the line spans '
        "lowest to highest</text></svg>"
    )
    return "\n".join(parts)
