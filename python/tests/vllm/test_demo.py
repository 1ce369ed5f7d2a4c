"""The demo's measurements, without an engine."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import chart
import engine as engines
import lmcache_row
import progress
import pytest
from rich.console import Console
from rows import Phase, Row, take_turns

PROMPTS = {(d, q): [d, q] for d in range(2) for q in range(8)}


class Engine:
    """Records its requests and answers at once."""

    def __init__(self, name: str, asked: list[str], ttft_s: float) -> None:
        self.name, self.asked, self.ttft_s = name, asked, ttft_s

    def counters(self) -> dict[str, float]:
        return {"load_bytes": 10.0 * len(self.asked)}

    def forget(self) -> None:
        self.asked.append(f"{self.name} forgets")

    def settle(self) -> None:
        pass

    def ask_many(self, prompts: list[list[int]], tokens: int) -> list[engines.Answer]:
        self.asked.append(f"{self.name} {prompts}")
        return [engines.Answer((1,) * tokens, self.ttft_s, 2, 1) for _ in prompts]


def reporter() -> tuple[progress.Reporter, io.StringIO]:
    text = io.StringIO()
    return progress.Reporter(Console(file=text, force_terminal=False, width=200)), text


def test_rows_take_turns_and_are_compared_with_recomputing_in_the_same_rounds() -> None:
    asked: list[str] = []
    plain: Any = Engine("plain", asked, 4.0)
    cached: Any = Engine("cached", asked, 1.0)
    base = Row(Phase("recompute"), plain, forget=True)
    # From earlier, slower rounds.
    base.phase.ttft_s = [100.0]
    own = Row(Phase("own"), plain, answer_tokens=3, compare=True)
    ours = Row(Phase("ours"), cached, compare=True)
    told, text = reporter()
    take_turns("full", [base, own, ours], [[(0, 0)], [(1, 0)]], PROMPTS, told)
    # The engine that just recomputed answers from its own cache; the first engine alternates.
    assert asked == [
        *("plain forgets", "plain [[0, 0]]", "plain [[0, 0]]", "cached [[0, 0]]"),
        *("cached [[1, 0]]", "plain forgets", "plain [[1, 0]]", "plain [[1, 0]]"),
    ]
    assert ours.phase.base_s == base.phase.base_s == [4.0, 4.0]
    assert ours.phase.ratio == 0.25
    assert own.phase.tokens == {(0, 0): (1, 1, 1), (1, 0): (1, 1, 1)}
    assert ours.phase.loaded_bytes == 80
    assert "full ..." in text.getvalue()
    assert "full: done in" in text.getvalue()


def test_the_chart_shows_the_ratio() -> None:
    bars = [
        chart.Bar("a & b", 4.0, 3.0, 5.0, 1.0, True),
        chart.Bar("c", 1.0, 1.0, 1.0, 0.25, False),
    ]
    picture = chart.bars("times", bars)
    assert "0.250 x" in picture
    assert "a &amp; b" in picture


def test_a_row_that_is_left_out_has_a_reason(tmp_path: Path) -> None:
    assert lmcache_row.find(tmp_path) == (None, "not installed")
    (tmp_path / "lmcache.reason").write_text("lmcache==1 did not install: no such version\n")
    assert lmcache_row.find(tmp_path) == (None, "lmcache==1 did not install: no such version")
    (tmp_path / "lmcache" / "lmcache").mkdir(parents=True)
    assert lmcache_row.find(tmp_path) == (tmp_path / "lmcache", "")


def test_a_text_that_is_marked_up_is_shown_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    told, text = reporter()
    told.line("[red]x[/red]")
    assert "[red]x[/red]" in text.getvalue()
    assert capsys.readouterr().out == ""
