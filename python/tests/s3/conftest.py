"""The endpoint of the clients: a given one, or a server that these fixtures start."""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from backed import Backed
from clients import Endpoint

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "bench" / "s3"))

from sides import ACCESS_KEY, SECRET_KEY, millpond, seaweedfs

_numbers = itertools.count()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("s3")
    group.addoption("--s3-server", help="seaweedfs, millpond, or http://HOST:PORT")
    group.addoption("--s3-program", help="program of the server")
    group.addoption("--rclone", default="none", help="rclone, or none")
    group.addoption("--backed", help="mode of buckets with a SeaweedFS backend; needs millpond")
    group.addoption("--weed", help="program of SeaweedFS, for --backed")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "unlike(server, why, behind=True): that server is known to answer differently, and so does "
        "a server that has it as its backend",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    server = config.getoption("--s3-server")
    behind = config.getoption("--backed") in ("write-back", "write-through")
    for item in items:
        for mark in item.iter_markers("unlike"):
            if mark.args[0] == server:
                item.add_marker(pytest.mark.xfail(reason=mark.args[1], strict=False))
            elif mark.args[0] == "seaweedfs" and behind and mark.kwargs.get("behind", True):
                item.add_marker(pytest.mark.skip(reason=f"the backend: {mark.args[1]}"))


@contextlib.contextmanager
def started(config: pytest.Config, folder: Path) -> Iterator[tuple[Endpoint, Backed | None]]:
    """The server, and the backend of its buckets."""
    server, mode = config.getoption("--s3-server"), config.getoption("--backed")
    if mode and server != "millpond":
        raise pytest.UsageError("--backed needs --s3-server millpond")
    if server.startswith("http://"):
        secrets = os.environ["AWS_ACCESS_KEY_ID"], os.environ["AWS_SECRET_ACCESS_KEY"]
        yield Endpoint(server, *secrets), None
        return
    program = str(Path(config.getoption("--s3-program")).resolve())
    if server == "seaweedfs":
        with seaweedfs(program, folder, durable=False) as side:
            yield Endpoint(side.endpoint, ACCESS_KEY, SECRET_KEY), None
    elif server == "millpond":
        with contextlib.ExitStack() as stack:
            side = stack.enter_context(millpond(program, folder, "2GiB"))
            backed = None
            if mode:
                weed = str(Path(config.getoption("--weed")).resolve())
                behind = stack.enter_context(seaweedfs(weed, folder, durable=False))
                store = Endpoint(behind.endpoint, ACCESS_KEY, SECRET_KEY)
                backed = Backed(program, side.address, mode, store)
                backed.begin()
            yield Endpoint(side.endpoint, ACCESS_KEY, SECRET_KEY), backed
    else:
        raise pytest.UsageError("--s3-server is seaweedfs, millpond or a URL")


@pytest.fixture(scope="session")
def sides(
    pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Endpoint, Backed | None]]:
    with started(pytestconfig, tmp_path_factory.mktemp("server")) as both:
        yield both


@pytest.fixture(scope="session")
def endpoint(sides: tuple[Endpoint, Backed | None]) -> Endpoint:
    return sides[0]


@pytest.fixture
def name() -> str:
    """A bucket name that no other test uses."""
    return f"clients-{os.getpid()}-{next(_numbers)}"


@pytest.fixture
def wait(sides: tuple[Endpoint, Backed | None], bucket: str) -> Callable[[], None]:
    """Waits until the backend of the bucket, if there is one, has all objects."""
    backed = sides[1]
    return lambda: backed.wait(bucket) if backed else None


@pytest.fixture
def bucket(sides: tuple[Endpoint, Backed | None], name: str) -> Iterator[str]:
    """A bucket for one test. At the end its backend has the same objects."""
    endpoint, backed = sides
    client = endpoint.boto3()

    def shown() -> dict[str, str]:
        pages = client.get_paginator("list_objects_v2").paginate(Bucket=name)
        entries = (entry for page in pages for entry in page.get("Contents", []))
        return {entry["Key"]: entry["ETag"] for entry in entries}

    client.create_bucket(Bucket=name)
    if backed:
        backed.back(name)
    yield name
    if backed:
        backed.settle(name, shown())
    for key in shown():
        client.delete_object(Bucket=name, Key=key)
    if backed:
        backed.settle(name, {})
    client.delete_bucket(Bucket=name)
