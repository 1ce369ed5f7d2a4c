"""The layout digest: blocks have the same meaning only under equal digests."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Union

from millpond.errors import InvalidArgument

__all__ = ["Layout", "layout_digest"]

DIGEST_BYTES = 32
Layout = Union[bytes, Mapping[str, Any], None]


def layout_digest(layout: Layout) -> bytes:
    """Return the 32-byte digest of ``layout``.

    A mapping is hashed as JSON with sorted keys (SHA-256), so equal mappings give equal digests on
    every host. 32 bytes are used unchanged. ``None`` means "not checked".

    Raises ``InvalidArgument`` for anything else.
    """
    if layout is None:
        return bytes(DIGEST_BYTES)
    if isinstance(layout, (bytes, bytearray)):
        if len(layout) != DIGEST_BYTES:
            raise InvalidArgument(f"layout: a digest has {DIGEST_BYTES} bytes, not {len(layout)}")
        return bytes(layout)
    try:
        text = json.dumps(layout, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    except (TypeError, ValueError) as error:
        raise InvalidArgument(f"layout: it has no JSON form: {error}") from error
    return hashlib.sha256(text.encode()).digest()
