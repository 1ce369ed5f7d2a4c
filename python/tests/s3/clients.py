"""The command lines of S3 clients, as one set of verbs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import boto3
from botocore.config import Config

# Longest time of a client; one that takes longer hangs.
TIMEOUT_S = 60


@dataclass(frozen=True)
class Endpoint:
    """The address of the server, and the credentials of the client."""

    url: str
    access_key: str
    secret_key: str

    @property
    def host(self) -> str:
        return self.url.removeprefix("http://")

    def boto3(self) -> boto3.client:
        """A client of boto3 without retries."""
        return boto3.client(
            "s3",
            endpoint_url=self.url,
            aws_access_key_id=self.access_key,
            aws_secret_access_key=self.secret_key,
            region_name="us-east-1",
            config=Config(
                retries={"max_attempts": 0},
                s3={"addressing_style": "path"},
                # Without this, presigned URLs have version 2.
                signature_version="s3v4",
            ),
        )


class Tool:
    """A program, run once for each verb."""

    # Whether a copy keeps the content type.
    keeps_type = True

    def __init__(self, endpoint: Endpoint, folder: Path, program: str) -> None:
        self.endpoint = endpoint
        self.folder = folder
        self.program = program
        self.environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "LANG": "C.UTF-8",
            "AWS_ACCESS_KEY_ID": endpoint.access_key,
            "AWS_SECRET_ACCESS_KEY": endpoint.secret_key,
            "AWS_REGION": "us-east-1",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_MAX_ATTEMPTS": "1",
        }

    def run(self, *arguments: str | Path) -> str:
        """Output of the program, which must succeed."""
        command = [self.program, *self.options(), *map(str, arguments)]
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            env=self.environment,
            timeout=TIMEOUT_S,
        )
        assert done.returncode == 0, f"{arguments}:\n{done.stdout}{done.stderr}"
        return done.stdout

    def options(self) -> list[str]:
        return []


class Aws(Tool):
    """The aws command line; multipart for 8 MiB and more."""

    def options(self) -> list[str]:
        return ["--endpoint-url", self.endpoint.url]

    def make(self, bucket: str) -> None:
        self.run("s3", "mb", f"s3://{bucket}")

    def remove(self, bucket: str) -> None:
        self.run("s3", "rb", f"s3://{bucket}")

    def put(self, file: Path, bucket: str, key: str) -> None:
        self.run("s3", "cp", "--only-show-errors", file, f"s3://{bucket}/{key}")

    def get(self, bucket: str, key: str, file: Path) -> None:
        self.run("s3", "cp", "--only-show-errors", f"s3://{bucket}/{key}", file)

    def copy(self, bucket: str, key: str, other: str) -> None:
        self.run("s3", "cp", f"s3://{bucket}/{key}", f"s3://{bucket}/{other}")

    def delete(self, bucket: str, key: str) -> None:
        self.run("s3", "rm", f"s3://{bucket}/{key}")

    def list(self, bucket: str, prefix: str) -> set[str]:
        """Keys, and common prefixes, relative to the prefix."""
        shown = self.run("s3", "ls", f"s3://{bucket}/{prefix}").splitlines()
        return {line.split(maxsplit=3 if "PRE " not in line else 1)[-1] for line in shown}

    def sync(self, folder: Path, bucket: str, prefix: str) -> None:
        self.run("s3", "sync", "--delete", folder, f"s3://{bucket}/{prefix}")

    def presign(self, bucket: str, key: str) -> str:
        return self.run("s3", "presign", f"s3://{bucket}/{key}").strip()


class S3cmd(Tool):
    """s3cmd; parts of 5 MiB."""

    def options(self) -> list[str]:
        config = self.folder / "s3cfg"
        if not config.exists():
            config.write_text(
                "[default]\n"
                f"access_key = {self.endpoint.access_key}\n"
                f"secret_key = {self.endpoint.secret_key}\n"
                f"host_base = {self.endpoint.host}\n"
                f"host_bucket = {self.endpoint.host}\n"
                # Its default is "US", which is not the name of a region (docs/s3.md).
                "bucket_location = us-east-1\n"
                "use_https = False\nmax_retries = 1\nmultipart_chunk_size_mb = 5\n"
                "use_mime_magic = False\nprogress_meter = False\n"
            )
        return ["-c", str(config)]

    def make(self, bucket: str) -> None:
        self.run("mb", f"s3://{bucket}")

    def remove(self, bucket: str) -> None:
        self.run("rb", f"s3://{bucket}")

    def put(self, file: Path, bucket: str, key: str) -> None:
        self.run("put", file, f"s3://{bucket}/{key}")

    def get(self, bucket: str, key: str, file: Path) -> None:
        self.run("get", "--force", f"s3://{bucket}/{key}", file)

    def copy(self, bucket: str, key: str, other: str) -> None:
        self.run("cp", f"s3://{bucket}/{key}", f"s3://{bucket}/{other}")

    def delete(self, bucket: str, key: str) -> None:
        self.run("del", f"s3://{bucket}/{key}")

    def list(self, bucket: str, prefix: str) -> set[str]:
        shown = self.run("ls", f"s3://{bucket}/{prefix}").splitlines()
        start = f"s3://{bucket}/{prefix}"
        return {line[line.index(start) + len(start) :] for line in shown}

    def sync(self, folder: Path, bucket: str, prefix: str) -> None:
        self.run("sync", "--delete-removed", f"{folder}/", f"s3://{bucket}/{prefix}/")


class S5cmd(Tool):
    """s5cmd; parts of 5 MiB. It requests copies without the source's metadata."""

    keeps_type = False

    def options(self) -> list[str]:
        return ["--endpoint-url", self.endpoint.url, "--retry-count", "0"]

    def make(self, bucket: str) -> None:
        self.run("mb", f"s3://{bucket}")

    def remove(self, bucket: str) -> None:
        self.run("rb", f"s3://{bucket}")

    def put(self, file: Path, bucket: str, key: str) -> None:
        self.run("cp", "--part-size", "5", file, f"s3://{bucket}/{key}")

    def get(self, bucket: str, key: str, file: Path) -> None:
        self.run("cp", "--part-size", "5", "--raw", f"s3://{bucket}/{key}", file)

    def copy(self, bucket: str, key: str, other: str) -> None:
        self.run("cp", f"s3://{bucket}/{key}", f"s3://{bucket}/{other}")

    def delete(self, bucket: str, key: str) -> None:
        self.run("rm", "--raw", f"s3://{bucket}/{key}")

    def list(self, bucket: str, prefix: str) -> set[str]:
        shown = self.run("--json", "ls", f"s3://{bucket}/{prefix}").splitlines()
        start = f"s3://{bucket}/{prefix}"
        return {json.loads(line)["key"].removeprefix(start) for line in shown}

    def sync(self, folder: Path, bucket: str, prefix: str) -> None:
        self.run("sync", "--delete", f"{folder}/", f"s3://{bucket}/{prefix}/")

    def presign(self, bucket: str, key: str) -> str:
        return self.run("presign", f"s3://{bucket}/{key}").strip()


class Rclone(Tool):
    """rclone; multipart for 5 MiB and more. `check` verifies `sync` and reads both sides."""

    def options(self) -> list[str]:
        remote = {
            "TYPE": "s3",
            "PROVIDER": "Other",
            "ENDPOINT": self.endpoint.url,
            "ACCESS_KEY_ID": self.endpoint.access_key,
            "SECRET_ACCESS_KEY": self.endpoint.secret_key,
            "REGION": "us-east-1",
            "UPLOAD_CUTOFF": "5Mi",
            "CHUNK_SIZE": "5Mi",
        }
        self.environment |= {f"RCLONE_CONFIG_T_{name}": value for name, value in remote.items()}
        return ["--config", os.devnull, "--retries", "1", "--low-level-retries", "1"]

    def make(self, bucket: str) -> None:
        self.run("mkdir", f"T:{bucket}")

    def remove(self, bucket: str) -> None:
        self.run("rmdir", f"T:{bucket}")

    def put(self, file: Path, bucket: str, key: str) -> None:
        self.run("copyto", file, f"T:{bucket}/{key}")

    def get(self, bucket: str, key: str, file: Path) -> None:
        self.run("copyto", f"T:{bucket}/{key}", file)

    def copy(self, bucket: str, key: str, other: str) -> None:
        self.run("copyto", f"T:{bucket}/{key}", f"T:{bucket}/{other}")

    def delete(self, bucket: str, key: str) -> None:
        self.run("deletefile", f"T:{bucket}/{key}")

    def list(self, bucket: str, prefix: str) -> set[str]:
        return set(self.run("lsf", f"T:{bucket}/{prefix}").splitlines())

    def sync(self, folder: Path, bucket: str, prefix: str) -> None:
        self.run("sync", folder, f"T:{bucket}/{prefix}")
        self.run("check", folder, f"T:{bucket}/{prefix}")
        self.run("check", "--download", folder, f"T:{bucket}/{prefix}")

    def presign(self, bucket: str, key: str) -> str:
        return self.run("link", "--expire", "1h", f"T:{bucket}/{key}").strip()


def installed(name: str) -> str:
    """A program of this environment."""
    return str(Path(sys.executable).parent / name)
