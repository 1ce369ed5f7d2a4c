"""The cost of saving: new prompts, with the connector and without it.

Two engines with a model of random weights compute random prompts, which no cache has. One engine
has no connector; the other saves every block into an empty store. The engines alternate, and so
does the first one of a round, so that noise of the machine affects both equally. The output per
engine is the median, least and greatest time to first token, and the CPU seconds of engine and
server per prompt, up to the first token and until everything is saved. On a busy machine CPU
seconds are more reliable than times.

Run: .venv-vllm/bin/python python/tests/vllm/bench_cold.py [--rounds N] [--tokens N] [--threads N]
"""

from __future__ import annotations

import argparse
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "demo"))

import build_model  # noqa: E402
import engine as engines  # noqa: E402
import server as servers  # noqa: E402

TICKS = os.sysconf("SC_CLK_TCK")
WARM_UP = 1
"""Uncounted prompts per engine, which touch memory for the first time."""


def cpu_s(pid: int) -> float:
    """CPU seconds of a process so far, all threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


class Side:
    """One engine and its measured cost."""

    def __init__(self, name: str, engine: engines.Engine, server: servers.Server | None) -> None:
        self.name = name
        self.engine = engine
        self.pids = [engine.pid, *([server.pid] if server else [])]
        self.ttft_s: list[float] = []
        self.first_cpu_s: list[list[float]] = []
        self.saved_cpu_s: list[list[float]] = []

    def ask(self, prompt: list[int], *, count: bool) -> None:
        """Computes one prompt and waits until everything is saved."""
        start = self._cpu_s()
        answer = self.engine.ask(prompt, 1)
        first = self._cpu_s()
        self.engine.settle()
        saved = self._cpu_s()
        assert answer.cached_tokens == 0, "a prompt was in a cache already"
        if count:
            self.ttft_s.append(answer.ttft_s)
            self.first_cpu_s.append([now - was for now, was in zip(first, start)])
            self.saved_cpu_s.append([now - was for now, was in zip(saved, start)])

    def _cpu_s(self) -> list[float]:
        return [cpu_s(pid) for pid in self.pids]

    def report(self) -> str:
        """One line of figures."""
        least, most = min(self.ttft_s), max(self.ttft_s)
        times = f"{statistics.median(self.ttft_s):.3f} [{least:.3f}-{most:.3f}]"
        first, saved = (
            " + ".join(f"{statistics.median(part):.2f}" for part in zip(*cpu))
            for cpu in (self.first_cpu_s, self.saved_cpu_s)
        )
        return f"{self.name:13} TTFT {times} s; CPU {first} s, until saved {saved} s"


def run(arguments: Any, stack: ExitStack) -> list[Side]:
    """Starts everything, runs the prompts and returns the sides."""
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="millpond-")))
    os.environ["VLLM_CPU_KVCACHE_SPACE"] = "1"
    engines.ENVIRONMENT["OMP_NUM_THREADS"] = str(arguments.threads)
    context = engines.start_method(folder / "vllm.log")
    model = ROOT / ".demo" / "models" / arguments.shape
    build_model.ensure(model, arguments.shape)
    server = servers.Server(
        folder / "store", folder / "server.log", "--memory", "1GiB", "--size", "4GiB"
    )
    server.start()
    stack.callback(server.stop)
    sides = []
    for name, options in (("no connector", None), ("saving", {"address": server.address})):
        spec = engines.Spec(
            model, folder / "vllm.log", arguments.tokens + 64, local_cache=False, connector=options
        )
        running = engines.Engine(context, spec)
        stack.callback(running.kill)
        sides.append(Side(name, running, server if options else None))
    rng = random.Random(arguments.seed)
    for number in range(arguments.rounds + WARM_UP):
        for side in sides if number % 2 else reversed(sides):
            prompt = [rng.randrange(100, 4000) for _ in range(arguments.tokens)]
            side.ask(prompt, count=number >= WARM_UP)
    saved = sides[1].engine.counters()
    blocks = (arguments.rounds + WARM_UP) * (arguments.tokens // 128)
    assert saved["save_blocks"] == blocks, f"{saved} where {blocks} blocks should be saved"
    print(f"saved per prompt: {saved['save_bytes'] / (arguments.rounds + WARM_UP) / 2**20:.1f} MiB")
    return sides


def main() -> None:
    """Parses the options, runs and prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=3072)
    parser.add_argument("--threads", type=int, default=1, help="of the engine's computation")
    parser.add_argument("--shape", default="full", choices=sorted(build_model.SHAPES))
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    commit = subprocess.run(
        ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"],
        capture_output=True,
        text=True,
        check=False,
    ).stdout.strip()
    print(f"{platform.machine()}, {os.cpu_count()} CPUs, commit {commit}; {' '.join(sys.argv)}")
    with ExitStack() as stack:
        plain, saving = run(arguments, stack)
    print(plain.report())
    print(saving.report())
    each = [b / a for a, b in zip(plain.ttft_s, saving.ttft_s)]
    ratio = statistics.median(saving.ttft_s) / statistics.median(plain.ttft_s)
    print(
        f"saving / no connector: {ratio:.3f} of medians; per round {min(each):.3f}-{max(each):.3f}"
    )


if __name__ == "__main__":
    main()
