"""An in-memory namespace with the client's interface, for unit tests."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import millpond


class FakeNamespace:
    """Keeps values by leader and key, as placement separates them."""

    def __init__(self) -> None:
        self.values: dict[tuple[bytes, bytes], bytes] = {}
        self.leased: set[bytes] = set()
        self.calls: list[str] = []
        self.failure: Exception | None = None
        self.before: Callable[[str], None] = lambda verb: None

    def _enter(self, verb: str) -> None:
        self.calls.append(verb)
        self.before(verb)
        if self.failure is not None:
            raise self.failure

    def put(
        self, keys: Any, values: Any, *, leaders: Any = None, deadline_ms: Any = None
    ) -> list[str]:
        """Stores values of absent keys."""
        self._enter("put")
        answers = []
        for key, value, leader in zip(keys, values, leaders or keys):
            known = (leader, key) in self.values
            answers.append("exists" if known else "stored")
            if not known:
                self.values[leader, key] = b"".join(ctypes.string_at(a, n) for a, n in value)
        return answers

    def get(
        self, keys: Any, into: Any, *, leaders: Any = None, deadline_ms: Any = None
    ) -> list[int]:
        """Copies values into segments; -1 for a miss."""
        self._enter("get")
        sizes = []
        for key, place, leader in zip(keys, into, leaders or keys):
            value = self.values.get((leader, key))
            sizes.append(-1 if value is None else len(value))
            at = 0
            for address, length in place if value is not None else ():
                ctypes.memmove(address, value[at : at + length], length)
                at += length
        return sizes

    def contains(self, keys: Any, *, leaders: Any = None) -> list[bool]:
        """Returns which keys are present."""
        self._enter("contains")
        return [(leader, key) in self.values for key, leader in zip(keys, leaders or keys)]

    def match_prefix(self, keys: Any, *, lease_ms: int = 0, leaders: Any = None) -> int:
        """Counts present keys from the start and leases them."""
        self._enter("match_prefix")
        for i, (key, leader) in enumerate(zip(keys, leaders or keys)):
            if (leader, key) not in self.values:
                return i
            self.leased.add(key)
        return len(keys)


class FakeClient:
    """Hands out one namespace; fails while ``down`` is set."""

    def __init__(self, namespace: FakeNamespace) -> None:
        self.target = namespace
        self.down: Exception | None = None
        self.opened = 0

    def namespace(self, name: str, **options: Any) -> FakeNamespace:
        """Opens the namespace."""
        self.opened += 1
        if self.down is not None:
            raise self.down
        return self.target

    def close(self) -> None:
        """Does nothing."""


def unreachable() -> Exception:
    """The error of a server that is gone."""
    return millpond.Unreachable("connection refused")
