"""Fixtures of the vLLM tests: a real server, a generated model, real engines."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "demo"))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import build_model  # noqa: E402
import corpus  # noqa: E402
import engine as engines  # noqa: E402
import server as servers  # noqa: E402

CONTEXT_TOKENS = 4096
SERVER_ARGUMENTS = ("--memory", "512MiB", "--size", "2GiB")


@pytest.fixture(scope="session")
def context(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A fork server that has vLLM imported."""
    os.environ["VLLM_CPU_KVCACHE_SPACE"] = "1"
    return engines.start_method(tmp_path_factory.mktemp("vllm") / "imports.log")


@pytest.fixture(scope="session")
def models() -> Callable[[str], Path]:
    """Builds a model of a given shape, once."""

    def build(shape: str) -> Path:
        folder = ROOT / ".demo" / "models" / shape
        build_model.ensure(folder, shape)
        return folder

    return build


@pytest.fixture
def server() -> Iterator[servers.Server]:
    """A running server with an empty store."""
    # With pytest's folders, paths are too long for a Unix socket.
    folder = Path(tempfile.mkdtemp(prefix="millpond-"))
    running = servers.Server(folder / "store", folder / "server.log", *SERVER_ARGUMENTS)
    running.start()
    yield running
    running.stop()
    shutil.rmtree(folder)


Start = Callable[..., engines.Engine]


@pytest.fixture
def start(context: Any, models: Callable[[str], Path], tmp_path: Path) -> Iterator[Start]:
    """Starts engines and ends them after the test."""
    running: list[engines.Engine] = []

    def begin(
        shape: str = "quick",
        *,
        connector: dict[str, Any] | None = None,
        local_cache: bool = True,
        **options: Any,
    ) -> engines.Engine:
        spec = engines.Spec(
            model=models(shape),
            log=tmp_path / "vllm.log",
            context_tokens=CONTEXT_TOKENS,
            local_cache=local_cache,
            connector=connector,
            options=options,
        )
        running.append(engines.Engine(context, spec))
        return running[-1]

    yield begin
    for engine in running:
        engine.kill()


@pytest.fixture(scope="session")
def texts() -> list[str]:
    """Long real texts."""
    return [document.text for document in corpus.documents(4, 1)]
