"""Attributes: modes, owners, times, extended attributes, and the access that they allow."""

from __future__ import annotations

from typing import Any

from names import make
from record import Battery

RW_NEW = "O_RDWR|O_CREAT|O_EXCL"
ACCESS, DEFAULT = "system.posix_acl_access", "system.posix_acl_default"


def owners(b: Battery) -> None:
    """chmod and chown."""
    b.section("owners")
    make(b, "file")
    b.quiet("mkdir", "dir")
    for mode in [0, 0o7777, 0o100644, 0o1644, 0o4711]:
        b("chmod", "file", mode)
        b("stat", "file")
    b("chmod", "dir", 0o7755)
    b("stat", "dir")
    for path in ["absent", "file/x", ""]:
        b("chmod", path, 0o600)
        b("chown", path, 1, 1)
    for uid, gid in [(1000, 4000), (-1, 77), (78, -1), (-1, -1), (0xFFFFFFFE, 0xFFFFFFFE)]:
        b("chown", "file", uid, gid)
        b("stat", "file")
    b("fchownat", "file", 1000, 1000, "AT_SYMLINK_NOFOLLOW")
    b("chmod", "file", 0o644)
    for who in ["nobody", "other"]:
        b.by(who, "chmod", "file", 0o600)
        b.by(who, "chown", "file", 1000, -1)
        b.by(who, "chown", "file", -1, 4000)
        b.by(who, "chown", "file", 0, -1)
        b.by(who, "chown", "file", -1, -1)
    b.by("member", "chown", "file", -1, 4000)
    b("stat", "file")
    b.by("member", "chmod", "file", 0o2755)
    b("stat", "file")
    b.by("other", "chmod", "file", 0o2755)
    b("stat", "file")
    b.by("other", "chmod", "file", 0o1755)
    b("stat", "file")
    b("open", "file", "O_RDONLY", to="file")
    b("fchmod", "@file", 0o640)
    b("fchown", "@file", 5, 6)
    b("fstat", "@file")


# Placeholder for the path of the changed file.
PATH = ...
SET_ID_WAYS: list[tuple[str, list[tuple[Any, ...]]]] = [
    ("write", [("open", "O_WRONLY"), ("write", "@file", b"x")]),
    ("nothing", [("open", "O_WRONLY"), ("write", "@file", b"")]),
    ("cut", [("open", "O_WRONLY"), ("ftruncate", "@file", 3)]),
    ("same", [("open", "O_WRONLY"), ("ftruncate", "@file", 10)]),
    ("opened", [("open", "O_WRONLY|O_TRUNC")]),
    ("path", [("truncate", PATH, 3)]),
    ("allocated", [("open", "O_WRONLY"), ("fallocate", "@file", 0, 0, 4096)]),
    (
        "punched",
        [("open", "O_WRONLY"), ("fallocate", "@file", "FALLOC_PUNCH_HOLE|FALLOC_KEEP_SIZE", 0, 4)],
    ),
    ("direct", [("open", "O_WRONLY|O_DIRECT"), ("direct", "@file", "write", 0, 4096)]),
    ("mapped", [("open", "O_RDWR"), ("map_write", "@file", 10, 0, b"x", "MAP_SHARED")]),
    ("kept", [("chown", PATH, -1, -1)]),
    ("given", [("chown", PATH, 1000, 4000)]),
    ("timed", [("utimensat", PATH, None, None)]),
]


def set_ids(b: Battery) -> None:
    """Calls that clear set-id bits, per user."""
    b.section("setids")
    for who in ["", "nobody", "member"]:
        for way, steps in SET_ID_WAYS:
            for mode in [0o6777, 0o2767]:
                path = f"{way}-{who or 'root'}-{mode:o}"
                make(b, path, b"0123456789")
                b.quiet(
                    "chown", path, 1000 if who == "member" else 0, 4000 if who == "member" else 0
                )
                b.quiet("chmod", path, mode)
                one_way(b, who, path, steps)
                b("stat", path)
    b.quiet("mkdir", "dir")
    b("chmod", "dir", 0o6755)
    b("chown", "dir", 1000, 1000)
    b("stat", "dir")
    make(b, "source", b"source")
    make(b, "target", b"target")
    b("chmod", "target", 0o6777)
    b.by("nobody", "open", "source", "O_RDONLY", to="source")
    b.by("nobody", "open", "target", "O_WRONLY", to="target")
    b.by("nobody", "copy_range", "@source", 0, "@target", 0, 6)
    b("stat", "target")


def one_way(b: Battery, who: str, path: str, steps: list[tuple[Any, ...]]) -> None:
    """The steps of one case, by root or another process."""
    for name, *args in steps:
        given = [path if it is PATH else it for it in args]
        if name == "open":
            given, to = [path, *args], "file"
        else:
            to = None
        if who:
            b.by(who, name, *given, to=to)
        else:
            b(name, *given, to=to)
    if steps[0][0] == "open":
        if who:
            b.by(who, "close", "@file")
        else:
            b("close", "@file")


def set_times(b: Battery) -> None:
    """utimensat in all its variants."""
    b.section("times")
    make(b, "file")
    b.quiet("mkdir", "dir")
    b.quiet("symlink", "file", "link")
    now, omit = (0, (1 << 30) - 1), (0, (1 << 30) - 2)
    for atime, mtime in [
        ((1, 2), (3, 4)), ((1_000_000_000, 999_999_999), (1_000_000_001, 1)), ((0, 0), (0, 0)),
        ((-1, 5), (-2, 999_999_999)), ((-1_000_000_000, 0), (-2_000_000_000, 7)),
        ((2**31 - 1, 1), (2**31, 1)), ((4_000_000_000, 1), (5_000_000_000, 2)), (omit, (9, 9)),
        ((8, 8), omit), (omit, omit), ((1, 10**9), (1, 1)), ((1, -1), (1, 1)),
    ]:  # fmt: skip
        b("utimensat", "file", atime, mtime)
        b("times", "file", "am")
    for atime, mtime, shown in [(now, (5, 5), "m"), ((6, 6), now, "a")]:
        b("utimensat", "file", atime, mtime)
        b("times", "file", shown)
        b("is_now", "file", "a" if shown == "m" else "m")
    b("utimensat", "file", None, None)
    b("is_now", "file", "amc")
    b("utimensat", "link", (1, 1), (1, 1), "AT_SYMLINK_NOFOLLOW")
    b("times", "link", "m")
    b("is_now", "file", "m")
    b("utimensat", "link", (2, 2), (2, 2))
    b("times", "file", "am")
    b("utimensat", "dir", (3, 3), (4, 4))
    b("times", "dir", "m")
    for path, flags in [("absent", 0), ("", 0), ("file", 0x7000)]:
        b("utimensat", path, (1, 1), (1, 1), flags)
    b("open", "file", "O_RDONLY", to="file")
    b("utimensat", "@file", (7, 7), (8, 8))
    b("times", "file", "am")
    b("open", "file", "O_PATH", to="path")
    b("utimensat", "@path", (7, 7), (8, 8))
    b.quiet("chmod", "file", 0o622)
    for who, atime, mtime in [
        ("nobody", (1, 1), (1, 1)),
        ("nobody", now, now),
        ("nobody", now, omit),
        ("nobody", omit, omit),
    ]:
        b.by(who, "utimensat", "file", atime, mtime)
    b.by("nobody", "utimensat", "file", None, None)
    b.quiet("chmod", "file", 0o600)
    b.by("nobody", "utimensat", "file", None, None)
    b("utimensat", "file", (50, 50), (60, 60))
    b("open", "file", "O_RDWR", to="writer")
    b("write", "@writer", b"after")
    b("utimensat", "@writer", (70, 70), (80, 80))
    b("close", "@writer")
    b("times", "file", "am")
    b("fsync", "@file")
    b("times", "file", "am")


def moved_times(b: Battery) -> None:
    """Which times each call moves."""
    b.section("moved")
    for path in ["file", "large"]:
        make(b, path, b"0123456789" * (1 if path == "file" else 10_000))
    b.quiet("mkdir", "dir")
    for fd, path in [("file", "file"), ("large", "large")]:
        b.quiet("open", path, "O_RDWR", to=fd)
    for path in ["file", "large"]:
        at, both = f"@{path}", (path, ".")
        b.moves(both, "pwrite", at, b"x", 0)
        b.moves(both, "pwrite", at, b"", 0)
        b.moves(both, "pread", at, 10, 0)
        b.moves(both, "ftruncate", at, 9)
        b.moves(both, "ftruncate", at, 9)
        b.moves(both, "truncate", path, 9)
        b.moves(both, "truncate", path, 12)
        b.moves(both, "fallocate", at, 0, 0, 8)
        b.moves(both, "fallocate", at, 0, 0, 100_000)
        b.moves(both, "fallocate", at, "FALLOC_PUNCH_HOLE|FALLOC_KEEP_SIZE", 0, 4)
        b.moves(both, "fallocate", at, "FALLOC_KEEP_SIZE", 200_000, 4096)
        b.moves(both, "open", path, "O_RDONLY")
        b.moves(both, "open", path, "O_WRONLY|O_TRUNC")
        b.moves(both, "open", path, "O_WRONLY|O_TRUNC")
        b.moves(both, "fsync", at)
        b.moves(both, "pwrite", at, b"0123456789", 0)
        b.moves(both, "map_write", at, 10, 0, b"y", "MAP_SHARED")
    one = ("file", ".")
    b.moves(one, "chmod", "file", 0o600)
    b.moves(one, "chmod", "file", 0o600)
    b.moves(one, "chown", "file", 1, 1)
    b.moves(one, "chown", "file", -1, -1)
    b.moves(one, "utimensat", "file", (1, 1), (0, (1 << 30) - 2))
    b.moves(one, "utimensat", "file", (0, (1 << 30) - 2), (0, (1 << 30) - 2))
    b.moves(one, "setxattr", "file", "user.a", b"x")
    b.moves(one, "setxattr", "file", "user.a", b"x")
    b.moves(one, "removexattr", "file", "user.a")
    b.moves(one, "removexattr", "file", "user.a")
    b.moves(("file", "new", "."), "link", "file", "new")
    b.moves(("file", "new", "."), "unlink", "new")
    b.moves(("file", ".", "dir"), "rename", "file", "dir/file")
    b.moves(("dir/file", "dir"), "rename", "dir/file", "dir/again")
    b.moves(("dir/again", "dir"), "rename", "dir/again", "dir/again")
    b.moves(("dir", "."), "rename", "dir", "dir2")
    b.moves(("dir2", "."), "open", "dir2/made", "O_WRONLY|O_CREAT|O_EXCL", 0o644)
    b.moves(("dir2", "."), "open", "dir2/made", "O_WRONLY|O_CREAT|O_EXCL", 0o644)
    b.moves(("dir2", "dir2/made"), "open", "dir2/made", "O_WRONLY|O_CREAT", 0o644)
    b.moves(("dir2", "."), "mkdir", "dir2/in")
    b.moves(("dir2", "dir2/in"), "rmdir", "dir2/in")
    b.moves(("dir2", "dir2/soft"), "symlink", "x", "dir2/soft")
    b.moves(("dir2/made", "dir2/again"), "renameat2", "dir2/made", "dir2/again", "RENAME_EXCHANGE")
    b.moves(("dir2", "."), "list", "dir2")


def births(b: Battery) -> None:
    """statx."""
    b.section("births")
    make(b, "file", b"content")
    b.quiet("mkdir", "dir")
    b.quiet("symlink", "absent", "link")
    b.quiet("mkfifo", "fifo", 0o644)
    for mask in [
        "STATX_BASIC_STATS|STATX_BTIME",
        "STATX_BASIC_STATS",
        "STATX_BTIME",
        "STATX_SIZE",
        "STATX_TYPE",
        0,
    ]:
        b("statx", "file", 0, mask)
    for path in ["dir", "link", "fifo"]:
        b("statx", path, "AT_SYMLINK_NOFOLLOW", "STATX_BASIC_STATS|STATX_BTIME")
    for path, flags, mask in [
        ("link", 0, 0x7FF),
        ("", 0, 0x7FF),
        ("file", 0x80000, 0x7FF),
        ("file", 0x6000, 0x7FF),
    ]:
        b("statx", path, flags, mask)
    b("statx", "file", 0, "STATX_RESERVED")
    b("statx", "file", 0x2000, 0xFFF)
    b("birth_noted", "file")
    b("chmod", "file", 0o600)
    b("truncate", "file", 3)
    b("utimensat", "file", (1, 1), (1, 1))
    b("birth_kept", "file", "file")
    b("rename", "file", "moved")
    b("birth_kept", "moved", "file")
    b("link", "moved", "twin")
    b("birth_kept", "twin", "file")


def extended(b: Battery) -> None:
    """Extended attributes."""
    b.section("extended")
    make(b, "file")
    b.quiet("mkdir", "dir")
    b.quiet("symlink", "file", "link")
    b.quiet("mkfifo", "fifo", 0o644)
    for name in [
        "user.a",
        "trusted.a",
        "security.a",
        "system.a",
        "other.a",
        "a",
        "user.",
        "user",
        "",
    ]:
        b("getxattr", "file", name)
        b("setxattr", "file", name, b"value")
        b("getxattr", "file", name)
    b("listxattr", "file")
    b("getxattr", "file", "user.a", 0)
    b("getxattr", "file", "user.a", 3)
    b("setxattr", "file", "user.a", b"x", "XATTR_CREATE")
    b("setxattr", "file", "user.b", b"x", "XATTR_REPLACE")
    b("setxattr", "file", "user.b", b"y", "XATTR_CREATE")
    b("setxattr", "file", "user.a", b"z" * 100, "XATTR_REPLACE")
    b("setxattr", "file", "user.a", b"z", "XATTR_CREATE|XATTR_REPLACE")
    b("setxattr", "file", "user.a", b"z", 77)
    b("setxattr", "file", "user.empty", b"")
    for name in ["user.a", "user.b", "user.empty"]:
        b("getxattr", "file", name)
    for name in ["user.b", "user.b", "user.absent", "system.a", "other.a", "", "trusted.a"]:
        b("removexattr", "file", name)
    b("listxattr", "file")
    for length in [255, 256]:
        b("setxattr", "dir", "user." + "n" * (length - 5), b"long")
        b("getxattr", "dir", "user." + "n" * (length - 5))
    b("listxattr", "dir")
    for path in ["dir", "fifo", "absent", "link"]:
        b("setxattr", path, "user.c", b"there")
        b("getxattr", path, "user.c")
    b("getxattr", "file", "user.c")
    for name in ["user.l", "trusted.l", "security.l"]:
        b("lsetxattr", "link", name, b"of the link")
        b("lgetxattr", "link", name)
    b("listxattr", "link")
    make(b, "sized")
    for length in [1000, 3000, 5000, 65_535, 65_536, 65_537]:
        b("setxattr", "sized", "user.sized", b"s" * length)
        b("getxattr", "sized", "user.sized")
    make(b, "many")
    for n in range(4):
        b("setxattr", "many", f"user.of{n}", b"m" * n)
    b("rename", "many", "renamed")
    b("listxattr", "renamed")
    b("link", "renamed", "twin")
    b("setxattr", "twin", "user.twin", b"t")
    b("getxattr", "renamed", "user.twin")
    allowed(b)


def allowed(b: Battery) -> None:
    """Extended attributes of users, and capabilities."""
    for mode in [0o644, 0o666, 0o600]:
        b("chmod", "file", mode)
        for name in ["user.a", "trusted.t", "security.s"]:
            b.by("nobody", "setxattr", "file", name, b"n")
            b.by("nobody", "getxattr", "file", name)
            b.by("nobody", "removexattr", "file", name)
        b.by("nobody", "listxattr", "file")
    b("chmod", "dir", 0o1777)
    b.by("nobody", "setxattr", "dir", "user.sticky", b"n")
    b("chmod", "dir", 0o777)
    b.by("nobody", "setxattr", "dir", "user.sticky", b"n")
    capability = bytes.fromhex("0100000200000000000000000000000000000000")
    make(b, "program", b"0123456789")
    b("setxattr", "program", "security.capability", b"nonsense")
    changes: list[tuple[Any, ...]] = [
        ("write", b"x"),
        ("ftruncate", 3),
        ("fchmod", 0o755),
        ("fchown", 1, 1),
        ("fallocate", 0, 0, 100),
    ]
    for call, *args in changes:
        b("setxattr", "program", "security.capability", capability)
        b("getxattr", "program", "security.capability", 0)
        b("open", "program", "O_RDWR", to="program")
        b(call, "@program", *args)
        b("getxattr", "program", "security.capability", 0)
        b("close", "@program")
    b("setxattr", "program", "security.capability", capability)
    b("truncate", "program", 1)
    b("getxattr", "program", "security.capability", 0)


def lists_of_rights(b: Battery) -> None:
    """POSIX access control lists."""
    b.section("acl")
    minimal, nobody = "u6 g4 o0", "u6 U65534:6 g4 m6 o0"
    group = "u7 g0 G4000:7 m7 o5"
    make(b, "file", b"content")
    b.quiet("mkdir", "dir")
    b.quiet("symlink", "file", "link")
    for path in ["file", "dir"]:
        for name in ["access", "default"]:
            b("getacl", path, name)
            b("setacl", path, name, minimal)
            b("getacl", path, name)
    b("chmod", "file", 0o600)
    b.by("nobody", "open", "file", "O_RDWR")
    b("setacl", "file", "access", nobody)
    b("getacl", "file", "access")
    b("stat", "file")
    b("listxattr", "file")
    b.by("nobody", "open", "file", "O_RDWR")
    b.by("other", "open", "file", "O_RDONLY")
    b("chmod", "file", 0o640)
    b("getacl", "file", "access")
    b.by("nobody", "open", "file", "O_RDWR")
    b.by("nobody", "open", "file", "O_RDONLY")
    b.by("nobody", "setacl", "file", "access", nobody)
    b("removexattr", "file", ACCESS)
    b("getacl", "file", "access")
    b("stat", "file")
    b("setacl", "dir", "default", group)
    b("listxattr", "dir")
    b.quiet("umask", 0o077)
    b("open", "dir/file", RW_NEW, 0o666)
    b("stat", "dir/file")
    b("getacl", "dir/file", "access")
    b("mkdir", "dir/dir", 0o777)
    b("stat", "dir/dir")
    b("getacl", "dir/dir", "access")
    b("getacl", "dir/dir", "default")
    b("mkfifo", "dir/fifo", 0o666)
    b("stat", "dir/fifo")
    b("symlink", "x", "dir/link")
    b("lgetxattr", "dir/link", ACCESS)
    b("open", "dir", "O_TMPFILE|O_RDWR", 0o666, to="free")
    b("fstat", "@free")
    b.by("member", "open", "dir/dir/by", RW_NEW, 0o666)
    b.by("other", "open", "dir/dir/no", RW_NEW, 0o666)
    b("removexattr", "dir", DEFAULT)
    b("removexattr", "dir", DEFAULT)
    b("open", "dir/after", RW_NEW, 0o666)
    b("stat", "dir/after")
    for rows in ["", "u6", "u6 g4 X6 o0", "u6 U7:6 g4 o0", "u6 g4 o9"]:
        b("setacl", "file", "access", rows)
    for value in [b"", b"x", b"\1\0\0\0"]:
        b("setxattr", "file", ACCESS, value)
    b("setacl", "file", "access", nobody, "XATTR_CREATE")
    b("lsetxattr", "link", ACCESS, b"\2\0\0\0")
    b("chmod", "file", 0o6775)
    b("setacl", "file", "access", minimal)
    b("stat", "file")
    b("rename", "file", "moved")
    b("listxattr", "moved")


def rights(b: Battery) -> None:
    """Access of other users."""
    b.section("rights")
    make(b, "file", b"content")
    b.quiet("mkdir", "dir")
    make(b, "dir/file")
    for mode in [0o600, 0o604, 0o602, 0o601, 0o666]:
        b("chmod", "file", mode)
        for flags in ["O_RDONLY", "O_WRONLY", "O_RDWR", "O_RDONLY|O_TRUNC", "O_PATH"]:
            b.by("nobody", "open", "file", flags)
        for want in ["F_OK", "R_OK", "W_OK", "X_OK"]:
            b.by("nobody", "access", "file", want)
    for mode in [0o700, 0o701, 0o704, 0o702, 0o703, 0o777]:
        b("chmod", "dir", mode)
        b.by("nobody", "list", "dir")
        b.by("nobody", "stat", "dir/file")
        b.by("nobody", "stat", "dir/absent")
        b.by("nobody", "stat", "dir/.")
        b.by("nobody", "open", f"dir/new{mode:o}", RW_NEW, 0o600)
        b.by("nobody", "mkdir", f"dir/dir{mode:o}")
        b.by("nobody", "rename", "file", f"dir/file{mode:o}")
        b.by("nobody", "link", "file", f"dir/link{mode:o}")
    b.quiet("chmod", ".", 0o777)
    b("list", "dir")
    b("access", "file", "X_OK")
    b("chmod", "file", 0)
    b("access", "file", "R_OK")
    b("effective", 65534)
    b("access", "file", "R_OK")
    b("faccessat", "file", 4, "AT_EACCESS")
    b("faccessat", "file", 4, 0)
    b("faccessat", "file", 99, 0)
    b("open", "file", "O_RDONLY")
    b("effective", 0)
    b("open", "file", "O_RDONLY")


def sticky(b: Battery) -> None:
    """Sticky folders."""
    b.section("sticky")
    b.quiet("chmod", ".", 0o777)
    b.quiet("mkdir", "dir")
    b("chmod", "dir", 0o1777)
    for who in ["nobody", "other"]:
        b.by(who, "open", f"dir/of-{who}", "O_WRONLY|O_CREAT|O_EXCL", 0o666)
        b.by(who, "mkdir", f"dir/dir-{who}", 0o777)
        b.by(who, "open", f"free-{who}", "O_WRONLY|O_CREAT|O_EXCL", 0o666)
    b.by("nobody", "unlink", "dir/of-other")
    b.by("nobody", "rmdir", "dir/dir-other")
    b.by("nobody", "rename", "dir/of-other", "dir/mine")
    b.by("nobody", "rename", "dir/of-other", "mine")
    b.by("nobody", "rename", "free-nobody", "dir/of-other")
    b.by("nobody", "renameat2", "dir/of-nobody", "dir/of-other", "RENAME_EXCHANGE")
    b.by("nobody", "rename", "dir/of-nobody", "dir/renamed")
    b.by("nobody", "unlink", "dir/renamed")
    b.by("nobody", "unlink", "free-other")
    b.by("nobody", "link", "dir/of-other", "hard")
    b.by("nobody", "open", "dir/of-other", "O_WRONLY|O_CREAT", 0o600)
    b.by("nobody", "open", "dir/of-other", "O_WRONLY|O_CREAT|O_EXCL", 0o600)
    b.quiet("chown", "dir", 65534, 65534)
    b.by("nobody", "unlink", "dir/of-other")
    b.by("nobody", "rmdir", "dir/dir-other")
    b("list", "dir")
    b("list")


SECTIONS = [
    owners,
    set_ids,
    set_times,
    moved_times,
    births,
    extended,
    lists_of_rights,
    rights,
    sticky,
]
