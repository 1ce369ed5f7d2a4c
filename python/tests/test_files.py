"""Files of a real cluster without a mount, over every transport."""

from __future__ import annotations

import asyncio
import ctypes
import errno
import gc
import io
import os
import random
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import millpond
import numpy as np
import pytest
from millpond import errors, files

MIB = 1 << 20


def metric(server, name: str) -> int:
    line = next(x for x in server.metrics().splitlines() if x.split(" ")[0] == name)
    return int(line.rsplit(" ", 1)[1])


def until_it_takes_files(volume: files.Volume) -> None:
    """Wait until the chains of a new cluster serve."""
    deadline = time.monotonic() + 60
    while True:
        try:
            with volume.open("/ready", "w") as file:
                file.pwrite(b"yes", 0)
            return
        except (errors.FileError, errors.DeadlineExceeded):
            assert time.monotonic() < deadline
            time.sleep(0.05)


@pytest.fixture(params=["tcp", "unix", "shm"])
def volume(request: pytest.FixtureRequest, cluster) -> Iterator[files.Volume]:
    options = {"transport": request.param, "deadline_ms": 20_000}
    with files.Volume(cluster.address, name="a test", **options) as opened:
        until_it_takes_files(opened)
        yield opened


@pytest.fixture
def folder(volume: files.Volume, request: pytest.FixtureRequest) -> str:
    name = "".join(c if c.isalnum() else "-" for c in request.node.name)
    volume.makedirs(f"/tests/{name}", exist_ok=True)
    return f"/tests/{name}"


def test_bytes_come_back(volume: files.Volume, folder: str) -> None:
    model = bytearray(random.Random(1).randbytes(700_000))
    with volume.open(f"{folder}/f", "w+") as file:
        assert file.pwrite(model, 0) == len(model)
        assert file.size() == len(model)
        file.write_batch([(5, b"first"), (7, bytearray(b"second")), (0, memoryview(b""))])
        model[5:10], model[7:13] = b"first", b"second"
        assert file.pread(0, 1 << 30) == model
        assert file.pread(699_999, 10) == model[-1:]
        assert file.pread(700_000, 10) == b""
        into = bytearray(b"?" * 10)
        assert file.readinto(into, 699_996) == 4
        assert into == model[-4:] + b"?" * 6, "the rest of the buffer does not change"
        rng = random.Random(2)
        wanted = [(rng.randrange(650_000), rng.randrange(60_000)) for _ in range(50)]
        rooms = [bytearray(length) for _, length in wanted]
        lens = file.read_batch((at, room) for (at, _), room in zip(wanted, rooms))
        for (at, length), room, got in zip(wanted, rooms, lens):
            assert got == min(length, 700_000 - at)
            assert room[:got] == model[at : at + got]
        file.truncate(10)
        assert file.size() == 10
        file.truncate(20)
        assert file.pread(0, 100) == model[:10] + bytes(10)
        file.fsync()
        assert os.path.basename(file.path) == "f"
        assert not file.closed
    assert file.closed
    with pytest.raises(ValueError, match="closed"):
        file.size()
    file.close()


def test_memory_of_every_kind(volume: files.Volume, folder: str) -> None:
    source = np.arange(100_000, dtype=np.float32)
    parts = [ctypes.create_string_buffer(n) for n in (1, 70_000, 329_999)]
    segments = [(ctypes.addressof(part), len(part)) for part in parts]
    with volume.open(f"{folder}/n", "w+") as file:
        assert file.pwrite(source, 0) == source.nbytes
        room = np.zeros_like(source)
        assert file.readinto(room, 0) == source.nbytes
        assert np.array_equal(room, source)
        # Segments follow each other in the file; the last one crosses its end.
        file.truncate(399_000)
        assert file.read_batch([(0, room[:0]), (0, segments), (0, room[:9])]) == [0, 399_000, 36]
        assert b"".join(bytes(part) for part in parts)[:399_000] == source.tobytes()[:399_000]
        assert file.pwrite(segments, 400_000) == 400_000
        assert file.pread(400_000, 70_001) == bytes(parts[0]) + bytes(parts[1])
        assert file.pread(399_000, 1_000) == bytes(1_000), "a hole reads as zeros"


def test_batches_are_submitted_and_waited_for(volume: files.Volume, folder: str) -> None:
    with volume.open(f"{folder}/s", "x+") as file:
        writes = [file.submit_write([(n * MIB, bytes([n]) * MIB)]) for n in range(8)]
        assert [write.wait(60) for write in writes] == [None] * 8
        rooms = [bytearray(MIB) for _ in range(8)]
        reads = [file.submit_read([(n * MIB, rooms[n])]) for n in range(8)]
        assert [read.wait() for read in reads] == [[MIB]] * 8
        assert reads[0].done()
        assert reads[0].wait(0) == [MIB], "told again"
        assert all(room == bytes([n]) * MIB for n, room in enumerate(rooms))
        # Only the batch keeps the memory, and nobody waits for the other batch.
        file.submit_write([(0, bytes(4 * MIB))])
        last = file.submit_write([(0, np.full(4 * MIB, 9, np.uint8))])
        gc.collect()
        last.wait()
        assert last.done()
        rooms[0].append(1)  # A released buffer can grow.
        reader = volume.open(f"{folder}/s")
        failed = reader.submit_write([(0, b"x")])
        for _ in range(2):
            with pytest.raises(millpond.InvalidArgument, match="without write"):
                failed.wait()


def test_a_wait_ends_at_its_timeout(cluster, volume: files.Volume, folder: str) -> None:
    with volume.open(f"{folder}/t", "w+") as file:
        file.pwrite(b"x" * 100, 0)
        room = bytearray(100)
        cluster.freeze()
        try:
            read = file.submit_read([(0, room)])
            with pytest.raises(TimeoutError, match="goes on"):
                read.wait(0.2)
            assert not read.done()
        finally:
            cluster.thaw()
        assert read.wait(60) == [100]
        assert room == b"x" * 100


def test_errors_are_those_of_files(volume: files.Volume, folder: str) -> None:
    path = f"{folder}/file"
    with volume.open(path, "x") as file:
        assert file.mode == "x"
    with pytest.raises(FileExistsError):
        volume.open(path, "x")
    with pytest.raises(FileNotFoundError) as missing:
        volume.open(f"{folder}/none")
    assert isinstance(missing.value, millpond.FileError)
    assert missing.value.errno == errno.ENOENT
    assert missing.value.filename == f"{folder}/none"
    assert "no such file" in str(missing.value)
    with pytest.raises(IsADirectoryError):
        volume.open(folder)
    with pytest.raises(NotADirectoryError):
        volume.open(f"{path}/below")
    with pytest.raises(OSError, match="not empty") as full:
        volume.rmdir(folder)
    assert full.value.errno == errno.ENOTEMPTY
    with pytest.raises(millpond.FileError):
        volume.unlink(f"{folder}/none")
    assert isinstance(errors.NoSpace("full"), OSError)
    assert errors.NoSpace("full").errno == errno.ENOSPC


def test_arguments_are_named(volume: files.Volume, folder: str, cluster) -> None:
    with pytest.raises(millpond.InvalidArgument, match=r"mode: 'a' .* r, r\+, w"):
        volume.open(f"{folder}/a", "a")  # type: ignore[arg-type]
    with pytest.raises(millpond.InvalidArgument, match="create"):
        volume.open(f"{folder}/a", "r", create=True)
    with volume.open(f"{folder}/a", "r+", create=True) as file:
        with pytest.raises(millpond.InvalidArgument, match="offset: -1"):
            file.pread(-1, 5)
        with pytest.raises(TypeError, match=r"parts\[1\]"):
            file.write_batch([(0, b"x"), b"y"])  # type: ignore[list-item]
        with pytest.raises(BufferError, match="writable"):
            file.readinto(b"read only", 0)
        room = bytearray(10)
        with pytest.raises(ValueError, match="overlap"):
            file.read_batch([(0, room), (5, memoryview(room)[4:])])
        with pytest.raises(ValueError, match="timeout"):
            file.submit_read([]).wait(-1)
    with volume.open(f"{folder}/a", "w") as file, pytest.raises(millpond.InvalidArgument):
        file.pread(0, 1)
    with pytest.raises(millpond.InvalidArgument, match="workers"):
        files.Volume(cluster.address, workers=0)
    with millpond.Client(cluster.address) as client:
        with pytest.raises(millpond.InvalidArgument, match="deadline_ms"):
            files.Volume(client, deadline_ms=5)
        files.Volume(client).close()


def test_a_server_without_settings_has_files(shared_server) -> None:
    with files.Volume(shared_server.address) as volume, volume.open("/plain", "w+") as file:
        file.pwrite(b"bytes", 0)
        assert file.pread(0, 5) == b"bytes"


def test_names(volume: files.Volume, folder: str) -> None:
    volume.makedirs(f"{folder}/a/b/c")
    with pytest.raises(FileExistsError):
        volume.makedirs(f"{folder}/a/b")
    volume.makedirs(f"{folder}/a/b", exist_ok=True)
    with volume.open(f"{folder}/a/one", "w", perm=0o600) as file:
        file.pwrite(b"12345", 0)
    volume.rename(f"{folder}/a/one", f"{folder}/a/two")
    assert sorted(volume.listdir(f"{folder}/a")) == ["b", "two"]
    assert volume.exists(f"{folder}/a/two") and not volume.exists(f"{folder}/a/one")
    found = volume.stat(f"{folder}/a/two")
    assert (found.st_size, stat.S_IMODE(found.st_mode), found.st_uid) == (5, 0o600, os.geteuid())
    assert stat.S_ISREG(found.st_mode) and found.st_nlink == 1
    assert abs(found.st_mtime - time.time()) < 600
    assert found.st_mtime_ns // 10**9 == int(found.st_mtime)
    assert stat.S_ISDIR(volume.stat(f"{folder}/a").st_mode)
    assert volume.clone(f"{folder}/a/two", f"{folder}/a/three")
    with pytest.raises(FileExistsError):
        volume.clone(f"{folder}/a/two", f"{folder}/a/three")
    with volume.open(f"{folder}/a/two", "r+") as file:
        file.pwrite(b"x", 0)
    with volume.open(f"{folder}/a/three") as file:
        assert file.pread(0, 9) == b"12345"
    volume.unlink(f"{folder}/a/three")
    volume.unlink(f"{folder}/a/two")
    volume.rmdir(f"{folder}/a/b/c")
    assert volume.listdir(f"{folder}/a/b") == []
    assert "tests" in volume.listdir()


def test_a_stream_is_a_python_file(volume: files.Volume, folder: str) -> None:
    path = f"{folder}/array.npy"
    array = np.random.default_rng(1).random((300, 500))
    with volume.stream(path, "wb", buffering=64 << 10) as out:
        np.save(out, array)
        with pytest.raises(io.UnsupportedOperation):
            out.read(1)
    with volume.stream(path) as back:
        assert np.array_equal(np.load(back), array)
        assert back.seek(-8, os.SEEK_END) == volume.stat(path).st_size - 8
        assert back.read() == array[-1, -1].tobytes()
    with volume.stream(path, "r+b") as both:
        both.seek(100)
        both.write(b"new")
        both.seek(98)
        assert both.read(6)[2:5] == b"new"
        both.truncate(200)
    assert volume.stat(path).st_size == 200


def test_registered_memory_is_written_and_read(cluster) -> None:
    with files.Volume(cluster.address, transport="shm", deadline_ms=20_000) as volume:
        until_it_takes_files(volume)
        region = volume.register(12 * MIB)
        assert region.shared and len(region) == region.nbytes == 12 * MIB
        array = np.frombuffer(region.memory, np.uint8)
        assert not array.any()
        pattern = np.resize(np.arange(251, dtype=np.uint8), array.size)
        array[:] = pattern
        before = metric(cluster, "millpond_shm_receive_bytes_total")
        with volume.open("/registered", "w+") as file:
            assert file.pwrite(array, 0) == array.nbytes
            moved = metric(cluster, "millpond_shm_receive_bytes_total") - before
            assert moved == array.nbytes
            array[:] = 0
            assert file.readinto(region.memory, 0) == region.nbytes
            assert np.array_equal(array, pattern)
        # A view keeps the memory after all other owners are gone.
        tail = region.memory[-5:]
        del region, array
        gc.collect()
        assert list(tail) == [(12 * MIB - 5 + n) % 251 for n in range(5)]
    with files.Volume(cluster.address, transport="tcp") as volume:
        assert not volume.register(4096).shared


def test_the_interpreter_goes_on_while_files_are_read(volume: files.Volume, folder: str) -> None:
    with volume.open(f"{folder}/big", "w+") as file:
        file.pwrite(bytes(8 * MIB), 0)
        counted, stop = [0], threading.Event()

        def count() -> None:
            while not stop.is_set():
                counted[0] += 1

        counter = threading.Thread(target=count)
        counter.start()
        room = bytearray(8 * MIB)
        for _ in range(5):
            file.readinto(room, 0)
        stop.set()
        counter.join()
        assert counted[0] > 100


def test_a_program_may_end_without_waiting(cluster) -> None:
    program = f"""
from millpond import files
volume = files.Volume({cluster.address!r})
region = volume.register(1 << 20)
file = volume.open("/ends", "w+")
reader = file.submit_read([(0, bytearray(1 << 20))])
writes = [file.submit_write([(0, region.memory), (1 << 20, bytes(1 << 20))]) for _ in range(20)]
print("submitted", flush=True)
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "submitted\n", "")


def test_files_of_a_closed_volume_go_on(cluster) -> None:
    volume = files.Volume(cluster.address)
    until_it_takes_files(volume)
    file = volume.open("/outlives", "w+")
    volume.close()
    assert volume.closed
    file.pwrite(b"still here", 0)
    assert file.pread(0, 20) == b"still here"
    file.close()
    with pytest.raises(ValueError, match="closed"):
        volume.listdir()


def test_asyncio(cluster) -> None:
    async def run() -> None:
        async with files.AsyncVolume(cluster.address, workers=8) as volume:
            await volume.makedirs("/aio/x", exist_ok=True)
            async with await volume.open("/aio/x/f", "w+") as file:
                pieces = [bytes([n]) * 50_000 for n in range(16)]
                await asyncio.gather(*(file.pwrite(p, n * 50_000) for n, p in enumerate(pieces)))
                rooms = [bytearray(50_000) for _ in pieces]
                read = (file.readinto(room, n * 50_000) for n, room in enumerate(rooms))
                assert await asyncio.gather(*read) == [50_000] * 16
                assert [bytes(room) for room in rooms] == pieces
                await file.write_batch([(0, b"ab"), (1, b"c")])
                assert await file.read_batch([(0, rooms[0])]) == [50_000]
                assert rooms[0][:3] == b"ac\0"
                await file.truncate(7)
                await file.fsync()
                assert await file.size() == (await file.stat()).st_size == 7
                assert await file.pread(0, 9) == b"ac" + bytes(5)
            assert file.closed and file.path == "/aio/x/f" and file.mode == "w+"
            await volume.rename("/aio/x/f", "/aio/x/g")
            assert await volume.listdir("/aio/x") == ["g"]
            assert (await volume.stat("/aio/x/g")).st_size == 7
            assert await volume.clone("/aio/x/g", "/aio/x/h")
            assert (await volume.stat("/aio/x/h")).st_size == 7
            await volume.unlink("/aio/x/h")
            await volume.unlink("/aio/x/g")
            assert not await volume.exists("/aio/x/g")
            await volume.mkdir("/aio/x/d")
            await volume.rmdir("/aio/x/d")
            assert (await volume.register(4096)).nbytes == 4096
            with pytest.raises(FileNotFoundError):
                await volume.open("/aio/none")

    asyncio.run(run())


def test_the_example_of_the_documentation_runs(cluster, volume: files.Volume) -> None:
    text = (Path(__file__).parents[2] / "docs" / "python.md").read_text()
    example = text.split("\n## Files\n")[1].split("```python\n")[1].split("```")[0]
    assert '"127.0.0.1:7440"' in example
    exec(example.replace("127.0.0.1:7440", cluster.address), {})
    assert volume.exists("/checkpoints/run-3/step-100")
