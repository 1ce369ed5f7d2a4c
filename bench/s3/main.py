"""S3 of Millpond and SeaweedFS: the same work, interleaved.

Every server runs a case before the next case starts, so that a slow minute of a shared machine
affects all of them, and their order rotates from round to round. Figures are medians of the
rounds, with the spread. The bytes of every GET are counted. They are also compared: for 10 KiB in
every GET, for larger objects in one GET of 16, so that the comparison does not take the cores from
the servers. A wrong byte or a failed request ends the run.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from machine import describe
from sides import Side, delayed, keys, millpond, plain_files, seaweedfs, write_back

# The peer with the same durability as Millpond; it is the base of ratios.
BASE = "seaweedfs, fsync"
# Latency of each backend request in the measurement of write-back.
BACKEND_MS = 50
# One of this number of GETs of large objects is compared.
CHECK_EVERY = 16
# Side -> figure -> a number per round.
Row = dict[str, dict[str, list[float]]]


@dataclass(frozen=True)
class Case:
    """A workload of one size and concurrency."""

    workload: str
    size: str
    concurrency: int
    keys: int

    @property
    def name(self) -> str:
        return f"{self.workload} {self.size}, {self.concurrency} at once"

    @property
    def is_large(self) -> bool:
        return self.size != "10KiB"


SMALL = [
    Case(workload, "10KiB", concurrency, 2_000 if workload == "get" else 50_000)
    for workload in ("put", "get")
    for concurrency in (1, 16, 64, 256)
]
LARGE = [
    Case("put", "1MiB", 16, 64),
    Case("get", "1MiB", 16, 200),
    Case("get", "64MiB", 4, 8),
]
# Puts to the slow backend itself, or to a write-back server in front of it.
BEHIND = Case("put", "10KiB", 16, 50_000)

WARM_UP = Case("put", "10KiB", 16, 1_000)


class Bench:
    """The load generator, and its results."""

    def __init__(self, args: argparse.Namespace, folder: Path) -> None:
        self.args = args
        self.folder = folder
        self.rows: dict[str, Row] = {}

    def load(self, side: Side, case: Case, prefix: str, seconds: float) -> dict[str, Any]:
        """Runs the generator once and returns its report."""
        command = [self.args.load, "load", case.workload, "--endpoint", side.endpoint]
        command += ["--bucket", "bench", "--size", case.size, "--seconds", str(seconds)]
        command += ["--concurrency", str(case.concurrency), "--keys", str(case.keys)]
        command += ["--prefix", prefix, "--threads", "2" if case.is_large else "1"]
        if self.args.sign_payload:
            command.append("--sign-payload")
        if case.workload == "get":
            if case.is_large:
                command += ["--check-every", str(CHECK_EVERY)]
            # Objects are put once; later rounds know them from this file.
            journal = f"{side.name.replace(', ', '-')}-{case.size}-{case.concurrency}"
            command += ["--journal", str(self.folder / journal)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=keys())
        if done.returncode != 0:
            raise SystemExit(f"{case.name} on {side.name}: {done.stdout}{done.stderr}")
        report = json.loads(done.stdout)
        errors = report.get(case.workload, {}).get("errors")
        if errors:
            raise SystemExit(f"{case.name} on {side.name}: requests failed: {errors}")
        return report

    def measure(self, side: Side, case: Case, number: int, title: str) -> None:
        """One case on one server in one round."""
        prefix = f"{case.size}-{case.concurrency}/"
        if case.workload == "get":
            # Puts missing objects; this takes no time in later rounds.
            self.load(side, case, prefix, 0)
        else:
            prefix = f"round{number}/{prefix}"
        # Writes of other servers in the page cache reach the disk before this measurement.
        os.sync()
        before = side.cpu_s(), client_cpu_s()
        seen = self.load(side, case, prefix, self.args.seconds)[case.workload]
        cpu_s = {"cpu_us": side.cpu_s() - before[0], "client_cpu_us": client_cpu_s() - before[1]}
        figures = self.rows.setdefault(title, {}).setdefault(side.name, {})
        noted = {name: seen[name] for name in ("p50_us", "p99_us", "requests_per_s")}
        noted["mb_per_s"] = seen["bytes_per_s"] / 1e6
        noted |= {name: spent * 1e6 / seen["requests"] for name, spent in cpu_s.items()}
        for name, value in noted.items():
            figures.setdefault(name, []).append(value)

    def warm_up(self, side: Side) -> None:
        """Creates the bucket; SeaweedFS then creates volumes."""
        self.load(side, WARM_UP, "warm-up/", 2)

    def run(self, sides: list[Side], behind: list[Side]) -> None:
        """All rounds."""
        for number in range(self.args.rounds):
            turned = sides[number % len(sides) :] + sides[: number % len(sides)]
            for case in [*SMALL, *LARGE]:
                if self.args.only and self.args.only not in case.name:
                    continue
                for side in turned:
                    self.measure(side, case, number, case.name)
            if not self.args.only or self.args.only in "behind":
                for side in behind:
                    title = f"{BEHIND.name}, backend {BACKEND_MS} ms away"
                    self.measure(side, BEHIND, number, title)
            print(f"round {number + 1} of {self.args.rounds} is done", file=sys.stderr)


def client_cpu_s() -> float:
    """CPU seconds of all generators so far, which servers on the same cores do not get."""
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime


def cell(values: list[float], base: list[float] | None, form: Callable[[float], str]) -> str:
    """The median with its spread, and its ratio to the base."""
    middle = statistics.median(values)
    text = f"{form(middle)} ({form(min(values))}-{form(max(values))})"
    if base is not None:
        text += f", {middle / statistics.median(base):.2f} x"
    return text


def table(rows: dict[str, Row]) -> str:
    """A line for each case and figure."""
    names = list(dict.fromkeys(name for row in rows.values() for name in row))
    lines = ["| case | figure | " + " | ".join(names) + " |", "|---|---|" + "---|" * len(names)]
    small = {"p50_us": "p50, us", "p99_us": "p99, us", "cpu_us": "server CPU, us"}
    small["client_cpu_us"] = "client CPU, us"
    for case, row in rows.items():
        peer = BASE if BASE in row else f"{BASE}, direct"
        shown = small if "10KiB" in case else {"mb_per_s": "MB/s", "cpu_us": "server CPU, us"}
        for figure, label in shown.items():
            base = row.get(peer, {}).get(figure)
            cells = [
                cell(row[name][figure], base if name != peer else None, "{:,.0f}".format)
                if name in row
                else ""
                for name in names
            ]
            lines.append(f"| {case} | {label} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--load", required=True, help="millpond-s3-load")
    parser.add_argument("--weed", required=True, help="SeaweedFS")
    parser.add_argument("--millpond", help="the millpond program; without it Millpond is skipped")
    parser.add_argument("--nginx", help="the nginx program, to serve plain files as an upper limit")
    parser.add_argument("--size", default="6GiB", help="size of Millpond's disk")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--only", help="only cases with this text in their names, or `behind`")
    parser.add_argument("--sign-payload", action="store_true", help="sign the hash of each body")
    args = parser.parse_args()
    for name in ("load", "weed", "millpond", "nginx"):
        if getattr(args, name):
            setattr(args, name, str(Path(getattr(args, name)).resolve()))
    return args


def main() -> None:
    args = parsed()
    args.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=args.out) as name, contextlib.ExitStack() as stack:
        folder = Path(name).resolve()
        facts = describe(folder)
        sides = [
            stack.enter_context(seaweedfs(args.weed, folder, durable=durable))
            for durable in (False, True)
        ]
        backend = sides[1]
        if args.millpond:
            sides.append(stack.enter_context(millpond(args.millpond, folder, args.size)))
        if args.nginx:
            sides.append(stack.enter_context(plain_files(args.nginx, folder)))
        bench = Bench(args, folder)
        for side in sides:
            bench.warm_up(side)
        behind = [stack.enter_context(delayed(args.load, backend, BACKEND_MS))]
        if args.millpond:
            cached = write_back(args.millpond, folder, args.size, behind[0])
            behind.append(stack.enter_context(cached))
        bench.run(sides, behind)
    head = "\n".join(f"{key}: {value}" for key, value in facts.items())
    report = f"{head}\n\n{table(bench.rows)}\n"
    (args.out / "s3.json").write_text(
        json.dumps({"machine": facts, "results": bench.rows}, indent=1)
    )
    (args.out / "s3.txt").write_text(report)
    print(report)


if __name__ == "__main__":
    main()
