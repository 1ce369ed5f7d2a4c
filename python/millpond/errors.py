"""What can go wrong, by what the caller can do about it."""

from __future__ import annotations

__all__ = [
    "Busy",
    "Conflict",
    "DeadlineExceeded",
    "FileError",
    "Internal",
    "InvalidArgument",
    "LayoutMismatch",
    "MillpondError",
    "NoNamespace",
    "NoSpace",
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


class NoSpace(MillpondError):
    """The disks are full and nothing may be evicted."""


class ReadOnly(MillpondError):
    """The disk refuses writes."""


class Protocol(MillpondError):
    """The peer is no Millpond server, or speaks another version."""


class InvalidArgument(MillpondError, ValueError):
    """An argument breaks a limit; the message names it."""


class FileError(MillpondError, OSError):
    """A file or a name is not as the call needs it."""


class Internal(MillpondError):
    """A fault of the server; its log says more."""
