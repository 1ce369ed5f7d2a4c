"""The exceptions, one class per reaction of the caller."""

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

    ``retry_after`` is the number of seconds after which a retry may help; 0.0 if it cannot help.
    """

    retry_after: float = 0.0


class Unreachable(MillpondError, ConnectionError):
    """No server answers, or the connection broke. The client reconnects on a later call."""


class DeadlineExceeded(MillpondError, TimeoutError):
    """The deadline passed before the answer came."""


class Unauthorized(MillpondError, PermissionError):
    """The token is missing or unknown."""


class LayoutMismatch(MillpondError):
    """The namespace holds blocks of another layout: another model, dtype or parallel layout."""


class NoNamespace(MillpondError, LookupError):
    """No namespace has this name."""


class Conflict(MillpondError):
    """The namespace exists with other options."""


class Busy(MillpondError):
    """A queue is full; retry after ``retry_after`` seconds."""


class NoSpace(MillpondError, OSError):
    """The disks are full and nothing may be evicted; ``errno`` is ``ENOSPC``."""

    def __init__(self, *args: object) -> None:
        """Take the arguments of ``OSError``."""
        super().__init__(*args)
        self.errno = errno.ENOSPC


class ReadOnly(MillpondError, OSError):
    """The disk is read-only; ``errno`` is ``EROFS``."""

    def __init__(self, *args: object) -> None:
        """Take the arguments of ``OSError``."""
        super().__init__(*args)
        self.errno = errno.EROFS


class Protocol(MillpondError):
    """The peer is not a Millpond server, or speaks another protocol version."""


class InvalidArgument(MillpondError, ValueError):
    """An argument breaks a limit; the message names it."""


class BufferTooSmall(InvalidArgument):
    """A value is longer than its buffer.

    The other values of the call were read. ``sizes`` is the result of ``get``: the bytes read per
    key, -1 for misses and for values that did not fit.
    """

    def __init__(self, message: str = "", sizes: list[int] | None = None) -> None:
        """Take the message and the bytes read per key."""
        super().__init__(message)
        self.sizes = sizes or []

    def __reduce__(self) -> tuple[type[BufferTooSmall], tuple[str, list[int]]]:
        """Keep the sizes when the error is sent to another process."""
        return type(self), (str(self), self.sizes)


class FileError(MillpondError, OSError):
    """A call on a file failed; ``errno``, ``strerror`` and ``filename`` describe it.

    Errors with a builtin class are instances of that class as well.
    """


class FileNotFound(FileError, FileNotFoundError):
    """No such file or directory."""


class FileExists(FileError, FileExistsError):
    """The name exists already."""


class IsADirectory(FileError, IsADirectoryError):
    """The path is a directory, and the call needs a file."""


class NotADirectory(FileError, NotADirectoryError):
    """The path is not a directory, and the call needs one."""


class PermissionDenied(FileError, PermissionError):
    """The permission bits or the owner do not allow the call."""


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
    """A fault of the server; the server's log has the details."""
