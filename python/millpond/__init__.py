"""Millpond: a KV cache on NVMe and DRAM for LLM inference engines.

``Client`` and ``AsyncClient`` talk to a ``millpond server``; ``millpond.vllm`` holds the vLLM
connector. See ``docs/python.md`` in the repository.
"""

from __future__ import annotations

from millpond._native import KeyInfo, Namespace, NamespaceInfo, Pipeline, __version__
from millpond.aio import AsyncClient, AsyncNamespace
from millpond.client import Client
from millpond.errors import (
    Busy,
    Conflict,
    DeadlineExceeded,
    Internal,
    InvalidArgument,
    LayoutMismatch,
    MillpondError,
    NoNamespace,
    NoSpace,
    Protocol,
    ReadOnly,
    Unauthorized,
    Unreachable,
)
from millpond.layout import layout_digest
from millpond.pipelines import pipeline

__all__ = [
    "AsyncClient",
    "AsyncNamespace",
    "Busy",
    "Client",
    "Conflict",
    "DeadlineExceeded",
    "Internal",
    "InvalidArgument",
    "KeyInfo",
    "LayoutMismatch",
    "MillpondError",
    "Namespace",
    "NamespaceInfo",
    "NoNamespace",
    "NoSpace",
    "Pipeline",
    "Protocol",
    "ReadOnly",
    "Unauthorized",
    "Unreachable",
    "__version__",
    "layout_digest",
    "pipeline",
]
