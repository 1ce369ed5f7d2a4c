"""Buckets of a Millpond server with SeaweedFS as their backend."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass

from clients import Endpoint

# The bucket of the backend for all other buckets, each under a prefix of its own.
BEHIND = "behind"
# Longest time of a command: `persist --wait` sends all unsent objects of a test.
TIMEOUT_S = 120


@dataclass(frozen=True)
class Backed:
    """Commands of operators to a server, and the backend of its buckets afterwards."""

    program: str
    # Address of the server, for its commands.
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
        """Adds the backend to the server."""
        self.store.boto3().create_bucket(Bucket=BEHIND)
        access = ("--endpoint", self.store.url, "--access-key", self.store.access_key)
        self.run("backend", "add", "weed", *access)

    def back(self, bucket: str) -> None:
        place = ("--backend-bucket", BEHIND, "--prefix", f"{bucket}/")
        self.run("bucket", "add", bucket, "--backend", "weed", *place, "--mode", self.mode)

    def wait(self, bucket: str) -> None:
        """Waits until no object waits for the backend."""
        self.run("persist", "--wait", f"s3://{bucket}/")

    def settle(self, bucket: str, shown: dict[str, str]) -> None:
        """Waits until the backend has the keys and ETags that clients have seen."""
        self.wait(bucket)
        pages = self.store.boto3().get_paginator("list_objects_v2")
        there = {
            entry["Key"].removeprefix(f"{bucket}/"): entry["ETag"]
            for page in pages.paginate(Bucket=BEHIND, Prefix=f"{bucket}/")
            for entry in page.get("Contents", [])
        }
        wanted = {} if self.mode == "transient" else shown
        assert there == wanted, f"backend: {there}, wanted: {wanted}"
