"""The files of a cluster by their paths, without a mount between a program and their bytes.

``Volume`` opens them, ``AsyncVolume`` does for asyncio. Reads and writes come in batches, at once
or submitted and waited for later, and go straight from and to the program's memory. Where a node
of the cluster runs on this host they go through memory that it shares; from a ``Region`` they are
not even copied on their way to it.
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
    """Registered memory: what is written from it goes to the node on this host without a copy.

    Use ``Volume.register``. ``memory`` is all of it, page aligned and zeroed at first; its slices,
    and NumPy arrays and tensors made from them, are registered as well. Reads come into it as into
    any memory. It has one connection: threads that write at the same time register one each.
    """

    def __init__(self, native: _native.NativeRegion) -> None:
        """Use ``Volume.register``."""
        self._native = native
        array: Any = type("_Memory", (ctypes.c_ubyte * native.nbytes,), {})
        held = array.from_address(native.address)
        held.owner = native  # Whoever has a view of the memory keeps it in place.
        self.memory: memoryview = memoryview(held).cast("B")

    @property
    def shared(self) -> bool:
        """Whether a node shares it now; else it is memory as any other, and writes copy from it.

        No longer after that node was started again: register memory anew then.
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
        """Show length and whether it is shared."""
        return f"Region({self.nbytes} bytes, shared={self.shared})"


class Stream(io.RawIOBase):
    """A file with a position, for libraries that want a Python file; use ``Volume.stream``."""

    def __init__(self, file: File) -> None:
        """Begin at the start of ``file``, which is closed with the stream."""
        super().__init__()
        self.file = file
        self._at = 0

    def readable(self) -> bool:
        """Tell whether it was opened to be read."""
        return "r" in self.file.mode or "+" in self.file.mode

    def writable(self) -> bool:
        """Tell whether it was opened to be written."""
        return "r" not in self.file.mode or "+" in self.file.mode

    def seekable(self) -> bool:
        """Return that it is."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Go to ``offset`` bytes from the start, from here or from the end; return the place."""
        base = {os.SEEK_SET: lambda: 0, os.SEEK_CUR: lambda: self._at, os.SEEK_END: self.file.size}
        if whence not in base:
            raise InvalidArgument(f"whence: {whence} is none of 0, 1 and 2")
        at = base[whence]() + offset
        if at < 0:
            raise InvalidArgument(f"offset: {at} lies before the start of the file")
        self._at = at
        return at

    def tell(self) -> int:
        """Return the place in bytes from the start."""
        return self._at

    def readinto(self, buffer: Any) -> int:
        """Fill ``buffer`` from here; the bytes read, 0 at the end."""
        count = self.file.readinto(buffer, self._at)
        self._at += count
        return count

    def write(self, data: Any) -> int:
        """Write all of ``data`` here; its length in bytes."""
        count = self.file.pwrite(data, self._at)
        self._at += count
        return count

    def truncate(self, size: int | None = None) -> int:
        """Make the file ``size`` bytes long, or end it here; return the length."""
        size = self._at if size is None else size
        self.file.truncate(size)
        return size

    def close(self) -> None:
        """Write what is left and close the file."""
        try:
            super().close()
        finally:
            self.file.close()


class Volume(_native.NativeVolume):
    """The files of a cluster, in a session of this process. Thread safe.

    A child of a fork uses it, and the files that were opened in it, in a session of its own. For
    processes that are started otherwise (``spawn``, ``forkserver``) it can be pickled; open files
    cannot.

    Args:
        cluster: addresses of some nodes, with commas, or a ``Client`` to share connections with.
        name: says to operators who has the session; host and process when not given.
        workers: threads that do what is submitted, 1 to 256. More of them than the client has
            ``connections`` wait for one.
        options: of ``Client``, where addresses were given.

    Raises:
        InvalidArgument: naming the argument, or for a server that stands alone.
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
                fix = "are the client's already: give them to Client"
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
        """Have another process begin a session like this one; the pickle holds the token."""
        return self._again, ()

    def register(self, nbytes: int) -> Region:
        """Register memory with the node on this host, to write from without a copy.

        Where none shares memory with this client (``shared`` tells), it is memory as any other.

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
            buffering: bytes that are read ahead, or gathered before they are written.
        """
        raw = Stream(self.open(path, mode))
        if raw.readable() and raw.writable():
            return io.BufferedRandom(raw, buffering)
        return (io.BufferedReader if raw.readable() else io.BufferedWriter)(raw, buffering)

    def makedirs(self, path: Path, perm: int = 0o755, *, exist_ok: bool = False) -> None:
        """Make a directory and those that lead to it, as ``os.makedirs`` does."""
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
        """Tell whether a path leads to something."""
        try:
            self.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def close(self) -> None:
        """End the session, once the files that were opened in it are closed too."""
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
    """A file for asyncio; see ``File``. Give a call memory that nobody else touches meanwhile.

    Each call runs on a worker thread of its volume. One that is cancelled is forgotten, not undone:
    its buffers stay referenced until it ends.
    """

    def __init__(self, volume: AsyncVolume, file: File) -> None:
        """Use ``AsyncVolume.open``."""
        self._run = volume._run
        self._file = file

    @property
    def path(self) -> str:
        """The path that it was opened by."""
        return self._file.path

    @property
    def mode(self) -> str:
        """How it was opened."""
        return self._file.mode

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._file.closed

    async def size(self) -> int:
        """Ask how many bytes it has."""
        return await self._run(self._file.size)

    async def stat(self) -> os.stat_result:
        """Ask what ``os.fstat`` would: size in bytes, mode, owner, times."""
        return await self._run(self._file.stat)

    async def pread(self, offset: int, length: int) -> bytes:
        """Read ``length`` bytes from ``offset``, fewer where the file ends."""
        return await self._run(self._file.pread, offset, length)

    async def readinto(self, buffer: Memory, offset: int) -> int:
        """Fill ``buffer`` from ``offset``; the bytes read, fewer where the file ends."""
        return await self._run(self._file.readinto, buffer, offset)

    async def pwrite(self, data: Memory, offset: int) -> int:
        """Write ``data`` at ``offset``, durably on all replicas; its length in bytes."""
        return await self._run(self._file.pwrite, data, offset)

    async def read_batch(self, parts: Parts) -> list[int]:
        """Read ranges at the same time; the bytes read of each, fewer where the file ends."""
        return await self._run(self._file.read_batch, parts)

    async def write_batch(self, parts: Parts) -> None:
        """Write ranges at the same time, those that overlap in their order."""
        await self._run(self._file.write_batch, parts)

    async def truncate(self, size: int) -> None:
        """Make the file ``size`` bytes long; what it is made longer by reads as zeros."""
        await self._run(self._file.truncate, size)

    async def fsync(self) -> None:
        """Tell when the file was written last; its bytes and its length are durable already."""
        await self._run(self._file.fsync)

    async def close(self) -> None:
        """Close it, and tell when it was written last. Batches that were submitted go on."""
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

    The session begins with the first call. ``workers`` is how many calls run side by side.
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
        """Return what ``os.stat`` would: size in bytes, mode, owner, times; links are followed."""
        return await self._on(Volume.stat, path)

    async def exists(self, path: Path) -> bool:
        """Tell whether a path leads to something."""
        return await self._on(Volume.exists, path)

    async def listdir(self, path: Path = "/") -> list[str]:
        """Return the names in a directory, in no particular order."""
        return await self._on(Volume.listdir, path)

    async def mkdir(self, path: Path, perm: int = 0o755) -> None:
        """Make a directory; its parent must be there."""
        await self._on(Volume.mkdir, path, perm)

    async def makedirs(self, path: Path, perm: int = 0o755, *, exist_ok: bool = False) -> None:
        """Make a directory and those that lead to it, as ``os.makedirs`` does."""
        await self._on(Volume.makedirs, path, perm, exist_ok=exist_ok)

    async def rmdir(self, path: Path) -> None:
        """Remove an empty directory."""
        await self._on(Volume.rmdir, path)

    async def unlink(self, path: Path) -> None:
        """Take the name of a file away; who has it open goes on with it."""
        await self._on(Volume.unlink, path)

    async def rename(self, source: Path, target: Path) -> None:
        """Give ``source`` the name ``target``, at once and in the place of what is there."""
        await self._on(Volume.rename, source, target)

    async def clone(self, source: Path, target: Path) -> bool:
        """Make the file ``target``: it shares the bytes of ``source`` until one of them is written.

        False when the bytes were copied: of a file that was cloned and written four times in turn.
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
