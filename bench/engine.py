"""The engine alone against fio, round by round, on the same file system."""

from __future__ import annotations

import json
import math
import subprocess
from pathlib import Path
from typing import Any

import fio
from peers import spread

# The engine's operation (name, bytes, queue) and the fio job to compare it with.
PAIRS = {
    "randread-4096-64": "read-4k",
    "read-1048576-8": "read-1m",
    "put-1048576-8": "write-1m-durable",
    "put-4096-64": "write-4k-fdatasync",
}


def _example(binary: Path, *options: str) -> dict[str, Any]:
    command = [str(binary), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        tail = (done.stderr or done.stdout).strip()[-800:]
        raise RuntimeError(f"{' '.join(command)} failed: {tail}")
    return dict(json.loads(done.stdout.strip().splitlines()[-1]))


def compare(binary: Path, data: Path, rounds: int, seconds: float) -> dict[str, Any]:
    """Engine and fio alternating; case → spreads and ratio."""
    raw: dict[str, dict[str, list[dict[str, float]]]] = {}
    fio.prepare(data)
    try:
        for turn in range(rounds):
            for case, job in PAIRS.items():
                cell = raw.setdefault(case, {"engine": [], "fio": []})
                options = ("--secs", str(math.ceil(seconds)), "--only", case)
                fio.settle()
                row = _example(binary, "--dir", str(data), *options)
                cell["engine"].append({"ops_per_s": row["ops_s"], "mb_per_s": row["mb_s"]})
                cell["fio"].append(fio.run(data, job, seconds))
            print(f"engine: round {turn + 1} of {rounds} done", flush=True)
        # For the note only: the rate of O_DIRECT without durability.
        plain = [fio.run(data, "write-1m", seconds) for _ in range(rounds)]
    finally:
        fio.clean(data)
    result: dict[str, Any] = {}
    for case, cell in raw.items():
        result[case] = {
            side: {what: spread([c[what] for c in cells]) for what in ("ops_per_s", "mb_per_s")}
            for side, cells in cell.items()
        }
    result["fio write-1m, not durable"] = spread([p["mb_per_s"] for p in plain])
    return result


def restart(binary: Path, data: Path, chunks: int) -> dict[str, Any]:
    """Seconds to open an engine with this number of chunks."""
    return _example(binary, "--dir", str(data), "--chunks", str(chunks))


def table(result: dict[str, Any]) -> str:
    """Median operations per second and MB/s, lowest to highest."""
    lines = [f"{'':20}{'engine op/s':>28}{'fio op/s':>28}{'engine MB/s':>13}{'fio MB/s':>10}"]
    for case in PAIRS:
        if case not in result:
            continue
        cells = []
        for side in ("engine", "fio"):
            ops = result[case][side]["ops_per_s"]
            cells.append(f"{ops['median']:.0f} ({ops['min']:.0f}-{ops['max']:.0f})")
        rates = [result[case][side]["mb_per_s"]["median"] for side in ("engine", "fio")]
        lines.append(f"{case:20}{cells[0]:>28}{cells[1]:>28}{rates[0]:>13.0f}{rates[1]:>10.0f}")
    return "\n".join(lines)
