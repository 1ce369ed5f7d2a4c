"""The threads that move blocks between the KV cache and the store.

Loads go before saves: a request waits for its load, and nobody waits for a save.
Both queues are bounded. A full queue rejects a task at once; the caller then
recomputes the blocks or drops the save.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Callable

from millpond.errors import BufferTooSmall

Task = Callable[[], None]

_LOADS_MAX = 65_536
_SAVES_MAX = 65_536
"""Batches; the real limit on saves is the share of the KV cache they may pin."""


def read_sizes(namespace: Any, into: Sequence[Any], call: Mapping[str, Any]) -> list[int]:
    """Reads values; returns bytes per value, negative for a miss or for a value over a block.

    Another writer may have put the long value: it must not look like a store that is down.
    """
    try:
        sizes: list[int] = namespace.get(into=into, **call)
    except BufferTooSmall as error:
        return error.sizes
    return sizes


def savers(threads: int) -> int:
    """Returns the number of a pool's threads that may save at the same time.

    With several threads one never saves, so that a load never waits for a slow
    write.
    """
    return max(1, threads - 1)


class TransferPool:
    """A few threads with a queue of loads and a queue of saves.

    Tasks must not raise.
    """

    def __init__(self, threads: int) -> None:
        """See the class."""
        self._wake = threading.Condition()
        self._loads: deque[Task] = deque()
        self._saves: deque[Task] = deque()
        self._stopping = False
        self._save_threads_max = savers(threads)
        self._saving = 0
        self._threads = [
            threading.Thread(target=self._work, name=f"millpond-io-{i}", daemon=True)
            for i in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def load(self, task: Task) -> bool:
        """Queues a load; false when the queue is full or closed."""
        return self._put(self._loads, task, _LOADS_MAX)

    def save(self, task: Task) -> bool:
        """Queues a save; false when the queue is full or closed."""
        return self._put(self._saves, task, _SAVES_MAX)

    def _put(self, queue: deque[Task], task: Task, limit: int) -> bool:
        with self._wake:
            if self._stopping or len(queue) >= limit:
                return False
            queue.append(task)
            self._wake.notify()
            return True

    def close(self, timeout_s: float) -> bool:
        """Finishes queued tasks, waits at most ``timeout_s``, and returns whether all are done."""
        with self._wake:
            self._stopping = True
            self._wake.notify_all()
        end = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(timeout=max(0.0, end - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def _next(self) -> tuple[Task, bool] | None:
        """Takes the next task; the lock is held."""
        if self._loads:
            return self._loads.popleft(), False
        if self._saves and self._saving < self._save_threads_max:
            return self._saves.popleft(), True
        return None

    def _work(self) -> None:
        while True:
            with self._wake:
                while (taken := self._next()) is None:
                    if self._stopping and not self._loads and not self._saves:
                        return
                    self._wake.wait()
                task, is_save = taken
                self._saving += is_save
            try:
                task()
            finally:
                with self._wake:
                    self._saving -= is_save
                    self._wake.notify_all()
