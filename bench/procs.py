"""Servers that a benchmark starts, and always ends by their process id."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path


class NotStarted(Exception):
    """A server did not start; the message has the end of its log."""


def free_port() -> int:
    """A port on loopback without a listener."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def answers(port: int) -> bool:
    """Whether a process accepts connections on the port."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=0.2):
        return True
    return False


@contextlib.contextmanager
def server(
    command: Sequence[str],
    port: int,
    log: Path,
    *,
    wait_s: float = 30.0,
    env: Mapping[str, str] | None = None,
) -> Iterator[subprocess.Popen[bytes]]:
    """Runs a server until the block ends; yields as soon as its port answers."""
    with log.open("wb") as out:
        child = subprocess.Popen(
            list(command),
            stdout=out,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env=dict(env) if env is not None else None,
            # Only this program receives Ctrl-C; it then ends its children in order.
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + wait_s
        while not answers(port):
            if child.poll() is not None or time.monotonic() > deadline:
                tail = log.read_text(errors="replace")[-1500:]
                raise NotStarted(f"{command[0]} did not start:\n{tail}")
            time.sleep(0.05)
        yield child
    finally:
        stop(child)


def stop(child: subprocess.Popen[bytes], grace_s: float = 15.0) -> None:
    """Asks a child to end, and kills it if it does not."""
    if child.poll() is None:
        child.send_signal(signal.SIGTERM)
        try:
            child.wait(timeout=grace_s)
        except subprocess.TimeoutExpired:
            child.kill()
    child.wait()
