"""The physical limit: fio with O_DIRECT and io_uring on the same file system."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Large enough that the device's own cache does not hold it, small enough to lay out in seconds.
FILE_BYTES = 4 << 30


@dataclass(frozen=True)
class Job:
    """One fio job."""

    name: str
    rw: str
    block: str
    depth: int
    options: tuple[str, ...] = ()


JOBS = {
    job.name: job
    for job in (
        Job("read-4k", "randread", "4k", 64),
        Job("read-1m", "randread", "1m", 8),
        Job("read-256k", "randread", "256k", 16),
        # Each write is durable when it completes, as a durable put is.
        Job("write-1m-durable", "write", "1m", 8, ("--sync=dsync",)),
        Job("write-1m", "write", "1m", 8),
        Job("write-4k-fdatasync", "randwrite", "4k", 1, ("--fdatasync=1",)),
    )
}


def installed() -> bool:
    """Whether fio is installed."""
    return shutil.which("fio") is not None


def _fio(folder: Path, job: Job, *more: str) -> dict[str, Any]:
    command = [
        "fio",
        f"--name={job.name}",
        f"--filename={folder / 'fio.dat'}",
        f"--size={FILE_BYTES}",
        "--direct=1",
        "--ioengine=io_uring",
        f"--rw={job.rw}",
        f"--bs={job.block}",
        f"--iodepth={job.depth}",
        "--randrepeat=0",
        "--norandommap",
        "--output-format=json",
        *job.options,
        *more,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"fio {job.name} failed: {done.stderr.strip() or done.stdout.strip()}")
    # Warnings may precede the document.
    return dict(json.loads(done.stdout[done.stdout.index("{") :]))


def _in_flight() -> int:
    """Operations in flight on the machine's disks, including discards of deleted files."""
    lines = Path("/proc/diskstats").read_text().splitlines()
    return sum(int(line.split()[11]) for line in lines)


def settle(quiet_s: float = 0.5, wait_s: float = 15.0) -> None:
    """Waits until the disks are idle: the background discard of a recently deleted file would
    distort a measurement."""
    os.sync()
    end = time.monotonic() + wait_s
    quiet_since = time.monotonic()
    while time.monotonic() < min(end, quiet_since + quiet_s):
        if _in_flight() > 0:
            quiet_since = time.monotonic()
        time.sleep(0.02)


def prepare(folder: Path) -> None:
    """Writes the whole file once: reads of unwritten extents never reach the device."""
    lay_out = Job("lay-out", "write", "1m", 8)
    _fio(folder, lay_out)


def run(folder: Path, name: str, seconds: float) -> dict[str, float]:
    """Operations and MB per second of one job."""
    job = JOBS[name]
    settle()
    ramp = ("--ramp_time=0.3", "--time_based", f"--runtime={seconds}")
    side = _fio(folder, job, *ramp)["jobs"][0]["read" if "read" in job.rw else "write"]
    return {
        "ops_per_s": side["iops"],
        "mb_per_s": side["bw_bytes"] / 1e6,
        "p50_us": side["clat_ns"].get("percentile", {}).get("50.000000", 0) / 1e3,
    }


def clean(folder: Path) -> None:
    """Removes the file."""
    (folder / "fio.dat").unlink(missing_ok=True)
