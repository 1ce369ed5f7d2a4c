"""Speed of the connector's loads, compared with plain gets of the same bytes.

Prints one line per method of reading, and the ratio. The cache has the layout of vLLM for
the model `full` of demo/build_model.py: 12 layers, 4 KV heads, blocks of 128 tokens. All
methods read the same values from a server that this script starts, into memory that was
touched before. The methods alternate, so that noise of the machine affects all equally.

Run: .venv-vllm/bin/python python/tests/vllm/bench_load.py [--blocks N] [--rounds N]
"""

from __future__ import annotations

import argparse
import logging
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "demo"))

import millpond  # noqa: E402
import numpy as np  # noqa: E402
import server as servers  # noqa: E402
import torch  # noqa: E402
from millpond.vllm.config import ConnectorConfig  # noqa: E402
from millpond.vllm.fence import Fence  # noqa: E402
from millpond.vllm.keys import KeySpace  # noqa: E402
from millpond.vllm.layout import KVLayout  # noqa: E402
from millpond.vllm.lookup import Group  # noqa: E402
from millpond.vllm.meta import GroupBlocks, LoadJob, SaveJob, StepMeta, WorkerHello  # noqa: E402
from millpond.vllm.mover import HostMover  # noqa: E402
from millpond.vllm.session import Target  # noqa: E402
from millpond.vllm.worker import WorkerSide  # noqa: E402

LAYERS = 12
TARGET = Target("bench", b"b" * 32)


class Bench:
    """A rank with a cache of ``2 * blocks`` blocks; the first half is stored."""

    def __init__(self, address: str, transport: str, blocks: int) -> None:
        self.blocks = blocks
        self.config = ConnectorConfig.parse(
            {"address": address, "transport": transport, "save_deadline_ms": 60_000}
        )
        # All layers in one allocation, each contiguous, as in vLLM.
        memory = torch.randint(0, 127, (LAYERS, 2 * blocks, 4, 128, 128), dtype=torch.int16)
        caches = {f"layer.{i}": memory[i] for i in range(LAYERS)}
        layout = KVLayout(caches, [list(caches)], 2 * blocks)
        self.memory = memory
        self.block_bytes = layout.group(0).block_bytes
        self.side = WorkerSide(
            self.config,
            HostMover(layout, batch_blocks=self.config.batch_blocks),
            Fence(str(uuid.uuid4()), 1),
            hello=WorkerHello(0, bytes(32)),
            groups=[Group(0, 128, 1, None, full=True, drop_last=False)],
            whole_requests=False,
            log=logging.getLogger("bench"),
        )
        self.hashes = [i.to_bytes(32, "little") for i in range(1, blocks + 1)]
        self.client = millpond.Client(address, transport=transport, deadline_ms=60_000)
        self.namespace = self.client.namespace(TARGET.name, layout=TARGET.layout)
        space = KeySpace(0, 1)
        self.keys, self.leaders = space.part_keys(self.hashes, 0, range(blocks), 0)
        self.buffers = np.ones((blocks, self.block_bytes), dtype=np.uint8)

    def _group(self, ids: range) -> GroupBlocks:
        return GroupBlocks(0, list(range(self.blocks)), list(ids), self.hashes, 0)

    def _run(self, meta: StepMeta, done: Callable[[], Any]) -> float:
        started = time.perf_counter()
        self.side.start_loads(meta)
        self.side.start_saves(meta)
        while not done():
            pass
        return time.perf_counter() - started

    def save(self) -> float:
        """Stores the first half of the cache through the connector."""
        meta = StepMeta(TARGET, saves=[SaveJob(1, "s", [self._group(range(self.blocks))])])

        def done() -> bool:
            self.side.take_loaded(idle=True)
            report = self.side.take_report()
            if report is not None and report.saves_failed:
                raise RuntimeError("the server did not take all blocks; give it more memory")
            return report is not None

        return self._run(meta, done)

    def connector(self) -> float:
        """Loads all blocks into the second half of the cache, as an engine would."""
        group = self._group(range(self.blocks, 2 * self.blocks))
        meta = StepMeta(TARGET, loads=[LoadJob("r", [group], True)])
        seconds = self._run(meta, lambda: "r" in self.side.take_loaded(idle=True)[0])
        if self.side.take_failed_blocks():
            raise RuntimeError("blocks that were stored did not load")
        return seconds

    def check(self) -> None:
        """Compares the loaded bytes with the stored ones."""
        if not torch.equal(self.memory[:, : self.blocks], self.memory[:, self.blocks :]):
            raise RuntimeError("loaded bytes differ from the stored ones")

    def plain(self, threads: ThreadPoolExecutor, batch: int) -> float:
        """Reads the same values with plain gets into one buffer per value."""

        def get(at: int) -> None:
            part = slice(at, at + batch)
            sizes = self.namespace.get(
                self.keys[part], list(self.buffers[part]), leaders=self.leaders[part]
            )
            if min(sizes) != self.block_bytes:
                raise RuntimeError("a stored block was missed")

        started = time.perf_counter()
        list(threads.map(get, range(0, self.blocks, batch)))
        return time.perf_counter() - started

    def close(self) -> None:
        """Ends the threads and disconnects."""
        self.side.close()
        self.client.close()


def report(name: str, seconds: list[float], size: int) -> float:
    """Prints a line; returns the median rate in bytes per second."""
    rates = sorted(size / s for s in seconds)
    median = statistics.median(rates)
    print(
        f"{name:<28} median {median / 1e9:6.2f} GB/s   "
        f"lowest {rates[0] / 1e9:.2f}, highest {rates[-1] / 1e9:.2f}, {len(rates)} rounds"
    )
    return median


def header() -> None:
    """Prints machine, commit and command."""
    commit = subprocess.run(
        ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"],
        capture_output=True,
        text=True,
        check=False,
    ).stdout.strip()
    print(f"# {platform.machine()}, {os.cpu_count()} cores, commit {commit}")
    print(f"# {' '.join(sys.argv)}")


def main() -> int:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--transport", default="auto")
    args = parser.parse_args()
    header()
    with tempfile.TemporaryDirectory(dir=ROOT / ".demo") as folder:
        server = servers.Server(Path(folder) / "store", Path(folder) / "server.log")
        server.start()
        bench = Bench(server.address, args.transport, args.blocks)
        try:
            size = args.blocks * bench.block_bytes
            print(
                f"# {args.blocks} blocks of {bench.block_bytes:,} bytes in {LAYERS} segments, "
                f"{bench.config.io_threads} threads, batches of {bench.config.batch_blocks}, "
                f"transport {bench.client.transport}"
            )
            report("connector save", [bench.save()], size)
            one, two = ThreadPoolExecutor(1), ThreadPoolExecutor(bench.config.io_threads)
            ways: dict[str, Callable[[], float]] = {
                "connector load": bench.connector,
                "plain get, one thread": lambda: bench.plain(one, bench.config.batch_blocks),
                "plain get, as many threads": lambda: bench.plain(two, bench.config.batch_blocks),
            }
            seconds: dict[str, list[float]] = {name: [] for name in ways}
            for round_index in range(args.rounds + 2):
                for name, way in ways.items():
                    taken = way()
                    if round_index >= 2:
                        seconds[name].append(taken)
            bench.check()
            rates = [report(name, seconds[name], size) for name in ways]
            print(f"connector load / plain get: {rates[0] / max(rates[1:]):.2f} (target 0.70)")
        finally:
            bench.close()
            server.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
