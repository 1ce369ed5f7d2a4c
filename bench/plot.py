"""Draws the chosen rows of docs/benchmarks.json as docs/images/benchmarks-{light,dark}.svg.

    python3 bench/plot.py            # write both files
    python3 bench/plot.py --check    # exit with 1 if they differ from the data

A row is drawn if it has `plot`, the name of its group. Bars are on a logarithmic scale and begin at
1, the speed of the peer. Ratios of times are inverted: to the right is faster in every row.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from chart import COLOURS

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "docs/benchmarks.json"
IMAGES = ROOT / "docs/images"

WIDTH, LEFT, SPAN = 800, 340, 385
TOP, GROUP, ROW, BAR = 96, 32, 38, 16
TICKS = (0.5, 1, 2, 4, 8)
TITLE = "Millpond and other systems: the last measured ratios"
FONT = "system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif"


@dataclass(frozen=True)
class Theme:
    """Colors of one of the two files."""

    name: str
    back: str
    text: str
    grey: str
    grid: str
    none: str


THEMES = (
    Theme("light", "#ffffff", "#1f2328", "#57606a", "#d8dee4", "#8c959f"),
    Theme("dark", "#0d1117", "#e6edf3", "#9aa4af", "#30363d", "#6e7681"),
)


@dataclass(frozen=True)
class Bar:
    """One row of the plot. `speed` and `target` are multiples of the peer's speed."""

    group: str
    case: str
    peer: str
    figures: str
    speed: float
    target: float | None

    @property
    def verdict(self) -> str:
        """pass, short or none."""
        if self.target is None:
            return "none"
        return "pass" if self.speed >= self.target else "short"


def _bar(run: dict[str, Any], row: dict[str, Any]) -> Bar:
    missing = [key for key in ("peer", "ratio") if not row[key]]
    if missing or not run["last"] or row.get("target_of") == "value":
        sys.exit(f"{DATA}: {run['id']}: {row['case']}: only ratios of last runs are drawn")
    lower = row.get("better") == "lower"
    speed, target = row["ratio"], row["target"]
    if lower:
        speed, target = 1 / speed, target and 1 / target
    figures = ""
    if row["value"] and row["peer_value"]:
        unit = row["unit"].replace("1/s", "/s")
        space = "" if unit == "/s" else " "
        figures = f"{row['value']:,} against {row['peer_value']:,}{space}{unit}"
    return Bar(row["plot"], row["case"], row["peer"], figures, speed, target)


def bars(data: dict[str, Any]) -> list[Bar]:
    """The rows to draw; rows of one group follow each other."""
    found = [_bar(run, row) for run in data["runs"] for row in run["rows"] if row.get("plot")]
    groups = list(dict.fromkeys(bar.group for bar in found))
    return sorted(found, key=lambda bar: groups.index(bar.group))


def _x(speed: float) -> float:
    low, high = math.log(TICKS[0] * 0.8), math.log(TICKS[-1] * 1.1)
    share = (math.log(speed) - low) / (high - low)
    return LEFT + min(max(share, 0), 1) * SPAN


def _speed(speed: float) -> str:
    return f"{speed:.2f} x" if speed < 3 else f"{speed:.1f} x"


def _line(x: float, y1: float, y2: float, colour: str, width: float = 1, more: str = "") -> str:
    return (
        f"<line x1='{x:.1f}' x2='{x:.1f}' y1='{y1}' y2='{y2}' stroke='{colour}'"
        f" stroke-width='{width:g}'{more}/>"
    )


def _text(x: float, y: float, text: str, kind: str = "") -> str:
    kind = f" class='{kind}'" if kind else ""
    return f"<text x='{x:.1f}' y='{y}'{kind}>{escape(text)}</text>"


def _head(theme: Theme, rows: list[Bar], height: int) -> Iterator[str]:
    facts = "; ".join(f"{bar.case}, against {bar.peer}: {_speed(bar.speed)}" for bar in rows)
    yield (
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {height}' width='{WIDTH}'"
        f" height='{height}' role='img' aria-labelledby='title desc'>"
    )
    yield f"<title id='title'>{TITLE}</title>"
    yield f"<desc id='desc'>Speed as a multiple of the peer's. {escape(facts)}.</desc>"
    yield (
        f"<style>text {{ font-family: {FONT}; font-size: 13px; fill: {theme.text}; }}"
        f" .t {{ font-size: 16px; font-weight: 600; }} .h {{ font-size: 14px; font-weight: 600; }}"
        f" .s {{ font-size: 11.5px; fill: {theme.grey}; }} .m {{ text-anchor: middle; }}"
        " .e { text-anchor: end; }</style>"
    )
    yield f"<rect width='{WIDTH}' height='{height}' fill='{theme.back}'/>"
    yield _text(16, 26, TITLE, "t")
    yield _text(
        16,
        46,
        "Times as fast as the peer (log scale); for p50, the peer's time divided by Millpond's."
        " Figures: Millpond against peer.",
        "s",
    )
    x = 16.0
    for label, colour in (
        ("meets its target", COLOURS["pass"]),
        ("misses its target", COLOURS["short"]),
        ("has no target", theme.none),
    ):
        yield f"<rect x='{x:.1f}' y='58' width='12' height='12' fill='{colour}'/>"
        yield _text(x + 17, 68, label, "s")
        x += 136
    yield _line(x + 6, 56, 72, theme.text, 2.5)
    yield _text(x + 15, 68, "target", "s")


def svg(rows: list[Bar], theme: Theme) -> str:
    """The plot in one theme."""
    groups = len({bar.group for bar in rows})
    end = TOP + GROUP * groups + ROW * len(rows)
    colours = {**COLOURS, "none": theme.none}
    out = list(_head(theme, rows, end + 30))
    for tick in TICKS:
        out.append(_line(_x(tick), TOP, end, theme.grid))
        out += [_text(_x(tick), y, f"{tick:g} x", "s m") for y in (TOP - 6, end + 16)]
    y, group = TOP, ""
    for bar in rows:
        if bar.group != group:
            group = bar.group
            out.append(_text(16, y + 22, group, "h"))
            y += GROUP
        x, one = _x(bar.speed), _x(1)
        out += [
            _text(16, y + 13, bar.case),
            _text(16, y + 28, ": ".join(filter(None, (f"vs {bar.peer}", bar.figures))), "s"),
            f"<rect x='{min(x, one):.1f}' y='{y + 6}' width='{abs(x - one):.1f}' height='{BAR}'"
            f" fill='{colours[bar.verdict]}'/>",
            _text(WIDTH - 16, y + 19, _speed(bar.speed), "e"),
        ]
        if bar.target:
            out.append(_line(_x(bar.target), y + 2, y + BAR + 10, theme.text, 2.5))
        y += ROW
    out.append(_line(_x(1), TOP, end, theme.text, 1.2, " stroke-dasharray='4 3'"))
    out.append("</svg>")
    return "\n".join(out) + "\n"


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Draws the plot of docs/benchmarks.md.")
    parser.add_argument("--check", action="store_true", help="compare with the files, write none")
    check = parser.parse_args().check
    rows = bars(json.loads(DATA.read_text(encoding="utf-8")))
    stale = []
    for theme in THEMES:
        path, text = IMAGES / f"benchmarks-{theme.name}.svg", svg(rows, theme)
        if not check:
            path.write_text(text, encoding="utf-8")
        elif not path.is_file() or path.read_text(encoding="utf-8") != text:
            stale.append(str(path.relative_to(ROOT)))
    if stale:
        sys.exit(f"not drawn from docs/benchmarks.json: {', '.join(stale)}; run bench/plot.py")


if __name__ == "__main__":
    main()
