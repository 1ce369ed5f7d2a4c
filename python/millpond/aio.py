"""The asyncio client: the same verbs as coroutines.

Each call runs on a worker thread with the interpreter lock released, so the event loop never waits
for I/O. A cancelled call runs to its end, and its buffers stay referenced until then.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from millpond._native import FailOpen, KeyInfo, Namespace, NamespaceInfo, Store
from millpond._threads import Threads
from millpond.client import Client
from millpond.errors import Unreachable

if TYPE_CHECKING:
    from millpond._native import Leaders, Memory, Page

__all__ = ["AsyncClient", "AsyncFailOpen", "AsyncNamespace", "AsyncStore"]


def _closed() -> Unreachable:
    return Unreachable("the client is closed: open a new one")


class AsyncClient:
    """A client for asyncio. Takes the arguments of ``Client``."""

    def __init__(self, address: str = "127.0.0.1:7440", **options: Any) -> None:
        """See ``Client``."""
        self._client = Client(address, **options)
        workers = int(options.get("connections", 4))
        self._threads = Threads(workers, "millpond", _closed)
        self._run = self._threads.run

    async def namespace(self, name: str, **options: Any) -> AsyncNamespace:
        """Open a namespace; takes the arguments of ``Client.namespace``."""
        return AsyncNamespace(self, await self._run(self._client.namespace, name, **options))

    async def fail_open(self, name: str, **options: Any) -> AsyncFailOpen:
        """Open a namespace that fails open; takes the arguments of ``Client.fail_open``."""
        return AsyncFailOpen(self, await self._run(self._client.fail_open, name, **options))

    async def namespaces(self) -> list[NamespaceInfo]:
        """List the namespaces that the token may see."""
        return await self._run(self._client.namespaces)

    async def set_namespace(self, name: str, **options: Any) -> NamespaceInfo:
        """Change options of a namespace; takes the arguments of ``Client.set_namespace``."""
        return await self._run(self._client.set_namespace, name, **options)

    async def drop_namespace(self, name: str) -> None:
        """Remove a namespace and all its blocks."""
        await self._run(self._client.drop_namespace, name)

    async def server_info(self) -> dict[str, int]:
        """Return numbers about the server."""
        return await self._run(self._client.server_info)

    async def close(self) -> None:
        """Wait for running calls and close every connection."""
        await self._threads.close()
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


class AsyncStore:
    """A store for asyncio; ``Store`` describes arguments and results of the verbs."""

    def __init__(self, client: AsyncClient, store: Store) -> None:
        """Use ``AsyncClient.namespace`` or ``AsyncClient.fail_open``."""
        self._run = client._run
        self._store = store

    async def put(
        self,
        keys: Sequence[bytes],
        values: Sequence[Memory],
        *,
        leaders: Leaders = None,
        deadline_ms: int | None = None,
    ) -> list[str]:
        """Store values; the first one stored under a key wins."""
        return await self._run(
            self._store.put, keys, values, leaders=leaders, deadline_ms=deadline_ms
        )

    async def get(
        self,
        keys: Sequence[bytes],
        into: Sequence[Memory],
        *,
        leaders: Leaders = None,
        deadline_ms: int | None = None,
    ) -> list[int]:
        """Read values into ``into`` and return the bytes read per key, -1 for a miss."""
        return await self._run(
            self._store.get, keys, into, leaders=leaders, deadline_ms=deadline_ms
        )

    async def get_bytes(
        self, key: bytes, leader: bytes | None = None, *, deadline_ms: int | None = None
    ) -> bytes | None:
        """Read one value of any length, ``None`` for a miss."""
        return await self._run(self._store.get_bytes, key, leader, deadline_ms=deadline_ms)

    async def contains(
        self,
        keys: Sequence[bytes],
        *,
        leaders: Leaders = None,
        deadline_ms: int | None = None,
    ) -> list[bool]:
        """Return which keys are present."""
        return await self._run(self._store.contains, keys, leaders=leaders, deadline_ms=deadline_ms)

    async def match_prefix(
        self,
        keys: Sequence[bytes],
        *,
        lease_ms: int = 0,
        leaders: Leaders = None,
        deadline_ms: int | None = None,
    ) -> int:
        """Count the leading keys that are present and, in the same round trip, lease them."""
        return await self._run(
            self._store.match_prefix,
            keys,
            lease_ms=lease_ms,
            leaders=leaders,
            deadline_ms=deadline_ms,
        )

    async def touch(
        self,
        keys: Sequence[bytes],
        *,
        leaders: Leaders = None,
        deadline_ms: int | None = None,
    ) -> list[bool]:
        """Mark keys as recently used and return which of them are present."""
        return await self._run(self._store.touch, keys, leaders=leaders, deadline_ms=deadline_ms)

    async def delete(
        self,
        keys: Sequence[bytes],
        *,
        leaders: Leaders = None,
        deadline_ms: int | None = None,
    ) -> list[bool]:
        """Remove keys and return which of them were present."""
        return await self._run(self._store.delete, keys, leaders=leaders, deadline_ms=deadline_ms)

    async def stats(self) -> dict[str, int]:
        """Return numbers about the store: blocks, bytes, hits, misses and so on."""
        return await self._run(self._store.stats)


class AsyncNamespace(AsyncStore):
    """A named keyspace on a server, for asyncio; see ``Namespace``."""

    def __init__(self, client: AsyncClient, namespace: Namespace) -> None:
        """Use ``AsyncClient.namespace``."""
        super().__init__(client, namespace)
        self._namespace = namespace

    @property
    def name(self) -> str:
        """The name."""
        return self._namespace.name

    @property
    def info(self) -> NamespaceInfo:
        """The namespace as the server knew it when it was opened."""
        return self._namespace.info

    async def pin(
        self,
        keys: Sequence[bytes],
        *,
        leaders: Leaders = None,
        deadline_ms: int | None = None,
    ) -> list[bool]:
        """Keep keys from eviction until unpinned and return which of them are present."""
        return await self._run(self._namespace.pin, keys, leaders=leaders, deadline_ms=deadline_ms)

    async def unpin(
        self,
        keys: Sequence[bytes],
        *,
        leaders: Leaders = None,
        deadline_ms: int | None = None,
    ) -> list[bool]:
        """End the pin of keys and return which of them are present."""
        return await self._run(
            self._namespace.unpin, keys, leaders=leaders, deadline_ms=deadline_ms
        )

    async def list_page(self, prefix: bytes, cursor: int) -> Page:
        """Return one page of keys and the cursor of the next, 0 after the last."""
        return await self._run(self._namespace.list_page, prefix, cursor)

    async def list(self, prefix: bytes | None = None) -> AsyncIterator[KeyInfo]:
        """Iterate over all keys, or the keys that start with ``prefix``, page by page."""
        cursor = 0
        while True:
            cursor, page = await self.list_page(prefix or b"", cursor)
            for info in page:
                yield info
            if cursor == 0:
                return


class AsyncFailOpen(AsyncStore):
    """A namespace that never stops its caller, for asyncio; see ``FailOpen``."""

    def __init__(self, client: AsyncClient, store: FailOpen) -> None:
        """Use ``AsyncClient.fail_open``."""
        super().__init__(client, store)
        self._open = store

    @property
    def name(self) -> str:
        """The name of the namespace."""
        return self._open.name

    @property
    def up(self) -> bool:
        """Whether calls are tried at the moment."""
        return self._open.up

    @property
    def last_error(self) -> str | None:
        """The reason of the last failure, for people to read."""
        return self._open.last_error
