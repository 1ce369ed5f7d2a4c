"""The blocking client."""

from __future__ import annotations

import functools
import mmap
import os
from types import TracebackType
from typing import Any, Literal

from millpond import _native
from millpond._native import FailOpen, Namespace, NamespaceInfo
from millpond._sizes import size_bytes
from millpond.errors import InvalidArgument
from millpond.layout import Layout, layout_digest

__all__ = ["Client"]

Transport = Literal["auto", "tcp", "unix", "shm"]


class Client:
    """A client of one server. Thread safe; connects on first use and reconnects by itself.

    After a fork the child opens connections of its own and does not touch those of its parent. For
    processes that start in another way (``spawn``, ``forkserver``) a client can be pickled, with
    its token.

    Args:
        address: ``host:port`` or ``unix:/path/of/the/socket``.
        token: the credential; the default is ``MILLPOND_TOKEN`` of the environment.
        transport: ``auto`` takes shared memory when the server is on this host, else TCP.
        tls_ca: PEM file with the certificates that sign the server's; turns TLS on.
        deadline_ms: deadline of calls without one of their own, in milliseconds.
        connections: calls that may run in parallel; further calls wait.

    Raises:
        InvalidArgument: an argument is invalid; the message names it. The client contacts no
            server before the first call.
    """

    def __init__(
        self,
        address: str = "127.0.0.1:7440",
        *,
        token: str | None = None,
        transport: Transport = "auto",
        tls_ca: str | os.PathLike[str] | None = None,
        deadline_ms: int = 5000,
        connections: int = 4,
    ) -> None:
        """See the class."""
        self.address = address
        token = token if token is not None else os.environ.get("MILLPOND_TOKEN", "")
        ca = os.fspath(tls_ca) if tls_ca is not None else None
        self._options: dict[str, Any] = {
            "token": token,
            "transport": transport,
            "tls_ca": ca,
            "deadline_ms": deadline_ms,
            "connections": connections,
        }
        self._native = _native.NativeClient(address, token, transport, ca, deadline_ms, connections)

    def __reduce__(self) -> tuple[Any, ...]:
        """Let another process make an equal client; the pickle holds the token."""
        return functools.partial(type(self), self.address, **self._options), ()

    @property
    def transport(self) -> str:
        """The transport in use: ``tcp``, ``tls``, ``unix`` or ``shm``; connects if need be."""
        return self._native.transport()

    def namespace(
        self,
        name: str,
        *,
        layout: Layout = None,
        create: bool = True,
        ack: Literal["memory", "disk"] = "memory",
        ttl_s: int = 0,
        quota_bytes: int | str = 0,
        priority: Literal[0, 1, 2] = 1,
        evict: bool = True,
    ) -> Namespace:
        """Open the namespace ``name``, creating it when it does not exist and ``create`` is set.

        Args:
            name: 1 to 100 letters, digits and ``._-/:@``.
            layout: everything that gives the blocks a meaning, as a mapping or a 32-byte digest.
                Opening an existing namespace with another layout raises an error.
            create: whether to create it.
            ack: ``memory`` answers a put from memory (for a cache); ``disk`` answers it when the
                value survives power loss.
            ttl_s: seconds after which a block expires; 0 for never.
            quota_bytes: bytes that the namespace may hold, or a text such as ``10GiB``; 0 for no
                quota. At the limit the namespace evicts its own coldest blocks, or rejects new ones
                when ``evict`` is off.
            priority: eviction class; class 0 is evicted first.
            evict: whether blocks may be evicted when space runs out.

        Raises:
            LayoutMismatch, NoNamespace, Conflict, Unauthorized, Unreachable.
        """
        quota = size_bytes("quota_bytes", quota_bytes)
        return self._native.open_namespace(
            name, layout_digest(layout), create, ack, ttl_s, quota, priority, evict
        )

    def fail_open(
        self,
        name: str,
        *,
        layout: Layout = None,
        create: bool = True,
        ack: Literal["memory", "disk"] = "memory",
        ttl_s: int = 0,
        quota_bytes: int | str = 0,
        priority: Literal[0, 1, 2] = 1,
        evict: bool = True,
        deadline_ms: int = 1000,
        retry_ms: int = 5000,
        failures: int = 2,
        writes: int = 2,
    ) -> FailOpen:
        """Open a namespace that never stops its caller.

        Late or failed reads are misses, and late or failed writes are dropped. The server may be
        down: the first call that reaches it then opens the namespace. Only this call raises, and
        only when a server answers and rejects the token, the layout or the options.

        Args:
            name: as for ``namespace``, like all arguments up to ``evict``.
            layout: see ``namespace``.
            create: see ``namespace``.
            ack: see ``namespace``.
            ttl_s: see ``namespace``.
            quota_bytes: see ``namespace``.
            priority: see ``namespace``.
            evict: see ``namespace``.
            deadline_ms: deadline of this call, and of calls without one of their own.
            retry_ms: longest pause between tries while the server is down; the first is 100 ms.
            failures: failures in a row after which the server counts as down.
            writes: puts in parallel; further ones are dropped, so that reads find a connection.

        Raises:
            InvalidArgument, LayoutMismatch, NoNamespace, Conflict, Unauthorized.
        """
        return self._native.open_failing_open(
            name,
            layout_digest(layout),
            create,
            ack,
            ttl_s,
            size_bytes("quota_bytes", quota_bytes),
            priority,
            evict,
            deadline_ms,
            retry_ms,
            failures,
            writes,
        )

    def namespaces(self) -> list[NamespaceInfo]:
        """List the namespaces that the token may see."""
        return self._native.namespaces()

    def set_namespace(
        self,
        name: str,
        *,
        quota_bytes: int | str | None = None,
        ttl_s: int | None = None,
        priority: Literal[0, 1, 2] | None = None,
    ) -> NamespaceInfo:
        """Change options of a namespace in place; omitted options stay as they are.

        Args:
            name: its name.
            quota_bytes: bytes it may hold, in force at once, or a text such as ``10GiB``; 0 for no
                quota.
            ttl_s: seconds after which blocks stored from now on expire; 0 for never.
            priority: 0 (evicted first) to 2 (last), of blocks stored from now on.

        Raises:
            InvalidArgument: none is given, or one is out of range.
            NoNamespace: no namespace has this name.
        """
        if quota_bytes is None and ttl_s is None and priority is None:
            raise InvalidArgument("quota_bytes, ttl_s, priority: give at least one to change")
        quota = None if quota_bytes is None else size_bytes("quota_bytes", quota_bytes)
        return self._native.set_namespace(name, quota, ttl_s, priority)

    def drop_namespace(self, name: str) -> None:
        """Remove a namespace and all its blocks."""
        self._native.drop_namespace(name)

    def server_info(self) -> dict[str, int]:
        """Return numbers about the server: bytes, chunks, hits, evictions and so on."""
        return self._native.server_info()

    def alloc(self, nbytes: int) -> memoryview:
        """Return writable, page-aligned memory of ``nbytes``."""
        return memoryview(mmap.mmap(-1, max(nbytes, 1)))[:nbytes]

    def close(self) -> None:
        """Close every connection. Later calls raise ``Unreachable``."""
        self._native.close()

    def __enter__(self) -> Client:
        """Return the client."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the client."""
        self.close()

    def __repr__(self) -> str:
        """Show the address."""
        return f"Client({self.address!r})"
