"""Millpond for vLLM: a connector and a secondary tier.

This package imports vLLM only when one of the two classes is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from millpond.vllm.connector import MillpondConnector
    from millpond.vllm.tier import MillpondSecondaryTier

__all__ = ["MillpondConnector", "MillpondSecondaryTier"]

_HOMES = {
    "MillpondConnector": "millpond.vllm.connector",
    "MillpondSecondaryTier": "millpond.vllm.tier",
}


def __getattr__(name: str) -> Any:
    import importlib

    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
