"""What the two sides of an engine tell each other between steps: a page of shared memory.

An engine that resets its cache gives blocks away while saves still wait to read
them, and it may unmap the cache before another step tells the workers. So the
scheduler's side writes into this page which saves are void, and waits until no
worker of the host copies for one of them. A copy takes as long as the memory
does; how long the store takes does not matter.

Workers on other hosts have no such page: the next step tells them, before it
computes anything.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import mmap
import os
import stat
import struct
import tempfile
import threading
from collections.abc import Iterator

_NUMBER = struct.Struct("@Q")
"""Native, so that it is written and read as a whole."""
_SLOT_BYTES = 64
_MARK = b"\x01"
_SHARED = "/dev/shm"


class Fence:
    """The page of one engine.

    Its first slot holds the number from which on saves count. Every rank has another one: whether
    it is there, from which number on its saves are not done, and what it says of its layout.

    Args:
        engine: what both sides know of the engine, and no other engine does.
        parts: number of ranks.
    """

    def __init__(self, engine: str, parts: int) -> None:
        """See the class."""
        name = hashlib.sha256(f"{os.getuid()}:{engine}".encode()).hexdigest()[:32]
        folder = _SHARED if os.access(_SHARED, os.W_OK) else tempfile.gettempdir()
        self._path = os.path.join(folder, f"millpond-vllm-{name}")
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        self._file = os.fdopen(os.open(self._path, flags, 0o600), "r+b", buffering=0)
        found = os.fstat(self._file.fileno())
        if found.st_uid != os.getuid() or not stat.S_ISREG(found.st_mode):
            raise PermissionError(f"{self._path} belongs to somebody else")
        size = (parts + 1) * _SLOT_BYTES
        self._file.truncate(size)
        self._page = mmap.mmap(self._file.fileno(), size)
        self._parts = parts
        self._lock = threading.Condition()
        self._copies = 0
        self._local = 0

    # -- the scheduler's side -------------------------------------------------

    def hide(self) -> None:
        """Removes the page's name, once every worker of this host has the page."""
        with contextlib.suppress(OSError):
            os.unlink(self._path)

    def void(self, number: int) -> None:
        """Makes saves below ``number`` void; on return no worker of this host reads for one."""
        _NUMBER.pack_into(self._page, 0, max(number, self._shared(0)))
        fcntl.flock(self._file, fcntl.LOCK_EX)
        fcntl.flock(self._file, fcntl.LOCK_UN)

    def hellos(self) -> dict[int, bytes]:
        """Returns what the ranks of this host said of their layouts."""
        found = {}
        for part in range(self._parts):
            at = self._slot(part)
            if self._page[at : at + 1] == _MARK:
                found[part] = bytes(self._page[at + 16 : at + 48])
        return found

    def all_done(self, number: int) -> bool:
        """Whether every rank is known to be done with the saves below ``number``."""
        here = self.hellos()
        ranks = range(self._parts)
        return all(p in here and self._shared(self._slot(p) + 8) >= number for p in ranks)

    # -- a worker's side ------------------------------------------------------

    def hello(self, part: int, layout: bytes) -> None:
        """Says that a rank has the page, and the 32-byte digest of its layout."""
        at = self._slot(part)
        self._page[at + 16 : at + 48] = layout
        self._page[at : at + 1] = _MARK

    def done(self, part: int, number: int) -> None:
        """Says that a rank is done with every save below ``number``."""
        _NUMBER.pack_into(self._page, self._slot(part) + 8, number)

    def void_here(self, number: int) -> None:
        """What `void` does, for this worker alone; a step told it."""
        with self._lock:
            if number <= self._local:
                return
            self._local = number
            self._lock.wait_for(lambda: self._copies == 0)

    @contextlib.contextmanager
    def copying(self, number: int) -> Iterator[bool]:
        """Surrounds a copy out of the cache; gives False where the save is void.

        Nobody waits inside for more than a memory or a device.
        """
        with self._lock:
            if self._copies == 0:
                # Waits for a reset alone, which waits for copies alone.
                fcntl.flock(self._file, fcntl.LOCK_SH)
            self._copies += 1
        try:
            yield number >= max(self._local, self._shared(0))
        finally:
            with self._lock:
                self._copies -= 1
                if self._copies == 0:
                    fcntl.flock(self._file, fcntl.LOCK_UN)
                    self._lock.notify_all()

    # -- either ---------------------------------------------------------------

    def _slot(self, part: int) -> int:
        return (part + 1) * _SLOT_BYTES

    def _shared(self, at: int) -> int:
        number: int = _NUMBER.unpack_from(self._page, at)[0]
        return number
