"""A `millpond server` process for the demo and the tests."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

START_S_MAX = 60
STOP_S_MAX = 30


class ServerError(RuntimeError):
    """The server did not start or stop; the text names its log."""


def free_port() -> int:
    """Returns a loopback port without a listener."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def binary() -> str:
    """Finds the `millpond` command: next to this Python, or on the path."""
    beside = Path(sys.executable).parent / "millpond"
    found = os.environ.get("MILLPOND_BIN") or (
        str(beside) if beside.exists() else shutil.which("millpond")
    )
    if found is None:
        raise ServerError("the millpond command is not installed; run demo/run.sh or make install")
    return found


class Server:
    """A server on loopback with its data in one folder, which survives `restart`."""

    def __init__(self, data: Path, log: Path, *arguments: str) -> None:
        """See the class."""
        self.data = data
        self.log = log
        self.port = free_port()
        self.http_port = free_port()
        self._arguments = arguments
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """Address for clients."""
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """Process id of the running server."""
        assert self._process is not None, "the server runs"
        return self._process.pid

    def command(self) -> list[str]:
        """Returns the command: a plain server, with addresses and sizes of its own."""
        command = [binary(), "server", "--data", str(self.data), "--listen", self.address]
        return [*command, "--http", f"127.0.0.1:{self.http_port}", *self._arguments]

    def start(self) -> None:
        """Starts the server and waits until it is ready.

        Raises:
            ServerError: it ended or was not ready in time.
        """
        self.data.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(self.command(), stdout=log, stderr=log)
        end = time.monotonic() + START_S_MAX
        while not self._ready():
            if self._process.poll() is not None:
                raise ServerError(f"millpond server ended at once; see {self.log}")
            if time.monotonic() > end:
                self.kill()
                raise ServerError(f"millpond server was not ready in time; see {self.log}")
            time.sleep(0.02)

    def _ready(self) -> bool:
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{self.http_port}/readyz", timeout=1
            ) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def stop(self) -> None:
        """Ends the server cleanly, so that it keeps all acknowledged values."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Ends the server with ``kill -9``."""
        self._end(signal.SIGKILL)

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(how)
        try:
            process.wait(timeout=STOP_S_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def metric(self, name: str) -> float:
        """Returns the sum of a Prometheus metric's series; 0 if there is none."""
        with (
            contextlib.suppress(urllib.error.URLError, OSError),
            urllib.request.urlopen(
                f"http://127.0.0.1:{self.http_port}/metrics", timeout=5
            ) as answer,
        ):
            lines = answer.read().decode().splitlines()
            return sum(
                float(line.rsplit(" ", 1)[1])
                for line in lines
                if line.split("{")[0].split(" ")[0] == name
            )
        return 0.0
