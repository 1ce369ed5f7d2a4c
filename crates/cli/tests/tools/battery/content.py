"""Bytes of files: written, read, cut, allocated, mapped and copied."""

from __future__ import annotations

from names import make
from record import Battery

KIB, MIB = 1 << 10, 1 << 20
RW_NEW = "O_RDWR|O_CREAT|O_EXCL"


def lengths(b: Battery) -> None:
    """Lengths set by path and by descriptor."""
    b.section("lengths")
    make(b, "file", b"0123456789")
    b.quiet("mkdir", "dir")
    b.quiet("symlink", "file", "link")
    b.quiet("symlink", "loop", "loop")
    for length in [5, 5, 0, 3, 20_000, 300_000, 17, 1 << 40, 100]:
        b("truncate", "file", length)
        b("stat", "file")
        if length < MIB:
            b("contents", "file")
    for path, length in [
        ("file", -1),
        ("dir", 0),
        ("absent", 0),
        ("file/x", 0),
        ("loop", 0),
        ("link", 4),
    ]:
        b("truncate", path, length)
    b("stat", "file")
    b("open", "file", "O_RDWR", to="file")
    b("ftruncate", "@file", -1)
    for length in [1 << 44, 1 << 62]:
        b("ftruncate", "@file", length)
    b("ftruncate", "@file", 7)
    b("pread", "@file", 100, 0)
    b("limited", 1000, "ftruncate", "@file", 2000)
    b("limited", 1000, "pwrite", "@file", b"behind", 1000)
    b("limited", 1000, "pwrite", "@file", b"across", 997)
    b("fstat", "@file")
    b("pwrite", "@file", b"far", 1 << 62)
    b("pwrite", "@file", b"end", (1 << 63) - 3)
    b("fstat", "@file")
    b("fsync", "@file")
    b("syncfs", "@file")
    b("truncate", "file", 0)
    b("pwrite", "@file", b"x", 5)
    b("contents", "file")
    for who, mode in [("nobody", 0o644), ("nobody", 0o666)]:
        b.quiet("chmod", "file", mode)
        b.by(who, "truncate", "file", 3)
        b.by(who, "open", "file", "O_RDONLY|O_TRUNC")


def plain(b: Battery) -> None:
    """Reads and writes."""
    b.section("plain")
    b("open", "file", RW_NEW, 0o644, to="file")
    b("write", "@file", b"0123456789")
    b("lseek", "@file", 0, "SEEK_CUR")
    b("read", "@file", 10)
    b("lseek", "@file", 2, "SEEK_SET")
    b("read", "@file", 3)
    b("lseek", "@file", -3, "SEEK_END")
    b("read", "@file", 100)
    for offset, whence in [
        (-1, "SEEK_SET"),
        (-100, "SEEK_CUR"),
        (0, 77),
        (1 << 62, "SEEK_SET"),
        (100, "SEEK_SET"),
    ]:
        b("lseek", "@file", offset, whence)
    b("read", "@file", 10)
    b("write", "@file", b"far")
    b("contents", "file")
    b("pwrite", "@file", b"", 5000)
    b("fstat", "@file")
    b("pwrite", "@file", b"x", -1)
    b("pread", "@file", 1, -1)
    b("pread", "@file", 10, 100)
    b("pread", "@file", 10, 99)
    b("pread", "@file", 10, 1 << 50)
    b("lseek", "@file", 0, "SEEK_SET")
    b("writev", "@file", b"ab", b"", b"cdef")
    b("lseek", "@file", 0, "SEEK_SET")
    b("readv", "@file", 3, 0, 5)
    b("writev", "@file", *[b"v"] * 1024)
    b("writev", "@file", *[b"v"] * 1025)
    b("readv", "@file", *[1] * 1025)
    b("fstat", "@file")
    b("open", "file", "O_RDONLY", to="reader")
    b("write", "@reader", b"x")
    b("open", "file", "O_WRONLY", to="writer")
    b("read", "@writer", 1)
    b("dup", "@file", to="twin")
    b("lseek", "@twin", 4, "SEEK_SET")
    b("lseek", "@file", 0, "SEEK_CUR")
    for size in [4096, 16_384, 16_385, 262_144, 262_145, 3 * MIB + 7]:
        b("open", f"of{size}", RW_NEW, 0o644, to="big")
        b("write", "@big", b"w" * size)
        b("pwrite", "@big", b"<>", size // 2)
        b("close", "@big")
        b("contents", f"of{size}")
    b("fadvise", "@file", 0, 0, "POSIX_FADV_DONTNEED")
    b("fadvise", "@file", 0, 0, "POSIX_FADV_WILLNEED")
    b("fadvise", "@file", 0, 0, 77)
    b("readahead", "@file", 0, 4096)
    b("readahead", "@writer", 0, 4096)


def flagged(b: Battery) -> None:
    """preadv2 and pwritev2, O_APPEND and O_DIRECT."""
    b.section("flagged")
    make(b, "file", b"0123456789")
    b("open", "file", "O_RDWR", to="file")
    for flags in [
        "RWF_APPEND",
        "RWF_DSYNC",
        "RWF_SYNC",
        "RWF_HIPRI",
        "RWF_NOAPPEND",
        "RWF_UNKNOWN",
    ]:
        b("pwritev2", "@file", b"+", 2, flags)
    b("pwritev2", "@file", b"+", 2, "RWF_NOWAIT")
    b("pwritev2", "@file", b"at", -1, "RWF_APPEND")
    b("lseek", "@file", 0, "SEEK_CUR")
    b("contents", "file")
    b("preadv2", "@file", 5, 0, 0)
    b("preadv2", "@file", 5, 0, "RWF_HIPRI")
    b("preadv2", "@file", 5, 0, "RWF_NOWAIT")
    b("preadv2", "@file", 5, -1, 0)
    b("preadv2", "@file", 5, 0, "RWF_UNKNOWN")
    b("preadv2", "@file", 5, 0, "RWF_APPEND")
    b("open", "file", "O_RDWR|O_APPEND", to="tail")
    b("pwritev2", "@tail", b"no", 0, "RWF_NOAPPEND")
    b("pwritev2", "@tail", b"end", 0, 0)
    b("lseek", "@tail", 0, "SEEK_CUR")
    b("write", "@tail", b".")
    b("lseek", "@tail", 0, "SEEK_CUR")
    b("contents", "file")
    b("open", "direct", f"{RW_NEW}|O_DIRECT", 0o644, to="direct")
    for offset, length, shift in [
        (0, 8192, 0),
        (4096, 4096, 0),
        (12_288, 4096, 0),
        (8192, 100, 0),
        (10, 4096, 0),
        (0, 4096, 7),
    ]:
        b("direct", "@direct", "write", offset, length, shift)
    b("fstat", "@direct")
    for offset, length, shift in [
        (0, 16_384, 0),
        (8192, 8192, 0),
        (12_288, 8192, 0),
        (100, 4096, 0),
        (0, 100, 0),
        (0, 4096, 7),
    ]:
        b("direct", "@direct", "read", offset, length, shift)
    b("pwrite", "@direct", b"odd", 3)
    b("contents", "direct")
    b("open", "direct", "O_RDWR", to="cached")
    b("pwrite", "@cached", b"page", 4096)
    b("direct", "@direct", "read", 4096, 4096)
    b("direct", "@direct", "write", 0, 4096)
    b("pread", "@cached", 8, 4092)
    b("fcntl", "@cached", "F_SETFL", "O_DIRECT")
    b("direct", "@cached", "read", 0, 4096)
    b("open", "tail", f"{RW_NEW}|O_DIRECT|O_APPEND", 0o644, to="direct2")
    b("direct", "@direct2", "write", 0, 4096)
    b("direct", "@direct2", "write", 0, 4096)
    b("stat", "tail")
    b("pwritev2", "@direct2", b"x" * 512, 0, "RWF_ATOMIC")


def sparse(b: Battery) -> None:
    """Holes: their reported places, their bytes, and the space that they take."""
    b.section("sparse")
    cases: list[tuple[str, list[tuple[int, int]], int]] = [
        ("full", [(0, MIB)], MIB),
        ("ends", [(0, MIB)], 8 * MIB),
        ("begins", [(100 * MIB, MIB)], 101 * MIB),
        ("between", [(0, MIB), (10 * MIB, 4096)], 12 * MIB),
        ("several", [(2 * MIB, MIB), (5 * MIB, MIB), (8 * MIB, MIB)], 9 * MIB),
        ("nothing", [], 5 * MIB),
        ("empty", [], 0),
        ("small", [(0, 10)], 10),
        ("little", [(8192, 10)], 12_288),
    ]
    for name, pieces, size in cases:
        b("open", name, RW_NEW, 0o644, to="file")
        for offset, count in pieces:
            b("pwrite", "@file", b"b" * count, offset)
        # Linux' FUSE writes dirty pages back one by one when a file grows.
        b("fsync", "@file")
        b("ftruncate", "@file", size)
        b("close", "@file")
        b("stat", name)
        b("blocks", name)
        b("extents", name)
    b("contents", "between")
    b("open", "between", "O_RDONLY", to="file")
    for offset in [0, 4 * MIB, 10 * MIB, 11 * MIB, 12 * MIB, 13 * MIB, -1]:
        b("lseek", "@file", offset, "SEEK_DATA")
        b("lseek", "@file", offset, "SEEK_HOLE")
    b("lseek", "@file", 0, "SEEK_CUR")
    b("open", "between", "O_RDWR", to="writer")
    b("lseek", "@writer", 4 * MIB, "SEEK_DATA")
    b("pwrite", "@writer", b"dirty", 6 * MIB)
    b("lseek", "@writer", 4 * MIB, "SEEK_DATA")
    b("lseek", "@writer", 0, "SEEK_HOLE")
    b("close", "@writer")
    b("extents", "between")


def allocated(b: Battery) -> None:
    """fallocate in all modes."""
    b.section("allocated")
    ways = [
        ("more", 0, 2 * MIB, MIB), ("inside", 0, 0, 4096),
        ("kept", "FALLOC_KEEP_SIZE", 4 * MIB, MIB),
        ("hole", "FALLOC_PUNCH_HOLE|FALLOC_KEEP_SIZE", 256 * KIB, 512 * KIB),
        ("odd", "FALLOC_PUNCH_HOLE|FALLOC_KEEP_SIZE", 1000, 300_001),
        ("behind", "FALLOC_PUNCH_HOLE|FALLOC_KEEP_SIZE", MIB - 10, 100),
        ("resized", "FALLOC_PUNCH_HOLE", 0, 4096), ("zero", "FALLOC_ZERO_RANGE", 1000, 300_001),
        ("longer", "FALLOC_ZERO_RANGE", MIB - 10, 100),
        ("same", "FALLOC_ZERO_RANGE|FALLOC_KEEP_SIZE", MIB - 10, 100),
        ("less", "FALLOC_COLLAPSE_RANGE", 256 * KIB, 256 * KIB),
        ("inserted", "FALLOC_INSERT_RANGE", 256 * KIB, 256 * KIB),
        ("unshared", "FALLOC_UNSHARE_RANGE", 0, 4096), ("unknown", 1 << 20, 0, 4096),
        ("nothing", 0, 0, 0), ("negative", 0, -1, 4096), ("far", 0, (1 << 63) - 4096, 8192),
        ("toofar", 0, 1 << 62, 4096),
    ]  # fmt: skip
    for name, mode, offset, length in ways:
        make(b, name, b"f" * MIB)
        b("open", name, "O_RDWR", to="file")
        b("fallocate", "@file", mode, offset, length)
        b("fstat", "@file")
        b("contents", name)
        b("close", "@file")
    for name in ["more", "kept", "hole", "zero"]:
        b("blocks", name)
    b("extents", "hole")
    make(b, "small", b"0123456789")
    b("open", "small", "O_RDWR", to="small")
    b("fallocate", "@small", "FALLOC_PUNCH_HOLE|FALLOC_KEEP_SIZE", 2, 3)
    b("fallocate", "@small", "FALLOC_ZERO_RANGE", 8, 4)
    b("fallocate", "@small", "FALLOC_KEEP_SIZE", 0, 100_000)
    b("contents", "small")
    b("fallocate", "@small", 0, 0, 100_000)
    b("contents", "small")
    b("open", "small", "O_RDONLY", to="reader")
    b("fallocate", "@reader", 0, 0, 10)
    b("open", ".", "O_RDONLY", to="dir")
    b("fallocate", "@dir", 0, 0, 10)
    b("limited", 1000, "fallocate", "@small", 0, 0, 200_000)
    b("open", "empty", RW_NEW, 0o644, to="empty")
    b("fallocate", "@empty", "FALLOC_KEEP_SIZE", 0, MIB)
    b("fstat", "@empty")
    b("blocks", "empty")


def mapped(b: Battery) -> None:
    """Mappings, shared and private."""
    b.section("mapped")
    make(b, "file", b"0123456789")
    b("open", "file", "O_RDWR", to="file")
    b("map_write", "@file", 10, 3, b"MAP", "MAP_SHARED")
    b("contents", "file")
    b("pread", "@file", 10, 0)
    b("map_write", "@file", 10, 0, b"own", "MAP_PRIVATE")
    b("contents", "file")
    b("pwrite", "@file", b"after", 0)
    b("map_read", "@file", 10)
    b("map_behind", "@file", 8192, 9)
    b("map_behind", "@file", 8192, 10)
    b("map_behind", "@file", 8192, 5000)
    b("open", "file", "O_RDONLY", to="reader")
    b("map_write", "@reader", 10, 0, b"x", "MAP_SHARED")
    b("map_write", "@reader", 10, 0, b"x", "MAP_PRIVATE")
    b("open", "file", "O_WRONLY", to="writer")
    b("map_read", "@writer", 10)
    b("open", ".", "O_RDONLY", to="dir")
    b("map_read", "@dir", 10)
    b("truncate", "file", MIB)
    b("map_write", "@file", MIB, 700_000, b"in a hole", "MAP_SHARED")
    b("contents", "file")
    b("unlink", "file")
    b("map_write", "@file", MIB, 0, b"gone", "MAP_SHARED")
    b("pread", "@file", 6, 0)
    b("open", "direct", f"{RW_NEW}|O_DIRECT", 0o644, to="direct")
    b("ftruncate", "@direct", 8192)
    b("map_write", "@direct", 8192, 4096, b"mapped", "MAP_SHARED")
    b("direct", "@direct", "read", 4096, 4096)


def copied(b: Battery) -> None:
    """Bytes that the kernel moves from file to file."""
    b.section("copied")
    make(b, "file", b"0123456789")
    make(b, "large", b"l" * MIB + b"end")
    b.quiet("mkdir", "dir")
    b("open", "file", "O_RDWR", to="file")
    b("open", "large", "O_RDONLY", to="large")
    b("open", "copy", RW_NEW, 0o644, to="copy")
    b("open", "dir", "O_RDONLY", to="dir")
    b("copy_range", "@file", 2, "@copy", 0, 4)
    b("copy_range", "@file", None, "@copy", None, 3)
    b("lseek", "@file", 0, "SEEK_CUR")
    b("lseek", "@copy", 0, "SEEK_CUR")
    b("contents", "copy")
    for source, start, target, end, length in [
        ("@file", 8, "@copy", 20, 100), ("@file", 10, "@copy", 0, 10),
        ("@file", 100, "@copy", 0, 10), ("@file", 0, "@copy", 0, 0),
        ("@file", 0, "@file", 3, 5), ("@file", 0, "@file", 20, 5), ("@copy", 0, "@large", 0, 5),
        ("@dir", 0, "@copy", 0, 5), ("@file", 0, "@dir", 0, 5),
        ("@large", 1000, "@copy", 300_000, MIB),
    ]:  # fmt: skip
        b("copy_range", source, start, target, end, length)
    b("contents", "file")
    b("contents", "copy")
    b("open", "copy", "O_WRONLY|O_APPEND", to="tail")
    b("copy_range", "@file", 0, "@tail", 0, 5)
    b("sendfile", "@copy", "@file", 1, 5)
    b("sendfile", "@copy", "@file", 100, 5)
    b("sendfile", "@tail", "@file", 0, 5)
    b("sendfile", "@file", "@dir", 0, 5)
    b("ftruncate", "@copy", 0)
    b("lseek", "@copy", 0, "SEEK_SET")
    b("sendfile", "@copy", "@large", 0, 2 * MIB)
    b("contents", "copy")
    b("splice_in", b"spliced", "@copy", 100)
    b("splice_out", "@copy", 98, 12)
    b("splice_in", b"spliced", "@tail", 100)
    b("splice_out", "@dir", 0, 12)
    b("ioctl", "@copy", "FICLONE", 0)


def asynchronous(b: Battery) -> None:
    """Linux' asynchronous I/O."""
    b.section("asynchronous")
    for name, flags in [("file", "O_RDWR|O_CREAT"), ("direct", "O_RDWR|O_CREAT|O_DIRECT")]:
        b("open", name, flags, 0o644, to="file")
        b("aio", "AIO_PWRITE", "@file", 0, b"a" * 8192)
        b("aio", "AIO_PREAD", "@file", 4096, 4096)
        b("aio", "AIO_FSYNC", "@file", 0, 0)
        b("aio", "AIO_FDSYNC", "@file", 0, 0)
        b("aio", "AIO_PREAD", "@file", 1 << 20, 4096)
        b("fstat", "@file")
        b("contents", name)
        b("close", "@file")
    b("open", "file", "O_RDONLY", to="reader")
    b("aio", "AIO_PWRITE", "@reader", 0, b"x")
    b("aio", "AIO_PREAD", "@reader", -1, 1)
    b("aio", 77, "@reader", 0, 1)
    b("open", "file", "O_RDWR|O_APPEND", to="tail")
    b("aio", "AIO_PWRITE", "@tail", 0, b"tail")
    b("fstat", "@tail")


SECTIONS = [lengths, plain, flagged, sparse, allocated, mapped, copied, asynchronous]
