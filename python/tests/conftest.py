"""A real ``millpond server`` on free ports, for tests that start, kill and restart it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

START_TIMEOUT_S = 60.0


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Server:
    """One server process with its data folder."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.data = folder / "data"
        self.log = folder / "server.log"
        self.port = free_port()
        self.http_port = free_port()
        self.arguments = arguments
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def start(self) -> None:
        """Start the server and wait until it is ready."""
        command = [sys.executable, "-m", "millpond._cli", "server"]
        command += ["--data", str(self.data), "--listen", self.address]
        command += ["--http", f"127.0.0.1:{self.http_port}"]
        if "--size" not in self.arguments:
            command += ["--size", "1GiB", "--memory", "256MiB"]
        command += self.arguments
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self.is_ready():
            if self.process.poll() is not None or time.monotonic() > deadline:
                pytest.fail(f"the server did not start:\n{self.log.read_text()[-4000:]}")
            time.sleep(0.02)

    def is_ready(self) -> bool:
        """Whether the server reports that it is ready."""
        try:
            url = f"http://127.0.0.1:{self.http_port}/readyz"
            with urllib.request.urlopen(url, timeout=1) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def metrics(self) -> str:
        """The text of ``/metrics``."""
        url = f"http://127.0.0.1:{self.http_port}/metrics"
        with urllib.request.urlopen(url, timeout=5) as answer:
            return str(answer.read().decode())

    def stop(self) -> int:
        """Ask the server to stop, wait for its end and return its exit status."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(30)

    def kill(self) -> None:
        """End the server as a crash would."""
        assert self.process is not None
        self.process.kill()
        self.process.wait(30)

    def freeze(self) -> None:
        """Make every thread of the server hang, and wait until they do."""
        os.kill(self.pid, signal.SIGSTOP)
        tasks = Path(f"/proc/{self.pid}/task")
        deadline = time.monotonic() + START_TIMEOUT_S
        # The state is the first word after the name, which is in parentheses.
        while any(
            (t / "stat").read_text().rsplit(")", 1)[1].split()[0] != "T" for t in tasks.iterdir()
        ):
            assert time.monotonic() < deadline
            time.sleep(0.001)

    def thaw(self) -> None:
        """Let a hanging server continue."""
        os.kill(self.pid, signal.SIGCONT)

    def restart(self) -> None:
        """Stop cleanly and start again on the same ports and data."""
        self.stop()
        self.start()

    def close(self) -> None:
        """End the server in any state."""
        if self.process is not None and self.process.poll() is None:
            os.kill(self.process.pid, signal.SIGCONT)
            self.kill()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """A running server for this test alone."""
    running = Server(tmp_path)
    running.start()
    yield running
    running.close()


@pytest.fixture(scope="session")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A running server that tests share; each uses a namespace of its own."""
    running = Server(tmp_path_factory.mktemp("server"))
    running.start()
    yield running
    running.close()


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A running cluster of one node, for files; tests use names of their own."""
    flags = ["--manager", "--form-nodes", "1", "--replicas", "1", "--size", "2GiB"]
    running = Server(tmp_path_factory.mktemp("cluster"), *flags)
    running.start()
    yield running
    running.close()
