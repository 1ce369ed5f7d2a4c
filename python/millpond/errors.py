"""What can go wrong, by what the caller can do about it."""

from __future__ import annotations

import errno

__all__ = [
    "BufferTooSmall",
    "Busy",
    "Conflict",
    "DeadlineExceeded",
    "FileError",
    "FileExists",
    "FileNotFound",
    "Internal",
    "InvalidArgument",
    "IsADirectory",
    "LayoutMismatch",
    "MillpondError",
    "NoNamespace",
    "NoSpace",
    "NotADirectory",
    "PermissionDenied",
    "Protocol",
    "ReadOnly",
    "Unauthorized",
    "Unreachable",
]


class MillpondError(Exception):
    """Base of every error of this package.

    ``retry_after`` is the number of seconds after which a retry may help, 0.0 when it would not.
    """

    retry_after: float = 0.0


class Unreachable(MillpondError, ConnectionError):
    """No server answers, or the connection broke; the client reconnects on a later call."""


class DeadlineExceeded(MillpondError, TimeoutError):
    """The deadline passed first."""


class Unauthorized(MillpondError, PermissionError):
    """The token is missing or unknown."""


class LayoutMismatch(MillpondError):
    """The namespace holds blocks of another layout: another model, dtype or parallel layout."""


class NoNamespace(MillpondError, LookupError):
    """No namespace of that name."""


class Conflict(MillpondError):
    """The namespace exists with other options."""


class Busy(MillpondError):
    """A queue is full; retry after ``retry_after`` seconds."""


class NoSpace(MillpondError, OSError):
    """The disks are full and nothing may be evicted; ``errno`` is ``ENOSPC``."""

    def __init__(self, *args: object) -> None:
        """Take what an ``OSError`` takes."""
        super().__init__(*args)
        self.errno = errno.ENOSPC


class ReadOnly(MillpondError, OSError):
    """The disk refuses writes; ``errno`` is ``EROFS``."""

    def __init__(self, *args: object) -> None:
        """Take what an ``OSError`` takes."""
        super().__init__(*args)
        self.errno = errno.EROFS


class Protocol(MillpondError):
    """The peer is no Millpond server, or speaks another version."""


class InvalidArgument(MillpondError, ValueError):
    """An argument breaks a limit; the message names it."""


class BufferTooSmall(InvalidArgument):
    """A value is longer than the buffer it was to be read into; ``sizes`` is what ``get`` returns.

    The other values of the call were read: their bytes are in ``sizes``, -1 for misses and for
    those that did not fit.
    """

    def __init__(self, message: str = "", sizes: list[int] | None = None) -> None:
        """Take the message and the bytes read per key."""
        super().__init__(message)
        self.sizes = sizes or []

    def __reduce__(self) -> tuple[type[BufferTooSmall], tuple[str, list[int]]]:
        """Keep the sizes when it is sent to another process."""
        return type(self), (str(self), self.sizes)


class FileError(MillpondError, OSError):
    """A file or a name is not as the call needs it: ``errno``, ``strerror`` and ``filename``.

    The errors that have a builtin class are that as well.
    """


class FileNotFound(FileError, FileNotFoundError):
    """No such file or directory."""


class FileExists(FileError, FileExistsError):
    """The name is taken."""


class IsADirectory(FileError, IsADirectoryError):
    """A directory will not do."""


class NotADirectory(FileError, NotADirectoryError):
    """A directory is needed."""


class PermissionDenied(FileError, PermissionError):
    """The mode does not allow it, or it belongs to others."""


_FILE_ERRORS: dict[int, type[FileError]] = {
    errno.ENOENT: FileNotFound,
    errno.EEXIST: FileExists,
    errno.EISDIR: IsADirectory,
    errno.ENOTDIR: NotADirectory,
    errno.EACCES: PermissionDenied,
    errno.EPERM: PermissionDenied,
}


def file_error(number: int, message: str, path: str) -> FileError:
    """Return the error for ``number``, a number of ``errno``, about ``path``."""
    return _FILE_ERRORS.get(number, FileError)(number, message, path)


class Internal(MillpondError):
    """A fault of the server; its log says more."""
