"""The same workload, side by side, from Python: Millpond, Redis, Mooncake, a socket, memcpy.

Rounds are interleaved: every store runs a case before the next case starts, and all cases end
before the next round, so that a slow minute of a shared machine affects all stores.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import backends
import numpy as np
from backends import Backend, Wrong
from procs import NotStarted

KIB, MIB = 1 << 10, 1 << 20
# A cell ends after this number of bytes put, so that no store runs out of memory.
PUT_BYTES_MAX = 192 * MIB
WHAT = ("mb_per_s", "mean_mb_per_s", "p50_us")
# Pieces of a block as a connector passes them: keys and values of 16 layers.
PIECES = 32


@dataclass(frozen=True)
class Case:
    """One row of the table."""

    verb: str
    size: int
    batch: int

    @property
    def name(self) -> str:
        """As shown."""
        size = f"{self.size // MIB} MiB" if self.size >= MIB else f"{self.size // KIB} KiB"
        return f"{self.verb} {size}" + (f" x {self.batch}" if self.batch > 1 else "")


CASES = [
    *(Case(verb, size, 1) for size in (4 * KIB, 64 * KIB, MIB) for verb in ("put", "get")),
    Case("put", 4 * KIB, 64),
    Case("get", 4 * KIB, 64),
    Case("put", MIB, 8),
    Case("get", MIB, 8),
]
# Number of values of each size for gets.
WORKING_SET = {4 * KIB: 4096, 64 * KIB: 2048, MIB: 256}


class Values:
    """The values to put, and buffers for gets; one block each, so that they can be registered."""

    def __init__(self) -> None:
        rng = np.random.default_rng(1)
        # Every offset of the sea starts another value: key i's value starts at 64 * i.
        self.sea = rng.integers(0, 256, 9 * MIB + 64 * 8192, dtype=np.uint8)
        self.room = np.zeros(8 * MIB, dtype=np.uint8)

    def value(self, index: int, size: int) -> Any:
        """The value of a key."""
        start = 64 * (index % 8192)
        return self.sea[start : start + size]

    def rooms(self, size: int, count: int) -> list[Any]:
        """The buffers for a batch of values."""
        return [self.room[i * size : (i + 1) * size] for i in range(count)]


def key(case_size: int, index: int) -> str:
    """The key of a value of the working set."""
    return f"bench/{case_size:07d}/{index:012d}"


def load(backend: Backend, values: Values) -> None:
    """Stores the working set."""
    for size, count in WORKING_SET.items():
        batch = max(1, min(64, 8 * MIB // size))
        for first in range(0, count, batch):
            indexes = range(first, min(first + batch, count))
            backend.put([key(size, i) for i in indexes], [values.value(i, size) for i in indexes])


def run_get(backend: Backend, case: Case, values: Values, seconds: float, seed: int) -> list[int]:
    """Times gets of random keys; checks the content outside the timed part."""
    rng = np.random.default_rng(seed)
    count = WORKING_SET[case.size]
    rooms = values.rooms(case.size, case.batch)
    # No key twice in a batch: Mooncake would fill only one of the two buffers.
    picks = [rng.choice(count, case.batch, replace=False).tolist() for _ in range(512)]
    names = [[key(case.size, i) for i in pick] for pick in picks]
    times: list[int] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        turn = len(times) % 512
        before = time.perf_counter_ns()
        backend.get(names[turn], rooms)
        times.append(time.perf_counter_ns() - before)
        if len(times) % 256 == 1 and backend.name != "echo":
            for i, room in zip(picks[turn], rooms):
                if not np.array_equal(room, values.value(i, case.size)):
                    raise Wrong(f"{backend.name}: wrong bytes in {case.name}")
    return times


def run_put(backend: Backend, case: Case, values: Values, seconds: float, seed: int) -> list[int]:
    """Times puts of new keys and removes them again."""
    times: list[int] = []
    stored: list[str] = []
    end = time.perf_counter() + seconds
    most = max(16, PUT_BYTES_MAX // (case.size * case.batch))
    while time.perf_counter() < end and len(times) < most:
        indexes = range(len(times) * case.batch, (len(times) + 1) * case.batch)
        names = [f"new/{seed}/{case.size}/{case.batch}/{i:09d}" for i in indexes]
        batch = [values.value(i, case.size) for i in indexes]
        before = time.perf_counter_ns()
        backend.put(names, batch)
        times.append(time.perf_counter_ns() - before)
        stored += names
    for first in range(0, len(stored), 512):
        backend.drop(stored[first : first + 512])
    return times


def measure(backend: Backend, case: Case, values: Values, seconds: float, seed: int) -> Any:
    """One cell of one round: MB/s and median microseconds."""
    runner = run_get if case.verb == "get" else run_put
    runner(backend, case, values, seconds / 5, seed + 500_000)
    times = runner(backend, case, values, seconds, seed)
    # From the median call: on a shared machine other load dominates the mean.
    p50_us = statistics.median(times) / 1e3
    mean_us = statistics.fmean(times) / 1e3
    payload = case.size * case.batch
    return {"mb_per_s": payload / p50_us, "mean_mb_per_s": payload / mean_us, "p50_us": p50_us}


def spread(rounds: Sequence[float]) -> dict[str, float]:
    """Median, lowest and highest of the rounds."""
    return {"median": statistics.median(rounds), "min": min(rounds), "max": max(rounds)}


def compare(stores: Sequence[Backend], rounds: int, seconds: float) -> dict[str, Any]:
    """All cases on all stores; case → store → spread."""
    values = Values()
    for store in stores:
        if isinstance(store, backends.Mooncake):
            store.register(values.sea)
            store.register(values.room)
        load(store, values)
    raw: dict[str, dict[str, list[Any]]] = {c.name: {s.name: [] for s in stores} for c in CASES}
    for turn in range(rounds):
        for number, case in enumerate(CASES):
            # A different store goes first each time.
            for at in range(len(stores)):
                store = stores[(at + turn + number) % len(stores)]
                seed = turn * 1000 + number
                raw[case.name][store.name].append(measure(store, case, values, seconds, seed))
        print(f"peers: round {turn + 1} of {rounds} done", flush=True)
    return {
        case: {
            store: {what: spread([c[what] for c in cells]) for what in WHAT}
            for store, cells in by_store.items()
        }
        for case, by_store in raw.items()
    }


def pieces(store: Backend, rounds: int, seconds: float) -> Any:
    """Gets of 8 blocks of 1 MiB, whole and in 32 separate pieces each, like KV layers."""
    values = Values()
    scattered = np.zeros(16 * MIB, dtype=np.uint8)
    step = MIB // PIECES
    base = scattered.ctypes.data
    into = [
        [(base + (p * 16 + b) * step, step) for p in range(PIECES)] for b in range(8)
    ]  # fmt: skip
    whole = values.rooms(MIB, 8)
    ratios = []
    for turn in range(rounds):
        rng = np.random.default_rng(turn)
        times: dict[bool, list[int]] = {False: [], True: []}
        end = time.perf_counter() + 2 * seconds
        while time.perf_counter() < end:
            picks = rng.choice(WORKING_SET[MIB], 8, replace=False)
            names = [key(MIB, int(i)) for i in picks]
            for cut in (False, True):
                before = time.perf_counter_ns()
                store.get(names, into if cut else whole)
                times[cut].append(time.perf_counter_ns() - before)
        ratios.append(statistics.median(times[False]) / statistics.median(times[True]))
    return {"ratio": spread(ratios)}


def table(result: dict[str, Any]) -> str:
    """The comparison as text: median MB/s (lowest to highest), p50 in microseconds."""
    stores = list(next(iter(result.values())))
    lines = [f"{'':14}" + "".join(f"{store:>26}" for store in stores)]
    for case, by_store in result.items():
        cells = []
        for store in stores:
            rate, p50 = by_store[store]["mb_per_s"], by_store[store]["p50_us"]["median"]
            low, high = rate["min"], rate["max"]
            cells.append(f"{rate['median']:8.0f} ({low:.0f}-{high:.0f}) {p50:6.0f}")
        lines.append(f"{case:14}" + "".join(f"{cell:>26}" for cell in cells))
    return "\n".join(lines)


def run(args: argparse.Namespace, logs: Path, data: Path) -> dict[str, Any]:
    """Starts every installed store and compares them."""
    skipped: dict[str, str] = {}
    with contextlib.ExitStack() as stack:
        stores: list[Backend] = [backends.Memcpy()]
        starters = {
            "echo": lambda: backends.echo(logs),
            "millpond": lambda: backends.millpond(args.millpond, data, logs),
            "redis": lambda: backends.redis(logs),
            "mooncake": lambda: backends.mooncake(logs),
        }
        for name, start in starters.items():
            if name in args.without:
                skipped[name] = "excluded by --without"
                continue
            try:
                stores += stack.enter_context(start())
            except (NotStarted, ImportError, OSError, Wrong) as error:
                skipped[name] = str(error).strip().splitlines()[0]
                print(f"peers: {name} is skipped: {skipped[name]}", flush=True)
        result = compare(stores, args.rounds, args.seconds)
        shm = [store for store in stores if store.name == "millpond shm"]
        cut = pieces(shm[0], args.rounds, args.seconds) if shm else None
    facts = {"skipped": skipped, "rounds": args.rounds, "seconds": args.seconds}
    return {"cases": result, "pieces": cut, **facts}


def main() -> None:
    """Runs the peer comparison alone."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--millpond", type=Path, required=True, help="the millpond binary")
    parser.add_argument("--out", type=Path, default=Path(".bench"), help="logs and result")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.4, help="per cell")
    parser.add_argument("--without", action="append", default=[], help="a store to exclude")
    args = parser.parse_args()
    data = args.out / "peer-data"
    data.mkdir(parents=True, exist_ok=True)
    result = run(args, args.out, data)
    (args.out / "peers.json").write_text(json.dumps(result, indent=1) + "\n")
    print(table(result["cases"]))


if __name__ == "__main__":
    main()
