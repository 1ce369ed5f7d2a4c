"""Buckets of a Millpond server with SeaweedFS behind them."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass

from clients import Endpoint

# The bucket of the store behind that all others go to, each to a prefix of its own.
BEHIND = "behind"
# What a command may take: `persist --wait` sends what a test has left.
TIMEOUT_S = 120


@dataclass(frozen=True)
class Backed:
    """What operators do to a server, and what is behind its buckets then."""

    program: str
    # Of the server, for its commands.
    address: str
    mode: str
    store: Endpoint

    def run(self, *words: str) -> None:
        environment = {
            **os.environ,
            "MILLPOND_ADDRESS": self.address,
            "MILLPOND_S3_BACKEND_SECRET": self.store.secret_key,
        }
        done = subprocess.run(
            [self.program, "s3", *words],
            capture_output=True,
            text=True,
            check=False,
            env=environment,
            timeout=TIMEOUT_S,
        )
        assert done.returncode == 0, f"{words}:\n{done.stdout}{done.stderr}"

    def begin(self) -> None:
        """Tells the server where the store is."""
        self.store.boto3().create_bucket(Bucket=BEHIND)
        access = ("--endpoint", self.store.url, "--access-key", self.store.access_key)
        self.run("backend", "add", "weed", *access)

    def back(self, bucket: str) -> None:
        place = ("--backend-bucket", BEHIND, "--prefix", f"{bucket}/")
        self.run("bucket", "add", bucket, "--backend", "weed", *place, "--mode", self.mode)

    def wait(self, bucket: str) -> None:
        """Waits until nothing waits for the store."""
        self.run("persist", "--wait", f"s3://{bucket}/")

    def settle(self, bucket: str, shown: dict[str, str]) -> None:
        """Waits until the store has what clients were shown: keys and their ETags."""
        self.wait(bucket)
        pages = self.store.boto3().get_paginator("list_objects_v2")
        there = {
            entry["Key"].removeprefix(f"{bucket}/"): entry["ETag"]
            for page in pages.paginate(Bucket=BEHIND, Prefix=f"{bucket}/")
            for entry in page.get("Contents", [])
        }
        wanted = {} if self.mode == "transient" else shown
        assert there == wanted, f"behind: {there}, wanted: {wanted}"
