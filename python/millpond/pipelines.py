"""Pipelines: a cache in this process's memory in front of a namespace or a folder."""

from __future__ import annotations

import os

from millpond import _native
from millpond._native import Namespace, Pipeline
from millpond._sizes import size_bytes
from millpond.layout import Layout, layout_digest

__all__ = ["pipeline"]


def pipeline(
    text: str,
    *,
    namespace: Namespace | None = None,
    folder: str | os.PathLike[str] | None = None,
    cache_bytes: int | str = 1 << 30,
    folder_bytes: int | str = 64 << 30,
    layout: Layout = None,
) -> Pipeline:
    """Build the pipeline ``text``: ``Millpond``, ``Cache|Millpond``, ``Posix`` or ``Cache|Posix``.

    Args:
        text: the stages, in the order in which a call meets them.
        namespace: the ``Millpond`` stage.
        folder: folder of the ``Posix`` stage, on any mounted file system; one file per block.
        cache_bytes: bytes of memory for the ``Cache`` stage, or a text such as ``2GiB``.
        folder_bytes: bytes that ``folder`` may hold, for all its processes and layouts together,
            or a text such as ``2GiB``.
        layout: as for ``Client.namespace``; blocks of another layout in ``folder`` are ignored.

    Raises:
        InvalidArgument: a stage or an argument is invalid; the message names it.
        Unreachable: the folder cannot be used.
    """
    path = None if folder is None else os.fspath(folder)
    sizes = (size_bytes("cache_bytes", cache_bytes), size_bytes("folder_bytes", folder_bytes))
    return _native.open_pipeline(text, namespace, path, sizes, layout_digest(layout))
