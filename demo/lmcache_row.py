"""LMCache beside Millpond: its server with memory and a local disk, and vLLM's connector."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from server import STOP_S_MAX, ServerError, free_port

NAME = "LMCache (memory, local disk)"
START_S_MAX = 600
MEMORY_GIB = 1

_port = 0


def find(data: Path) -> tuple[Path | None, str]:
    """Returns the folder of LMCache's installation by `setup.sh`, or None and the reason."""
    folder = data / "lmcache"
    if (folder / "lmcache").is_dir():
        return folder, ""
    reason = data / "lmcache.reason"
    return None, reason.read_text(encoding="utf-8").strip() if reason.exists() else "not installed"


def options() -> dict[str, Any]:
    """Returns the arguments of ``vllm.LLM`` that name the server."""
    return {
        "kv_transfer_config": {
            "kv_connector": "LMCacheMPConnector",
            "kv_role": "kv_both",
            "kv_connector_extra_config": {
                "lmcache.mp.host": "tcp://127.0.0.1",
                "lmcache.mp.port": _port,
            },
        },
        "disable_hybrid_kv_cache_manager": True,
    }


@contextlib.contextmanager
def serve(packages: Path, folder: Path) -> Iterator[None]:
    """Runs LMCache's server until the block ends.

    Raises:
        ServerError: it was not ready in time.
    """
    global _port
    _port, http = free_port(), free_port()
    disk = folder / "lmcache"
    disk.mkdir()
    command = [sys.executable, "-m", "lmcache.cli.main", "server", "--host", "127.0.0.1"]
    command += ["--port", str(_port), "--http-port", str(http)]
    # The only mode without a GPU; chunks of one block, as in Millpond.
    command += ["--supported-transfer-mode", "engine_driven", "--chunk-size", "128"]
    command += ["--l1-size-gb", str(MEMORY_GIB), "--eviction-policy", "LRU"]
    command += ["--l2-adapter", json.dumps({"type": "fs", "base_path": str(disk)})]
    environment = {**os.environ, "PYTHONPATH": str(packages), "LMCACHE_TRACK_USAGE": "false"}
    with (folder / "lmcache.log").open("ab") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
    try:
        _until_ready(process, http, folder / "lmcache.log")
        yield
    finally:
        process.terminate()
        try:
            process.wait(timeout=STOP_S_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _until_ready(process: subprocess.Popen[bytes], http: int, log: Path) -> None:
    end = time.monotonic() + START_S_MAX
    while True:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{http}/openapi.json", timeout=2).close()
            return
        except (urllib.error.URLError, OSError):
            pass
        if process.poll() is not None or time.monotonic() > end:
            raise ServerError(f"LMCache's server did not start; see {log}")
        time.sleep(0.2)
