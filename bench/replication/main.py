"""The cost of replication: one server against clusters on one disk, in interleaved rounds."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import machine
from procs import free_port, server

# Name → nodes and replicas; no nodes means a single server without a cluster.
SETUPS = {
    "alone": (0, 1),
    "1 of 1": (1, 1),
    "2 of 2": (2, 2),
    "3 of 3": (3, 3),
    "1 of 3": (3, 1),
}
# Name → options of `millpond bench kv`, the lane and figure of its result. Values fit every disk.
CASES = {
    "put 1 MiB, MB/s": (
        [
            "--size",
            "1MiB",
            "--in-flight",
            "4",
            "--read-ratio",
            "0",
            "--ack",
            "disk",
            "--ops",
            "1500",
        ],
        ("put", "mb_per_s"),
    ),
    "put 4 KiB, p50 us": (
        ["--size", "4KiB", "--in-flight", "1", "--read-ratio", "0", "--ack", "disk"],
        ("put", "latency_us", "p50"),
    ),
    "get 64 KiB, MB/s": (["--size", "64KiB", "--in-flight", "8"], ("get", "mb_per_s")),
    "get 4 KiB, p50 us": (["--size", "4KiB", "--in-flight", "1"], ("get", "latency_us", "p50")),
}
# Row → case, setup, baseline, factor of the ratio, bound, whether the bound is a minimum.
TARGETS = {
    "put 1 MiB, 2 replicas, x 2 / one server": (
        "put 1 MiB, MB/s",
        "2 of 2",
        "alone",
        2,
        0.85,
        True,
    ),
    "put 1 MiB, 3 replicas, x 3 / one server": (
        "put 1 MiB, MB/s",
        "3 of 3",
        "alone",
        3,
        0.85,
        True,
    ),
    "put 4 KiB p50, 2 replicas / 1": ("put 4 KiB, p50 us", "2 of 2", "1 of 1", 1, 2.5, False),
    "put 4 KiB p50, 3 replicas / 1": ("put 4 KiB, p50 us", "3 of 3", "1 of 1", 1, 2.5, False),
    "get 64 KiB, 3 replicas / 1, 3 nodes": ("get 64 KiB, MB/s", "3 of 3", "1 of 3", 1, 1.0, True),
    "get 4 KiB p50, 3 replicas / 1, 3 nodes": (
        "get 4 KiB, p50 us",
        "3 of 3",
        "1 of 3",
        1,
        1.0,
        False,
    ),
}
FILL = "p99 of gets while a node fills / before"
FILL_BOUND = 1.5
# The rate limit of nodes for moves of replicas, and the share of it that they must reach.
FILL_RATE_MIB = 16
FILLED = "rate at which a node fills / set rate"
FILLED_BOUND = 0.8


class Bench:
    """The binary and the folder of the results."""

    def __init__(self, millpond: Path, folder: Path, seconds: float) -> None:
        self.millpond, self.folder, self.seconds = str(millpond), folder, seconds

    def run(self, *options: str) -> str:
        """Runs the binary and returns its output; raises with its error message."""
        done = subprocess.run(
            [self.millpond, *options], capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise RuntimeError(f"millpond {' '.join(options)} failed: {done.stderr.strip()[-800:]}")
        return done.stdout

    @contextlib.contextmanager
    def cluster(self, nodes: int, replicas: int) -> Iterator[str]:
        """A cluster under `millpond dev`; yields its addresses."""
        folder = str(self.folder / "cluster")
        up = ("--nodes", str(nodes), "--replicas", str(replicas), "--size", "4GiB")
        try:
            self.run("dev", "--dir", folder, "up", *up)
            yield self.addresses()
        finally:
            self.run("dev", "--dir", folder, "down", "--purge")

    def addresses(self) -> str:
        """The addresses of the running cluster."""
        shell = self.run("dev", "--dir", str(self.folder / "cluster"), "env")
        return next(line for line in shell.splitlines() if "MILLPOND_ADDRESS=" in line).split("=")[
            1
        ]

    @contextlib.contextmanager
    def alone(self) -> Iterator[str]:
        """A server without a cluster; yields its address."""
        with tempfile.TemporaryDirectory(dir=self.folder) as data:
            port = free_port()
            command = [self.millpond, "server", "--data", data, "--size", "4GiB"]
            command += ["--listen", f"127.0.0.1:{port}", "--http", f"127.0.0.1:{free_port()}"]
            with server(command, port, self.folder / "alone.log", wait_s=60):
                yield f"127.0.0.1:{port}"

    def kv(self, address: str, *options: str, seconds: float | None = None) -> dict[str, Any]:
        """One `millpond bench kv`."""
        result = self.folder / "step.json"
        until = () if "--ops" in options else ("--seconds", str(seconds or self.seconds))
        common = ("--address", address, "--keys", "1500", "--json", str(result), "--quiet")
        self.run("bench", "kv", *common, *until, *options)
        answer = dict(json.loads(result.read_text()))
        result.unlink()
        for lane in ("put", "get"):
            if answer[lane]["refused"] or answer[lane]["wrong"]:
                raise RuntimeError(f"values were rejected or wrong: {answer[lane]}")
        return answer


def pick(tree: Any, path: Sequence[str]) -> float:
    """The number at the end of a path."""
    for step in path:
        tree = tree[step]
    return float(tree)


def compare(bench: Bench, rounds: int) -> dict[str, dict[str, list[float]]]:
    """Case → setup → a figure per round."""
    found: dict[str, dict[str, list[float]]] = {case: {} for case in CASES}
    for turn in range(rounds):
        for setup, (nodes, replicas) in SETUPS.items():
            with bench.cluster(nodes, replicas) if nodes else bench.alone() as address:
                for at, (case, (options, path)) in enumerate(CASES.items()):
                    answer = bench.kv(address, "--namespace", f"case{at}", *options)
                    found[case].setdefault(setup, []).append(pick(answer, path))
        print(f"replication: round {turn + 1} of {rounds} done", flush=True)
    return found


def fill(bench: Bench, rounds: int) -> list[tuple[float, float, float]]:
    """The p99 of gets in microseconds, before a node is added and while replicas move to it, and
    the rate of the moves in MiB per second."""
    reads = ("--namespace", "read", "--size", "64KiB", "--in-flight", "2")
    found = []
    for turn in range(rounds):
        with bench.cluster(3, 2) as address:
            data = ("--namespace", "data", "--size", "64KiB", "--read-ratio", "0", "--keep")
            bench.kv(address, *data, "--in-flight", "8", "--ops", "50000")
            before = bench.kv(address, *reads, seconds=10)
            admin = ("admin", "--server", address)
            bench.run(*admin, "set", "rebalance.bytes_per_second", f"{FILL_RATE_MIB}MiB")
            bench.run("dev", "--dir", str(bench.folder / "cluster"), "add")
            start, held = time.monotonic(), least_used(bench.run(*admin, "disks", "--json"))
            during = bench.kv(bench.addresses(), *reads, seconds=10)
            held = least_used(bench.run(*admin, "disks", "--json")) - held
            rate = held / (1 << 20) / (time.monotonic() - start)
            status = bench.run(*admin, "status").split("\n")
            if any(line.split() == ["moves", "none"] for line in status):
                raise RuntimeError("the new node was full before the readers ended: use more data")
            p99 = ("get", "latency_us", "p99")
            found.append((pick(before, p99), pick(during, p99), rate))
        print(f"replication: fill {turn + 1} of {rounds} done", flush=True)
    return found


def least_used(disks: str) -> int:
    """Bytes in use on the emptiest disk."""
    return min(int(disk["used_bytes"]) for disk in json.loads(disks))


def rows(found: dict[str, Any], filled: list[tuple[float, float, float]]) -> list[str]:
    """The table, one line per row."""
    lines = []
    for case, setups in found.items():
        for setup, figures in setups.items():
            spread = f"{statistics.median(figures):,.0f} ({min(figures):,.0f}-{max(figures):,.0f})"
            lines.append(f"{case:20} {setup:8} {spread}")
    lines.append("")
    for row, (case, setup, floor, times, bound, least) in TARGETS.items():
        ratios = [times * a / b for a, b in zip(found[case][setup], found[case][floor])]
        lines.append(verdict(row, ratios, bound, least))
    ratios = [during / before for before, during, _ in filled]
    lines.append(verdict(FILL, ratios, FILL_BOUND, least=False))
    rates = [rate / FILL_RATE_MIB for *_, rate in filled]
    lines.append(verdict(FILLED, rates, FILLED_BOUND, least=True))
    return lines


def verdict(row: str, ratios: Sequence[float], bound: float, least: bool) -> str:
    """One ratio of all rounds beside its bound."""
    median = statistics.median(ratios)
    good = median >= bound if least else median <= bound
    spread = f"{median:.2f} ({min(ratios):.2f}-{max(ratios):.2f})"
    sign = ">=" if least else "<="
    return f"{row:42} {spread:20} {sign} {bound:<5} {'pass' if good else 'short'}"


def main() -> None:
    """Measures everything and writes it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder for text and JSON")
    parser.add_argument("--millpond", type=Path, required=True, help="the binary")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0, help="length of one measurement")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="millpond-bench-") as folder:
        bench = Bench(options.millpond.resolve(), Path(folder), options.seconds)
        facts = machine.describe(Path(folder))
        found, filled = compare(bench, options.rounds), fill(bench, options.rounds)
    text = "\n".join([machine.headline(facts), "", *rows(found, filled)])
    print(text)
    (options.out / "replication.txt").write_text(text + "\n")
    result = {"machine": facts, "argv": sys.argv[1:], "cases": found, "fill": filled}
    (options.out / "replication.json").write_text(json.dumps(result, indent=1) + os.linesep)


if __name__ == "__main__":
    try:
        main()
    except (RuntimeError, OSError) as error:
        sys.exit(f"replication: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
