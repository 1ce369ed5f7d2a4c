"""The endpoint that the clients talk to: one that is named, or a server that is started here."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from clients import Endpoint

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "bench" / "s3"))

from sides import ACCESS_KEY, SECRET_KEY, millpond, seaweedfs

_numbers = itertools.count()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("s3")
    group.addoption("--s3-server", help="seaweedfs, millpond, or http://HOST:PORT")
    group.addoption("--s3-program", help="program of the server")
    group.addoption("--rclone", default="none", help="rclone, or none")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "unlike(server, why): that server is known to answer otherwise"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    server = config.getoption("--s3-server")
    for item in items:
        for mark in item.iter_markers("unlike"):
            if mark.args[0] == server:
                item.add_marker(pytest.mark.xfail(reason=mark.args[1], strict=False))


@pytest.fixture(scope="session")
def endpoint(
    pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Endpoint]:
    server = pytestconfig.getoption("--s3-server")
    program = pytestconfig.getoption("--s3-program")
    folder = tmp_path_factory.mktemp("server")
    if server.startswith("http://"):
        secrets = os.environ["AWS_ACCESS_KEY_ID"], os.environ["AWS_SECRET_ACCESS_KEY"]
        yield Endpoint(server, *secrets)
        return
    program = str(Path(program).resolve())
    if server == "seaweedfs":
        started = seaweedfs(program, folder, durable=False)
    elif server == "millpond":
        started = millpond(program, folder, "2GiB")
    else:
        raise pytest.UsageError("--s3-server is seaweedfs, millpond or a URL")
    with started as side:
        yield Endpoint(side.endpoint, ACCESS_KEY, SECRET_KEY)


@pytest.fixture
def name() -> str:
    """A bucket's name that no other test has."""
    return f"clients-{os.getpid()}-{next(_numbers)}"
