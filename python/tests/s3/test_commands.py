"""Common uses of the command lines, the same for each, checked through boto3."""

from __future__ import annotations

import random
import urllib.request
from pathlib import Path

import pytest
from clients import Aws, Endpoint, Rclone, S3cmd, S5cmd, Tool, installed

LARGE = random.Random(1).randbytes(12 << 20)
# A key with special characters of shells, URLs and XML, without the patterns `*` and `?` of
# s5cmd and s3cmd.
UNUSUAL = "sp ace/ü日本+plus&am=p;%25#hash'quote~(1).txt"


@pytest.fixture(params=["aws", "s3cmd", "s5cmd", "rclone"])
def tool(
    request: pytest.FixtureRequest, endpoint: Endpoint, tmp_path: Path, pytestconfig: pytest.Config
) -> Tool:
    home = tmp_path / "home"
    home.mkdir()
    rclone = pytestconfig.getoption("--rclone")
    if request.param == "rclone":
        if rclone == "none":
            pytest.skip("rclone is left out")
        return Rclone(endpoint, home, rclone)
    kind = {"aws": Aws, "s3cmd": S3cmd, "s5cmd": S5cmd}[request.param]
    return kind(endpoint, home, installed(request.param))


def fetched(endpoint: Endpoint, bucket: str, key: str) -> bytes:
    return endpoint.boto3().get_object(Bucket=bucket, Key=key)["Body"].read()


def keys(endpoint: Endpoint, bucket: str) -> set[str]:
    listed = endpoint.boto3().list_objects_v2(Bucket=bucket)
    return {entry["Key"] for entry in listed.get("Contents", [])}


def test_bucket(tool: Tool, endpoint: Endpoint, name: str) -> None:
    tool.make(name)
    client = endpoint.boto3()
    assert name in {one["Name"] for one in client.list_buckets()["Buckets"]}
    tool.remove(name)
    assert name not in {one["Name"] for one in client.list_buckets()["Buckets"]}


@pytest.mark.parametrize("key", ["small.txt", UNUSUAL])
def test_put_and_get(tool: Tool, endpoint: Endpoint, bucket: str, tmp_path: Path, key: str) -> None:
    source, back = tmp_path / "source", tmp_path / "back"
    source.write_bytes(b"some text\n")
    tool.put(source, bucket, key)
    assert keys(endpoint, bucket) == {key}
    assert fetched(endpoint, bucket, key) == b"some text\n"
    tool.get(bucket, key, back)
    assert back.read_bytes() == b"some text\n"


def test_large_goes_in_parts(tool: Tool, endpoint: Endpoint, bucket: str, tmp_path: Path) -> None:
    source, back = tmp_path / "source", tmp_path / "back"
    source.write_bytes(LARGE)
    tool.put(source, bucket, "dir/large")
    head = endpoint.boto3().head_object(Bucket=bucket, Key="dir/large")
    parts = head["ETag"].strip('"').partition("-")[2]
    assert int(parts or 0) >= 2, head["ETag"]
    assert fetched(endpoint, bucket, "dir/large") == LARGE
    tool.get(bucket, "dir/large", back)
    assert back.read_bytes() == LARGE


def test_list(tool: Tool, endpoint: Endpoint, bucket: str) -> None:
    client = endpoint.boto3()
    for key in ("p/a", "p/b", "p/d/x", "p/d/y", "q"):
        client.put_object(Bucket=bucket, Key=key, Body=b"x")
    assert tool.list(bucket, "p/") == {"a", "b", "d/"}
    assert tool.list(bucket, "") == {"p/", "q"}


def test_copy_and_delete(tool: Tool, endpoint: Endpoint, bucket: str) -> None:
    endpoint.boto3().put_object(Bucket=bucket, Key="one", Body=b"body", ContentType="text/x-one")
    tool.copy(bucket, "one", "dir/two")
    copied = endpoint.boto3().get_object(Bucket=bucket, Key="dir/two")
    assert copied["Body"].read() == b"body"
    assert copied["ContentType"] == "text/x-one" or not tool.keeps_type
    tool.delete(bucket, "one")
    assert keys(endpoint, bucket) == {"dir/two"}


def test_sync(tool: Tool, endpoint: Endpoint, bucket: str, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "sub").mkdir(parents=True)
    for path, text in {"a": "1", "b": "22", "sub/c": "333"}.items():
        (tree / path).write_text(text)
    tool.sync(tree, bucket, "tree")
    assert keys(endpoint, bucket) == {"tree/a", "tree/b", "tree/sub/c"}
    (tree / "b").write_text("4444")
    (tree / "a").unlink()
    tool.sync(tree, bucket, "tree")
    assert keys(endpoint, bucket) == {"tree/b", "tree/sub/c"}
    assert fetched(endpoint, bucket, "tree/b") == b"4444"


def test_presigned_url(tool: Tool, endpoint: Endpoint, bucket: str) -> None:
    if not hasattr(tool, "presign"):
        pytest.skip("signs URLs by Signature Version 2 only")
    endpoint.boto3().put_object(Bucket=bucket, Key="p/q r", Body=b"for all")
    with urllib.request.urlopen(tool.presign(bucket, "p/q r"), timeout=10) as answer:
        assert answer.read() == b"for all"
