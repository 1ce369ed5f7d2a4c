"""Multipart uploads to Millpond servers and SeaweedFS: times of the parts and the completion.

Every server runs one upload per round, in rotating order, so that a slow minute of a shared
machine affects all of them. Completed objects are read back and compared.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import statistics
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from machine import describe
from sides import ACCESS_KEY, SECRET_KEY, Side, millpond, seaweedfs

MIB = 1 << 20
BUCKET = "uploads"


def client(side: Side) -> Any:
    """A client that neither signs nor checksums bodies, so that the server dominates the time."""
    config = Config(
        s3={"payload_signing_enabled": False, "addressing_style": "path"},
        request_checksum_calculation="when_required",
        max_pool_connections=64,
        read_timeout=600,
        retries={"total_max_attempts": 1},
    )
    return boto3.client(
        "s3",
        endpoint_url=side.endpoint,
        aws_access_key_id=ACCESS_KEY,
        aws_secret_access_key=SECRET_KEY,
        region_name="us-east-1",
        config=config,
    )


def upload(side: Side, key: str, parts: list[bytes], threads: int) -> dict[str, float]:
    """Seconds of the parts and of the completion, and CPU seconds of the server."""
    s3, cpu, start = client(side), side.cpu_s(), time.monotonic()
    name = {"Bucket": BUCKET, "Key": key}
    name["UploadId"] = s3.create_multipart_upload(**name)["UploadId"]

    def send(number: int) -> dict[str, Any]:
        etag = s3.upload_part(**name, PartNumber=number, Body=parts[number - 1])["ETag"]
        return {"PartNumber": number, "ETag": etag}

    with ThreadPoolExecutor(threads) as pool:
        sent = list(pool.map(send, range(1, len(parts) + 1)))
    then = time.monotonic()
    s3.complete_multipart_upload(**name, MultipartUpload={"Parts": sent})
    end = time.monotonic()
    return {"parts_s": then - start, "complete_s": end - then, "cpu_s": side.cpu_s() - cpu}


def check(side: Side, key: str, parts: list[bytes]) -> None:
    """Ends the run if an object differs from its parts."""
    body = client(side).get_object(Bucket=BUCKET, Key=key)["Body"]
    found, wanted = hashlib.md5(), hashlib.md5()
    for piece in body.iter_chunks(4 * MIB):
        found.update(piece)
    for part in parts:
        wanted.update(part)
    if found.digest() != wanted.digest():
        sys.exit(f"{side.name}: the object differs from its parts")


def run(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Figures by side, each a list with one number per round."""
    block = os.urandom(args.part_mib * MIB)
    parts = [number.to_bytes(8, "big") + block[8:] for number in range(args.parts - 1)]
    parts.append(block[: MIB + 5])
    rows: dict[str, dict[str, list[float]]] = {}
    with contextlib.ExitStack() as stack:
        sides = [
            stack.enter_context(seaweedfs(str(Path(args.weed).resolve()), folder, durable=True))
        ]
        for number, program in enumerate(args.millpond):
            place = folder / str(number)
            side = stack.enter_context(millpond(program, place, args.disk))
            sides.append(Side(f"millpond {program}", side.endpoint, side.pid, side.address))
        for side in sides:
            client(side).create_bucket(Bucket=BUCKET)
            upload(side, "warm-up", parts[-1:], 1)
        for number in range(args.rounds):
            for side in sides[number % len(sides) :] + sides[: number % len(sides)]:
                found = upload(side, "object", parts, args.threads)
                if number == 0:
                    check(side, "object", parts)
                client(side).delete_object(Bucket=BUCKET, Key="object")
                for figure, value in found.items():
                    rows.setdefault(side.name, {}).setdefault(figure, []).append(value)
                print(f"round {number + 1}: {side.name}: {json.dumps(found)}", flush=True)
    return rows


def main() -> None:
    """Runs, and prints medians with the spread."""
    parser = argparse.ArgumentParser(description=__doc__)
    help_text = "a program; several may be named"
    parser.add_argument("--millpond", action="append", required=True, help=help_text)
    help_text = "SeaweedFS's program, as printed by bench/s3/seaweedfs.sh"
    parser.add_argument("--weed", required=True, help=help_text)
    parser.add_argument("--parts", type=int, default=16)
    parser.add_argument("--part-mib", type=int, default=64)
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--disk", default="8GiB", help="size of Millpond's disk")
    args = parser.parse_args()
    print("\n".join(f"{name}: {value}" for name, value in describe(Path()).items()))
    print("command: " + " ".join(sys.argv))
    with tempfile.TemporaryDirectory(prefix="bench-uploads-", dir=".") as folder:
        rows = run(args, Path(folder).resolve())
    for side, figures in rows.items():
        for figure, values in figures.items():
            low, middle, high = min(values), statistics.median(values), max(values)
            print(f"{side:40} {figure:12} {middle:8.2f}  ({low:.2f} to {high:.2f})")


if __name__ == "__main__":
    main()
