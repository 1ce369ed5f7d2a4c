"""The native module; use ``millpond``."""

import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, final

from typing_extensions import Self

__version__: str

# An object with the buffer protocol, a CPU torch tensor, or a list of (address, length) segments.
Memory = Any | list[tuple[int, int]]
# "runs": the keys are one prompt from its start. None: each key leads itself. Else one per key.
Leaders = Sequence[bytes] | Literal["runs"] | None
Path = str | os.PathLike[str]
Mode = Literal["r", "r+", "w", "w+", "x", "x+", "rb", "rb+", "r+b", "wb", "wb+", "xb", "xb+"]
# Ranges of a file: offsets in bytes from its start, each with the memory for its bytes.
Parts = Iterable[tuple[int, Memory]]
Page = tuple[int, list[KeyInfo]]  # Namespace.list hides the builtin inside the class

def generation() -> int:
    """Return a number that differs between this process and those that it was forked from."""

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
    """Native part of ``millpond.Client``."""

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

    Values and buffers are objects with the buffer protocol (bytes, NumPy arrays, memoryviews), CPU
    torch tensors, or lists of ``(address, length in bytes)`` segments that make up one value. Until
    the call returns, no other code may write the memory of a ``put`` or use that of a ``get``.

    ``leaders`` decide placement in every verb: a block is found only with the leader that it was
    stored with. Without ``leaders`` every key is its own leader. ``"runs"`` means that the keys are
    one prompt from its start: the first key of each run of ``run_blocks`` keys leads that run.
    Callers that move parts of a prompt give one leader per key.

    ``deadline_ms`` bounds a call; the default is the deadline of the client, or of the store.
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

        Returns one status per key: ``stored``, ``exists``, ``no_space``, ``busy``, ``corrupt``,
        ``read_only``, ``quota`` or ``late``.
        """

    def get(
        self,
        keys: Sequence[bytes],
        into: Sequence[Memory],
        *,
        leaders: Leaders = None,
        deadline_ms: int | None = None,
    ) -> list[int]:
        """Read values into ``into`` and return the bytes read per key, -1 for a miss.

        A value that fails its checksum is a miss; its buffer then holds undefined bytes.

        Raises:
            BufferTooSmall: a value is longer than its buffer. The error has the sizes of the other
                values, which were read. A store that fails open counts the long value as a miss.
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
        """Return which keys are present."""

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
        """Mark keys as recently used and return which of them are present."""

    def delete(
        self,
        keys: Sequence[bytes],
        *,
        leaders: Leaders = None,
        deadline_ms: int | None = None,
    ) -> list[bool]:
        """Remove keys and return which of them were present."""

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
        """Keep keys from eviction until unpinned and return which of them are present."""

    def unpin(
        self,
        keys: Sequence[bytes],
        *,
        leaders: Leaders = None,
        deadline_ms: int | None = None,
    ) -> list[bool]:
        """End the pin of keys and return which of them are present."""

    def list(self, prefix: bytes | None = None) -> Iterator[KeyInfo]:
        """Iterate over all keys, or the keys that start with ``prefix``, page by page."""

    def list_page(self, prefix: bytes, cursor: int) -> Page:
        """Return one page of keys and the cursor of the next, 0 after the last."""

@final
class FailOpen(Store):
    """A namespace that never stops its caller; made by ``Client.fail_open``.

    No verb raises because of the server, and none waits longer than its deadline. A read that is
    late or fails is a miss (-1, ``None``, ``False``, 0); a write that is late or fails is dropped
    (``late``); ``stats`` counts both. After some failures in a row the store takes the server to be
    down and tries nothing for a pause, which doubles. Mistakes of the caller still raise.
    """

    @property
    def name(self) -> str:
        """The name of the namespace."""

    @property
    def up(self) -> bool:
        """Whether calls are tried at the moment."""

    @property
    def last_error(self) -> str | None:
        """The reason of the last failure, for people to read."""

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
    """Native base of ``millpond.files.Volume``."""

    def __new__(cls, client: NativeClient, name: str, workers: int) -> Self: ...
    def open(
        self, path: Path, mode: Mode = "r", *, create: bool = False, perm: int = 0o644
    ) -> File:
        """Open a regular file.

        Args:
            path: from the root of the volume, with or without a leading ``/``; links are followed.
            mode: ``r`` reads and ``r+`` reads and writes an existing file; ``w`` writes and ``w+``
                reads and writes a new or emptied file; ``x`` and ``x+`` do the same, but the file
                must not exist yet. A ``b`` changes nothing: files are bytes.
            create: with ``r+``, create a missing file; an existing file keeps its bytes.
            perm: permission bits of a new file.

        Raises:
            FileNotFound, FileExists, IsADirectory, PermissionDenied or another ``FileError``.
            InvalidArgument: an argument is invalid; the message names it.
        """

    def stat(self, path: Path) -> os.stat_result:
        """Return size in bytes, mode, owner and times, as ``os.stat`` does; links are followed."""

    def listdir(self, path: Path = "/") -> list[str]:
        """Return the names in a directory, in no particular order."""

    def mkdir(self, path: Path, perm: int = 0o755) -> None:
        """Create a directory; its parent must exist."""

    def rmdir(self, path: Path) -> None:
        """Remove an empty directory."""

    def unlink(self, path: Path) -> None:
        """Remove the name of a file; programs that have the file open keep using it."""

    def rename(self, source: Path, target: Path) -> None:
        """Rename ``source`` to ``target`` in one step, replacing an existing ``target``."""

    def clone(self, source: Path, target: Path) -> bool:
        """Create the file ``target``, which shares the bytes of ``source`` until one changes.

        Returns False if the bytes were copied: the file was cloned and written four times in turn.
        """

    def _register(self, nbytes: int) -> NativeRegion: ...
    @property
    def closed(self) -> bool:
        """Whether it was closed."""

    def close(self) -> None:
        """End the session as soon as the files that were opened in it are closed too."""

@final
class NativeRegion:
    """Native part of ``millpond.files.Region``."""

    @property
    def address(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def shared(self) -> bool: ...

@final
class File:
    """An open file. Thread safe: calls of several threads run in parallel, without the lock.

    There is no position: every call names its offsets, in bytes from the start of the file. Buffers
    are objects with the buffer protocol (bytearray, memoryview, NumPy arrays), contiguous CPU torch
    tensors (pinned ones too), or lists of ``(address, length in bytes)`` segments that follow each
    other in the file. Bytes move directly from and to these buffers. No other code may use a buffer
    until the call, or the submitted batch, is done.

    Calls raise ``FileError`` (an ``OSError`` with ``errno``), ``NoSpace``, ``Unreachable`` and
    ``DeadlineExceeded``; ``InvalidArgument`` when the file was not opened for reading, or for
    writing; and ``ValueError`` when the file is closed.
    """

    @property
    def path(self) -> str:
        """The path that the file was opened with."""

    @property
    def mode(self) -> str:
        """The mode that the file was opened with."""

    @property
    def closed(self) -> bool:
        """Whether it was closed."""

    def size(self) -> int:
        """Ask the cluster for the length in bytes."""

    def stat(self) -> os.stat_result:
        """Ask the cluster for size in bytes, mode, owner and times, as ``os.fstat`` does."""

    def pread(self, offset: int, length: int) -> bytes:
        """Read ``length`` bytes from ``offset``, fewer at the end of the file."""

    def readinto(self, buffer: Memory, offset: int) -> int:
        """Fill ``buffer`` from ``offset`` and return the bytes read, fewer at the file's end.

        The rest of the buffer does not change.
        """

    def pwrite(self, data: Memory, offset: int) -> int:
        """Write ``data`` at ``offset``, durably on all replicas, and return its length in bytes."""

    def read_batch(self, parts: Parts) -> list[int]:
        """Read ranges in parallel and return the bytes read of each, fewer at the file's end.

        ``parts`` are ``(offset, buffer)`` pairs. When the call raises, the contents of the buffers
        are undefined.
        """

    def write_batch(self, parts: Parts) -> None:
        """Write ranges in parallel, overlapping ones in the given order.

        ``parts`` are ``(offset, data)`` pairs. When the call returns, all ranges are durable on all
        replicas and the length of the file covers them. When it raises, any of them may have been
        written.
        """

    def submit_read(self, parts: Parts) -> Pending:
        """Start a ``read_batch`` on a thread of the volume and return without waiting for it."""

    def submit_write(self, parts: Parts) -> Pending:
        """Start a ``write_batch`` on a thread of the volume and return without waiting for it.

        Batches that are in flight at the same time are written in any order.
        """

    def truncate(self, size: int) -> None:
        """Set the length to ``size`` bytes; an added range reads as zeros."""

    def fsync(self) -> None:
        """Report the time of the last write; bytes and length are durable already."""

    def close(self) -> None:
        """Close the file and report the time of the last write. Submitted batches continue."""

    def __enter__(self) -> File: ...
    def __exit__(self, *_error: object) -> None: ...

@final
class Pending:
    """A submitted batch. It runs to its end even if nobody waits for it."""

    def wait(self, timeout: float | None = None) -> list[int] | None:
        """Wait for the end and return the bytes read of each range, or ``None`` for a write.

        Every call raises the error of a failed batch. After ``timeout`` seconds a call raises
        ``TimeoutError``, and the batch continues.
        """

    def done(self) -> bool:
        """Return whether the batch is done or has failed, without waiting."""
