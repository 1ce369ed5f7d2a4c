#!/usr/bin/env python3
"""Random operations on files of a mount, compared with a model in memory.

    file_fuzz.py FOLDER [--seed N] [--ops N] [--clone PROGRAM]

It covers operations that fsx does not: copy_file_range, holes and zeros by fallocate, writable
mappings together with write(2), O_APPEND, several descriptors of one file, rename over an open
file, unlink of an open file, and clones by `PROGRAM clone`. At the first difference it prints the
last operations and ends with status 1.
"""

import argparse
import collections
import ctypes
import mmap
import os
import random
import subprocess
import sys

SIZE_MAX = 1 << 20
KEEP_SIZE, PUNCH_HOLE, ZERO_RANGE = 1, 2, 16
LIBC = ctypes.CDLL(None, use_errno=True)


def fallocate(fd: int, mode: int, offset: int, length: int) -> None:
    """fallocate(2); Python has it only without modes."""
    args = (ctypes.c_int(fd), ctypes.c_int(mode), ctypes.c_int64(offset), ctypes.c_int64(length))
    if LIBC.fallocate(*args) != 0:
        errno = ctypes.get_errno()
        raise OSError(errno, os.strerror(errno))


class File:
    """A file, its expected bytes, and its descriptors."""

    def __init__(self, path: str, model: bytearray | None = None) -> None:
        """A new, empty file; or an existing one and its expected bytes."""
        self.path = path
        self.model = bytearray() if model is None else model
        made = os.O_CREAT | os.O_TRUNC if model is None else 0
        self.fds = [os.open(path, os.O_RDWR | made, 0o644)]

    def reopen(self) -> None:
        """Opens one more descriptor, or closes all but one."""
        if len(self.fds) < 4 and self.path:
            self.fds.append(os.open(self.path, os.O_RDWR))
        else:
            for fd in self.fds[1:]:
                os.close(fd)
            del self.fds[1:]

    def close(self) -> None:
        """Closes all descriptors."""
        for fd in self.fds:
            os.close(fd)


class Fuzzer:
    """Does operations and compares."""

    def __init__(self, folder: str, seed: int, program: str | None = None) -> None:
        """Three files in the folder; the program makes clones."""
        self.folder = folder
        self.seed = seed
        self.program = program
        self.clones = 0
        self.random = random.Random(seed)
        self.log: collections.deque[str] = collections.deque(maxlen=40)
        self.count = 0
        self.files = [File(os.path.join(folder, f"file{n}")) for n in range(3)]
        self.actions = [
            (self.write, 20),
            (self.read, 20),
            (self.truncate, 6),
            (self.append, 6),
            (self.punch, 5),
            (self.zero, 4),
            (self.extend, 3),
            (self.copy, 8),
            (self.map, 8),
            (self.sync, 3),
            (self.reopen, 6),
            (self.replace, 2),
            (self.unlink, 2),
            (self.check_all, 2),
        ]
        if program:
            self.actions.append((self.clone, 8))

    def span(self, file: File, longest: int = 70_000) -> tuple[int, int]:
        """An offset and a length, near the file's bytes, often at borders of pages and chunks."""
        offset = self.random.randrange(min(len(file.model) + 20_000, SIZE_MAX) + 1)
        if self.random.random() < 0.3:
            offset = offset // 4096 * 4096
        if self.random.random() < 0.1:
            offset = max(0, offset // 262_144 * 262_144 - self.random.randrange(3))
        return offset, self.random.randrange(1, longest)

    def put(self, file: File, offset: int, data: bytes) -> None:
        """The model of a write."""
        if len(file.model) < offset:
            file.model.extend(bytes(offset - len(file.model)))
        file.model[offset : offset + len(data)] = data

    def write(self, file: File, fd: int) -> str:
        """pwrite(2)."""
        offset, length = self.span(file)
        data = self.random.randbytes(length)
        done = os.pwrite(fd, data, offset)
        assert done == length, f"{done} of {length} bytes were written"
        self.put(file, offset, data)
        return f"write {offset} {length}"

    def append(self, file: File, fd: int) -> str:
        """write(2) with O_APPEND."""
        data = self.random.randbytes(self.random.randrange(1, 9000))
        if not file.path or len(file.model) > SIZE_MAX:
            return "nothing"
        other = os.open(file.path, os.O_WRONLY | os.O_APPEND)
        os.write(other, data)
        os.close(other)
        file.model.extend(data)
        return f"append {len(data)}"

    def read(self, file: File, fd: int) -> str:
        """pread(2)."""
        offset, length = self.span(file, 200_000)
        self.compare(file, offset, os.pread(fd, length, offset), length)
        return f"read {offset} {length}"

    def compare(self, file: File, offset: int, seen: bytes, length: int) -> None:
        """Fails at the first byte that differs."""
        wanted = bytes(file.model[offset : offset + length])
        if seen != wanted:
            at = next(
                (i for i, pair in enumerate(zip(seen, wanted)) if pair[0] != pair[1]),
                min(len(seen), len(wanted)),
            )
            raise AssertionError(
                f"{file.path}: {len(seen)} bytes at {offset}, {len(wanted)} wanted; they differ at {offset + at}"
            )

    def truncate(self, file: File, fd: int) -> str:
        """ftruncate(2), sometimes to zero."""
        size = self.random.choice(
            [0, self.random.randrange(SIZE_MAX), self.random.randrange(len(file.model) + 1)]
        )
        os.ftruncate(fd, size)
        del file.model[size:]
        file.model.extend(bytes(size - len(file.model)))
        return f"truncate {size}"

    def punch(self, file: File, fd: int) -> str:
        """A hole."""
        offset, length = self.span(file, 600_000)
        fallocate(fd, PUNCH_HOLE | KEEP_SIZE, offset, length)
        end = min(offset + length, len(file.model))
        if end > offset:
            file.model[offset:end] = bytes(end - offset)
        return f"punch {offset} {length}"

    def zero(self, file: File, fd: int) -> str:
        """Zeros, also after the end."""
        offset, length = self.span(file, 300_000)
        fallocate(fd, ZERO_RANGE, offset, length)
        self.put(file, offset, bytes(length))
        return f"zero {offset} {length}"

    def extend(self, file: File, fd: int) -> str:
        """Allocates space and extends the file."""
        offset, length = self.span(file)
        os.posix_fallocate(fd, offset, length)
        file.model.extend(bytes(max(0, offset + length - len(file.model))))
        return f"extend {offset} {length}"

    def copy(self, file: File, fd: int) -> str:
        """copy_file_range(2) between files."""
        source = self.random.choice(self.files)
        (start, length), (offset, _) = self.span(source, 300_000), self.span(file)
        length = min(length, max(0, len(source.model) - start))
        if (source is file and start < offset + length and offset < start + length) or length == 0:
            return "nothing"
        done = os.copy_file_range(source.fds[0], fd, length, start, offset)
        self.put(file, offset, bytes(source.model[start : start + done]))
        return f"copy {source.path} {start} to {offset}: {done} of {length}"

    def map(self, file: File, fd: int) -> str:
        """A mapping: compares it, changes it, and reads the change by read(2)."""
        if not file.model:
            return "nothing"
        with mmap.mmap(fd, len(file.model)) as memory:
            offset, length = self.span(file)
            offset = min(offset, len(file.model) - 1)
            length = min(length, len(file.model) - offset)
            self.compare(file, offset, memory[offset : offset + length], length)
            data = self.random.randbytes(length)
            memory[offset : offset + length] = data
            if self.random.random() < 0.5:
                memory.flush()
            self.put(file, offset, data)
            self.compare(file, offset, os.pread(fd, length, offset), length)
        return f"map {offset} {length}"

    def sync(self, file: File, fd: int) -> str:
        """fsync(2), and the length that other clients see."""
        os.fsync(fd)
        size = os.fstat(fd).st_size
        assert size == len(file.model), f"{file.path} has {size} bytes, {len(file.model)} wanted"
        return "fsync"

    def reopen(self, file: File, fd: int) -> str:
        """More or fewer descriptors."""
        file.reopen()
        return f"reopen: {len(file.fds)} descriptors"

    def replace(self, file: File, fd: int) -> str:
        """Another file takes the name of this one, which stays open."""
        if not file.path:
            return "nothing"
        fresh = File(file.path + ".new")
        os.rename(fresh.path, file.path)
        fresh.path, file.path = file.path, ""
        self.files[self.files.index(file)] = fresh
        self.check(file)
        file.close()
        return f"replace {fresh.path}"

    def unlink(self, file: File, fd: int) -> str:
        """Uses the file without a name, then creates it again."""
        if not file.path:
            return "nothing"
        path, file.path = file.path, ""
        os.unlink(path)
        self.write(file, fd)
        self.check(file)
        file.close()
        self.files[self.files.index(file)] = File(path)
        return f"unlink {path}"

    def clone(self, file: File, fd: int) -> str:
        """A clone takes the place of another file."""
        other = self.random.choice([each for each in self.files if each is not file])
        if not file.path or not self.program:
            return "nothing"
        self.clones += 1
        path = os.path.join(self.folder, f"clone{self.seed}-{self.clones}")
        subprocess.run([self.program, "clone", file.path, path], check=True)
        os.unlink(other.path)
        other.close()
        self.files[self.files.index(other)] = File(path, bytearray(file.model))
        return f"clone to {path}"

    def check(self, file: File) -> None:
        """The whole file, through every descriptor."""
        for fd in file.fds:
            size = os.fstat(fd).st_size
            assert size == len(file.model), (
                f"{file.path} has {size} bytes, {len(file.model)} wanted"
            )
            self.compare(file, 0, os.pread(fd, size + 1, 0), size + 1)

    def check_all(self, file: File, fd: int) -> str:
        """Every file."""
        for each in self.files:
            self.check(each)
        return "check"

    def run(self, count: int) -> None:
        """Runs the given number of operations."""
        actions, weights = zip(*self.actions)
        for self.count in range(1, count + 1):
            file = self.random.choice(self.files)
            action = self.random.choices(actions, weights)[0]
            self.log.append(f"{self.count} {action.__name__} {file.path}: under way")
            self.log[-1] = (
                f"{self.count} {os.path.basename(file.path)} {action(file, self.random.choice(file.fds))}"
            )
        self.check_all(self.files[0], 0)
        for file in self.files:
            file.close()


def main() -> int:
    """Runs it."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument(
        "folder", help="a folder of the mount; its files file0, file1, file2 are written over"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--ops", type=int, default=1000)
    parser.add_argument("--clone", metavar="PROGRAM")
    args = parser.parse_args()
    fuzzer = Fuzzer(args.folder, args.seed, args.clone)
    try:
        fuzzer.run(args.ops)
    except (AssertionError, OSError, subprocess.SubprocessError) as error:
        print("\n".join(fuzzer.log), file=sys.stderr)
        print(f"seed {args.seed}, operation {fuzzer.count}: {error}", file=sys.stderr)
        return 1
    print(f"seed {args.seed}: {args.ops} operations, no difference")
    return 0


if __name__ == "__main__":
    sys.exit(main())
