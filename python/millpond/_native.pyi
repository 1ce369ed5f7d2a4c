"""The native module; use ``millpond``."""

from collections.abc import Iterator, Sequence
from typing import Any, Literal, final

__version__: str

# An object with the buffer protocol, a CPU torch tensor, or a list of (address, length) segments.
Memory = Any | list[tuple[int, int]]
# "runs": the keys are one prompt from its start; else one leader per key; None: each its own.
Leaders = Sequence[bytes] | Literal["runs"] | None
Page = tuple[int, list[KeyInfo]]  # Namespace.list hides the builtin inside the class

def run_cli(argv: Sequence[str]) -> int:
    """Run the ``millpond`` command line and return its exit status."""
@final
class KeyInfo:
    """A key in a listing."""

    key: bytes
    size: int
    expires: int | None
    pinned: bool

@final
class NamespaceInfo:
    """A namespace and its options."""

    name: str
    id: int
    layout: bytes
    ack: str
    priority: int
    evict: bool
    ttl_s: int
    quota_bytes: int
    run_blocks: int

@final
class NativeClient:
    """What ``millpond.Client`` wraps."""

    def __new__(
        cls,
        address: str,
        token: str,
        transport: str,
        tls_ca: str | None,
        deadline_ms: int,
        connections: int,
    ) -> NativeClient: ...
    def transport(self) -> str: ...
    def open_namespace(
        self,
        name: str,
        layout: bytes,
        create: bool,
        ack: str,
        ttl_s: int,
        quota_bytes: int,
        priority: int,
        evict: bool,
    ) -> Namespace: ...
    def open_failing_open(
        self,
        name: str,
        layout: bytes,
        create: bool,
        ack: str,
        ttl_s: int,
        quota_bytes: int,
        priority: int,
        evict: bool,
        deadline_ms: int,
        retry_ms: int,
        failures: int,
        writes: int,
    ) -> FailOpen: ...
    def namespaces(self) -> list[NamespaceInfo]: ...
    def drop_namespace(self, name: str) -> None: ...
    def server_info(self) -> dict[str, int]: ...
    def close(self) -> None: ...

class Store:
    """A store of blocks. Thread safe; every verb takes a batch and releases the interpreter lock.

    Values are given, and room for them is taken, as objects with the buffer protocol (bytes,
    NumPy arrays, memoryviews), as CPU torch tensors, or as lists of ``(address, length in bytes)``
    segments that make up one value. Nobody else may write the memory of a ``put``, or touch
    that of a ``get``, until the call returns.

    ``leaders`` decide placement, in every verb alike, and a block is found with the leader it was
    stored with. Without them every key is its own leader. ``"runs"`` says that the keys are one
    prompt from its start: each run of ``run_blocks`` keys is led by its first. Callers that move
    parts of a prompt give one leader per key.

    ``deadline_ms`` bounds a call; that of the client, or of the store, when not given.
    """

    def put(
        self,
        keys: Sequence[bytes],
        values: Sequence[Memory],
        *,
        leaders: Leaders = None,
        deadline_ms: int | None = None,
    ) -> list[str]:
        """Store values; the first one stored under a key wins.

        Returns per key ``stored``, ``exists``, ``no_space``, ``busy``, ``corrupt``, ``read_only``,
        ``quota`` or ``late``.
        """

    def get(
        self,
        keys: Sequence[bytes],
        into: Sequence[Memory],
        *,
        leaders: Leaders = None,
        deadline_ms: int | None = None,
    ) -> list[int]:
        """Read values into ``into``; the bytes read per key, -1 for a miss.

        A value longer than its room is a miss, and so is one that fails its checksum; the room
        then holds undefined bytes.
        """

    def get_bytes(
        self, key: bytes, leader: bytes | None = None, *, deadline_ms: int | None = None
    ) -> bytes | None:
        """Read one value of any length, ``None`` for a miss."""

    def contains(
        self,
        keys: Sequence[bytes],
        *,
        leaders: Leaders = None,
        deadline_ms: int | None = None,
    ) -> list[bool]:
        """Tell which keys are present."""

    def match_prefix(
        self,
        keys: Sequence[bytes],
        *,
        lease_ms: int = 0,
        leaders: Leaders = None,
        deadline_ms: int | None = None,
    ) -> int:
        """Count the leading keys that are present and, in the same round trip, lease them."""

    def touch(
        self,
        keys: Sequence[bytes],
        *,
        leaders: Leaders = None,
        deadline_ms: int | None = None,
    ) -> list[bool]:
        """Mark keys as recently used; true for those that are present."""

    def delete(
        self,
        keys: Sequence[bytes],
        *,
        leaders: Leaders = None,
        deadline_ms: int | None = None,
    ) -> list[bool]:
        """Remove keys; true for those that were present."""

    def stats(self) -> dict[str, int]:
        """Return numbers about the store: blocks, bytes, hits, misses and so on."""

@final
class Namespace(Store):
    """A named keyspace on a server."""

    @property
    def name(self) -> str:
        """The name."""

    @property
    def info(self) -> NamespaceInfo:
        """The namespace as the server knew it when it was opened."""

    def pin(
        self,
        keys: Sequence[bytes],
        *,
        leaders: Leaders = None,
        deadline_ms: int | None = None,
    ) -> list[bool]:
        """Keep keys from eviction until unpinned; true for those that are present."""

    def unpin(
        self,
        keys: Sequence[bytes],
        *,
        leaders: Leaders = None,
        deadline_ms: int | None = None,
    ) -> list[bool]:
        """End a pin; true for those that are present."""

    def list(self, prefix: bytes | None = None) -> Iterator[KeyInfo]:
        """Iterate over the keys, or those that start with ``prefix``, page by page."""

    def list_page(self, prefix: bytes, cursor: int) -> Page:
        """Return one page of keys and the cursor of the next, 0 after the last."""

@final
class FailOpen(Store):
    """A namespace that never stops its caller; made by ``Client.fail_open``.

    No verb raises because of the server, and none waits longer than its deadline. What is late or
    fails is a miss when it reads (-1, ``None``, ``False``, 0) and is dropped when it writes
    (``late``); ``stats`` counts both. After some failures in a row the server is taken to be down:
    for a while, which doubles, nothing is tried at all. What the caller does wrong still raises.
    """

    @property
    def name(self) -> str:
        """The name of the namespace."""

    @property
    def up(self) -> bool:
        """Whether calls are tried at the moment."""

    @property
    def last_error(self) -> str | None:
        """Why the last call failed that did, for people to read."""

@final
class Pipeline(Store):
    """A store made of stages."""

def open_pipeline(
    text: str,
    namespace: Namespace | None,
    folder: str | None,
    sizes: tuple[int, int],
    layout: bytes,
) -> Pipeline:
    """Build a pipeline; use ``millpond.pipeline``."""
