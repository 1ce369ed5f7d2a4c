"""The run as one hand-written SVG: the distance of each ratio from its target."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from targets import Target

# Colors that most color-blind readers can distinguish (Okabe, Ito).
COLOURS = {"pass": "#009e73", "short": "#d55e00"}
ROW, LEFT, SPAN = 24, 470, 360
# Bars end at three times the target.
FULL = 3.0


def svg(targets: Sequence[Target], title: str) -> str:
    """One bar per target: at 1 the target is reached exactly; longer is better."""
    measured = [t for t in targets if t.value]
    height = 90 + ROW * len(measured)
    out = [
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 960 {height}'"
        " font-family='sans-serif' font-size='12'>",
        "<rect width='100%' height='100%' fill='white'/>",
        f"<text x='16' y='24' font-size='15'>{escape(title)}</text>",
        f"<text x='{LEFT}' y='46' fill='#555'>"
        "measured against the target; the line is the target, longer is better</text>",
    ]
    for number, target in enumerate(measured):
        assert target.value is not None
        share = target.value / target.bound if target.at_least else target.bound / target.value
        y = 60 + ROW * number
        width = min(share, FULL) / FULL * SPAN
        label = f"{target.value:.2f} {target.unit}"
        out.append(
            f"<text x='{LEFT - 8}' y='{y + 14}' text-anchor='end'>{escape(target.name)}</text>"
            f"<rect x='{LEFT}' y='{y}' width='{width:.1f}' height='18'"
            f" fill='{COLOURS[target.verdict]}'/>"
            f"<text x='{LEFT + width + 6:.1f}' y='{y + 14}'>{label}</text>"
        )
    line = LEFT + SPAN / FULL
    out.append(
        f"<line x1='{line}' x2='{line}' y1='54' y2='{height - 24}' stroke='black'"
        " stroke-dasharray='4 3'/></svg>"
    )
    return "\n".join(out) + "\n"
