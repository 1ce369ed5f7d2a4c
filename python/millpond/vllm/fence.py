"""A page of shared memory, by which the two sides of an engine talk between steps.

An engine that resets its cache gives blocks away while saves still wait to read
them, and it may unmap the cache before another step reaches the workers. So the
scheduler's side writes into this page which saves are void, and waits until no
worker of the host copies for one of them. A copy is bounded by the speed of the
memory, not by that of the store.

Workers on other hosts do not have this page: they learn of void saves with the
next step, before it computes anything.
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
"""Native, so that reads and writes are atomic."""
_SLOT_BYTES = 64
_MARK = b"\x01"
_SHARED = "/dev/shm"


class Fence:
    """The page of one engine.

    The first slot holds the lowest save number that is not void. Every rank has a slot of its own:
    a mark of its presence, the lowest number of its unfinished saves, and the digest of its layout.

    Args:
        engine: a text that both sides of this engine know, and that differs for every engine.
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
            raise PermissionError(f"{self._path} belongs to another user")
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
        """Makes saves below ``number`` void; on return no worker of this host reads for them."""
        _NUMBER.pack_into(self._page, 0, max(number, self._shared(0)))
        fcntl.flock(self._file, fcntl.LOCK_EX)
        fcntl.flock(self._file, fcntl.LOCK_UN)

    def hellos(self) -> dict[int, bytes]:
        """Returns the layout digests of the ranks of this host."""
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
        """Records that a rank has the page, and the 32-byte digest of its layout."""
        at = self._slot(part)
        self._page[at + 16 : at + 48] = layout
        self._page[at : at + 1] = _MARK

    def done(self, part: int, number: int) -> None:
        """Records that a rank is done with every save below ``number``."""
        _NUMBER.pack_into(self._page, self._slot(part) + 8, number)

    def void_here(self, number: int) -> None:
        """Does the same as `void` for this worker alone, on behalf of a step."""
        with self._lock:
            if number <= self._local:
                return
            self._local = number
            self._lock.wait_for(lambda: self._copies == 0)

    @contextlib.contextmanager
    def copying(self, number: int) -> Iterator[bool]:
        """Surrounds a copy out of the cache; yields False if the save is void.

        The body waits for memory or a device only.
        """
        with self._lock:
            if self._copies == 0:
                # Only a reset can hold the lock, and it waits for copies only.
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
