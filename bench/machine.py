"""Facts about the machine, the build and the file system that every result carries."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


def _output(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    except OSError:
        return ""
    return done.stdout.strip()


def _field(path: str, name: str) -> str:
    try:
        text = Path(path).read_text()
    except OSError:
        return ""
    for line in text.splitlines():
        if line.startswith(name):
            return line.split(":", 1)[1].strip()
    return ""


def _file_system(folder: Path) -> str:
    return _output("findmnt", "-no", "FSTYPE,SOURCE", "-T", str(folder)).replace("\n", " ")


def describe(data: Path) -> dict[str, Any]:
    """Commit, build and machine, for the head of every report."""
    memory_kb = int((_field("/proc/meminfo", "MemTotal") or "0 kB").split()[0])
    commit = _output("git", "rev-parse", "--short=12", "HEAD") or "unknown"
    if _output("git", "status", "--porcelain", "--untracked-files=no"):
        commit += " + local changes"
    return {
        "cpu": _field("/proc/cpuinfo", "model name") or platform.machine(),
        "cores": os.cpu_count(),
        "memory_gib": round(memory_kb / 2**20, 1),
        "kernel": platform.release(),
        "file_system": _file_system(data) or "unknown",
        "python": platform.python_version(),
        "rustc": _output("rustc", "--version"),
        "commit": commit,
        "load_before": round(os.getloadavg()[0], 2),
    }


def headline(facts: dict[str, Any]) -> str:
    """The facts in two lines."""
    return (
        f"{facts['cpu']}, {facts['cores']} cores, {facts['memory_gib']} GiB, "
        f"{facts['file_system']}, kernel {facts['kernel']}\n"
        f"commit {facts['commit']}, {facts['rustc']}, Python {facts['python']}, "
        f"load before {facts['load_before']}"
    )
