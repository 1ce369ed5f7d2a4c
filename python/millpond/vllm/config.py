"""Options of the vLLM connector, read from ``kv_connector_extra_config``.

An unknown key or a value of the wrong type raises an error that names it before
the engine starts: a typo in an option must not silently change behavior.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from millpond._sizes import size_bytes
from millpond.errors import InvalidArgument

DEFAULT_ADDRESS = "127.0.0.1:7440"

_TRANSPORTS = ("auto", "shm", "unix", "tcp")
_ACKS = ("memory", "disk")


class ConfigError(ValueError):
    """An option is unknown, of the wrong type or out of range."""


@dataclass(frozen=True)
class ConnectorConfig:
    """Validated options; `docs/vllm.md` explains each one.

    Durations end in ``_ms`` or ``_s``, sizes in ``_bytes`` or ``_mib``. A size in bytes may have a
    unit: ``"10GiB"``.
    """

    address: str = DEFAULT_ADDRESS
    token: str = ""
    token_file: str = ""
    tls_ca: str = ""
    transport: str = "auto"
    connections: int = 2

    namespace: str = ""
    model_id: str = ""
    ack: str = "memory"
    ttl_s: int = 0
    quota_bytes: int = 0
    priority: int = 1

    load: bool = True
    save: bool = True
    save_generated: bool = True
    load_async: bool = True
    min_load_blocks: int = 1

    lookup_deadline_ms: int = 200
    load_deadline_ms: int = 2000
    save_deadline_ms: int = 5000
    lease_ms: int = 30_000
    retry_ms: int = 1000
    breaker_failures: int = 3

    io_threads: int = 2
    batch_blocks: int = 16
    save_pool_fraction: float = 0.25
    staging_mib: int = 256
    shutdown_ms: int = 3000

    @classmethod
    def parse(cls, extra: Mapping[str, Any]) -> ConnectorConfig:
        """Reads options from vLLM's extra config.

        ``MILLPOND_ADDRESS`` and ``MILLPOND_TOKEN`` in the environment give
        the defaults for ``address`` and ``token``.

        Raises:
            ConfigError: a key is invalid; the message names the first one and the valid values.
        """
        known = {field.name: field for field in fields(cls)}
        unknown = sorted(set(extra) - set(known))
        if unknown:
            raise ConfigError(
                f"unknown key {unknown[0]!r} in kv_connector_extra_config of the Millpond "
                f"connector; known keys: {', '.join(sorted(known))}"
            )
        values: dict[str, Any] = {
            "address": os.environ.get("MILLPOND_ADDRESS") or DEFAULT_ADDRESS,
            "token": os.environ.get("MILLPOND_TOKEN", ""),
        }
        for name, value in extra.items():
            values[name] = _typed(name, value, type(known[name].default))
        config = cls(**values)
        config._validate()
        return config

    def read_token(self) -> str | None:
        """Returns the credential, from ``token`` or the file ``token_file``.

        Raises:
            ConfigError: the file cannot be read or is empty.
        """
        if not self.token_file:
            return self.token or None
        try:
            with open(self.token_file, encoding="utf-8") as file:
                token = file.read().strip()
        except OSError as error:
            raise ConfigError(f"token_file {self.token_file!r}: {error.strerror}") from error
        if not token:
            raise ConfigError(f"token_file {self.token_file!r} is empty")
        return token

    def _validate(self) -> None:
        _one_of("transport", self.transport, _TRANSPORTS)
        _one_of("ack", self.ack, _ACKS)
        if self.token and self.token_file:
            raise ConfigError("give token or token_file, not both")
        _in_range("connections", self.connections, 1, 64)
        _in_range("ttl_s", self.ttl_s, 0, 10 * 365 * 86_400)
        _in_range("quota_bytes", self.quota_bytes, 0, 1 << 62)
        _in_range("priority", self.priority, 0, 2)
        _in_range("min_load_blocks", self.min_load_blocks, 1, 1 << 20)
        _in_range("lookup_deadline_ms", self.lookup_deadline_ms, 1, 60_000)
        _in_range("load_deadline_ms", self.load_deadline_ms, 1, 600_000)
        _in_range("save_deadline_ms", self.save_deadline_ms, 1, 600_000)
        _in_range("lease_ms", self.lease_ms, 0, 60_000)
        _in_range("retry_ms", self.retry_ms, 10, 600_000)
        _in_range("breaker_failures", self.breaker_failures, 1, 1000)
        _in_range("io_threads", self.io_threads, 1, 64)
        _in_range("batch_blocks", self.batch_blocks, 1, 1024)
        _in_range("save_pool_fraction", self.save_pool_fraction, 0.0, 0.9)
        _in_range("staging_mib", self.staging_mib, 1, 1 << 20)
        _in_range("shutdown_ms", self.shutdown_ms, 0, 600_000)


def _typed(name: str, value: Any, kind: type) -> Any:
    """Checks the type of one value; JSON has one number type, and no type for sizes."""
    if kind is float and type(value) is int:
        return float(value)
    if name.endswith("_bytes") and type(value) is str:
        try:
            return size_bytes(name, value)
        except InvalidArgument as error:
            raise ConfigError(str(error)) from error
    if type(value) is not kind:
        raise ConfigError(
            f"{name} must be of type {kind.__name__}, got {value!r} ({type(value).__name__})"
        )
    return value


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ConfigError(f"{name} must be one of {', '.join(allowed)}; got {value!r}")


def _in_range(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise ConfigError(f"{name} must be between {low} and {high}; got {value}")
