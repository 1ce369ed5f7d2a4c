"""The files of a cluster by their paths, without a mount between a program and their bytes.

``Volume`` opens files; ``AsyncVolume`` does it for asyncio. Reads and writes come in batches. A
program either waits for a batch at once, or submits it and waits later. Bytes move directly from
and to the program's memory. If a node of the cluster runs on this host, they move through memory
that the node shares; writes from a ``Region`` are not even copied into it.
"""

from __future__ import annotations

import ctypes
import functools
import io
import os
import socket
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from millpond import _native
from millpond._native import File, Pending
from millpond._threads import Threads
from millpond.client import Client
from millpond.errors import FileExists, InvalidArgument

if TYPE_CHECKING:
    from millpond._native import Memory, Mode, Parts, Path

__all__ = ["AsyncFile", "AsyncVolume", "File", "Pending", "Region", "Stream", "Volume"]

T = TypeVar("T")


class Region:
    """Registered memory: the node on this host reads writes from it in place, without a copy.

    Use ``Volume.register``. ``memory`` is the whole region, page aligned and initially zero. Its
    slices, and NumPy arrays and tensors made from them, are registered as well. Reads into a region
    work as into any memory. A region has one connection: threads that write at the same time
    register one region each.
    """

    def __init__(self, native: _native.NativeRegion) -> None:
        """Use ``Volume.register``."""
        self._native = native
        array: Any = type("_Memory", (ctypes.c_ubyte * native.nbytes,), {})
        held = array.from_address(native.address)
        held.owner = native  # Every view of the memory keeps it in place.
        self.memory: memoryview = memoryview(held).cast("B")

    @property
    def shared(self) -> bool:
        """Whether a node shares the memory; if not, writes copy from it as from any memory.

        False after a restart of the node: register new memory then.
        """
        return self._native.shared

    @property
    def nbytes(self) -> int:
        """Its length in bytes."""
        return self._native.nbytes

    def __len__(self) -> int:
        """Return its length in bytes."""
        return self._native.nbytes

    def __repr__(self) -> str:
        """Show the length and whether it is shared."""
        return f"Region({self.nbytes} bytes, shared={self.shared})"


class Stream(io.RawIOBase):
    """A file with a position, for libraries that want a Python file; use ``Volume.stream``."""

    def __init__(self, file: File) -> None:
        """Begin at the start of ``file``, which is closed with the stream."""
        super().__init__()
        self.file = file
        self._at = 0

    def readable(self) -> bool:
        """Return whether the file was opened for reading."""
        return "r" in self.file.mode or "+" in self.file.mode

    def writable(self) -> bool:
        """Return whether the file was opened for writing."""
        return "r" not in self.file.mode or "+" in self.file.mode

    def seekable(self) -> bool:
        """Return true: the stream has a position."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move to ``offset`` bytes from the start, the position or the end; return the position."""
        base = {os.SEEK_SET: lambda: 0, os.SEEK_CUR: lambda: self._at, os.SEEK_END: self.file.size}
        if whence not in base:
            raise InvalidArgument(f"whence: {whence} is not 0, 1 or 2")
        at = base[whence]() + offset
        if at < 0:
            raise InvalidArgument(f"offset: {at} is before the start of the file")
        self._at = at
        return at

    def tell(self) -> int:
        """Return the position in bytes from the start."""
        return self._at

    def readinto(self, buffer: Any) -> int:
        """Fill ``buffer`` from the position and return the bytes read, 0 at the end."""
        count = self.file.readinto(buffer, self._at)
        self._at += count
        return count

    def write(self, data: Any) -> int:
        """Write all of ``data`` at the position and return its length in bytes."""
        count = self.file.pwrite(data, self._at)
        self._at += count
        return count

    def truncate(self, size: int | None = None) -> int:
        """Set the length to ``size`` bytes, or to the position; return the length."""
        size = self._at if size is None else size
        self.file.truncate(size)
        return size

    def close(self) -> None:
        """Write the buffered rest and close the file."""
        try:
            super().close()
        finally:
            self.file.close()


class Volume(_native.NativeVolume):
    """The files of a cluster, in a session of this process. Thread safe.

    A child of a fork uses the volume, and the files opened in it, in a session of its own. For
    processes that start in another way (``spawn``, ``forkserver``) the volume can be pickled; open
    files cannot.

    Args:
        cluster: addresses of some nodes, separated by commas, or a ``Client`` to share connections.
        name: name of the session, for operators; the default is host and process.
        workers: threads that run submitted batches, 1 to 256. Threads beyond the client's number
            of ``connections`` wait for a connection.
        options: the arguments of ``Client``, when ``cluster`` is a list of addresses.

    Raises:
        InvalidArgument: an argument is invalid, or the server is not part of a cluster.
        Unreachable, DeadlineExceeded: no node answers.
    """

    _client: Client | None
    _again: functools.partial[Volume]

    def __new__(
        cls,
        cluster: str | Client = "127.0.0.1:7440",
        *,
        name: str | None = None,
        workers: int = 4,
        **options: Any,
    ) -> Volume:
        """See the class."""
        if isinstance(cluster, Client):
            if options:
                fix = "belong to the client: give them to Client"
                raise InvalidArgument(f"{', '.join(options)}: {fix}")
            client = cluster
        else:
            options.setdefault("connections", max(4, min(workers, 64)))
            client = Client(cluster, **options)
        shown = f"python {socket.gethostname()}:{os.getpid()}" if name is None else name
        volume = super().__new__(cls, client._native, shown, workers)
        volume._client = None if client is cluster else client
        volume._again = functools.partial(cls, cluster, name=name, workers=workers, **options)
        return volume

    def __reduce__(self) -> tuple[Any, ...]:
        """Let another process begin an equal session; the pickle holds the token."""
        return self._again, ()

    def register(self, nbytes: int) -> Region:
        """Register memory with the node on this host, to write from without a copy.

        Without a node that shares memory with this client (see ``shared``), it is ordinary memory.

        Raises:
            InvalidArgument: ``nbytes`` is more than the node shares at once, 256 MiB by default.
        """
        return Region(self._register(nbytes))

    def stream(
        self, path: Path, mode: Mode = "r", *, buffering: int = 8 << 20
    ) -> io.BufferedIOBase:
        """Open a file with a position and a buffer, as ``open(path, 'rb')`` does.

        Args:
            path: as for ``open``.
            mode: as for ``open``.
            buffering: size of the buffer in bytes, for read-ahead or for writes.
        """
        raw = Stream(self.open(path, mode))
        if raw.readable() and raw.writable():
            return io.BufferedRandom(raw, buffering)
        return (io.BufferedReader if raw.readable() else io.BufferedWriter)(raw, buffering)

    def makedirs(self, path: Path, perm: int = 0o755, *, exist_ok: bool = False) -> None:
        """Create a directory and its missing parents, as ``os.makedirs`` does."""
        names = [name for name in os.fspath(path).split("/") if name]
        for end in range(1, len(names)):
            try:
                self.mkdir("/".join(names[:end]), perm)
            except FileExists:
                continue
        try:
            self.mkdir(path, perm)
        except FileExists:
            if not exist_ok:
                raise

    def exists(self, path: Path) -> bool:
        """Return whether a path exists."""
        try:
            self.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def close(self) -> None:
        """End the session as soon as the files that were opened in it are closed too."""
        super().close()
        self._client = None

    def __enter__(self) -> Volume:
        """Return the volume."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the volume."""
        self.close()

    def __repr__(self) -> str:
        """Show whether it is closed."""
        return "Volume(closed)" if self.closed else "Volume()"


class AsyncFile:
    """A file for asyncio; see ``File``. No other code may use the memory of a call until it ends.

    Each call runs on a worker thread of its volume. A cancelled call runs to its end, and its
    buffers stay referenced until then.
    """

    def __init__(self, volume: AsyncVolume, file: File) -> None:
        """Use ``AsyncVolume.open``."""
        self._run = volume._run
        self._file = file

    @property
    def path(self) -> str:
        """The path that the file was opened with."""
        return self._file.path

    @property
    def mode(self) -> str:
        """The mode that the file was opened with."""
        return self._file.mode

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._file.closed

    async def size(self) -> int:
        """Ask the cluster for the length in bytes."""
        return await self._run(self._file.size)

    async def stat(self) -> os.stat_result:
        """Ask the cluster for size in bytes, mode, owner and times, as ``os.fstat`` does."""
        return await self._run(self._file.stat)

    async def pread(self, offset: int, length: int) -> bytes:
        """Read ``length`` bytes from ``offset``, fewer at the end of the file."""
        return await self._run(self._file.pread, offset, length)

    async def readinto(self, buffer: Memory, offset: int) -> int:
        """Fill ``buffer`` from ``offset`` and return the bytes read, fewer at the file's end."""
        return await self._run(self._file.readinto, buffer, offset)

    async def pwrite(self, data: Memory, offset: int) -> int:
        """Write ``data`` at ``offset``, durably on all replicas, and return its length in bytes."""
        return await self._run(self._file.pwrite, data, offset)

    async def read_batch(self, parts: Parts) -> list[int]:
        """Read ranges in parallel and return the bytes read of each, fewer at the file's end."""
        return await self._run(self._file.read_batch, parts)

    async def write_batch(self, parts: Parts) -> None:
        """Write ranges in parallel, overlapping ones in the given order."""
        await self._run(self._file.write_batch, parts)

    async def truncate(self, size: int) -> None:
        """Set the length to ``size`` bytes; an added range reads as zeros."""
        await self._run(self._file.truncate, size)

    async def fsync(self) -> None:
        """Report the time of the last write; bytes and length are durable already."""
        await self._run(self._file.fsync)

    async def close(self) -> None:
        """Close the file and report the time of the last write. Submitted batches continue."""
        await self._run(self._file.close)

    async def __aenter__(self) -> AsyncFile:
        """Return the file."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the file."""
        await self.close()


def _closed() -> InvalidArgument:
    return InvalidArgument("volume: it is closed: open it again")


class AsyncVolume:
    """The files of a cluster for asyncio. Takes the arguments of ``Volume``.

    The session begins with the first call. ``workers`` calls run in parallel.
    """

    def __init__(
        self,
        cluster: str | Client = "127.0.0.1:7440",
        *,
        name: str | None = None,
        workers: int = 4,
        **options: Any,
    ) -> None:
        """See ``Volume``."""
        self._make = functools.partial(Volume, cluster, name=name, workers=workers, **options)
        self._threads = Threads(workers, "millpond-files", _closed)
        self._run = self._threads.run
        self._volume: Volume | None = None

    def _opened(self) -> Volume:
        with self._threads.lock:
            if self._volume is None:
                self._volume = self._make()
            return self._volume

    async def _on(self, call: Callable[..., T], *args: Any, **options: Any) -> T:
        return await self._run(lambda: call(self._opened(), *args, **options))

    async def open(
        self, path: Path, mode: Mode = "r", *, create: bool = False, perm: int = 0o644
    ) -> AsyncFile:
        """Open a regular file."""
        file = await self._on(Volume.open, path, mode, create=create, perm=perm)
        return AsyncFile(self, file)

    async def stat(self, path: Path) -> os.stat_result:
        """Return size in bytes, mode, owner and times, as ``os.stat`` does; links are followed."""
        return await self._on(Volume.stat, path)

    async def exists(self, path: Path) -> bool:
        """Return whether a path exists."""
        return await self._on(Volume.exists, path)

    async def listdir(self, path: Path = "/") -> list[str]:
        """Return the names in a directory, in no particular order."""
        return await self._on(Volume.listdir, path)

    async def mkdir(self, path: Path, perm: int = 0o755) -> None:
        """Create a directory; its parent must exist."""
        await self._on(Volume.mkdir, path, perm)

    async def makedirs(self, path: Path, perm: int = 0o755, *, exist_ok: bool = False) -> None:
        """Create a directory and its missing parents, as ``os.makedirs`` does."""
        await self._on(Volume.makedirs, path, perm, exist_ok=exist_ok)

    async def rmdir(self, path: Path) -> None:
        """Remove an empty directory."""
        await self._on(Volume.rmdir, path)

    async def unlink(self, path: Path) -> None:
        """Remove the name of a file; programs that have the file open keep using it."""
        await self._on(Volume.unlink, path)

    async def rename(self, source: Path, target: Path) -> None:
        """Rename ``source`` to ``target`` in one step, replacing an existing ``target``."""
        await self._on(Volume.rename, source, target)

    async def clone(self, source: Path, target: Path) -> bool:
        """Create the file ``target``, which shares the bytes of ``source`` until one changes.

        Returns False if the bytes were copied: the file was cloned and written four times in turn.
        """
        return await self._on(Volume.clone, source, target)

    async def register(self, nbytes: int) -> Region:
        """Register memory with the node on this host, to write from without a copy."""
        return await self._on(Volume.register, nbytes)

    async def close(self) -> None:
        """Wait for running calls and end the session."""
        if self._volume is not None:
            await self._run(self._volume.close)
        await self._threads.close()

    async def __aenter__(self) -> AsyncVolume:
        """Return the volume."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the volume."""
        await self.close()
