"""The ratios that Millpond must reach, and the results of this run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Optional

MISSING = (KeyError, TypeError, ZeroDivisionError)


@dataclass(frozen=True)
class Target:
    """One row: a ratio (or a plain number) and its bound."""

    name: str
    bound: float
    # "at least" or "at most".
    at_least: bool
    unit: str
    value: Optional[float]

    @property
    def verdict(self) -> str:
        """pass, short or not measured."""
        if self.value is None:
            return "not measured"
        good = self.value >= self.bound if self.at_least else self.value <= self.bound
        return "pass" if good else "short"


def _median(tree: Any, *path: str) -> float:
    for step in path:
        tree = tree[step]
    return float(tree["median"])


def evaluate(result: dict[str, Any]) -> list[Target]:
    """The table of speed targets, filled from a result; skipped rows are None."""
    engine, peers = result.get("engine", {}), result.get("peers", {}).get("cases", {})
    client, beyond = result.get("client", {}), result.get("beyond_dram", {})

    def peer(case: str, store: str, what: str = "mb_per_s") -> float:
        return _median(peers, case, store, what)

    def against_fio(case: str) -> float:
        ops = engine[case]
        return _median(ops, "engine", "ops_per_s") / _median(ops, "fio", "ops_per_s")

    def rust(case: str, side: str, what: str) -> float:
        return _median(client, case, side, what)

    rows = [
        ("engine, 4 KiB random read, queue 64 / fio", 0.85, True, "x",
         lambda: against_fio("randread-4096-64")),
        ("engine, 1 MiB write, durable / fio O_DIRECT, O_DSYNC", 0.85, True, "x",
         lambda: against_fio("put-1048576-8")),
        ("engine, 1 MiB read / fio O_DIRECT", 0.9, True, "x", lambda: against_fio("read-1048576-8")),
        ("engine, durable 4 KiB puts, 64 in flight / fio write+fdatasync", 2, True, "x",
         lambda: against_fio("put-4096-64")),
        ("get 1 MiB from DRAM, TCP, Rust client / socket echo", 0.9, True, "x",
         lambda: rust("get 1MiB", "tcp", "mb_per_s") / rust("get 1MiB", "echo", "mb_per_s")),
        ("get 1 MiB from DRAM, TCP, Python client / socket echo", 0.8, True, "x",
         lambda: peer("get 1 MiB", "millpond tcp") / peer("get 1 MiB", "echo")),
        ("get 1 MiB from DRAM, shared memory, Python / memcpy", 0.75, True, "x",
         lambda: peer("get 1 MiB", "millpond shm") / peer("get 1 MiB", "memcpy")),
        ("get 4 KiB, TCP p50, Rust client / socket echo", 1.3, False, "x",
         lambda: rust("get 4KiB", "tcp", "p50_us") / rust("get 4KiB", "echo", "p50_us")),
        ("get 4 KiB, TCP p50, Python client / socket echo", 1.3, False, "x",
         lambda: peer("get 4 KiB", "millpond tcp", "p50_us")
         / peer("get 4 KiB", "echo", "p50_us")),
        ("get 4 KiB, shared memory p50, Rust client", 12, False, "us",
         lambda: rust("get 4KiB", "shm", "p50_us")),
        ("get 4 KiB, shared memory p50, Python client", 12, False, "us",
         lambda: peer("get 4 KiB", "millpond shm", "p50_us")),
        ("batches of 64 x 4 KiB get, Python, TCP / Redis pipelined", 3, True, "x",
         lambda: peer("get 4 KiB x 64", "millpond tcp") / peer("get 4 KiB x 64", "redis")),
        ("get 1 MiB x 8, Python, TCP / Mooncake TCP", 2, True, "x",
         lambda: peer("get 1 MiB x 8", "millpond tcp") / peer("get 1 MiB x 8", "mooncake")),
        ("working set 4 x DRAM, 256 KiB get, TCP / fio", 0.8, True, "x",
         lambda: _median(beyond, "tcp") / _median(beyond, "fio")),
        ("working set 4 x DRAM, 256 KiB get, shared memory / fio", 0.8, True, "x",
         lambda: _median(beyond, "shm") / _median(beyond, "fio")),
        ("restart with 10 million chunks", 10, False, "s",
         lambda: float(result["restart"]["seconds"])),
        ("block in 32 pieces, as a connector loads it / shared-memory get", 0.7, True, "x",
         lambda: _median(result["pieces"], "ratio")),
    ]  # fmt: skip
    targets = []
    for name, bound, at_least, unit, measure in rows:
        try:
            value: Optional[float] = measure()
        except MISSING:
            value = None
        targets.append(Target(name, bound, at_least, unit, value))
    return targets


def table(targets: list[Target]) -> str:
    """The targets as text."""
    lines = [f"{'':66}{'target':>10}{'measured':>10}"]
    for t in targets:
        sign = ">=" if t.at_least else "<="
        value = "-" if t.value is None else f"{t.value:.2f} {t.unit}"
        lines.append(f"{t.name:66}{f'{sign} {t.bound:g} {t.unit}':>10}{value:>10}  {t.verdict}")
    return "\n".join(lines)
