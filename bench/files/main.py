"""Millpond's mounts, JuiceFS with Redis and the local file system: the same work, interleaved.

Rounds are interleaved: every file system runs a case before the next case starts, so that a slow
minute of a shared machine affects all of them. Figures are medians of the rounds, with the spread.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from machine import describe
from procs import free_port, server

# Shape of mdtest -b 6 -I 8 -z 2: a tree of 1 + 6 + 36 folders with 8 files each.
BRANCHES, DEPTH, ITEMS = 6, 2, 8
# Longest time of a phase in seconds, so that a dead process does not block the run.
PATIENCE = 600
FIO = {
    "4k random read, direct, 1 job": ["--rw=randread", "--bs=4k", "--numjobs=1", "--direct=1"],
    "4k random read, direct, 4 jobs": ["--rw=randread", "--bs=4k", "--numjobs=4", "--direct=1"],
    "1m read, direct, 4 jobs": ["--rw=read", "--bs=1m", "--numjobs=4", "--direct=1"],
    "1m write, 4 jobs, fsync at the end": ["--rw=write", "--bs=1m", "--numjobs=4", "--end_fsync=1"],
    "4k random write + fsync": ["--rw=randwrite", "--bs=4k", "--numjobs=1", "--fsync=1"],
}


def fio(folder: Path, options: list[str], seconds: int) -> float:
    """Operations per second; MiB per second where blocks are 1 MiB."""
    command = [
        "fio",
        "--name=x",
        f"--directory={folder}",
        "--size=64m",
        "--ioengine=psync",
        f"--runtime={seconds}",
        "--group_reporting",
        "--output-format=json",
        *options,
    ]
    if not any(option.startswith("--end_fsync") for option in options):
        command.append("--time_based")
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    job = json.loads(done.stdout[done.stdout.index("{") :])["jobs"][0]
    if "--rw=write" in options:
        # Until the last byte is durable.
        return job["write"]["io_bytes"] / 2**20 / (job["job_runtime"] / 1000 / 4)
    return max(job["read"]["iops"], job["write"]["iops"])


def tree(root: Path) -> list[Path]:
    """The folders of mdtest's tree, parents first."""
    folders, level = [root], [root]
    for _ in range(DEPTH):
        level = [parent / f"d{n}" for parent in level for n in range(BRANCHES)]
        folders += level
    return folders


def create(path: Path) -> None:
    with path.open("wb") as file:
        file.write(b"x" * 3901)


PHASES: dict[str, Callable[[Path], Any]] = {
    "create": create,
    "stat": lambda path: path.stat(),
    "read": lambda path: path.read_bytes(),
    "remove": lambda path: path.unlink(),
}


def worker(files: list[Path], start: Any, times: Any) -> None:
    """One process: the phases one by one, each started together with the other processes."""
    for work in PHASES.values():
        start.wait(PATIENCE)
        started = time.perf_counter()
        for path in files:
            work(path)
        times.put((started, time.perf_counter()))
        start.wait(PATIENCE)


def metadata(root: Path, jobs: int) -> dict[str, float]:
    """Operations per second of each phase; every process works in its own tree.

    A phase lasts from the start of the first process to the end of the last one. The processes
    exist before the phase, as in mdtest.
    """
    files = []
    for job in range(jobs):
        folders = tree(root / f"job{job}")
        for folder in folders:
            folder.mkdir(parents=True)
        files.append([folder / f"f{n}" for folder in folders for n in range(ITEMS)])
    fork = multiprocessing.get_context("fork")
    start, times = fork.Barrier(jobs + 1), fork.Queue()
    processes = [fork.Process(target=worker, args=(part, start, times)) for part in files]
    for process in processes:
        process.start()
    rates = {}
    for name in PHASES:
        start.wait(PATIENCE)
        spans = [times.get(timeout=PATIENCE) for _ in processes]
        start.wait(PATIENCE)
        begun, ended = min(span[0] for span in spans), max(span[1] for span in spans)
        rates[name] = sum(map(len, files)) / (ended - begun)
    for process in processes:
        process.join()
    shutil.rmtree(root)
    return rates


@contextlib.contextmanager
def millpond(
    program: str, folder: Path, replicas: int, modes: list[str]
) -> Iterator[dict[str, Path]]:
    """A cluster of three nodes, mounted once per mode."""
    dev = [program, "dev", "--dir", str(folder / "cluster")]
    up = ["up", "--nodes", "3", "--replicas", str(replicas), "--size", "4GiB"]
    subprocess.run([*dev, *up], check=True, capture_output=True)
    shown = subprocess.run([*dev, "env"], check=True, capture_output=True, text=True).stdout
    address = next(line.split("=", 1)[1] for line in shown.splitlines() if "ADDRESS" in line)
    run_dir = ["--run-dir", str(folder / "run")]
    mounts = {}
    try:
        for mode in modes:
            target = folder / f"millpond-{mode}"
            target.mkdir()
            options = "mode=" + mode.replace("+", ",")
            mount = [program, "mount", address.strip("'\""), str(target), "-o", options]
            subprocess.run([*mount, *run_dir], check=True)
            mounts[f"millpond {mode}, {replicas} replicas"] = target
        yield mounts
    finally:
        for target in mounts.values():
            subprocess.run([program, "umount", "-l", str(target), *run_dir], check=False)
        subprocess.run([*dev, "down", "--purge"], check=False, capture_output=True)


@contextlib.contextmanager
def juicefs(program: str, folder: Path, *, durable: bool) -> Iterator[dict[str, Path]]:
    """JuiceFS with Redis and a folder of this disk as its object store.

    Redis keeps its data in memory only. With `durable` it writes and syncs a log before it answers,
    as Millpond's metas do.
    """
    name = "juicefs + durable redis" if durable else "juicefs + redis"
    folder = folder / name.replace(" + ", "-").replace(" ", "-")
    port, target = free_port(), folder / "mount"
    target.mkdir(parents=True)
    redis = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", ""]
    log = ["yes", "--appendfsync", "always"] if durable else ["no"]
    redis += ["--appendonly", *log, "--dir", str(folder)]
    with server(redis, port, folder / "redis.log"):
        url = f"redis://127.0.0.1:{port}/1"
        bucket = ["--storage", "file", "--bucket", f"{folder}/objects/", "--trash-days", "0"]
        subprocess.run([program, "format", *bucket, url, "bench"], check=True, capture_output=True)
        cache = ["--cache-dir", str(folder / "cache"), "--no-usage-report"]
        mount = [program, "mount", "-d", *cache, url, str(target)]
        subprocess.run(mount, check=True, capture_output=True)
        try:
            yield {name: target}
        finally:
            subprocess.run([program, "umount", str(target)], check=False, capture_output=True)


def measure(places: dict[str, Path], args: argparse.Namespace) -> dict[str, dict[str, list[float]]]:
    """Case -> file system -> a figure per round."""
    results: dict[str, dict[str, list[float]]] = {}

    def note(case: str, name: str, value: float) -> None:
        results.setdefault(case, {}).setdefault(name, []).append(value)

    for number in range(args.rounds):
        for case, options in FIO.items():
            for name, place in places.items():
                note(case, name, fio(place, options, args.seconds))
        for jobs in (1, 4):
            for name, place in places.items():
                for phase, rate in metadata(place / f"tree{number}-{jobs}", jobs).items():
                    note(f"{phase}, {jobs} processes", name, rate)
        print(f"round {number + 1} of {args.rounds} is done", file=sys.stderr)
    return results


def table(results: dict[str, dict[str, list[float]]]) -> str:
    """Medians, with the ratio to JuiceFS."""
    names = list(next(iter(results.values())))
    lines = ["| case | " + " | ".join(names) + " |", "|---|" + "---|" * len(names)]
    for case, row in results.items():
        base = statistics.median(row["juicefs + redis"])
        cells = []
        for name in names:
            middle, spread = (
                statistics.median(row[name]),
                f"{min(row[name]):.0f}-{max(row[name]):.0f}",
            )
            cells.append(f"{middle:.0f} ({spread}), {middle / base:.2f} x")
        lines.append(f"| {case} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--millpond", required=True)
    parser.add_argument("--juicefs", required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=5)
    parser.add_argument("--replicas", type=int, default=1)
    parser.add_argument(
        "--modes",
        default="close-to-open,close-to-open+nodelegations,one-writer",
        help="separated by commas; a + precedes options of a mount",
    )
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=args.out) as name, contextlib.ExitStack() as stack:
        folder = Path(name).resolve()
        (folder / "local").mkdir()
        places = {}
        modes = args.modes.split(",")
        program = os.path.abspath(args.millpond)
        places.update(stack.enter_context(millpond(program, folder, args.replicas, modes)))
        peer = os.path.abspath(args.juicefs)
        for durable in (False, True):
            places.update(stack.enter_context(juicefs(peer, folder, durable=durable)))
        places["this disk's file system"] = folder / "local"
        facts = describe(folder)
        results = measure(places, args)
    report = table(results)
    (args.out / "files.json").write_text(
        json.dumps({"machine": facts, "results": results}, indent=1)
    )
    head = "\n".join(f"{key}: {value}" for key, value in facts.items())
    (args.out / "files.txt").write_text(f"{head}\n\n{report}\n")
    print(f"{head}\n\n{report}")


if __name__ == "__main__":
    main()
