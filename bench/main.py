"""Runs the benchmarks, prints the results against the targets, and writes them to files."""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import chart
import client
import engine
import fio
import machine
import peers
import targets

PARTS = ("engine", "client", "peers", "restart")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder of results, logs and data")
    parser.add_argument("--bin", type=Path, required=True, help="folder of the release binaries")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.5, help="seconds per case and round")
    parser.add_argument("--chunks", type=int, default=10_000_000, help="chunks at the restart")
    parser.add_argument("--only", choices=PARTS, action="append", help="run only this part")
    parser.add_argument("--without", action="append", default=[], help="a peer to exclude")
    return parser.parse_args()


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


class Runner:
    """Runs parts, each in its own folder, which is removed afterwards."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.result: dict[str, Any] = {}
        self.failed: dict[str, str] = {}

    def part(self, name: str, run: Callable[[Path], Any]) -> None:
        """Runs one part. A failure is reported at the end, and the other parts still run."""
        data = self.args.out / f"{name}-data"
        shutil.rmtree(data, ignore_errors=True)
        data.mkdir(parents=True)
        started = time.monotonic()
        try:
            self.result[name] = run(data)
        except (RuntimeError, OSError, ValueError, peers.Wrong, peers.NotStarted) as error:
            self.failed[name] = str(error)
            print(f"{name} failed: {error}", file=sys.stderr, flush=True)
        finally:
            shutil.rmtree(data, ignore_errors=True)
        print(f"{name}: {time.monotonic() - started:.0f} s", flush=True)


def measure(args: argparse.Namespace) -> Runner:
    """Runs the requested parts that this machine can run."""
    runner = Runner(args)
    wanted = set(args.only or PARTS)
    examples, millpond = args.bin / "examples", args.bin / "millpond"
    rounds, seconds = args.rounds, args.seconds
    have_fio = fio.installed()
    if not have_fio:
        print("fio is not installed: the engine and disk rows are skipped", flush=True)
    if "engine" in wanted and have_fio:
        example = examples / "engine_bench"
        runner.part("engine", lambda d: engine.compare(example, d, rounds, seconds))
    if "client" in wanted:
        out = args.out
        runner.part("client", lambda d: client.floors(millpond, out, d, rounds, seconds))
        runner.part("durable", lambda d: client.durable(millpond, out, d, rounds, seconds))
        if have_fio:
            runner.part(
                "beyond_dram", lambda d: client.beyond_dram(millpond, out, d, rounds, seconds)
            )
    if "peers" in wanted:
        cell = argparse.Namespace(
            millpond=millpond, rounds=rounds, seconds=seconds / 4, without=args.without
        )
        runner.part("peers", lambda d: peers.run(cell, args.out, d))
        runner.result["pieces"] = runner.result.get("peers", {}).pop("pieces", None)
    if "restart" in wanted:
        runner.part("restart", lambda d: engine.restart(examples / "restart", d, args.chunks))
    return runner


def report(facts: dict[str, Any], runner: Runner) -> str:
    """Everything as text."""
    result = runner.result
    parts = [machine.headline(facts), f"command: {facts['command']}", ""]
    if "engine" in result:
        parts += [
            "Engine and fio, median of rounds (lowest-highest)",
            engine.table(result["engine"]),
        ]
        parts.append("")
    if "client" in result:
        parts += ["Rust client, one get in flight", client.table(result["client"]), ""]
    if "peers" in result:
        title = (
            "Python, one call in flight: MB/s of the median call (lowest-highest round), p50 in us"
        )
        parts += [title, peers.table(result["peers"]["cases"]), ""]
        parts += [f"skipped: {n}: {why}" for n, why in result["peers"]["skipped"].items()]
    if "durable" in result:
        d = result["durable"]
        parts.append(
            f"durable 4 KiB puts through the server, 64 in flight: {d['median']:.0f}/s "
            f"({d['min']:.0f}-{d['max']:.0f})"
        )
    parts += [f"failed: {name}: {why}" for name, why in runner.failed.items()]
    parts += ["", targets.table(targets.evaluate(result))]
    return "\n".join(parts)


def main() -> int:
    """Measures, reports, writes; 1 when a part failed."""
    args = _options()
    signal.signal(signal.SIGTERM, _interrupt)
    args.out = args.out.resolve()
    args.out.mkdir(parents=True, exist_ok=True)
    facts = machine.describe(args.out)
    facts["command"] = "bench/run.sh " + shlex.join(sys.argv[1:])
    print(machine.headline(facts), flush=True)
    try:
        runner = measure(args)
    except KeyboardInterrupt:
        print("interrupted: servers are ended, data is removed", file=sys.stderr)
        return 130
    text = report(facts, runner)
    rows = targets.evaluate(runner.result)
    document = {
        "machine": facts,
        "result": runner.result,
        "failed": runner.failed,
        "targets": [{**vars(row), "verdict": row.verdict} for row in rows],
    }
    (args.out / "bench.json").write_text(json.dumps(document, indent=1) + "\n")
    (args.out / "bench.txt").write_text(text + "\n")
    title = f"Millpond {facts['commit']} on {facts['cores']} x {facts['cpu']}"
    (args.out / "bench.svg").write_text(chart.svg(rows, title))
    print(text)
    print(f"\nwritten: {args.out}/bench.json, bench.txt and bench.svg")
    return 1 if runner.failed else 0


if __name__ == "__main__":
    sys.exit(main())
