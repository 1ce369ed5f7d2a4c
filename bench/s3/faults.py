"""PUT and read after write of a write-back bucket while its backend has faults.

The backend is SeaweedFS. Between it and the Millpond server is a proxy that injects faults. Each
fault is measured between two healthy runs, and figures are ratios to their mean. No request may
fail. The backlog drains after each fault. At the end every key is read from SeaweedFS itself: it
must have the last acknowledged write, deletes included.

    python3 -B bench/s3/faults.py --out .bench/s3 --millpond PATH --load PATH --weed PATH
"""

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
import urllib.request
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from machine import describe
from procs import free_port, server
from sides import ACCESS_KEY, SECRET_KEY, START_S, Side, keys, millpond, seaweedfs

FAULTS: dict[str, dict[str, Any]] = {
    "latency 30-70 ms": {"latency_ms": [30, 70]},
    "20 requests/s, then 503 SlowDown": {"requests_per_s": 20},
    "30 % 500s": {"error_rate": 0.3},
    "30 % resets": {"reset_rate": 0.3},
    "10 % hangs": {"hang_rate": 0.1},
    "30 % done and reset": {"commit_reset_rate": 0.3},
    "outage": {"outage": True},
}
FRONT, BEHIND = "bench", "behind"
LANES = {"put": "PUT", "get": "read after write"}
QUANTILES = ("p50_us", "p99_us")
# Longest drain; a longer one has failed.
DRAIN_S = 600
Figures = dict[str, float]


class Run:
    """All servers, and the results."""

    def __init__(self, args: argparse.Namespace, folder: Path, far: Side, proxy: str, front: Side):
        self.args, self.folder, self.far, self.proxy, self.front = args, folder, far, proxy, front
        self.failed: list[str] = []

    def faults(self, faults: dict[str, Any]) -> None:
        """Sets the proxy's faults; all others are off."""
        body = json.dumps(faults).encode()
        request = urllib.request.Request(f"{self.proxy}/_faults", data=body, method="PUT")
        urllib.request.urlopen(request, timeout=START_S).close()

    def load(self, workload: str, more: list[str], bucket: str, side: Side) -> dict[str, Any]:
        """Runs the generator once; its journal continues from run to run."""
        command = [self.args.load, "load", workload, "--endpoint", side.endpoint]
        command += ["--bucket", bucket, "--size", self.args.size, "--prefix", f"{workload}/", *more]
        if bucket == FRONT:
            command += ["--journal", str(self.folder / f"{workload}.journal")]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=keys())
        if done.returncode != 0:
            raise SystemExit(f"{workload}: {done.stdout}{done.stderr}")
        report: dict[str, Any] = json.loads(done.stdout)
        for lane in ("put", "get", "delete"):
            if errors := report.get(lane, {}).get("errors"):
                self.failed.append(f"{workload}, {lane}: {errors}")
        return report

    def measure(self) -> Figures:
        """Puts and reads after writes, then an unmeasured mix of overwrites and deletes."""
        more = ["--concurrency", str(self.args.concurrency), "--keys", "2000"]
        more += ["--seconds", str(self.args.seconds)]
        seen = self.load("read-after-write", more, FRONT, self.front)
        mix = ["--concurrency", "4", "--keys", "400", "--reads", "20", "--deletes", "30"]
        self.load("mixed", [*mix, "--seconds", "1"], FRONT, self.front)
        return {f"{lane} {at}": float(seen[lane][at]) for lane in LANES for at in QUANTILES}

    def drain(self) -> float:
        """Heals the backend, waits until it has everything, and returns the seconds of the wait."""
        self.faults({})
        begun = time.monotonic()
        env = {**os.environ, "MILLPOND_ADDRESS": self.front.address}
        command = [self.args.millpond, "s3", "persist", "--wait", f"s3://{FRONT}"]
        subprocess.run(command, check=True, env=env, timeout=DRAIN_S, stdout=subprocess.DEVNULL)
        return time.monotonic() - begun

    def verify(self, workload: str) -> str:
        """Compares the backend with the acknowledged writes."""
        command = [self.args.load, "verify", "--journal", str(self.folder / f"{workload}.journal")]
        command += ["--endpoint", self.far.endpoint, "--bucket", BEHIND, "--strict"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=keys())
        if done.returncode != 0:
            self.failed.append(f"{workload} behind: {done.stdout[-2000:]}{done.stderr}")
        return done.stdout

    def rounds(self) -> str:
        """All faults in all rounds, as a table."""
        ratios: dict[str, dict[str, list[float]]] = {}
        drains: dict[str, list[float]] = {}
        healthy: dict[str, list[float]] = {}
        before = self.measure()
        for number in range(self.args.rounds):
            for name, faults in FAULTS.items():
                if self.args.only and self.args.only not in name:
                    continue
                self.faults({"seed": number + 1, **faults})
                seen = self.measure()
                drains.setdefault(name, []).append(self.drain())
                after = self.measure()
                for figure, value in seen.items():
                    base = (before[figure] + after[figure]) / 2
                    ratios.setdefault(name, {}).setdefault(figure, []).append(value / base)
                    healthy.setdefault(figure, []).append(after[figure])
                before = after
                print(f"{name}: drained within {drains[name][-1]:.1f} s", file=sys.stderr)
        self.drain()
        head = [f"{text} {at[:3]}" for text in LANES.values() for at in QUANTILES]
        lines = ["| behind | " + " | ".join(head) + " | drained within |"]
        lines += ["|---|" + "---|" * (len(head) + 1)]
        base = [f"{statistics.median(it):,.0f} us" for it in healthy.values()]
        lines += [f"| healthy | {' | '.join(base)} | |"]
        for name, row in ratios.items():
            cells = [
                f"{statistics.median(it):.2f} x ({min(it):.2f}-{max(it):.2f})"
                for it in row.values()
            ]
            lines.append(f"| {name} | {' | '.join(cells)} | {max(drains[name]):.1f} s |")
        return "\n".join(lines)


@contextlib.contextmanager
def proxied(load: str, side: Side):  # type: ignore[no-untyped-def]
    """A proxy in front of a server; returns its address."""
    port = free_port()
    target = side.endpoint.removeprefix("http://")
    command = [load, "proxy", "--listen", f"127.0.0.1:{port}", "--to", target]
    with server(command, port, Path(os.devnull)):
        yield f"http://127.0.0.1:{port}"


def back(program: str, front: Side, proxy: str) -> None:
    """Makes the proxy the backend of the bucket."""
    env = {
        **os.environ,
        "MILLPOND_ADDRESS": front.address,
        "MILLPOND_S3_BACKEND_SECRET": SECRET_KEY,
    }
    for words in (
        ["backend", "add", "far", "--endpoint", proxy, "--access-key", ACCESS_KEY],
        ["bucket", "add", FRONT, "--backend", "far", "--backend-bucket", BEHIND],
    ):
        subprocess.run([program, "s3", *words], check=True, env=env, timeout=START_S)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--out", type=Path, default=Path(".bench/s3"))
    parser.add_argument("--load", required=True, help="millpond-s3-load")
    parser.add_argument("--weed", required=True, help="SeaweedFS")
    parser.add_argument("--millpond", required=True)
    parser.add_argument("--disk", default="4GiB", help="of Millpond")
    parser.add_argument("--size", default="10KiB", help="size of an object")
    parser.add_argument("--concurrency", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--only", help="only faults with this text in their names")
    args = parser.parse_args()
    for name in ("load", "weed", "millpond"):
        setattr(args, name, str(Path(getattr(args, name)).resolve()))
    return args


def main() -> None:
    args = parsed()
    args.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=args.out) as name, contextlib.ExitStack() as stack:
        folder = Path(name).resolve()
        facts = describe(folder)
        far = stack.enter_context(seaweedfs(args.weed, folder, durable=False))
        proxy = stack.enter_context(proxied(args.load, far))
        front = stack.enter_context(millpond(args.millpond, folder, args.disk))
        run = Run(args, folder, far, proxy, front)
        # Creates the bucket there; no client has the key.
        once = ["--concurrency", "1", "--keys", "1", "--seconds", "0.2"]
        run.load("put", once, BEHIND, far)
        back(args.millpond, front, proxy)
        run.measure()
        table = run.rounds()
        verdicts = {it: run.verify(it) for it in ("read-after-write", "mixed")}
    head = "\n".join(f"{key}: {value}" for key, value in facts.items())
    report = f"{head}\n\n{table}\n\n{json.dumps(verdicts, indent=1)}\n"
    (args.out / "faults.txt").write_text(report)
    print(report)
    if run.failed:
        raise SystemExit("FAILED:\n" + "\n".join(run.failed))
    print("No request failed; the backend has all acknowledged writes.")


if __name__ == "__main__":
    main()
