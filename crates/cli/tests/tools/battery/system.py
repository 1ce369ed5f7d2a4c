"""System calls by name, with answers that do not depend on the folder or on the run.

Each function takes the arguments of a call and returns its answer in the form of the record:
nothing, a number, or a text. Errors are OSError. Inode numbers, current times and sizes of folders
are omitted.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import select
import signal
import stat
import struct
import subprocess
import time
from typing import Any, Callable

LIBC = ctypes.CDLL(None, use_errno=True)
LONGS = ("syscall", "getdents64", "telldir", "readahead")
AT_FDCWD, AT_EMPTY_PATH, AT_EACCESS = -100, 0x1000, 0x200

# Numbers that are missing in Python's `os`, `fcntl` and `select`.
FLAGS = {
    "O_PATH": 0o10000000,
    "O_TMPFILE": 0o20200000,
    "AT_FDCWD": AT_FDCWD,
    "AT_EMPTY_PATH": AT_EMPTY_PATH,
    "AT_SYMLINK_NOFOLLOW": 0x100,
    "AT_SYMLINK_FOLLOW": 0x400,
    "AT_REMOVEDIR": 0x200,
    "AT_EACCESS": AT_EACCESS,
    "RENAME_NOREPLACE": 1,
    "RENAME_EXCHANGE": 2,
    "RENAME_WHITEOUT": 4,
    "RESOLVE_NO_XDEV": 1,
    "RESOLVE_NO_SYMLINKS": 4,
    "RESOLVE_BENEATH": 8,
    "RESOLVE_IN_ROOT": 16,
    "FALLOC_KEEP_SIZE": 1,
    "FALLOC_PUNCH_HOLE": 2,
    "FALLOC_COLLAPSE_RANGE": 8,
    "FALLOC_ZERO_RANGE": 16,
    "FALLOC_INSERT_RANGE": 32,
    "FALLOC_UNSHARE_RANGE": 64,
    "RWF_HIPRI": 1,
    "RWF_DSYNC": 2,
    "RWF_SYNC": 4,
    "RWF_NOWAIT": 8,
    "RWF_APPEND": 16,
    "RWF_NOAPPEND": 32,
    "RWF_ATOMIC": 64,
    "RWF_UNKNOWN": 1 << 20,
    "SYNC_FILE_RANGE_WAIT_BEFORE": 1,
    "SYNC_FILE_RANGE_WRITE": 2,
    "SYNC_FILE_RANGE_WAIT_AFTER": 4,
    "STATX_TYPE": 1,
    "STATX_SIZE": 0x200,
    "STATX_BASIC_STATS": 0x7FF,
    "STATX_BTIME": 0x800,
    "STATX_RESERVED": 0x80000000,
    "FS_IOC_GETFLAGS": 0x80086601,
    "FS_IOC_SETFLAGS": 0x40086602,
    "FICLONE": 0x40049409,
    "FIGETBSZ": 2,
    "FIONREAD": 0x541B,
    "FS_IOC_FIEMAP": 0xC020660B,
    "TCGETS": 0x5401,
    "IN_NONSENSE": 0,
    "UTIME_NOW": (1 << 30) - 1,
    "UTIME_OMIT": (1 << 30) - 2,
    "AIO_PREAD": 0,
    "AIO_PWRITE": 1,
    "AIO_FSYNC": 2,
    "AIO_FDSYNC": 3,
}
MASKS = {
    "access": 0x1,
    "modify": 0x2,
    "attrib": 0x4,
    "close_write": 0x8,
    "moved_from": 0x40,
    "moved_to": 0x80,
    "create": 0x100,
    "delete": 0x200,
    "delete_self": 0x400,
    "move_self": 0x800,
    "ignored": 0x8000,
}
KINDS = {
    stat.S_IFREG: "file",
    stat.S_IFDIR: "dir",
    stat.S_IFLNK: "link",
    stat.S_IFIFO: "fifo",
    stat.S_IFSOCK: "socket",
    stat.S_IFCHR: "char",
    stat.S_IFBLK: "block",
}


def number(flags: str) -> int:
    """The number for names that are joined by `|`."""
    total = 0
    for name in flags.split("|"):
        modules = (os, fcntl, select, stat, mmap, signal)
        found = next((getattr(it, name) for it in modules if hasattr(it, name)), None)
        total |= FLAGS[name] if name in FLAGS else int(found)  # type: ignore[arg-type]
    return total


def libc(name: str, *args: Any) -> int:
    """A function of the C library that returns -1 and sets errno on failure."""
    function = getattr(LIBC, name)
    function.restype = ctypes.c_long if name in LONGS else ctypes.c_int
    given = [os.fsencode(it) if isinstance(it, str) else it for it in args]
    given = [ctypes.c_long(it) if isinstance(it, int) else it for it in given]
    ctypes.set_errno(0)
    result: int = function(*given)
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def runs(data: bytes) -> str:
    """Bytes, with `c*N` for 16 or more that are the same."""
    parts: list[str] = []
    plain, at = bytearray(), 0

    def flush() -> None:
        if plain:
            parts.append(ascii(bytes(plain))[1:])
            plain.clear()

    while at < len(data):
        end = at + len(data[at:]) - len(data[at:].lstrip(data[at : at + 1]))
        if end - at >= 16:
            flush()
            parts.append(f"{ascii(data[at : at + 1])[1:]}*{end - at}")
        else:
            plain += data[at:end]
        at = end
    flush()
    return " ".join(parts) or "''"


def attributes(st: os.stat_result) -> str:
    """The result of `stat`, without fields that differ between runs."""
    kind = KINDS[stat.S_IFMT(st.st_mode)]
    text = f"{kind} {stat.S_IMODE(st.st_mode):04o} nlink={st.st_nlink} {st.st_uid}:{st.st_gid}"
    if kind in ("file", "link"):
        text += f" size={st.st_size}"
    if kind in ("char", "block"):
        text += f" rdev={os.major(st.st_rdev)}:{os.minor(st.st_rdev)}"
    return text


def blocks(path: str) -> str:
    """The allocated share of a file: `none`, `part`, `all` or `more`, in blocks of 4 KiB."""
    st = os.stat(path)
    room = st.st_blocks * 512
    if room < st.st_size or room == 0:
        return "part" if room else "none"
    return "all" if room <= -(-st.st_size // 4096) * 4096 else "more"


def times(path: str, which: str) -> str:
    """Times that were set: `a`, `m`."""
    st = os.stat(path, follow_symlinks=False)
    all_ns = {"a": st.st_atime_ns, "m": st.st_mtime_ns}
    return " ".join(
        f"{name}time={all_ns[name] // 10**9}.{all_ns[name] % 10**9:09d}" for name in which
    )


def is_now(path: str, which: str) -> str:
    """Whether times are those of the last minute."""
    st = os.stat(path, follow_symlinks=False)
    all_times = {"a": st.st_atime, "m": st.st_mtime, "c": st.st_ctime}
    return " ".join(
        f"{it}time={'now' if abs(time.time() - all_times[it]) < 60 else 'old'}" for it in which
    )


def utimensat(path: str | int, atime: Any, mtime: Any, flags: int = 0) -> int:
    """Times are pairs of seconds and nanoseconds, among them UTIME_NOW and UTIME_OMIT."""
    pairs = None if atime is None else struct.pack("4q", *atime, *mtime)
    if isinstance(path, int):
        return libc("futimens", path, pairs)
    return libc("utimensat", AT_FDCWD, path, pairs, flags)


def statx(path: str, flags: int, mask: int) -> str:
    """The returned fields, and whether the time of birth is one of them."""
    buffer = ctypes.create_string_buffer(256)
    libc("statx", AT_FDCWD, path, flags, mask, buffer)
    found = struct.unpack_from("<I", buffer.raw)[0]
    births, changes = (struct.unpack_from("<qI", buffer.raw, at) for at in (80, 96))
    # The kernel may return more fields than requested.
    found &= mask & 0xFFF
    text = f"mask={found:#x}"
    if found & 0x800:
        is_sane = abs(births[0] - time.time()) < 3600 and (births <= changes or not found & 0x80)
        text += f" birth {'can be' if is_sane else 'cannot be'}"
    return text


def birth(path: str) -> tuple[int, int]:
    """The time of birth."""
    buffer = ctypes.create_string_buffer(256)
    libc("statx", AT_FDCWD, path, 0x100, 0x800, buffer)
    seconds, nanos = struct.unpack_from("<qI", buffer.raw, 80)
    return seconds, nanos


def birth_kept(path: str, other: str) -> str:
    """Whether the time of birth equals the one recorded for `other`."""
    return "same" if BIRTHS.get(other) == birth(path) else "other"


def birth_noted(path: str) -> str:
    """Records the time of birth."""
    BIRTHS[path] = birth(path)
    return "some" if BIRTHS[path] > (0, 0) else "none"


BIRTHS: dict[str, tuple[int, int]] = {}


def contents(path: str) -> str:
    """All bytes of a file, read by a separate descriptor."""
    if os.stat(path).st_size > 1 << 26:
        return "too long to look at"
    with open(path, "rb", buffering=0) as file:
        return runs(file.readall() or b"")


def entries(path: str | int = ".") -> str:
    """The names of a folder with their kinds, in the order of their bytes."""
    with os.scandir(path) as found:
        all_entries = sorted((os.fsencode(it.name), it) for it in found)
    shown = []
    for name, it in all_entries:
        kind = "dir" if it.is_dir(follow_symlinks=False) else "link" if it.is_symlink() else ""
        kind = kind or ("file" if it.is_file() else "other")
        text = ascii(name)[2:-1]
        shown.append(f"{text if len(text) < 40 else f'{text[:8]}..[{len(name)}]'}:{kind}")
    return " ".join(shown) or "empty"


def same(path: str, other: str) -> str:
    """Whether two paths are one inode."""
    one, two = (os.stat(it, follow_symlinks=False) for it in (path, other))
    return "same" if (one.st_dev, one.st_ino) == (two.st_dev, two.st_ino) else "other"


def seek(fd: int, offset: int, whence: int) -> int:
    """Sets the place in a file."""
    return os.lseek(fd, offset, whence)


def extents(path: str) -> str:
    """The ranges of a file with bytes, by SEEK_DATA and SEEK_HOLE, in KiB."""
    fd, at = os.open(path, os.O_RDONLY), 0
    found: list[str] = []
    try:
        while True:
            try:
                at = os.lseek(fd, at, os.SEEK_DATA)
            except OSError as error:
                if error.errno != errno.ENXIO:
                    raise
                return " ".join(found) or "none"
            end = os.lseek(fd, at, os.SEEK_HOLE)
            found.append(f"{at / 1024:g}-{end / 1024:g}")
            at = end
    finally:
        os.close(fd)


def fallocate(fd: int, mode: int, offset: int, length: int) -> int:
    """fallocate; Python has it only without a mode."""
    return libc("fallocate", fd, mode, offset, length)


def renameat2(old: str, new: str, flags: int) -> int:
    """Renames by names of this folder."""
    return libc("renameat2", AT_FDCWD, old, AT_FDCWD, new, flags)


def linkat(folder: int, old: str, new: str, flags: int) -> int:
    """Links with flags."""
    return libc("linkat", folder, old, AT_FDCWD, new, flags)


def link_fd(fd: int, new: str) -> int:
    """Links an open file by its name in `/proc`, as open(2) says."""
    return libc("linkat", AT_FDCWD, f"/proc/self/fd/{fd}", AT_FDCWD, new, 0x400)


def reopen(fd: int, flags: int) -> int:
    """Opens an open file by its name in `/proc`."""
    return os.open(f"/proc/self/fd/{fd}", flags)


def openat2(path: str, flags: int, mode: int, resolve: int) -> int:
    """Opens with limits on path resolution. A rename anywhere on the host can disturb it."""
    how = struct.pack("3Q", flags | os.O_CLOEXEC, mode, resolve)
    for _ in range(1000):
        try:
            return libc("syscall", 437, AT_FDCWD, path, how, len(how))
        except BlockingIOError:
            continue
    raise OSError(errno.EAGAIN, "disturbed again and again")


def faccessat(path: str, mode: int, flags: int) -> int:
    """Whether a path allows an access; with AT_EACCESS for the effective user."""
    return libc("faccessat", AT_FDCWD, path, mode, flags)


def readlink(path: str) -> str:
    """The target of a link."""
    target = os.readlink(path)
    return target if len(target) < 40 else f"{target[:8]}..[{len(target)}]"


def pwritev2(fd: int, data: bytes, offset: int, flags: int) -> int:
    """Writes with flags."""
    return os.pwritev(fd, [data], offset, flags)


def preadv2(fd: int, length: int, offset: int, flags: int) -> str:
    """Reads with flags."""
    buffer = bytearray(length)
    return runs(bytes(buffer[: os.preadv(fd, [buffer], offset, flags)]))


def readv(fd: int, *lengths: int) -> str:
    """Reads into several buffers."""
    buffers = [bytearray(it) for it in lengths]
    count = os.readv(fd, buffers)
    return f"{count} " + " | ".join(runs(bytes(it)) for it in buffers)


def writev(fd: int, *parts: bytes) -> int:
    """Writes several buffers."""
    return os.writev(fd, parts)


def direct(fd: int, kind: str, offset: int, length: int, shift: int = 0) -> str:
    """Reads or writes with a buffer at a page, or `shift` bytes after it."""
    with mmap.mmap(-1, length + 8192) as memory:
        view = memoryview(memory)[shift : shift + length]
        try:
            if kind == "write":
                view[:] = b"d" * length
                return str(os.pwritev(fd, [view], offset))
            count = os.preadv(fd, [view], offset)
            return runs(bytes(view[:count]))
        finally:
            view.release()


def copy_range(source: int, start: int | None, target: int, end: int | None, length: int) -> int:
    """copy_file_range; offsets of None are the positions of the descriptors."""
    return os.copy_file_range(source, target, length, start, end)


def sendfile(target: int, source: int, offset: int | None, length: int) -> int:
    """Copies by sendfile."""
    return os.sendfile(target, source, offset, length)


def splice_in(data: bytes, fd: int, offset: int) -> int:
    """Writes bytes through a pipe."""
    source, sink = os.pipe()
    try:
        os.write(sink, data)
        place = ctypes.c_int64(offset)
        return libc("splice", source, None, fd, ctypes.byref(place), len(data), 0)
    finally:
        os.close(source)
        os.close(sink)


def splice_out(fd: int, offset: int, length: int) -> str:
    """Reads bytes through a pipe."""
    source, sink = os.pipe()
    try:
        place = ctypes.c_int64(offset)
        libc("splice", fd, ctypes.byref(place), sink, None, length, 0)
        return runs(os.read(source, length))
    finally:
        os.close(source)
        os.close(sink)


def map_write(fd: int, length: int, offset: int, data: bytes, flags: int) -> str:
    """Writes through a mapping and syncs it."""
    with mmap.mmap(fd, length, flags, mmap.PROT_READ | mmap.PROT_WRITE) as memory:
        memory[offset : offset + len(data)] = data
        memory.flush()
        return runs(memory[:])


def map_read(fd: int, length: int) -> str:
    """Reads through a mapping."""
    with mmap.mmap(fd, length, mmap.MAP_SHARED, mmap.PROT_READ) as memory:
        return runs(memory[:])


def map_behind(fd: int, length: int, offset: int) -> str:
    """Accesses a mapped byte in a separate process, which a signal may end."""
    child = os.fork()
    if child == 0:
        try:
            LIBC.prctl(4, 0)  # PR_SET_DUMPABLE: without a core dump.
            # Python's own mmap rejects bytes after the end.
            LIBC.mmap.restype = ctypes.c_void_p
            place = LIBC.mmap(None, ctypes.c_size_t(length), 1, 1, fd, ctypes.c_long(0))
            os._exit(ctypes.string_at(place + offset, 1)[0])
        finally:
            os._exit(255)
    status = os.waitpid(child, 0)[1]
    if os.WIFSIGNALED(status):
        return signal.Signals(os.WTERMSIG(status)).name
    return f"byte {os.WEXITSTATUS(status)}"


def limited(size: int, name: str, *args: Any) -> Any:
    """A call under a limit of the file length, with the limit's signal ignored."""
    import resource

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        return CALLS[name](*args)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def run_program(*args: str) -> str:
    """Runs a program, and returns its exit status."""
    return f"exit {subprocess.run(args, stdout=subprocess.DEVNULL, check=False).returncode}"


def while_it_runs(program: str, name: str, *args: Any) -> Any:
    """A call while a program runs."""
    with subprocess.Popen([program, "60"]) as child:
        try:
            return CALLS[name](*args)
        finally:
            child.kill()
            child.wait()


def aio(operation: int, fd: int, offset: int, given: bytes | int) -> str:
    """One request of Linux' asynchronous I/O."""
    numbers = (206, 207, 208, 209) if os.uname().machine == "x86_64" else (0, 1, 4, 2)
    setup, destroy, getevents, submit = numbers
    context = ctypes.c_ulong(0)
    libc("syscall", setup, 4, ctypes.byref(context))
    try:
        length = given if isinstance(given, int) else len(given)
        # At the start of a page, as O_DIRECT requires.
        memory = mmap.mmap(-1, length or 1)
        if isinstance(given, bytes):
            memory.write(given)
        buffer = ctypes.c_char.from_buffer(memory)
        is_sync = operation in (FLAGS["AIO_FSYNC"], FLAGS["AIO_FDSYNC"])
        place = (0, 0, 0) if is_sync else (ctypes.addressof(buffer), length, offset)
        block = struct.pack(
            "<QIiHhIQQqQII", 7, 0, 0, operation, 0, fd & 0xFFFFFFFF, *place, 0, 0, 0
        )
        request = ctypes.create_string_buffer(block, 64)
        pointer = ctypes.c_void_p(ctypes.addressof(request))
        libc("syscall", submit, context, 1, ctypes.byref(pointer))
        events = ctypes.create_string_buffer(32)
        libc("syscall", getevents, context, 1, 1, events, None)
        result: int = struct.unpack_from("<QQq", events.raw)[2]
        if result < 0:
            raise OSError(-result, os.strerror(-result))
        read = operation == FLAGS["AIO_PREAD"]
        return f"{result} {runs(memory[:result])}" if read else str(result)
    finally:
        libc("syscall", destroy, context)


def ioctl(fd: int, request: int, value: int | bytes = 0) -> str:
    """An ioctl with a number, or with memory."""
    signed = request - (1 << 32) if request >= 1 << 31 else request
    if isinstance(value, bytes):
        fcntl.ioctl(fd, signed, value)
        return "done"
    memory = bytearray(4096)
    struct.pack_into("<q", memory, 0, value)
    fcntl.ioctl(fd, signed, memory)
    return "done"


def ioctl_answer(fd: int, request: int) -> int:
    """An ioctl that answers with a number."""
    memory = bytearray(8)
    fcntl.ioctl(fd, request, memory)
    return int(struct.unpack_from("<i", memory)[0])


def handle(path: str) -> str:
    """Asks for a handle, and opens the file by it."""
    found = take_handle(path)
    folder = os.open(".", os.O_RDONLY)
    try:
        os.close(libc("open_by_handle_at", folder, found, os.O_RDONLY))
        return "opened"
    finally:
        os.close(folder)


def take_handle(path: str) -> Any:
    """The kernel's handle of a path."""
    memory = ctypes.create_string_buffer(struct.pack("<Ii", 128, 0) + bytes(128))
    mount_id = ctypes.c_int(0)
    libc("name_to_handle_at", AT_FDCWD, path, memory, ctypes.byref(mount_id), 0)
    return memory


def handle_of_removed(path: str) -> str:
    """Opens a removed file by its handle."""
    found = take_handle(path)
    os.unlink(path)
    folder = os.open(".", os.O_RDONLY)
    try:
        os.close(libc("open_by_handle_at", folder, found, os.O_RDONLY))
        return "opened"
    finally:
        os.close(folder)


def limits(path: str) -> str:
    """The name limit of statfs, and whether its numbers are plausible."""
    it = os.statvfs(path)
    is_sane = it.f_bavail <= it.f_bfree <= it.f_blocks and 0 < it.f_ffree <= it.f_files
    powers = it.f_bsize & (it.f_bsize - 1) == 0 and it.f_frsize & (it.f_frsize - 1) == 0
    flags = it.f_flag & (os.ST_RDONLY | os.ST_NOSUID | os.ST_NOEXEC)
    return f"namemax={it.f_namemax} {'sane' if is_sane and powers else it} flags={flags}"


def lock(fd: int, command: int, kind: int, start: int, length: int, whence: int = 0) -> str:
    """A lock of fcntl; F_GETLK shows the conflicting lock."""
    given = struct.pack("hhqqi4x", kind, whence, start, length, 0)
    answer = fcntl.fcntl(fd, command, given)
    if command not in (fcntl.F_GETLK, fcntl.F_OFD_GETLK):
        return "done"
    kind, whence, start, length, pid = struct.unpack("hhqqi4x", answer)
    names = {fcntl.F_RDLCK: "read", fcntl.F_WRLCK: "write", fcntl.F_UNLCK: "none"}
    if kind == fcntl.F_UNLCK:
        return "none"
    who = {os.getpid(): "self", -1: "open file", 0: "nobody"}.get(pid, "other")
    return f"{names[kind]} {whence} {start}+{length} of {who}"


def interrupted(seconds: float, name: str, *args: Any) -> Any:
    """A call that a signal interrupts after a time."""

    def end(_signal: int, _frame: Any) -> None:
        raise OSError(errno.EINTR, "interrupted")

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        return CALLS[name](*args)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def events(fd: int) -> str:
    """The events of inotify, each kind of event of a name once."""
    try:
        data = os.read(fd, 65536)
    except BlockingIOError:
        return "nothing"
    found: list[str] = []
    at = 0
    while at < len(data):
        _watch, mask, _cookie, length = struct.unpack_from("iIII", data, at)
        name = data[at + 16 : at + 16 + length].rstrip(b"\0").decode()
        kinds = "+".join(kind for kind, bit in MASKS.items() if mask & bit)
        text = f"{kinds}({name})"
        if text not in found:
            found.append(text)
        at += 16 + length
    return " ".join(found)


def watch(fd: int, path: str) -> str:
    """Watches a path for all events except reads."""
    libc("inotify_add_watch", fd, path, 0xFFE & ~0x30)
    return "done"


def user(uid: int, gid: int, groups: list[int]) -> None:
    """The process becomes another user permanently and keeps access to its `/proc`."""
    os.setgroups(groups)
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    LIBC.prctl(4, 1)


def effective(uid: int) -> None:
    """The process acts as another user."""
    os.seteuid(uid)


def getxattr(path: str, name: str, size: int = 70_000) -> str:
    """The value of an attribute; with a size of 0 its length."""
    memory = ctypes.create_string_buffer(size) if size else None
    length = libc("getxattr", path, name, memory, size)
    return runs(memory.raw[:length]) if memory else f"length {length}"


def listxattr(path: str) -> str:
    """Names of attributes in their order."""
    names = sorted(os.listxattr(path, follow_symlinks=False))
    return " ".join(it if len(it) < 40 else f"{it[:9]}..[{len(it)}]" for it in names) or "none"


def lxattr(path: str, name: str, value: bytes) -> None:
    """Sets an attribute of a link itself."""
    os.setxattr(path, name, value, follow_symlinks=False)


ACL_TAGS = {"u": 1, "U": 2, "g": 4, "G": 8, "m": 16, "o": 32, "X": 77}
NO_ID = 0xFFFFFFFF


def setacl(path: str, kind: str, rows: str, flags: int = 0) -> None:
    """Sets an access control list; `u6 U1000:6 g4 G4000:4 m6 o0` has all kinds of rows."""
    value = struct.pack("<I", 2)
    for row in rows.split():
        head, _, permissions = row[1:].rpartition(":")
        value += struct.pack(
            "<HHI", ACL_TAGS[row[0]], int(permissions), int(head) if head else NO_ID
        )
    os.setxattr(path, f"system.posix_acl_{kind}", value, flags)


def getacl(path: str, kind: str) -> str:
    """An access control list in that form."""
    value = os.getxattr(path, f"system.posix_acl_{kind}")
    names = {number: name for name, number in ACL_TAGS.items()}
    rows = [struct.unpack_from("<HHI", value, at) for at in range(4, len(value), 8)]
    return " ".join(
        f"{names[tag]}{'' if it == NO_ID else f'{it}:'}{mode}" for tag, mode, it in rows
    )


def umask(mask: int) -> str:
    """Sets the umask and shows the previous one."""
    return f"{os.umask(mask):04o}"


def fchmodat(path: str, mode: int, flags: int) -> int:
    """Sets the mode of a path with flags."""
    return libc("syscall", 452, AT_FDCWD, path, mode, flags)


def sync_range(fd: int, offset: int, length: int, flags: int) -> int:
    """sync_file_range."""
    return libc("sync_file_range", fd, offset, length, flags)


def socket_at(path: str) -> None:
    """Binds a socket to a name."""
    import socket

    with socket.socket(socket.AF_UNIX) as it:
        it.bind(path)


def connect(path: str) -> None:
    """Connects to a socket by its name."""
    import socket

    with socket.socket(socket.AF_UNIX) as it:
        it.connect(path)


def cwd_is(name: str) -> str:
    """Whether the current folder has this name."""
    return "yes" if os.path.basename(os.getcwd()) == name else "no"


def make_files(count: int) -> int:
    """Makes empty files `n000` and so on."""
    for n in range(count):
        os.close(os.open(f"n{n:03}", os.O_CREAT | os.O_WRONLY, 0o644))
    return count


def walk_down(name: str, depth: int) -> str:
    """Makes nested folders and enters each; returns the depth."""
    for _ in range(depth):
        os.mkdir(name)
        os.chdir(name)
    return f"depth {depth}"


CALLS: dict[str, Callable[..., Any]] = {
    "openat": lambda folder, path, flags, mode=0o777: os.open(path, flags, mode, dir_fd=folder),
    "mkdirat": lambda folder, path, mode=0o777: os.mkdir(path, mode, dir_fd=folder),
    "unlinkat": lambda folder, path, flags: libc("unlinkat", folder, path, flags),
    "fstatat": lambda folder, path, flags: attributes_at(folder, path, flags),
    "read": lambda fd, length: runs(os.read(fd, length)),
    "pread": lambda fd, length, offset: runs(os.pread(fd, length, offset)),
    "lseek": seek,
    "stat": lambda path: attributes(os.stat(path)),
    "lstat": lambda path: attributes(os.lstat(path)),
    "fstat": lambda fd: attributes(os.fstat(fd)),
    "flags": lambda fd: f"{fcntl.fcntl(fd, fcntl.F_GETFL) & (os.O_APPEND | os.O_ACCMODE):#o}",
    "fcntl": lambda fd, command, value=0: fcntl.fcntl(fd, command, value),
    "flock": lambda fd, operation: fcntl.flock(fd, operation),
    "syncfs": lambda fd: libc("syncfs", fd),
    "readahead": lambda fd, offset, length: libc("readahead", fd, offset, length),
    "getdents": lambda fd, size: (
        libc("getdents64", fd, ctypes.create_string_buffer(size), size) and "some"
    ),
    "fgetxattr": lambda fd, name: runs(os.getxattr(fd, name)),
    "lgetxattr": lambda path, name: runs(os.getxattr(path, name, follow_symlinks=False)),
    "fadvise": lambda fd, offset, length, advice: os.posix_fadvise(fd, offset, length, advice),
    "inotify": lambda: libc("inotify_init1", os.O_NONBLOCK),
    "list": entries,
    "access": lambda path, mode: libc("access", path, mode),
    "lsetxattr": lxattr,
    "fchownat": lambda path, uid, gid, flags: libc("fchownat", AT_FDCWD, path, uid, gid, flags),
}
for _name in (
    "chdir chmod chown close dup fchdir fchmod fchown fdatasync fsync ftruncate getcwd lchown link "
    "mkdir mkfifo mknod open pwrite removexattr rename rmdir setxattr symlink truncate unlink "
    "write"
).split():
    CALLS[_name] = getattr(os, _name)
for _call in (
    blocks, times, is_now, utimensat, statx, birth_noted, birth_kept, contents, same, extents,
    fallocate, renameat2, linkat, link_fd, reopen, openat2, faccessat, readlink, pwritev2,
    preadv2, readv, writev, direct, copy_range, sendfile, splice_in, splice_out, map_write,
    map_read, map_behind, limited, run_program, while_it_runs, aio, ioctl, ioctl_answer, handle,
    handle_of_removed, limits, lock, interrupted, events, watch, user, effective, getxattr,
    listxattr, setacl, getacl, umask, fchmodat, sync_range, socket_at, connect, cwd_is,
    make_files, walk_down,
):  # fmt: skip
    CALLS[_call.__name__] = _call


def attributes_at(folder: int, path: str, flags: int) -> str:
    """The result of `fstatat`; an empty path is the descriptor itself."""
    if path:
        return attributes(os.stat(path, dir_fd=folder, follow_symlinks=not flags & 0x100))
    return attributes(os.fstat(folder))
