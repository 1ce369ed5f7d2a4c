"""Worker threads for the asyncio clients; every process has its own."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from millpond._native import generation

__all__ = ["Threads"]

T = TypeVar("T")


class _Here:
    """The threads and the lock of one process."""

    def __init__(self, count: int, name: str) -> None:
        self.generation = generation()
        self.pool = ThreadPoolExecutor(count, thread_name_prefix=name)
        self.lock = threading.Lock()


class Threads:
    """Threads that run blocking calls. A child of a fork has none of them and starts its own.

    Args:
        count: calls that run in parallel.
        name: name of the threads.
        closed: makes the exception that calls raise after the end.
    """

    def __init__(self, count: int, name: str, closed: Callable[[], Exception]) -> None:
        """See the class."""
        self._make = functools.partial(_Here, count, name)
        self._of_process = self._make()
        self._closed = closed
        self._is_closed = False

    def _here(self) -> _Here:
        if self._of_process.generation != generation():
            self._of_process = self._make()
        return self._of_process

    @property
    def lock(self) -> threading.Lock:
        """A lock that no thread of another process holds."""
        return self._here().lock

    async def run(self, call: Callable[..., T], *args: Any, **options: Any) -> T:
        """Run a call on one of the threads."""
        if self._is_closed:
            raise self._closed()
        loop = asyncio.get_running_loop()
        bound = functools.partial(call, *args, **options)
        return await loop.run_in_executor(self._here().pool, bound)

    async def close(self) -> None:
        """Wait for running calls and end the threads."""
        self._is_closed = True
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, self._here().pool.shutdown)
