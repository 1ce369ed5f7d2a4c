"""The native module; use ``millpond``."""

import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, final

from typing_extensions import Self

__version__: str

# An object with the buffer protocol, a CPU torch tensor, or a list of (address, length) segments.
Memory = Any | list[tuple[int, int]]
# "runs": the keys are one prompt from its start; else one leader per key; None: each its own.
Leaders = Sequence[bytes] | Literal["runs"] | None
Path = str | os.PathLike[str]
Mode = Literal["r", "r+", "w", "w+", "x", "x+", "rb", "rb+", "r+b", "wb", "wb+", "xb", "xb+"]
# Ranges of a file: offsets in bytes from its start, each with the memory for its bytes.
Parts = Iterable[tuple[int, Memory]]
Page = tuple[int, list[KeyInfo]]  # Namespace.list hides the builtin inside the class

def generation() -> int:
    """Return a number that this process shares with none that it was forked from."""

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
    def set_namespace(
        self, name: str, quota_bytes: int | None, ttl_s: int | None, priority: int | None
    ) -> NamespaceInfo: ...
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

        A value that fails its checksum is a miss; its room then holds undefined bytes.

        Raises:
            BufferTooSmall: a value is longer than its room; with the sizes of the others, which
                were read. Of a store that fails open it is a miss.
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

class NativeVolume:
    """What ``millpond.files.Volume`` derives from."""

    def __new__(cls, client: NativeClient, name: str, workers: int) -> Self: ...
    def open(
        self, path: Path, mode: Mode = "r", *, create: bool = False, perm: int = 0o644
    ) -> File:
        """Open a regular file.

        Args:
            path: from the root of the volume, with or without ``/``; links are followed.
            mode: ``r`` to read, ``r+`` to read and write what is there; ``w`` to write, ``w+`` to
                read and write what is made or cut to nothing; ``x`` and ``x+`` what must not be
                there yet. A ``b`` changes nothing: files are bytes.
            create: with ``r+``, make the file if it is not there, and keep what is.
            perm: permission bits of a new file.

        Raises:
            FileNotFound, FileExists, IsADirectory, PermissionDenied or another ``FileError``.
            InvalidArgument: naming the argument.
        """

    def stat(self, path: Path) -> os.stat_result:
        """Return what ``os.stat`` would: size in bytes, mode, owner, times; links are followed."""

    def listdir(self, path: Path = "/") -> list[str]:
        """Return the names in a directory, in no particular order."""

    def mkdir(self, path: Path, perm: int = 0o755) -> None:
        """Make a directory; its parent must be there."""

    def rmdir(self, path: Path) -> None:
        """Remove an empty directory."""

    def unlink(self, path: Path) -> None:
        """Take the name of a file away; who has it open goes on with it."""

    def rename(self, source: Path, target: Path) -> None:
        """Give ``source`` the name ``target``, at once and in the place of what is there."""

    def clone(self, source: Path, target: Path) -> bool:
        """Make the file ``target``: it shares the bytes of ``source`` until one of them is written.

        False when the bytes were copied: of a file that was cloned and written four times in turn.
        """

    def _register(self, nbytes: int) -> NativeRegion: ...
    @property
    def closed(self) -> bool:
        """Whether it was closed."""

    def close(self) -> None:
        """End the session, once the files that were opened in it are closed too."""

@final
class NativeRegion:
    """What ``millpond.files.Region`` wraps."""

    @property
    def address(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def shared(self) -> bool: ...

@final
class File:
    """An open file. Thread safe: calls of several threads run side by side, without the lock.

    There is no position: every call names its offsets, in bytes from the start of the file. Memory
    is given as objects with the buffer protocol (bytearray, memoryview, NumPy arrays), as
    contiguous CPU torch tensors (pinned ones too), or as a list of ``(address, length in bytes)``
    segments that follow each other in the file. Bytes go straight from and to it. Nobody else may
    touch it before the call, or the batch that was submitted, is done.

    Calls raise ``FileError`` (an ``OSError`` with ``errno``), ``NoSpace``, ``Unreachable`` and
    ``DeadlineExceeded``; ``InvalidArgument`` for what was not opened to be read, or written; and
    ``ValueError`` when the file is closed.
    """

    @property
    def path(self) -> str:
        """The path that it was opened by."""

    @property
    def mode(self) -> str:
        """How it was opened."""

    @property
    def closed(self) -> bool:
        """Whether it was closed."""

    def size(self) -> int:
        """Ask how many bytes it has."""

    def stat(self) -> os.stat_result:
        """Ask what ``os.fstat`` would: size in bytes, mode, owner, times."""

    def pread(self, offset: int, length: int) -> bytes:
        """Read ``length`` bytes from ``offset``, fewer where the file ends."""

    def readinto(self, buffer: Memory, offset: int) -> int:
        """Fill ``buffer`` from ``offset``; the bytes read, fewer where the file ends.

        What lies behind them in the buffer is left alone.
        """

    def pwrite(self, data: Memory, offset: int) -> int:
        """Write ``data`` at ``offset``, durably on all replicas; its length in bytes."""

    def read_batch(self, parts: Parts) -> list[int]:
        """Read ranges at the same time; the bytes read of each, fewer where the file ends.

        ``parts`` are ``(offset, buffer)`` pairs. When the call raises, nothing is known about
        what the buffers hold.
        """

    def write_batch(self, parts: Parts) -> None:
        """Write ranges at the same time, those that overlap in their order.

        ``parts`` are ``(offset, data)`` pairs. All are durable on all replicas, and the file is as
        long, when it returns. When it raises, any of them may have been written.
        """

    def submit_read(self, parts: Parts) -> Pending:
        """Have a thread of the volume do a ``read_batch``; returns without waiting for it."""

    def submit_write(self, parts: Parts) -> Pending:
        """Have a thread of the volume do a ``write_batch``; returns without waiting for it.

        Batches that were submitted side by side are written in any order.
        """

    def truncate(self, size: int) -> None:
        """Make the file ``size`` bytes long; what it is made longer by reads as zeros."""

    def fsync(self) -> None:
        """Tell when the file was written last; its bytes and its length are durable already."""

    def close(self) -> None:
        """Close it, and tell when it was written last. Batches that were submitted go on."""

    def __enter__(self) -> File: ...
    def __exit__(self, *_error: object) -> None: ...

@final
class Pending:
    """A batch that was submitted. It is done even if nobody waits for it."""

    def wait(self, timeout: float | None = None) -> list[int] | None:
        """Wait until it is done: the bytes read of each range, ``None`` of a write.

        Raises what the batch did, every time. After ``timeout`` seconds raises ``TimeoutError``,
        and the batch goes on.
        """

    def done(self) -> bool:
        """Tell whether it is done, or has failed, without waiting."""
