"""Millpond: a KV cache on NVMe and DRAM for LLM inference engines, and the files of a cluster.

``Client`` and ``AsyncClient`` talk to a ``millpond server``; ``millpond.files`` opens files by
their paths without a mount; ``millpond.vllm`` holds the vLLM connector. See ``docs/python.md`` in
the repository.
"""

from __future__ import annotations

from millpond._native import (
    FailOpen,
    KeyInfo,
    Namespace,
    NamespaceInfo,
    Pipeline,
    Store,
    __version__,
)
from millpond.aio import AsyncClient, AsyncFailOpen, AsyncNamespace, AsyncStore
from millpond.client import Client
from millpond.errors import (
    BufferTooSmall,
    Busy,
    Conflict,
    DeadlineExceeded,
    FileError,
    FileExists,
    FileNotFound,
    Internal,
    InvalidArgument,
    IsADirectory,
    LayoutMismatch,
    MillpondError,
    NoNamespace,
    NoSpace,
    NotADirectory,
    PermissionDenied,
    Protocol,
    ReadOnly,
    Unauthorized,
    Unreachable,
)
from millpond.layout import layout_digest
from millpond.pipelines import pipeline

__all__ = [
    "AsyncClient",
    "AsyncFailOpen",
    "AsyncNamespace",
    "AsyncStore",
    "BufferTooSmall",
    "Busy",
    "Client",
    "Conflict",
    "DeadlineExceeded",
    "FailOpen",
    "FileError",
    "FileExists",
    "FileNotFound",
    "Internal",
    "InvalidArgument",
    "IsADirectory",
    "KeyInfo",
    "LayoutMismatch",
    "MillpondError",
    "Namespace",
    "NamespaceInfo",
    "NoNamespace",
    "NoSpace",
    "NotADirectory",
    "PermissionDenied",
    "Pipeline",
    "Protocol",
    "ReadOnly",
    "Store",
    "Unauthorized",
    "Unreachable",
    "__version__",
    "layout_digest",
    "pipeline",
]
