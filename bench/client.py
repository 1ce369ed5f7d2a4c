"""`millpond bench kv` against its limits: a bare socket, and fio for reads from disk."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import fio
from backends import millpond_server
from peers import WHAT, spread

MIB = 1 << 20
# DRAM of the server in the case with four times that working set.
SMALL_MEMORY_MIB = 512


def _millpond(binary: Path, out: Path, *options: str) -> dict[str, Any]:
    result = out / "step.json"
    command = [str(binary), "bench", *options, "--json", str(result)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} failed: {done.stderr.strip()[-800:]}")
    answer = dict(json.loads(result.read_text()))
    result.unlink()
    return answer


def _lane(lane: dict[str, Any], size: int) -> dict[str, float]:
    # From the median call: on a shared machine other load dominates the mean.
    p50_us = lane["latency_us"]["p50"]
    mean = lane["mb_per_s"]
    return {"mb_per_s": size / p50_us, "mean_mb_per_s": mean, "p50_us": p50_us}


def _kv(binary: Path, out: Path, port: int, *options: str) -> dict[str, Any]:
    address = ("--address", f"127.0.0.1:{port}", "--quiet")
    return _millpond(binary, out, "kv", *address, *options)


def floors(
    binary: Path, out: Path, data: Path, rounds: int, seconds: float
) -> dict[str, dict[str, Any]]:
    """Gets from DRAM, one at a time, beside the socket echo."""
    raw: dict[str, dict[str, list[dict[str, float]]]] = {}
    span = ("--seconds", str(seconds))
    with millpond_server(binary, data, out, "--memory", "2GiB", "--size", "8GiB") as port:
        for turn in range(rounds):
            for size, nbytes in (("4KiB", 4096), ("1MiB", MIB)):
                cell = raw.setdefault(f"get {size}", {"echo": [], "tcp": [], "shm": []})
                echo = _millpond(binary, out, "echo", "--size", size, *span)
                cell["echo"].append(_lane(echo["result"], nbytes))
                for transport in ("tcp", "shm"):
                    options = ("--transport", transport, "--size", size, *span, "--warmup", "300ms")
                    kv = _kv(binary, out, port, *options)
                    cell[transport].append(_lane(kv["get"], nbytes))
            print(f"client: round {turn + 1} of {rounds} done", flush=True)
    return {
        case: {
            side: {what: spread([c[what] for c in cells]) for what in WHAT}
            for side, cells in cell.items()
        }
        for case, cell in raw.items()
    }


def beyond_dram(
    binary: Path, out: Path, data: Path, rounds: int, seconds: float
) -> dict[str, dict[str, float]]:
    """Gets of 256 KiB from a working set four times the server's memory, beside fio."""
    memory = ("--memory", f"{SMALL_MEMORY_MIB}MiB", "--size", "8GiB")
    working_set = f"{4 * SMALL_MEMORY_MIB}MiB"
    raw: dict[str, list[float]] = {"tcp": [], "shm": [], "fio": []}
    fio.prepare(data)
    try:
        with millpond_server(binary, data, out, *memory) as port:
            for _ in range(rounds):
                for transport in ("tcp", "shm"):
                    options = ("--transport", transport, "--size", "256KiB", "--in-flight", "16")
                    more = ("--working-set", working_set, "--seconds", str(seconds), "--keep")
                    kv = _kv(binary, out, port, *options, *more)
                    raw[transport].append(kv["get"]["mb_per_s"])
                raw["fio"].append(fio.run(data, "read-256k", seconds)["mb_per_s"])
    finally:
        fio.clean(data)
    print("client: working set beyond DRAM done", flush=True)
    return {side: spread(values) for side, values in raw.items()}


def durable(binary: Path, out: Path, data: Path, rounds: int, seconds: float) -> dict[str, float]:
    """Durable puts of 4 KiB through the server, 64 in flight, per second."""
    options = ("--size", "4KiB", "--in-flight", "64", "--read-ratio", "0", "--ack", "disk")
    rates = []
    with millpond_server(binary, data, out, "--memory", "1GiB", "--size", "8GiB") as port:
        for _ in range(rounds):
            kv = _kv(binary, out, port, *options, "--seconds", str(seconds))
            rates.append(kv["put"]["values_per_s"])
    return spread(rates)


def table(result: dict[str, Any]) -> str:
    """p50 and MB/s of each case."""
    lines = [f"{'':12}" + "".join(f"{side:>30}" for side in ("echo", "tcp", "shm"))]
    for case, by_side in result.items():
        cells = []
        for side in ("echo", "tcp", "shm"):
            p50, rate = by_side[side]["p50_us"], by_side[side]["mb_per_s"]["median"]
            spread_us = f"({p50['min']:.1f}-{p50['max']:.1f})"
            cells.append(f"{p50['median']:.1f} us {spread_us} {rate:.0f}")
        lines.append(f"{case:12}" + "".join(f"{cell:>30}" for cell in cells))
    return "\n".join(lines)
