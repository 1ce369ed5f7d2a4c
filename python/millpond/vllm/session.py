"""A namespace of the store behind a circuit breaker.

The cache must never stop the engine. Every call therefore either answers within its
deadline or raises `StoreDown`. While the store is known to be down, a call costs one
attribute read, and a background thread probes the store until it answers again. An
outage is logged once when it starts and once when it ends, for any number of requests.

This class is not `millpond.FailOpen`, which uses the time of a caller to probe the
server. An engine's step has no time for that, so a thread probes here. In addition the
ranks report outages to each other, and a rejection at start-up must stop the engine
with an error that names its reason.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass
from typing import Any, Callable, TypeVar

import millpond
from millpond.vllm.config import ConfigError, ConnectorConfig

T = TypeVar("T")

_PROBE_KEY = b"millpond-vllm-probe"
_BACKOFF_MAX = 8
"""Longest wait between probes, in units of ``retry_ms``."""
_FIRST_ANSWER_S = 2.0
"""Longest wait of start-up for the store to accept or reject the configuration."""


class StoreDown(Exception):
    """The store gave no usable answer; treat reads as misses and drop writes."""


@dataclass(frozen=True)
class Target:
    """The namespace that an engine uses.

    Attributes:
        name: namespace name.
        layout: the 32-byte layout digest.
    """

    name: str
    layout: bytes


class StoreSession:
    """Opens one namespace and guards every call to it.

    Args:
        config: connector options.
        deadline_ms: default deadline of a call.
        connections: TCP connections to keep.
        log: logger for outages; None logs nothing (a worker reports its
            outages to the scheduler's side, which logs for all).
        client_factory: makes a client; replaced in tests.
    """

    def __init__(
        self,
        config: ConnectorConfig,
        *,
        deadline_ms: int,
        connections: int,
        log: logging.Logger | None,
        client_factory: Callable[..., Any] | None = None,
    ) -> None:
        """See the class."""
        self._config = config
        self._deadline_ms = deadline_ms
        self._connections = connections
        self._log = log
        self._factory: Callable[..., Any] = client_factory or millpond.Client
        self._lock = threading.Lock()
        self._client: Any = None
        self._namespace: Any = None
        self._target: Target | None = None
        self._probe: threading.Thread | None = None
        self._stop = threading.Event()
        self._first_answer = threading.Event()
        self._refusal: Exception | None = None
        self._failures = 0
        self._down_since: float | None = None
        self._news: list[str] = []
        self.outages = 0

    # -- life cycle ---------------------------------------------------------

    def start_in_background(self, target: Target) -> None:
        """Begins to open the namespace and returns; a rejection counts as an outage."""
        self._target = target
        with self._lock:
            self._start_probe()

    def start(self, target: Target) -> None:
        """Opens the namespace and waits up to two seconds for the first answer.

        An unreachable store is an outage like any other: this call returns and the
        background thread keeps trying.

        Raises:
            ConfigError: the store rejects the token, the layout or an option.
        """
        self.start_in_background(target)
        self._first_answer.wait(_FIRST_ANSWER_S)
        if self._refusal is not None:
            raise ConfigError(
                f"Millpond at {self._config.address} refuses namespace "
                f"{target.name!r}: {self._refusal}"
            ) from self._refusal

    @property
    def started(self) -> bool:
        """Whether `start` was called."""
        return self._target is not None

    @property
    def up(self) -> bool:
        """Whether calls reach the store at the moment."""
        return self._namespace is not None

    def close(self) -> None:
        """Stops probing and closes the client; later calls raise `StoreDown`."""
        self._stop.set()
        with self._lock:
            probe, self._probe = self._probe, None
            client, self._client = self._client, None
            self._namespace = None
        if probe is not None and probe is not threading.current_thread():
            probe.join(timeout=_FIRST_ANSWER_S)
        if client is not None:
            client.close()

    # -- calls --------------------------------------------------------------

    def call(self, verb: Callable[[Any], T], *, try_now: bool = False, wait_s: float = 0.0) -> T:
        """Runs ``verb(namespace)``.

        Args:
            verb: makes exactly one call on its namespace.
            try_now: if the store counts as down, try to open it instead of
                failing at once; for callers with fresh evidence that it is back.
            wait_s: longest wait of a ``try_now`` call while the client pauses
                between two attempts to connect; it waits once.

        Raises:
            StoreDown: no answer, or none in time.
        """
        if self._target is not None and not self._first_answer.is_set():
            self._first_answer.wait(_FIRST_ANSWER_S)
        namespace = self._namespace
        if namespace is None:
            if not try_now or not self._reopen(wait_s):
                raise StoreDown(f"Millpond at {self._config.address} is down")
            namespace = self._namespace
            if namespace is None:
                raise StoreDown("session closed")
        try:
            result = verb(namespace)
        except millpond.Busy as error:
            # The server is alive and asks for fewer requests; this is not an outage.
            raise StoreDown(str(error)) from error
        except millpond.Unreachable as error:
            self.trip(str(error) or "unreachable")
            raise StoreDown(str(error)) from error
        except Exception as error:
            self._count_failure(error)
            raise StoreDown(str(error)) from error
        self._failures = 0
        return result

    def trip(self, reason: str) -> None:
        """Declares the store down and starts probing it."""
        with self._lock:
            if self._namespace is None or self._stop.is_set():
                return
            self._namespace = None
            self._down(reason)
            self._start_probe()

    def take_news(self) -> list[str]:
        """Returns the reasons of outages that began since the last call."""
        with self._lock:
            news, self._news = self._news, []
        return news

    # -- inside -------------------------------------------------------------

    def _count_failure(self, error: Exception) -> None:
        self._failures += 1
        if self._failures >= self._config.breaker_failures:
            self._failures = 0
            self.trip(f"{type(error).__name__}: {error}")

    def _down(self, reason: str) -> None:
        """Records the start of an outage; the lock is held."""
        if self._down_since is not None:
            return
        self._down_since = time.monotonic()
        self.outages += 1
        self._news.append(reason)
        if self._log is not None:
            self._log.warning(
                "Millpond at %s does not answer (%s). The engine continues without the "
                "cache and tries again every %d ms.",
                self._config.address,
                reason,
                self._config.retry_ms,
            )

    def _start_probe(self) -> None:
        """Starts the probing thread unless it runs; the lock is held."""
        if self._probe is None and not self._stop.is_set():
            self._probe = threading.Thread(
                target=self._probe_loop, name="millpond-probe", daemon=True
            )
            self._probe.start()

    def _probe_loop(self) -> None:
        wait = 1
        while not self._stop.is_set():
            if self._reopen():
                return
            self._stop.wait(self._config.retry_ms / 1000 * wait)
            # Frequent probes at first cost the engine nothing.
            wait = min(wait * 2, _BACKOFF_MAX)

    def _reopen(self, wait_s: float = 0.0) -> bool:
        """Opens the namespace once. Returns whether the store is usable."""
        try:
            namespace = self._open()
        except Exception as error:
            # The client did not try: it failed recently and reports when it tries again.
            pause_s = getattr(error, "retry_after", 0.0)
            if isinstance(error, millpond.Unreachable) and 0.0 < pause_s <= wait_s:
                return not self._stop.wait(pause_s) and self._reopen()
            refused = isinstance(
                error,
                (
                    millpond.Conflict,
                    millpond.InvalidArgument,
                    millpond.LayoutMismatch,
                    millpond.Unauthorized,
                ),
            )
            with self._lock:
                if refused and not self._first_answer.is_set():
                    self._refusal = error
                self._down(f"{type(error).__name__}: {error}")
            self._first_answer.set()
            return False
        with self._lock:
            if self._stop.is_set():
                return False
            self._namespace = namespace
            self._failures = 0
            self._probe = None
            since, self._down_since = self._down_since, None
        self._first_answer.set()
        if since is not None and self._log is not None:
            self._log.warning(
                "Millpond at %s answers again after %.1f s; the cache is in use.",
                self._config.address,
                time.monotonic() - since,
            )
        return True

    def _open(self) -> Any:
        """Connects, opens the namespace and reads from it once."""
        config, target = self._config, self._target
        assert target is not None, "start() names the namespace"
        with self._lock:
            if self._client is None:
                self._client = self._factory(
                    config.address,
                    token=config.read_token(),
                    transport=config.transport,
                    tls_ca=config.tls_ca or None,
                    deadline_ms=self._deadline_ms,
                    connections=self._connections,
                )
            client = self._client
        namespace = client.namespace(
            target.name,
            layout=target.layout,
            ack=config.ack,
            ttl_s=config.ttl_s,
            quota_bytes=config.quota_bytes,
            priority=config.priority,
        )
        namespace.contains([_PROBE_KEY])
        return namespace
