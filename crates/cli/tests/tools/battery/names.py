"""Names: opening, creating, linking, renaming, removing and listing."""

from __future__ import annotations

import ctypes
import os
import struct

from record import Battery
from system import LIBC

RW_NEW = "O_RDWR|O_CREAT|O_EXCL"


def make(b: Battery, path: str, content: bytes = b"") -> None:
    """A file with some bytes."""
    b.quiet("open", path, "O_WRONLY|O_CREAT|O_EXCL", 0o644, to="made")
    if content:
        b.quiet("write", "@made", content)
    b.quiet("close", "@made")


def opening(b: Battery) -> None:
    """Flags of `open`."""
    b.section("opening")
    make(b, "file", b"content")
    b.quiet("mkdir", "dir")
    for name, target in [
        ("link", "file"),
        ("dangling", "absent"),
        ("loop", "loop"),
        ("dirlink", "dir"),
    ]:
        b.quiet("symlink", target, name)
    for path in [
        "file",
        "absent",
        "dir",
        "link",
        "dangling",
        "loop",
        "dirlink",
        "file/x",
        "absent/x",
        "",
    ]:
        for flags in ["O_RDONLY", "O_WRONLY", "O_RDONLY|O_DIRECTORY", "O_RDONLY|O_NOFOLLOW"]:
            b("open", path, flags)
    for path in ["file", "dir", "link", "dangling", "loop", "file/", "dir/", "new/"]:
        b("open", path, "O_WRONLY|O_CREAT|O_EXCL", 0o644)
    for path in ["dir", "dir/", "loop", "file/", "new/", "file/new", "absent/new"]:
        b("open", path, "O_WRONLY|O_CREAT", 0o644)
    b("open", "dangling", "O_WRONLY|O_CREAT", 0o640)
    b("lstat", "absent")
    b("open", "new", "O_RDWR|O_CREAT|O_DIRECTORY", 0o644)
    b("list")


def opened(b: Battery) -> None:
    """Uses that open files allow."""
    b.section("opened")
    make(b, "file", b"content")
    b.quiet("mkdir", "dir")
    b("open", "file", "O_RDONLY|O_TRUNC", to="cut")
    b("stat", "file")
    b("open", "file", "O_WRONLY|O_APPEND", to="tail")
    b("write", "@tail", b"one")
    b("pwrite", "@tail", b"two", 0)
    b("contents", "file")
    b("read", "@tail", 3)
    b("write", "@cut", b"x")
    b("ftruncate", "@cut", 0)
    b("flags", "@tail")
    b("fcntl", "@tail", "F_SETFL", 0)
    b("write", "@tail", b"[")
    b("contents", "file")
    b("open", "dir", "O_RDONLY", to="dir")
    b("read", "@dir", 3)
    b("pread", "@dir", 3, 0)
    b("write", "@dir", b"x")
    b("ftruncate", "@dir", 0)
    b("openat", "@dir", "inner", RW_NEW, 0o600)
    b("fstatat", "@dir", "inner", 0)
    b("openat", "@tail", "inner", "O_RDONLY")
    b("mkdirat", "@dir", "deep", 0o711)
    b("list", "@dir")
    b("unlinkat", "@dir", "deep", 0)
    b("unlinkat", "@dir", "inner", "AT_REMOVEDIR")
    b("unlinkat", "@dir", "deep", "AT_REMOVEDIR")
    b("unlinkat", "@dir", "inner", 0)
    b("list", "dir")
    for flags in ["O_RDWR|O_SYNC", "O_RDWR|O_DSYNC", "O_RDWR|O_NOATIME", "O_RDWR|O_NONBLOCK"]:
        b("open", "file", flags, to="other")
        b("pwrite", "@other", b"12345", 4)
        b("pread", "@other", 10, 0)
        b("close", "@other")
    b.by("nobody", "open", "file", "O_RDONLY|O_NOATIME")


def by_path_only(b: Battery) -> None:
    """O_PATH, openat2, and reopened descriptors."""
    b.section("paths")
    make(b, "file", b"content")
    b.quiet("mkdir", "dir")
    b.quiet("symlink", "file", "link")
    b.quiet("symlink", "/", "dir/root")
    b.quiet("symlink", "../file", "dir/up")
    b("open", "file", "O_PATH", to="path")
    b("open", "link", "O_PATH|O_NOFOLLOW", to="link")
    b("open", "dir", "O_PATH|O_DIRECTORY", to="dir")
    for fd in ["@path", "@link", "@dir"]:
        b("fstat", fd)
        b("read", fd, 1)
        b("fchmod", fd, 0o600)
        b("fsync", fd)
    b("ftruncate", "@path", 0)
    b("fgetxattr", "@path", "user.a")
    b("flock", "@path", "LOCK_EX")
    b("openat", "@dir", "new", RW_NEW, 0o600)
    b("openat", "@dir", "../file", "O_RDONLY")
    b("fchdir", "@dir")
    b("list")
    b("chdir", "..")
    b("fchdir", "@path")
    b("reopen", "@path", "O_RDWR", to="again")
    b("read", "@again", 20)
    b("reopen", "@link", "O_RDONLY")
    for path in ["file", "link", "dir/up", "dir/root", "dir/../file"]:
        for resolve in [
            "RESOLVE_NO_SYMLINKS",
            "RESOLVE_BENEATH",
            "RESOLVE_IN_ROOT",
            "RESOLVE_NO_XDEV",
        ]:
            b("openat2", path, "O_RDONLY", 0, resolve)
    b("openat2", "file", "O_RDONLY", 0o644, 0)
    b("openat2", "made", "O_RDWR|O_CREAT", 0o10644, 0)


def nameless(b: Battery) -> None:
    """O_TMPFILE, and files without a name."""
    b.section("nameless")
    b.quiet("mkdir", "dir")
    b("open", "dir", "O_TMPFILE|O_RDWR", 0o640, to="free")
    b("fstat", "@free")
    b("write", "@free", b"nameless")
    b("pread", "@free", 20, 0)
    b("list", "dir")
    b("link_fd", "@free", "named")
    b("stat", "named")
    b("contents", "named")
    b("fstat", "@free")
    b("linkat", "@free", "", "more", "AT_EMPTY_PATH")
    b("stat", "more")
    b("open", "dir", "O_TMPFILE|O_RDWR|O_EXCL", 0o640, to="kept")
    b("link_fd", "@kept", "never")
    b("open", "dir", "O_TMPFILE|O_RDONLY", 0o640)
    b("open", "named", "O_TMPFILE|O_RDWR", 0o640)
    b("open", "absent", "O_TMPFILE|O_RDWR", 0o640)
    b("open", ".", "O_TMPFILE|O_RDWR", 0o4755, to="set")
    b("fstat", "@set")
    b("close", "@set")
    make(b, "gone", b"content")
    b("open", "gone", "O_RDWR", to="gone")
    b("unlink", "gone")
    b("fstat", "@gone")
    b("write", "@gone", b"CON")
    b("pread", "@gone", 20, 0)
    b("ftruncate", "@gone", 5)
    b("fchmod", "@gone", 0o600)
    b("fstat", "@gone")
    b("link_fd", "@gone", "back")
    b("linkat", "@gone", "", "back", "AT_EMPTY_PATH")
    b("reopen", "@gone", "O_RDONLY", to="again")
    b("read", "@again", 20)
    make(b, "gone", b"other")
    b("contents", "gone")
    b("pread", "@gone", 20, 0)
    b("rename", "gone", "named")
    b("contents", "named")
    b("link", "named", "two")
    b("open", "named", "O_RDONLY", to="held")
    make(b, "third")
    b("rename", "third", "named")
    b("fstat", "@held")
    b("list")


def removed_folders(b: Battery) -> None:
    """Removed folders that are still in use."""
    b.section("removed")
    b.quiet("mkdir", "dir")
    b("open", "dir", "O_RDONLY", to="dir")
    b("chdir", "dir")
    b("cwd_is", "dir")
    b("rmdir", "../dir")
    b("fstat", "@dir")
    b("getcwd")
    b("open", "new", RW_NEW, 0o644)
    b("mkdir", "new")
    b("symlink", "x", "new")
    b("stat", ".")
    b("stat", "..")
    b("list", ".")
    b("getdents", "@dir", 4096)
    b("openat", "@dir", "new", RW_NEW, 0o644)
    b("fsync", "@dir")
    b("fchmod", "@dir", 0o700)


def modes(b: Battery) -> None:
    """Modes of new files and folders, under umasks."""
    b.section("modes")
    for mask in [0, 0o022, 0o077, 0o777]:
        b("umask", mask)
        for mode in [0, 0o644, 0o1777, 0o6755]:
            name = f"{mask:o}-{mode:o}"
            b.quiet("open", f"f{name}", "O_CREAT|O_WRONLY|O_EXCL", mode)
            b("stat", f"f{name}")
            b.quiet("mkdir", f"d{name}", mode)
            b("stat", f"d{name}")
            b.quiet("mkfifo", f"p{name}", mode)
            b("stat", f"p{name}")
    b("umask", 0o022)
    b("open", "unwritable", "O_CREAT|O_RDWR|O_EXCL", 0o444, to="file")
    b("write", "@file", b"may be written")
    b("contents", "unwritable")
    b.quiet("mkdir", "groups")
    b.quiet("chown", "groups", 0, 4000)
    b("chmod", "groups", 0o2775)
    b("mkdir", "groups/dir", 0o700)
    b("stat", "groups/dir")
    b("open", "groups/file", "O_CREAT|O_WRONLY", 0o644)
    b("stat", "groups/file")
    b("symlink", "x", "groups/link")
    b("lstat", "groups/link")
    b("mkfifo", "groups/fifo", 0o644)
    b("stat", "groups/fifo")
    b("chmod", "groups", 0o3777)
    for who in ["nobody", "member"]:
        b.by(who, "open", f"groups/by-{who}", "O_CREAT|O_WRONLY|O_EXCL", 0o2775)
        b("stat", f"groups/by-{who}")
        b.by(who, "mkdir", f"groups/dir-{who}", 0o755)
        b("stat", f"groups/dir-{who}")
    b("umask", 0o027)
    b("socket_at", "socket")
    b("lstat", "socket")


def nodes(b: Battery) -> None:
    """Pipes, sockets and devices."""
    b.section("nodes")
    for name, kind, major, minor in [
        ("fifo", 0o010644, 0, 0),
        ("file", 0o100640, 0, 0),
        ("plain", 0o600, 0, 0),
        ("socket", 0o140755, 0, 0),
        ("null", 0o020666, 1, 3),
        ("none", 0o020600, 511, 1_000_000),
        ("disk", 0o060600, 250, 77),
        ("dir", 0o040755, 0, 0),
        ("link", 0o120777, 0, 0),
    ]:
        b("mknod", name, kind, os.makedev(major, minor))
        b("lstat", name)
    b("mknod", "fifo", 0o010644, 0)
    b("list")
    b("open", "fifo", "O_WRONLY|O_NONBLOCK")
    b("open", "fifo", "O_RDONLY|O_NONBLOCK", to="reader")
    b("open", "fifo", "O_WRONLY|O_NONBLOCK", to="writer")
    b("write", "@writer", b"by pipe")
    b("read", "@reader", 100)
    b("read", "@reader", 100)
    b("lseek", "@reader", 0, "SEEK_SET")
    b("ftruncate", "@writer", 0)
    b("truncate", "fifo", 0)
    b("fsync", "@writer")
    b("fallocate", "@writer", 0, 0, 10)
    b("fstat", "@reader")
    b("open", "socket", "O_RDWR")
    b("open", "null", "O_RDWR", to="null")
    b("write", "@null", b"away")
    b("read", "@null", 10)
    b("open", "none", "O_RDONLY")
    b("open", "disk", "O_RDONLY")
    b("chmod", "null", 0o600)
    b("link", "null", "null2")
    b("stat", "null2")
    b.by("nobody", "open", "null", "O_RDWR")
    b.by("nobody", "mknod", "device", 0o020666, os.makedev(1, 3))
    b.quiet("chmod", ".", 0o777)
    b.by("nobody", "mknod", "device", 0o020666, os.makedev(1, 3))
    b.by("nobody", "mknod", "pipe", 0o010644, 0)
    b("stat", "pipe")
    b("socket_at", "bound")
    b("socket_at", "bound")
    b("connect", "bound")
    b("connect", "file")


def folders(b: Battery) -> None:
    """Creation and removal of folders."""
    b.section("folders")
    make(b, "file")
    b.quiet("symlink", "target", "link")
    for path in [
        "dir",
        "dir",
        "dir/",
        "trailing/",
        "file",
        "file/x",
        "absent/x",
        "link",
        "link/",
        ".",
        "",
        "/",
    ]:
        b("mkdir", path)
    b("mkdir", "dir/in")
    b("stat", "dir")
    for path in [
        "dir",
        "file",
        "file/",
        "link",
        "absent",
        ".",
        "dir/.",
        "dir/in/..",
        "",
        "/",
        "dir/in/",
        "dir",
    ]:
        b("rmdir", path)
    b("list")
    b("stat", ".")
    for path in ["trailing", "file/", "absent", "", ".", "link", "link", "file"]:
        b("unlink", path)
    for n in range(3):
        b.quiet("mkdir", f"d{n}")
    b("stat", ".")
    b("rename", "d0", "d1/d0")
    b("stat", ".")
    b("stat", "d1")
    b("rename", "d2", "d1/d0")
    b("stat", "d1")
    b("rmdir", "d1")
    b("rmdir", "d1/d0")
    b("stat", "d1")


def links(b: Battery) -> None:
    """Hard and symbolic links."""
    b.section("links")
    make(b, "file", b"content")
    b.quiet("mkdir", "dir")
    b("link", "file", "dir/two")
    b("same", "file", "dir/two")
    b("stat", "file")
    for old, new in [
        ("file", "file"),
        ("file", "dir"),
        ("absent", "x"),
        ("dir", "x"),
        ("file/", "x"),
        ("file", "x/"),
    ]:
        b("link", old, new)
    b("unlink", "file")
    b("stat", "dir/two")
    b("symlink", "dir/two", "soft")
    b("readlink", "soft")
    b("lstat", "soft")
    b("contents", "soft")
    b("link", "soft", "softer")
    b("lstat", "softer")
    b("linkat", "AT_FDCWD", "soft", "followed", "AT_SYMLINK_FOLLOW")
    b("stat", "followed")
    for target, name in [
        ("x", "soft"),
        ("", "empty"),
        ("x", ""),
        ("x", "dir/"),
        ("x", "new/"),
        ("x", "absent/x"),
    ]:
        b("symlink", target, name)
    for path in ["dir", "dir/two", "absent", "soft/"]:
        b("readlink", path)
    for length in [255, 4095, 4096]:
        b("symlink", "t" * length, f"long{length}")
        b("readlink", f"long{length}")
    b("lstat", "long4095")
    b("symlink", "s0", "s0-end")
    b.quiet("symlink", "dir/two", "s0")
    for n in range(41):
        b.quiet("symlink", f"s{n}", f"s{n + 1}")
    for n in [38, 39, 40, 41]:
        b("stat", f"s{n}")
    b("chmod", "soft", 0o600)
    b("lstat", "soft")
    b("fchmodat", "soft", 0o600, "AT_SYMLINK_NOFOLLOW")
    b("lchown", "soft", 7, 8)
    b("lstat", "soft")
    b("stat", "soft")
    b("truncate", "soft", 2)
    b("contents", "dir/two")
    b("rename", "soft", "moved")
    b("readlink", "moved")
    b("unlink", "moved")
    b("stat", "dir/two")
    b.by("nobody", "link", "dir/two", "mine")
    b("list")


def kind_of(b: Battery, path: str, kind: str) -> None:
    """A file or folder of a kind, as the source or the target of a rename."""
    if kind == "file":
        make(b, path, path.encode())
    elif kind in ("empty", "full"):
        b.quiet("mkdir", path)
        if kind == "full":
            make(b, f"{path}/inner")
    elif kind == "link":
        b.quiet("symlink", path, path)
    elif kind == "fifo":
        b.quiet("mkfifo", path, 0o644)


def renames(b: Battery) -> None:
    """Renames of each kind over each kind with all flags."""
    b.section("renames")
    for flags in ["", "RENAME_NOREPLACE", "RENAME_EXCHANGE", "RENAME_WHITEOUT"]:
        for old in ["file", "empty", "full", "link", "fifo", "absent"]:
            for new in ["file", "empty", "full", "link", "fifo", "absent"]:
                here = f"{flags[7:9].lower()}{old}-{new}"
                if flags == "RENAME_WHITEOUT" and new not in ("file", "absent", "full"):
                    continue
                b.quiet("mkdir", here)
                kind_of(b, f"{here}/{old}-old", old)
                kind_of(b, f"{here}/{new}-new", new)
                b("renameat2", f"{here}/{old}-old", f"{here}/{new}-new", flags or 0)
                b("list", here)
    b.quiet("mkdir", "white")
    make(b, "white/a", b"bytes")
    b("renameat2", "white/a", "white/b", "RENAME_WHITEOUT")
    b("lstat", "white/a")
    b("contents", "white/b")
    make(b, "x")
    make(b, "y")
    for wrong in ["RENAME_NOREPLACE|RENAME_EXCHANGE", "RENAME_WHITEOUT|RENAME_EXCHANGE", 8]:
        b("renameat2", "x", "y", wrong)
    b("renameat2", "x", "y", "RENAME_WHITEOUT|RENAME_NOREPLACE")


def renames_of_places(b: Battery) -> None:
    """Renames of a folder into itself, of one inode, across folders, with slashes."""
    b.section("moves")
    for path in ["a", "a/b", "a/b/c", "d", "e"]:
        b.quiet("mkdir", path)
    make(b, "file", b"one")
    make(b, "other", b"two")
    b.quiet("link", "file", "twin")
    b("rename", "file", "twin")
    b("list")
    b("renameat2", "file", "twin", "RENAME_NOREPLACE")
    b("renameat2", "file", "twin", "RENAME_EXCHANGE")
    b("rename", "file", "file")
    b("renameat2", "file", "file", "RENAME_NOREPLACE")
    for old, new in [
        ("a", "a/b/c/new"), ("a", "a/b"), ("a/b", "a"), ("a/b/c", "a"), ("a", "a"),
        ("a/", "moved/"), ("moved", "a/"), ("file/", "x"), ("file", "x/"), ("file", "d/"),
        (".", "x"), ("d/..", "x"), ("d", "."), ("d", "d/.."), ("", "x"), ("file", ""),
        ("absent", "x"), ("file", "absent/x"), ("file", "other/x"), ("d", "file"),
        ("file", "d"),
    ]:  # fmt: skip
        b("rename", old, new)
    b("renameat2", "a", "a/b", "RENAME_EXCHANGE")
    b("renameat2", "a/b", "a", "RENAME_EXCHANGE")
    b("renameat2", "a/b", "d", "RENAME_EXCHANGE")
    b("list", "a")
    b("list", "d")
    b("stat", "a")
    b("renameat2", "a/b", "file", "RENAME_EXCHANGE")
    b("list", "a")
    b("list")
    b("stat", ".")
    b("contents", "a/b")
    b("rename", "a/b", "d/../e/file")
    b("contents", "e/file")
    b("open", "e/file", "O_RDONLY", to="open")
    b("rename", "other", "e/file")
    b("pread", "@open", 10, 0)
    b("contents", "e/file")
    b("chdir", "e")
    b("rename", "../e", "../renamed")
    b("cwd_is", "renamed")
    b("stat", "file")
    b("chdir", "..")
    b.quiet("mkdir", "deep")
    b.quiet("mkdir", "load")
    b("chdir", "deep")
    b("walk_down", "d", 110)
    b("rename", "/".join([".."] * 111) + "/load", "load")
    b("list")


def long_names(b: Battery) -> None:
    """Long, odd and deep names."""
    b.section("long")
    name = "n" * 255
    make(b, name, b"long")
    b("contents", name)
    for path in ["n" * 256, f"{'m' * 256}/x", f"{name}/x"]:
        b("stat", path)
        b("open", path, RW_NEW, 0o644)
        b("mkdir", path)
        b("unlink", path)
        b("rmdir", path)
        b("symlink", "x", path)
        b("mkfifo", path, 0o644)
        b("rename", name, path)
        b("link", name, path)
    odd = [
        b"\xff\xfe",
        b"\n",
        b" ",
        b"a\\b",
        b"\x01",
        "\u00e9".encode(),
        "e\u0301".encode(),
        b"...",
        b"~",
        b"\xc3(",
    ]
    for text in [*odd, "\U0001f409".encode() * 63, b"CASE", b"case", b".stats", b".accesslog"]:
        b("open", os.fsdecode(b"o" + text), RW_NEW, 0o644)
        b("stat", os.fsdecode(b"o" + text))
    b("open", ".stats", RW_NEW, 0o644)
    b("open", ".accesslog", RW_NEW, 0o644)
    b("list")
    b.quiet("mkdir", "d" * 200)
    b("stat", "/".join(["d" * 200] + ["."] * 1900))
    b("stat", "/".join(["d" * 200] + ["."] * 2000))
    b("stat", "./" * 2045 + name)
    b("chdir", "d" * 200)
    b("walk_down", "e" * 200, 30)
    make(b, "far", b"down")
    b("contents", "far")
    b("list")


def read_names(fd_path: str, steps: list[tuple[str, int]]) -> str:
    """Reads names by the C library; `tell` and `seek` keep a place, `rewind` starts again."""
    LIBC.opendir.restype = LIBC.readdir.restype = ctypes.c_void_p
    LIBC.telldir.restype = ctypes.c_long
    stream = ctypes.c_void_p(LIBC.opendir(os.fsencode(fd_path)))
    place, found, after = 0, list[str](), list[list[str]]()
    for step, count in steps:
        if step == "tell":
            place = LIBC.telldir(stream)
        elif step == "seek":
            LIBC.seekdir(stream, ctypes.c_long(place))
        elif step == "rewind":
            LIBC.rewinddir(stream)
        elif step == "make":
            os.close(os.open(f"{fd_path}/late{count}", os.O_CREAT | os.O_WRONLY))
        elif step == "remove":
            for name in found[:count]:
                os.unlink(f"{fd_path}/{name}")
        else:
            found = []
            while len(found) < count and (entry := LIBC.readdir(stream)):
                length = struct.unpack("H", ctypes.string_at(entry + 16, 2))[0]
                raw = ctypes.string_at(entry + 19, length - 19).split(b"\0")[0]
                # The place of these two does not matter.
                if raw not in (b".", b".."):
                    found.append(raw.decode())
            after.append(found)
    LIBC.closedir(stream)
    LISTS[:] = after
    return " ".join(str(len(it)) for it in after)


LISTS: list[list[str]] = []


def listings(b: Battery) -> None:
    """Folders that change during a read, and places in them."""
    b.section("listings")
    b.quiet("mkdir", "many")
    b.quiet("chdir", "many")
    b.quiet("make_files", 240)
    b.quiet("chdir", "..")
    whole = [("next", 5000)]

    def reads(text: str, steps: list[tuple[str, int]], judge: str = "") -> None:
        answer = read_names("many", steps)
        if judge == "same":
            answer += f" {'the same' if LISTS[-1] == LISTS[-2] else 'others'}"
        elif judge == "once":
            names = [it for some in LISTS for it in some]
            answer += f" {'each once' if len(set(names)) == len(names) else 'some twice'}"
        elif judge == "late":
            answer = "seen" if "late1" in LISTS[-1] else "not seen"
        b.line(f"readdir({text})", answer)

    reads("all", whole, "once")
    reads(
        "50, place, 20, back, 20",
        [("next", 50), ("tell", 0), ("next", 20), ("seek", 0), ("next", 20)],
        "same",
    )
    reads(
        "180, place, rest, back, rest",
        [("next", 180), ("tell", 0), *whole, ("seek", 0), *whole],
        "same",
    )
    reads("begin, rewind", [("tell", 0), ("next", 9), ("rewind", 0), ("next", 9)], "same")
    reads("all, place, rest", [*whole, ("tell", 0), ("seek", 0), *whole])
    reads("read 90, remove them, read on", [("next", 90), ("remove", 90), *whole], "once")
    reads(
        "place, remove, back to it",
        [("next", 40), ("tell", 0), ("next", 40), ("remove", 40), ("seek", 0), *whole],
    )
    reads("read, make one, rewind", [*whole, ("make", 1), ("rewind", 0), *whole], "late")
    rest = ("next", 100)
    reads(
        "read and remove to the end",
        [it for _ in range(6) for it in (rest, ("remove", 100))],
        "once",
    )
    b("list", "many")
    b("rmdir", "many")
    b("open", ".", "O_RDONLY", to="here")
    b("getdents", "@here", 16)
    b("getdents", "@here", 4096)
    b("lseek", "@here", 0, "SEEK_SET")
    b("lseek", "@here", -1, "SEEK_SET")
    make(b, "file")
    b("open", "file", "O_RDONLY", to="file")
    b("getdents", "@file", 4096)


SECTIONS = [
    opening, opened, by_path_only, nameless, removed_folders, modes, nodes, folders, links,
    renames, renames_of_places, long_names, listings,
]  # fmt: skip
