"""Serves questions about long documents, with and without Millpond.

A real vLLM answers ten questions about each of several long texts. The demo
measures the time to first token (TTFT) when every prefix is recomputed, with
an empty cache, with a full one, after a restart of the engine and after a
restart of both, and proves that the cache changes no output: the tokens must
equal those that vLLM's own prefix cache gives. A store filled with zeros must
fail that check, or the check would be blind.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import build_model
import chart
import corpus
import engine
import server
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / ".demo"
SERVER_ARGUMENTS = ("--memory", "1GiB", "--size", "4GiB")
TARGET_RATIO = 0.08
"""Warm TTFT over the TTFT of recomputing, that the full demo must reach."""


@dataclass(frozen=True)
class Plan:
    """How much the demo does.

    Attributes:
        shape: which model.
        documents: number of long texts.
        questions: questions about each.
        prefix_tokens: length of each text.
        answer_tokens: tokens generated per question.
        recomputes: measurements without a cache, per text.
        cache_gib: size of vLLM's KV cache.
    """

    shape: str
    documents: int
    questions: int
    prefix_tokens: int
    answer_tokens: int
    recomputes: int
    cache_gib: int


FULL = Plan("full", 3, 10, 8000, 12, 3, 2)
QUICK = Plan("quick", 3, 10, 3000, 8, 3, 1)


@dataclass
class Phase:
    """One measured phase.

    Attributes:
        name: what was done.
        ttft_s: times to first token, one per question.
        prompt_tokens, cached_tokens: sums over the questions.
        differing: answers whose tokens are not the oracle's; None: not compared.
        loaded_bytes, saved_bytes: moved between engine and store.
    """

    name: str
    ttft_s: list[float] = field(default_factory=list)
    prompt_tokens: int = 0
    cached_tokens: int = 0
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


Question = tuple[int, int]


class Demo:
    """Runs the phases in order and keeps what they found."""

    def __init__(self, plan: Plan, console: Console, progress: Progress) -> None:
        """See the class."""
        self.plan = plan
        self.console = console
        self.progress = progress
        self.folder = DATA / plan.shape
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        self.model = DATA / "models" / plan.shape
        self.phases: list[Phase] = []
        self.prompts: dict[Question, list[int]] = {}
        self.oracle: dict[Question, tuple[int, ...]] = {}
        self.zeros_seen = False
        os.environ["VLLM_CPU_KVCACHE_SPACE"] = str(plan.cache_gib)
        self.context = engine.start_method(self.folder / "vllm.log")
        self.server = server.Server(
            self.folder / "store", self.folder / "server.log", *SERVER_ARGUMENTS
        )

    # -- pieces -------------------------------------------------------------

    @contextlib.contextmanager
    def engine(self, what: str, *, cached: bool) -> Iterator[engine.Engine]:
        """Runs an engine for one part of the demo."""
        task = self.progress.add_task(f"start vLLM ({what})", total=None)
        spec = engine.Spec(
            model=self.model,
            log=self.folder / "vllm.log",
            context_tokens=self.plan.prefix_tokens + 1024,
            # With Millpond, vLLM's own cache is off: every hit is Millpond's.
            local_cache=not cached,
            connector={"address": self.server.address} if cached else None,
        )
        running = engine.Engine(self.context, spec)
        self.progress.update(task, total=1, completed=1)
        try:
            yield running
            running.stop()
        finally:
            running.kill()

    def questions(self, first: int = 0) -> list[Question]:
        """Lists the questions about all texts."""
        plan = self.plan
        return [(d, q) for d in range(plan.documents) for q in range(first, plan.questions)]

    def read_documents(self, running: engine.Engine) -> None:
        """Cuts the texts to length and appends the questions."""
        for d, document in enumerate(corpus.documents(self.plan.documents, self.plan.questions)):
            body = running.tokenize(document.text)[: self.plan.prefix_tokens]
            if len(body) < self.plan.prefix_tokens:
                raise RuntimeError(f"text {document.name} has only {len(body)} tokens")
            for q, question in enumerate(document.questions):
                ask = running.tokenize(f"\n\nQuestion: {question}\nAnswer:")
                self.prompts[d, q] = body + ask

    def measure(
        self, name: str, running: engine.Engine, asked: list[Question], *, compare: bool
    ) -> Phase:
        """Asks questions one by one and books a phase."""
        phase = Phase(name, differing=0 if compare else None)
        before = running.counters()
        task = self.progress.add_task(name, total=len(asked))
        for question in asked:
            answer = running.ask(self.prompts[question], self.plan.answer_tokens)
            phase.add(answer)
            if phase.differing is not None:
                phase.differing += answer.tokens != self.oracle[question]
            self.progress.advance(task)
        running.settle()
        after = running.counters()
        phase.loaded_bytes = after.get("load_bytes", 0) - before.get("load_bytes", 0)
        phase.saved_bytes = after.get("save_bytes", 0) - before.get("save_bytes", 0)
        self.phases.append(phase)
        return phase

    # -- phases -------------------------------------------------------------

    def without_cache(self) -> None:
        """Measures recomputing, then lets vLLM's own prefix cache be the oracle."""
        with self.engine("no connector", cached=False) as running:
            self.read_documents(running)
            phase = Phase("no cache: recompute")
            count = self.plan.documents * self.plan.recomputes
            task = self.progress.add_task(phase.name, total=count)
            for d in range(self.plan.documents):
                for q in range(self.plan.recomputes):
                    running.forget()
                    phase.add(running.ask(self.prompts[d, q], 1))
                    self.progress.advance(task)
            self.phases.append(phase)
            task = self.progress.add_task(
                "oracle: vLLM's own prefix cache", total=2 * len(self.questions())
            )
            for question in self.questions() * 2:
                # The second answer counts: only then is the whole prompt, up
                # to the last full block, a hit, as it is with Millpond.
                answer = running.ask(self.prompts[question], self.plan.answer_tokens)
                self.oracle[question] = answer.tokens
                self.progress.advance(task)

    def fill_and_use(self) -> None:
        """Starts with an empty store, fills it and uses it."""
        self.server.start()
        with self.engine("Millpond", cached=True) as running:
            firsts = [(d, 0) for d in range(self.plan.documents)]
            self.measure("Millpond, cold: first question", running, firsts, compare=False)
            self.measure(
                "Millpond, cold: further questions", running, self.questions(1), compare=False
            )
            self.measure("Millpond, warm", running, self.questions(), compare=True)

    def after_engine_restart(self) -> None:
        """A new engine finds what the old one stored."""
        with self.engine("restarted", cached=True) as running:
            self.measure("after engine restart", running, self.questions(), compare=True)

    def after_restart_of_both(self) -> None:
        """So does a new engine with a new server; then proves the check sees."""
        self.server.stop()
        self.server.start()
        with self.engine("both restarted", cached=True) as running:
            self.measure("after restart of both", running, self.questions(), compare=True)
            task = self.progress.add_task("a store of zeros must be noticed", total=1)
            running.store_zeros()
            question = self.questions()[0]
            running.ask(self.prompts[question], 1)
            running.settle()
            answer = running.ask(self.prompts[question], self.plan.answer_tokens)
            used = answer.cached_tokens > 0
            self.zeros_seen = used and answer.tokens != self.oracle[question]
            self.progress.advance(task)

    # -- results ------------------------------------------------------------

    def phase(self, name: str) -> Phase:
        """Returns a booked phase by its name's start."""
        return next(phase for phase in self.phases if phase.name.startswith(name))

    def ratio(self, name: str) -> float:
        """Median TTFT of a phase over that of recomputing."""
        return self.phase(name).median_s / self.phase("no cache").median_s

    def problems(self) -> list[str]:
        """Lists what the run must show and did not."""
        found = []
        for phase in self.phases:
            if phase.differing:
                found.append(f"{phase.name}: {phase.differing} answers differ from the oracle")
            if phase.differing is not None and not phase.loaded_bytes:
                found.append(f"{phase.name}: nothing was loaded from Millpond")
        if not self.zeros_seen:
            found.append("a store of zeros was not noticed: the comparison proves nothing")
        if len(set(self.oracle.values())) < len(self.oracle) // 2:
            found.append("most answers are the same: the comparison proves little")
        if self.plan is FULL:
            for name in ("Millpond, warm", "after engine restart", "after restart of both"):
                if self.ratio(name) > TARGET_RATIO:
                    found.append(f"{name}: {self.ratio(name):.3f} x recomputing > {TARGET_RATIO}")
        return found

    def table(self) -> Table:
        """Builds the table of results."""
        table = Table(title="Time to first token", title_justify="left")
        table.add_column("phase")
        for column in ("asked", "TTFT median", "min", "max", "x recompute", "hit rate"):
            table.add_column(column, justify="right")
        for column in ("loaded", "stored", "tokens"):
            table.add_column(column, justify="right")
        base = self.phase("no cache").median_s
        for phase in self.phases:
            same = {None: "", 0: "identical"}.get(phase.differing, f"{phase.differing} differ")
            table.add_row(
                phase.name,
                str(len(phase.ttft_s)),
                f"{phase.median_s:.3f} s",
                f"{min(phase.ttft_s):.3f}",
                f"{max(phase.ttft_s):.3f}",
                f"{phase.median_s / base:.3f}",
                f"{100 * phase.cached_tokens / phase.prompt_tokens:.1f} %",
                _bytes(phase.loaded_bytes),
                _bytes(phase.saved_bytes),
                same,
            )
        return table

    def write_results(self) -> Path:
        """Writes the chart and the figures; returns the chart's path."""
        picture = self.folder / "ttft.svg"
        picture.write_text(
            chart.bars(
                f"Time to first token, {self.plan.prefix_tokens:,}-token prefix",
                [(p.name, p.median_s, min(p.ttft_s), max(p.ttft_s)) for p in self.phases],
            ),
            encoding="utf-8",
        )
        results = {
            "plan": asdict(self.plan),
            "phases": [asdict(phase) for phase in self.phases],
            "zeros_noticed": self.zeros_seen,
            "problems": self.problems(),
        }
        (self.folder / "results.json").write_text(json.dumps(results, indent=1), encoding="utf-8")
        return picture


def _bytes(count: float) -> str:
    return "" if not count else f"{count / 2**20:,.0f} MiB"


def run(plan: Plan, console: Console) -> int:
    """Runs the demo; returns the exit status."""
    started = time.monotonic()
    columns: list[Any] = [
        TextColumn("{task.description:<42}"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total}"),
        TimeElapsedColumn(),
    ]
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("build the model", total=1)
        built = build_model.ensure(DATA / "models" / plan.shape, plan.shape)
        progress.advance(task)
        demo = Demo(plan, console, progress)
        try:
            demo.without_cache()
            demo.fill_and_use()
            demo.after_engine_restart()
            demo.after_restart_of_both()
        finally:
            demo.server.stop()
    console.print(demo.table())
    parameters = int(built["parameters"]) / 1e6
    console.print(
        f"model: {parameters:.1f} M parameters, seeded random weights; "
        f"{plan.documents} texts of {plan.prefix_tokens:,} tokens, {plan.questions} questions each"
    )
    console.print(
        "a store of zeros "
        + ("changes the answers, as it must" if demo.zeros_seen else "was NOT noticed")
    )
    console.print(f"chart: {demo.write_results()}")
    problems = demo.problems()
    for problem in problems:
        console.print(f"[red]{problem}[/red]")
    console.print(
        f"warm TTFT is {demo.ratio('Millpond, warm'):.3f} x recomputing; "
        f"the demo took {time.monotonic() - started:.0f} s"
    )
    return 1 if problems else 0


def main() -> int:
    """Parses the command line and runs the demo."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small model, short texts")
    args = parser.parse_args()
    # A terminated demo must clean up like an interrupted one.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    console = Console(width=None if sys.stdout.isatty() else 150)
    try:
        return run(QUICK if args.quick else FULL, console)
    except KeyboardInterrupt:
        console.print("interrupted; engine and server are stopped")
        return 130
    except (engine.EngineError, server.ServerError, RuntimeError) as error:
        console.print(f"[red]demo failed: {error}[/red]")
        return 1


if __name__ == "__main__":
    sys.exit(main())
