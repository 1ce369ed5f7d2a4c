"""Locks, syncs, notices, limits, programs and handles."""

from __future__ import annotations

from names import make
from record import Battery


def whole_locks(b: Battery) -> None:
    """flock."""
    b.section("flock")
    make(b, "file")
    for fd in ["one", "two"]:
        b("open", "file", "O_RDONLY", to=fd)
    b.by("peer", "open", "file", "O_RDWR", to="file")
    b("flock", "@one", "LOCK_SH|LOCK_NB")
    b.by("peer", "flock", "@file", "LOCK_SH|LOCK_NB")
    b.by("peer", "flock", "@file", "LOCK_EX|LOCK_NB")
    b("flock", "@two", "LOCK_EX|LOCK_NB")
    b.by("peer", "flock", "@file", "LOCK_UN")
    b("flock", "@one", "LOCK_EX|LOCK_NB")
    b("flock", "@two", "LOCK_SH|LOCK_NB")
    b.by("peer", "flock", "@file", "LOCK_SH|LOCK_NB")
    b("dup", "@one", to="twin")
    b("close", "@one")
    b.by("peer", "flock", "@file", "LOCK_SH|LOCK_NB")
    b.waits("peer", "flock", "@file", "LOCK_EX")
    b("flock", "@twin", "LOCK_UN")
    b.answers("peer")
    b("flock", "@two", "LOCK_SH|LOCK_NB")
    b("interrupted", 0.2, "flock", "@two", "LOCK_SH")
    b.by("peer", "close", "@file")
    b("flock", "@two", "LOCK_EX|LOCK_NB")
    b("flock", "@two", "LOCK_UN")
    b("flock", "@two", "LOCK_UN")
    b("flock", "@two", 77)
    b("open", ".", "O_RDONLY", to="dir")
    b("flock", "@dir", "LOCK_EX|LOCK_NB")


def range_locks(b: Battery) -> None:
    """fcntl locks of processes."""
    b.section("ranges")
    make(b, "file", b"0123456789")
    b("open", "file", "O_RDWR", to="file")
    b.by("peer", "open", "file", "O_RDWR", to="file")
    b("lock", "@file", "F_SETLK", "F_WRLCK", 10, 10)
    b("lock", "@file", "F_GETLK", "F_WRLCK", 0, 0)
    b.by("peer", "lock", "@file", "F_GETLK", "F_WRLCK", 0, 0)
    b.by("peer", "lock", "@file", "F_GETLK", "F_RDLCK", 15, 1)
    b.by("peer", "lock", "@file", "F_GETLK", "F_WRLCK", 20, 10)
    b.by("peer", "lock", "@file", "F_SETLK", "F_RDLCK", 19, 2)
    b.by("peer", "lock", "@file", "F_SETLK", "F_RDLCK", 20, 10)
    b("lock", "@file", "F_SETLK", "F_RDLCK", 20, 10)
    b("lock", "@file", "F_SETLK", "F_WRLCK", 20, 10)
    b("lock", "@file", "F_GETLK", "F_WRLCK", 0, 0)
    b("lock", "@file", "F_SETLK", "F_UNLCK", 13, 3)
    b.by("peer", "lock", "@file", "F_GETLK", "F_WRLCK", 12, 100)
    b.by("peer", "lock", "@file", "F_SETLK", "F_WRLCK", 13, 3)
    b.by("peer", "lock", "@file", "F_GETLK", "F_WRLCK", 13, 100)
    b("lock", "@file", "F_GETLK", "F_RDLCK", 0, 0)
    b("lock", "@file", "F_SETLK", "F_WRLCK", -5, 5, "SEEK_END")
    b("lock", "@file", "F_SETLK", "F_WRLCK", 5, -5)
    b("lock", "@file", "F_SETLK", "F_WRLCK", 0, -5)
    b("lock", "@file", "F_SETLK", "F_WRLCK", -1, 5)
    b("lock", "@file", "F_SETLK", 77, 0, 5)
    b.by("peer", "lock", "@file", "F_GETLK", "F_WRLCK", 0, 0)
    b.by("peer", "lock", "@file", "F_SETLK", "F_WRLCK", 1000, 0)
    b("lock", "@file", "F_GETLK", "F_WRLCK", 1_000_000, 1)
    b.waits("peer", "lock", "@file", "F_SETLKW", "F_WRLCK", 10, 1)
    b("lock", "@file", "F_SETLK", "F_UNLCK", 0, 0)
    b.answers("peer")
    b("interrupted", 0.2, "lock", "@file", "F_SETLKW", "F_WRLCK", 10, 1)
    b("lock", "@file", "F_SETLK", "F_WRLCK", 500, 1)
    b.waits("peer", "lock", "@file", "F_SETLKW", "F_WRLCK", 500, 1)
    b("interrupted", 1, "lock", "@file", "F_SETLKW", "F_WRLCK", 10, 1)
    b("lock", "@file", "F_SETLK", "F_UNLCK", 0, 0)
    b.answers("peer")
    b.by("peer", "open", "file", "O_RDONLY", to="second")
    b.by("peer", "close", "@second")
    b("lock", "@file", "F_SETLK", "F_WRLCK", 0, 0)
    b("open", "file", "O_RDONLY", to="reader")
    b("lock", "@reader", "F_SETLK", "F_WRLCK", 0, 1)
    b.by("peer", "open", "file", "O_WRONLY", to="writer")
    b.by("peer", "lock", "@writer", "F_SETLK", "F_RDLCK", 0, 1)


def open_file_locks(b: Battery) -> None:
    """fcntl locks of open files, together with those of processes."""
    b.section("ofd")
    make(b, "file", b"0123456789")
    for fd in ["one", "two"]:
        b("open", "file", "O_RDWR", to=fd)
    b("lock", "@one", "F_OFD_SETLK", "F_WRLCK", 0, 5)
    b("lock", "@two", "F_OFD_GETLK", "F_WRLCK", 0, 0)
    b("lock", "@two", "F_OFD_SETLK", "F_RDLCK", 4, 1)
    b("lock", "@two", "F_OFD_SETLK", "F_WRLCK", 5, 5)
    b("lock", "@one", "F_GETLK", "F_WRLCK", 0, 0)
    b("lock", "@one", "F_SETLK", "F_WRLCK", 0, 1)
    b("dup", "@one", to="twin")
    b("close", "@one")
    b("lock", "@two", "F_OFD_SETLK", "F_RDLCK", 4, 1)
    b("flock", "@two", "LOCK_EX|LOCK_NB")
    b("flock", "@twin", "LOCK_EX|LOCK_NB")
    b("close", "@twin")
    b("lock", "@two", "F_OFD_SETLK", "F_WRLCK", 0, 5)
    b("fcntl", "@two", "F_GETLEASE")
    b("fcntl", "@two", "F_SETLEASE", "F_WRLCK")
    b("open", "file", "O_RDONLY|O_NONBLOCK")
    b("fcntl", "@two", "F_SETLEASE", "F_UNLCK")
    b("close", "@two")
    b("open", "file", "O_RDONLY", to="reader")
    b("fcntl", "@reader", "F_SETLEASE", "F_RDLCK")
    b.by("peer", "open", "file", "O_WRONLY|O_NONBLOCK")
    b("fcntl", "@reader", "F_GETLEASE")


def syncs(b: Battery) -> None:
    """Calls that make data durable."""
    b.section("syncs")
    make(b, "file", b"content")
    b.quiet("mkfifo", "fifo", 0o644)
    b("open", "file", "O_RDWR", to="file")
    b("open", "file", "O_RDONLY", to="reader")
    b("open", ".", "O_RDONLY", to="dir")
    b("open", "fifo", "O_RDWR|O_NONBLOCK", to="fifo")
    b("open", "file", "O_PATH", to="path")
    for fd in ["@file", "@reader", "@dir", "@fifo", "@path"]:
        for call in ["fsync", "fdatasync", "syncfs"]:
            b(call, fd)
    all_flags = "SYNC_FILE_RANGE_WAIT_BEFORE|SYNC_FILE_RANGE_WRITE|SYNC_FILE_RANGE_WAIT_AFTER"
    for fd, offset, length, flags in [
        ("@file", 0, 0, all_flags), ("@file", 0, 4096, "SYNC_FILE_RANGE_WRITE"),
        ("@file", 0, 0, 64), ("@file", -1, 0, 1), ("@dir", 0, 0, all_flags),
        ("@fifo", 0, 0, all_flags), ("@path", 0, 0, all_flags),
    ]:  # fmt: skip
        b("sync_range", fd, offset, length, flags)
    b("unlink", "file")
    b("write", "@file", b"gone")
    b("fsync", "@file")
    b("syncfs", "@file")


def controls(b: Battery) -> None:
    """ioctl, statfs and handles."""
    b.section("controls")
    make(b, "file", b"0123456789")
    b.quiet("mkdir", "dir")
    b("open", "file", "O_RDWR", to="file")
    b("open", "dir", "O_RDONLY", to="dir")
    for fd in ["@file", "@dir"]:
        for request in ["TCGETS", "FS_IOC_GETFLAGS", "FS_IOC_SETFLAGS", "FS_IOC_FIEMAP", 0x7701]:
            b("ioctl", fd, request)
    b("ioctl_answer", "@file", "FIONREAD")
    b("lseek", "@file", 4, "SEEK_SET")
    b("ioctl_answer", "@file", "FIONREAD")
    b("ioctl_answer", "@dir", "FIONREAD")
    b("ioctl_answer", "@file", "FIGETBSZ")
    for path in [".", "file", "absent"]:
        b("limits", path)
    b("handle", "file")
    b("handle", "dir")
    b("handle_of_removed", "file")
    b("fstat", "@file")
    make(b, "closed")
    b("handle_of_removed", "closed")


def programs(b: Battery) -> None:
    """Running programs, and files that are executed."""
    b.section("programs")
    with open("/bin/sleep", "rb") as file:
        make(b, "sleep", file.read())
    b("run_program", "./sleep", "0")
    b("chmod", "sleep", 0o755)
    b("run_program", "./sleep", "0")
    b("while_it_runs", "./sleep", "open", "sleep", "O_WRONLY")
    b("while_it_runs", "./sleep", "truncate", "sleep", 0)
    b("while_it_runs", "./sleep", "unlink", "sleep")
    b("list")
    with open("/bin/true", "rb") as file:
        make(b, "true", file.read())
    b("chmod", "true", 0o755)
    b("open", "true", "O_RDWR", to="busy")
    b("run_program", "./true")
    b("close", "@busy")
    b("run_program", "./true")
    make(b, "script", b"#!/bin/sh\nexit 3\n")
    b("chmod", "script", 0o755)
    b("run_program", "./script")
    b("chmod", "script", 0o644)
    b.by("nobody", "run_program", "./script")
    b("chmod", "true", 0o711)
    b.by("nobody", "run_program", "./true")


def notices(b: Battery) -> None:
    """inotify."""
    b.section("notices")
    b.quiet("mkdir", "dir")
    b("inotify", to="watch")
    b("watch", "@watch", "dir")
    b("watch", "@watch", "absent")
    b("events", "@watch")
    b("mkdir", "dir/in")
    b("events", "@watch")
    b("rename", "dir/in", "dir/out")
    b("events", "@watch")
    b("rmdir", "dir/out")
    b("events", "@watch")
    b("symlink", "x", "dir/link")
    b("events", "@watch")
    b("chmod", "dir", 0o700)
    b("events", "@watch")
    b("unlink", "dir/link")
    b("events", "@watch")
    b("open", "dir/file", "O_RDWR|O_CREAT", 0o644, to="file")
    b("events", "@watch")
    b("write", "@file", b"content")
    b("events", "@watch")
    b("ftruncate", "@file", 3)
    b("events", "@watch")
    b("fchmod", "@file", 0o600)
    b("events", "@watch")
    b("setxattr", "dir/file", "user.a", b"x")
    b("events", "@watch")
    b("utimensat", "dir/file", (1, 1), (1, 1))
    b("events", "@watch")
    b("close", "@file")
    b("events", "@watch")
    b("rename", "dir/file", "moved")
    b("events", "@watch")
    b("link", "moved", "dir/back")
    b("events", "@watch")
    b("unlink", "dir/back")
    b("events", "@watch")
    b("rmdir", "dir")
    b("events", "@watch")


SECTIONS = [whole_locks, range_locks, open_file_locks, syncs, controls, programs, notices]
