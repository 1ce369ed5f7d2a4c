"""The asyncio client: the same verbs as coroutines.

Each call runs on a worker thread with the interpreter lock released, so the event loop never waits
for I/O. A cancelled call is forgotten, not undone: its buffers stay referenced until it ends.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, TypeVar

from millpond._native import KeyInfo, Namespace, NamespaceInfo
from millpond.client import Client

__all__ = ["AsyncClient", "AsyncNamespace"]

T = TypeVar("T")
Memory = Any  # see millpond._native.Memory


class AsyncClient:
    """A client for asyncio. Takes the arguments of ``Client``."""

    def __init__(self, address: str = "127.0.0.1:7440", **options: Any) -> None:
        """See ``Client``."""
        self._client = Client(address, **options)
        workers = int(options.get("connections", 4))
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="millpond")

    async def _run(self, call: Callable[..., T], *args: Any, **options: Any) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, functools.partial(call, *args, **options))

    async def namespace(self, name: str, **options: Any) -> AsyncNamespace:
        """Open a namespace; takes the arguments of ``Client.namespace``."""
        return AsyncNamespace(self, await self._run(self._client.namespace, name, **options))

    async def namespaces(self) -> list[NamespaceInfo]:
        """List the namespaces that the token may see."""
        return await self._run(self._client.namespaces)

    async def drop_namespace(self, name: str) -> None:
        """Remove a namespace and all its blocks."""
        await self._run(self._client.drop_namespace, name)

    async def server_info(self) -> dict[str, int]:
        """Return numbers about the server."""
        return await self._run(self._client.server_info)

    async def close(self) -> None:
        """Wait for running calls and close every connection."""
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, self._pool.shutdown)
        self._client.close()

    async def __aenter__(self) -> AsyncClient:
        """Return the client."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the client."""
        await self.close()


class AsyncNamespace:
    """A namespace for asyncio; see ``Namespace`` for what the verbs take and return."""

    def __init__(self, client: AsyncClient, namespace: Namespace) -> None:
        """Use ``AsyncClient.namespace``."""
        self._client = client
        self._namespace = namespace

    @property
    def name(self) -> str:
        """The name."""
        return self._namespace.name

    async def put(
        self,
        keys: Sequence[bytes],
        values: Sequence[Memory],
        *,
        leaders: Sequence[bytes] | None = None,
        deadline_ms: int | None = None,
    ) -> list[str]:
        """Store values; the first one stored under a key wins."""
        return await self._client._run(
            self._namespace.put, keys, values, leaders=leaders, deadline_ms=deadline_ms
        )

    async def get(
        self,
        keys: Sequence[bytes],
        into: Sequence[Memory],
        *,
        leaders: Sequence[bytes] | None = None,
        deadline_ms: int | None = None,
    ) -> list[int]:
        """Read values into ``into``; the bytes read per key, -1 for a miss."""
        return await self._client._run(
            self._namespace.get, keys, into, leaders=leaders, deadline_ms=deadline_ms
        )

    async def get_bytes(self, key: bytes, leader: bytes | None = None) -> bytes | None:
        """Read one value, ``None`` for a miss."""
        return await self._client._run(self._namespace.get_bytes, key, leader)

    async def contains(
        self, keys: Sequence[bytes], *, leaders: Sequence[bytes] | None = None
    ) -> list[bool]:
        """Tell which keys are present."""
        return await self._client._run(self._namespace.contains, keys, leaders=leaders)

    async def match_prefix(
        self,
        keys: Sequence[bytes],
        *,
        lease_ms: int = 0,
        leaders: Sequence[bytes] | None = None,
    ) -> int:
        """Count the leading keys that are present and lease them."""
        return await self._client._run(
            self._namespace.match_prefix, keys, lease_ms=lease_ms, leaders=leaders
        )

    async def touch(
        self, keys: Sequence[bytes], *, leaders: Sequence[bytes] | None = None
    ) -> list[bool]:
        """Mark keys as recently used."""
        return await self._client._run(self._namespace.touch, keys, leaders=leaders)

    async def pin(
        self, keys: Sequence[bytes], *, leaders: Sequence[bytes] | None = None
    ) -> list[bool]:
        """Keep keys from eviction until unpinned."""
        return await self._client._run(self._namespace.pin, keys, leaders=leaders)

    async def unpin(
        self, keys: Sequence[bytes], *, leaders: Sequence[bytes] | None = None
    ) -> list[bool]:
        """End a pin."""
        return await self._client._run(self._namespace.unpin, keys, leaders=leaders)

    async def delete(
        self, keys: Sequence[bytes], *, leaders: Sequence[bytes] | None = None
    ) -> list[bool]:
        """Remove keys; true for those that were present."""
        return await self._client._run(self._namespace.delete, keys, leaders=leaders)

    async def list(self, prefix: bytes = b"") -> AsyncIterator[KeyInfo]:
        """Iterate over the keys that start with ``prefix``, page by page."""
        cursor = 0
        while True:
            cursor, page = await self._client._run(self._namespace.list_page, prefix, cursor)
            for info in page:
                yield info
            if cursor == 0:
                return

    async def stats(self) -> dict[str, int]:
        """Return numbers about the namespace."""
        return await self._client._run(self._namespace.stats)
