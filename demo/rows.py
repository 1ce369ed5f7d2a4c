"""The measurements: phases, and rows that take turns within a phase.

Rows alternate: each round asks every row one question before the next question, so that other
load of the machine affects all rows equally. The first row recomputes, and every phase is
compared with the recomputing of its own rounds.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

import engine
import progress

Question = tuple[int, int]
Tokens = tuple[int, ...]


@dataclass
class Phase:
    """One measured phase.

    Attributes:
        name: name of the phase.
        ttft_s: times to first token, one per question.
        base_s: times of recomputing in the same rounds.
        prompt_tokens, cached_tokens: sums over the questions.
        tokens: tokens of the answers, by question; empty if they are not compared.
        differing: number of answers with tokens that differ from the oracle's; None: not compared.
        loaded_bytes, saved_bytes: moved between engine and store.
    """

    name: str
    ttft_s: list[float] = field(default_factory=list)
    base_s: list[float] = field(default_factory=list)
    prompt_tokens: int = 0
    cached_tokens: int = 0
    tokens: dict[Question, Tokens] = field(default_factory=dict)
    differing: int | None = None
    loaded_bytes: float = 0
    saved_bytes: float = 0

    def add(self, answer: engine.Answer) -> None:
        """Adds one answer's figures."""
        self.ttft_s.append(answer.ttft_s)
        self.prompt_tokens += answer.prompt_tokens
        self.cached_tokens += answer.cached_tokens

    @property
    def median_s(self) -> float:
        """Median time to first token."""
        return statistics.median(self.ttft_s)

    @property
    def ratio(self) -> float:
        """Ratio of the median time to first token to that of recomputing in the same rounds."""
        return self.median_s / statistics.median(self.base_s or self.ttft_s)


@dataclass
class Row:
    """One configuration that serves questions.

    Attributes:
        phase: phase that collects its figures.
        engine: engine that answers.
        forget: whether the engine empties its own cache before each question.
        answer_tokens: tokens to generate.
        compare: whether the answers are compared with the oracle.
    """

    phase: Phase
    engine: engine.Engine
    forget: bool = False
    answer_tokens: int = 1
    compare: bool = False

    def ask(self, asked: Sequence[Question], prompts: dict[Question, list[int]]) -> None:
        """Asks one question, or several at once, and records the answers."""
        if self.forget:
            self.engine.forget()
        texts = [prompts[question] for question in asked]
        for question, answer in zip(asked, self.engine.ask_many(texts, self.answer_tokens)):
            self.phase.add(answer)
            if self.compare:
                self.phase.tokens[question] = answer.tokens
        self.engine.settle()


def take_turns(
    name: str,
    rows: Sequence[Row],
    rounds: Sequence[Sequence[Question]],
    prompts: dict[Question, list[int]],
    reporter: progress.Reporter,
) -> None:
    """Runs rounds; each round asks every row the same questions.

    The first row recomputes. A later row of the same engine finds the blocks of the earlier row, so
    the order is fixed within an engine and alternates between engines.
    """
    before = [row.engine.counters() for row in rows]
    task = reporter.task(name, total=len(rows) * len(rounds))
    engines = list(dict.fromkeys(id(row.engine) for row in rows))
    for asked in rounds:
        for row in sorted(rows, key=lambda row: engines.index(id(row.engine))):
            row.ask(asked, prompts)
            task.advance()
        engines.reverse()
    for row, was in zip(rows, before):
        now = row.engine.counters()
        phase, base = row.phase, rows[0].phase
        phase.loaded_bytes += now.get("load_bytes", 0) - was.get("load_bytes", 0)
        phase.saved_bytes += now.get("save_bytes", 0) - was.get("save_bytes", 0)
        phase.base_s += base.ttft_s[-sum(len(asked) for asked in rounds) :]
