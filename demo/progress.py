"""Progress of tasks, at a terminal and in logs.

At a terminal every task is a bar. Elsewhere (CI, a file) a task prints a line when it begins,
a line from time to time, and a line when it ends, so that a log shows the running task and its
duration.
"""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

_LINE_EVERY_S = 5.0
"""Time between two lines of one task without a terminal."""


class Task:
    """One task with a number of steps."""

    def __init__(self, owner: Reporter, name: str, total: int) -> None:
        """See the class; `Reporter.task` makes them."""
        self._owner = owner
        self._name = name
        self._total = total
        self._done = 0
        self._started = self._told = time.monotonic()
        self._bar = None if owner.bars is None else owner.bars.add_task(name, total=total)
        if self._bar is None:
            owner.line(f"{name} ...")

    def advance(self) -> None:
        """Counts one step."""
        self._done += 1
        now = time.monotonic()
        if self._bar is not None and self._owner.bars is not None:
            self._owner.bars.advance(self._bar)
        elif self._done == self._total:
            self._owner.line(f"{self._name}: done in {now - self._started:.1f} s")
        elif now - self._told >= _LINE_EVERY_S:
            self._told = now
            self._owner.line(f"{self._name}: {self._done} of {self._total}")


class Reporter:
    """Shows tasks as bars at a terminal, as lines elsewhere."""

    def __init__(self, console: Console) -> None:
        """See the class."""
        self._console = console
        self._started = time.monotonic()
        columns: list[Any] = [
            TextColumn("{task.description:<48}"),
            BarColumn(),
            TextColumn("{task.completed}/{task.total}"),
            TimeElapsedColumn(),
        ]
        self.bars = Progress(*columns, console=console) if console.is_terminal else None

    def __enter__(self) -> Reporter:
        """Starts drawing."""
        if self.bars is not None:
            self.bars.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stops drawing."""
        if self.bars is not None:
            self.bars.stop()

    def task(self, name: str, total: int = 1) -> Task:
        """Begins a task.

        Args:
            name: name of the task.
            total: number of its steps.
        """
        return Task(self, name, total)

    def line(self, text: str) -> None:
        """Prints a line, with the time since the start if there is no terminal."""
        clock = "" if self.bars is not None else f"[{time.monotonic() - self._started:5.1f} s] "
        self._console.print(f"{clock}{text}", markup=False, highlight=False, soft_wrap=True)
