"""Requests of programs that use boto3."""

from __future__ import annotations

import hashlib
import io
import random
import re
import urllib.error
import urllib.request
from collections.abc import Callable

import boto3
import pytest
from boto3.s3.transfer import TransferConfig
from botocore.exceptions import ClientError
from clients import Endpoint

MIB = 1 << 20
DATA = random.Random(2).randbytes(11 * MIB)
UNUSUAL = [
    "sp ace",
    "ünï/日本語/🦀",
    "+&=;%25%2F#?",
    "!-_.*'()~",
    "<xml>\"'&amp;",
    "tab\there",
    pytest.param("back\\slash", marks=pytest.mark.unlike("seaweedfs", "makes it a slash")),
    ".hidden",
    "a" * 255,
    "/".join(["segment"] * 100),
]
# Names that a file system cannot store.
NOT_FILES = [
    "double//slash",
    "/leading",
    "trailing/",
    "dot/./dot",
    "up/../up",
    ".",
    "..",
    "b" * 1024,
    "ü" * 512,
]
NOT_A_FILE = pytest.mark.unlike("seaweedfs", "names are paths")


@pytest.fixture
def client(endpoint: Endpoint) -> boto3.client:
    return endpoint.boto3()


def code(error: pytest.ExceptionInfo[ClientError]) -> tuple[str, int]:
    answer = error.value.response
    return answer["Error"]["Code"], answer["ResponseMetadata"]["HTTPStatusCode"]


def body(client: boto3.client, bucket: str, key: str, **options: str) -> bytes:
    return client.get_object(Bucket=bucket, Key=key, **options)["Body"].read()


def test_put_get_head_delete(client: boto3.client, bucket: str) -> None:
    put = client.put_object(
        Bucket=bucket, Key="k", Body=b"abc", ContentType="text/x", Metadata={"one": "1"}
    )
    assert put["ETag"] == f'"{hashlib.md5(b"abc").hexdigest()}"'
    head = client.head_object(Bucket=bucket, Key="k")
    assert (head["ContentLength"], head["ContentType"]) == (3, "text/x")
    assert (head["Metadata"], head["ETag"]) == ({"one": "1"}, put["ETag"])
    assert body(client, bucket, "k") == b"abc"
    client.delete_object(Bucket=bucket, Key="k")
    client.delete_object(Bucket=bucket, Key="k")
    with pytest.raises(ClientError) as error:
        client.get_object(Bucket=bucket, Key="k")
    assert code(error) == ("NoSuchKey", 404)


def test_empty_object(client: boto3.client, bucket: str) -> None:
    client.put_object(Bucket=bucket, Key="empty", Body=b"")
    assert body(client, bucket, "empty") == b""


def test_what_is_not_there(client: boto3.client, name: str) -> None:
    with pytest.raises(ClientError) as error:
        client.put_object(Bucket=name, Key="k", Body=b"x")
    assert code(error) == ("NoSuchBucket", 404)


def test_wrong_key_is_refused(endpoint: Endpoint, bucket: str) -> None:
    wrong = Endpoint(endpoint.url, endpoint.access_key, "wrong").boto3()
    with pytest.raises(ClientError) as error:
        wrong.list_objects_v2(Bucket=bucket)
    assert code(error) == ("SignatureDoesNotMatch", 403)


@pytest.mark.parametrize("options", [{}, {"Range": "bytes=0-9"}, {"Range": "bytes=-7"}])
def test_upload_in_parts(client: boto3.client, bucket: str, options: dict[str, str]) -> None:
    parts = TransferConfig(multipart_threshold=5 * MIB, multipart_chunksize=5 * MIB)
    client.upload_fileobj(io.BytesIO(DATA), bucket, "large", Config=parts)
    md5s = b"".join(hashlib.md5(DATA[at : at + 5 * MIB]).digest() for at in (0, 5 * MIB, 10 * MIB))
    etag = client.head_object(Bucket=bucket, Key="large")["ETag"]
    assert etag == f'"{hashlib.md5(md5s).hexdigest()}-3"'
    wanted = {"bytes=0-9": DATA[:10], "bytes=-7": DATA[-7:]}.get(options.get("Range", ""), DATA)
    assert body(client, bucket, "large", **options) == wanted


def test_parts_are_listed_and_aborted(client: boto3.client, bucket: str) -> None:
    upload = client.create_multipart_upload(Bucket=bucket, Key="m")["UploadId"]
    its = {"Bucket": bucket, "Key": "m", "UploadId": upload}
    client.upload_part(**its, PartNumber=2, Body=b"two")
    client.upload_part(**its, PartNumber=1, Body=DATA[: 5 * MIB])
    assert [part["PartNumber"] for part in client.list_parts(**its)["Parts"]] == [1, 2]
    uploads = client.list_multipart_uploads(Bucket=bucket)["Uploads"]
    assert [one["UploadId"] for one in uploads] == [upload]
    client.abort_multipart_upload(**its)
    assert "Uploads" not in client.list_multipart_uploads(Bucket=bucket)
    with pytest.raises(ClientError) as error:
        client.upload_part(**its, PartNumber=3, Body=b"three")
    assert code(error) == ("NoSuchUpload", 404)


def test_ranges(client: boto3.client, bucket: str) -> None:
    client.put_object(Bucket=bucket, Key="r", Body=b"0123456789")
    for asked, wanted in {"0-0": b"0", "3-5": b"345", "8-99": b"89", "-2": b"89"}.items():
        answer = client.get_object(Bucket=bucket, Key="r", Range=f"bytes={asked}")
        assert answer["Body"].read() == wanted
        assert answer["ResponseMetadata"]["HTTPStatusCode"] == 206
    with pytest.raises(ClientError) as error:
        client.get_object(Bucket=bucket, Key="r", Range="bytes=10-")
    assert code(error) == ("InvalidRange", 416)


def test_list_pages_in_order_with_delimiter(client: boto3.client, bucket: str) -> None:
    keys = [f"d{n}/{m}" for n in range(3) for m in range(3)] + ["a", "d1_x", "z"]
    for key in keys:
        client.put_object(Bucket=bucket, Key=key, Body=b"")
    pages = client.get_paginator("list_objects_v2").paginate(
        Bucket=bucket, PaginationConfig={"PageSize": 2}
    )
    assert [entry["Key"] for page in pages for entry in page["Contents"]] == sorted(keys)
    listed = client.list_objects_v2(Bucket=bucket, Delimiter="/")
    assert [one["Prefix"] for one in listed["CommonPrefixes"]] == ["d0/", "d1/", "d2/"]
    assert [one["Key"] for one in listed["Contents"]] == ["a", "d1_x", "z"]
    below = client.list_objects_v2(Bucket=bucket, Delimiter="/", Prefix="d1")
    assert [one["Prefix"] for one in below["CommonPrefixes"]] == ["d1/"]
    assert [one["Key"] for one in below["Contents"]] == ["d1_x"]
    after = client.list_objects_v2(Bucket=bucket, StartAfter="d2/0")
    assert [one["Key"] for one in after["Contents"]] == ["d2/1", "d2/2", "z"]
    first = client.list_objects(Bucket=bucket, Marker="d2/1")
    assert [one["Key"] for one in first["Contents"]] == ["d2/2", "z"]


@pytest.mark.unlike("seaweedfs", "lists in the order of paths", behind=False)
def test_list_is_in_the_order_of_keys(
    client: boto3.client, bucket: str, wait: Callable[[], None]
) -> None:
    keys = ["a-b", "a.b", "a/b", "a/b-c", "a/b/c", "a0", "aa", "ü"]
    for key in reversed(keys):
        client.put_object(Bucket=bucket, Key=key, Body=b"")
        if key == "a/b/c":
            # SeaweedFS sometimes loses this key or `a/b` if both are put or deleted together.
            wait()
    pages = client.get_paginator("list_objects_v2").paginate(
        Bucket=bucket, PaginationConfig={"PageSize": 1}
    )
    assert [entry["Key"] for page in pages for entry in page["Contents"]] == keys
    listed = client.list_objects_v2(Bucket=bucket, Delimiter="/")
    assert [one["Key"] for one in listed["Contents"]] == ["a-b", "a.b", "a0", "aa", "ü"]
    client.delete_object(Bucket=bucket, Key="a/b/c")
    wait()


def test_copy_replaces_or_keeps_metadata(client: boto3.client, bucket: str) -> None:
    client.put_object(Bucket=bucket, Key="a b", Body=b"x", Metadata={"one": "1"})
    source = {"Bucket": bucket, "Key": "a b"}
    client.copy_object(Bucket=bucket, Key="kept", CopySource=source)
    assert client.head_object(Bucket=bucket, Key="kept")["Metadata"] == {"one": "1"}
    client.copy_object(
        Bucket=bucket,
        Key="replaced",
        CopySource=source,
        Metadata={"two": "2"},
        MetadataDirective="REPLACE",
    )
    assert client.head_object(Bucket=bucket, Key="replaced")["Metadata"] == {"two": "2"}
    assert body(client, bucket, "replaced") == b"x"


def test_delete_objects(client: boto3.client, bucket: str) -> None:
    for key in ("a", "b", "c"):
        client.put_object(Bucket=bucket, Key=key, Body=b"")
    gone = [{"Key": key} for key in ("a", "b", "never")]
    answer = client.delete_objects(Bucket=bucket, Delete={"Objects": gone})
    assert {one["Key"] for one in answer["Deleted"]} == {"a", "b", "never"}
    assert [one["Key"] for one in client.list_objects_v2(Bucket=bucket)["Contents"]] == ["c"]


def test_tags(client: boto3.client, bucket: str) -> None:
    client.put_object(Bucket=bucket, Key="t", Body=b"", Tagging="one=1&two=a%20b")
    read = client.get_object_tagging(Bucket=bucket, Key="t")["TagSet"]
    assert {tag["Key"]: tag["Value"] for tag in read} == {"one": "1", "two": "a b"}
    tags = {"TagSet": [{"Key": "three", "Value": "3"}]}
    client.put_object_tagging(Bucket=bucket, Key="t", Tagging=tags)
    assert client.get_object_tagging(Bucket=bucket, Key="t")["TagSet"] == tags["TagSet"]
    client.delete_object_tagging(Bucket=bucket, Key="t")
    assert client.get_object_tagging(Bucket=bucket, Key="t")["TagSet"] == []


def test_conditional_put(client: boto3.client, bucket: str) -> None:
    put = client.put_object(Bucket=bucket, Key="c", Body=b"1", IfNoneMatch="*")
    with pytest.raises(ClientError) as error:
        client.put_object(Bucket=bucket, Key="c", Body=b"2", IfNoneMatch="*")
    assert code(error) == ("PreconditionFailed", 412)
    second = client.put_object(Bucket=bucket, Key="c", Body=b"3", IfMatch=put["ETag"])
    with pytest.raises(ClientError) as error:
        client.put_object(Bucket=bucket, Key="c", Body=b"4", IfMatch=put["ETag"])
    assert code(error) == ("PreconditionFailed", 412)
    assert body(client, bucket, "c") == b"3"
    assert body(client, bucket, "c", IfMatch=second["ETag"]) == b"3"
    with pytest.raises(ClientError) as error:
        client.get_object(Bucket=bucket, Key="c", IfNoneMatch=second["ETag"])
    assert code(error)[1] == 304


def test_presigned_urls(client: boto3.client, bucket: str) -> None:
    its = {"Bucket": bucket, "Key": "p q/ü"}
    put = client.generate_presigned_url("put_object", Params=its, ExpiresIn=60)
    request = urllib.request.Request(put, data=b"by url", method="PUT")
    # urllib sends a content type of its own, which is not signed.
    with urllib.request.urlopen(request, timeout=10) as answer:
        assert answer.status == 200
    get = client.generate_presigned_url("get_object", Params=its, ExpiresIn=60)
    with urllib.request.urlopen(get, timeout=10) as answer:
        assert answer.read() == b"by url"
    forged = re.sub("(Signature=)(.)", lambda at: at[1] + ("1" if at[2] == "0" else "0"), get)
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(forged, timeout=10)
    assert refused.value.code == 403


@pytest.mark.parametrize("algorithm", ["CRC32", "CRC32C", "CRC64NVME", "SHA1", "SHA256"])
def test_checksums(client: boto3.client, bucket: str, algorithm: str) -> None:
    field = f"Checksum{algorithm}"
    put = client.put_object(Bucket=bucket, Key="s", Body=b"summed", ChecksumAlgorithm=algorithm)
    head = client.head_object(Bucket=bucket, Key="s", ChecksumMode="ENABLED")
    assert put[field]
    assert head[field] == put[field]


def test_checksums_of_parts(client: boto3.client, bucket: str) -> None:
    at = {"Bucket": bucket, "Key": "k"}
    upload = client.create_multipart_upload(**at, ChecksumAlgorithm="SHA256")["UploadId"]
    parts = []
    for number, size in ((1, 5 * MIB), (2, 7)):
        part = {"PartNumber": number, "ChecksumAlgorithm": "SHA256"}
        put = client.upload_part(**at, **part, UploadId=upload, Body=DATA[:size])
        done = {"ETag": put["ETag"], "ChecksumSHA256": put["ChecksumSHA256"]}
        parts.append({"PartNumber": number, **done})
    client.complete_multipart_upload(**at, UploadId=upload, MultipartUpload={"Parts": parts})
    told = client.get_object_attributes(**at, ObjectAttributes=["ObjectParts"])["ObjectParts"]
    summed = [(part["Size"], part["ChecksumSHA256"]) for part in told["Parts"]]
    assert summed == [(5 * MIB, parts[0]["ChecksumSHA256"]), (7, parts[1]["ChecksumSHA256"])]
    # boto3 verifies the checksum of the body.
    got = client.get_object(**at, PartNumber=2, ChecksumMode="ENABLED")
    assert got["ChecksumSHA256"] == parts[1]["ChecksumSHA256"]
    assert got["Body"].read() == DATA[:7]


@pytest.mark.parametrize(
    "key", UNUSUAL + [pytest.param(key, marks=NOT_A_FILE) for key in NOT_FILES]
)
def test_unusual_keys(client: boto3.client, bucket: str, key: str) -> None:
    client.put_object(Bucket=bucket, Key=key, Body=key.encode())
    assert body(client, bucket, key) == key.encode()
    assert [one["Key"] for one in client.list_objects_v2(Bucket=bucket)["Contents"]] == [key]
    client.delete_object(Bucket=bucket, Key=key)
    assert "Contents" not in client.list_objects_v2(Bucket=bucket)


def test_a_key_may_go_on_behind_another(
    client: boto3.client, bucket: str, wait: Callable[[], None]
) -> None:
    # One after another: SeaweedFS sometimes loses one of two such keys that change together.
    for key in ("a", "a/b", "a/b/c"):
        client.put_object(Bucket=bucket, Key=key, Body=key.encode())
        wait()
    listed = client.list_objects_v2(Bucket=bucket)["Contents"]
    assert [one["Key"] for one in listed] == ["a", "a/b", "a/b/c"]
    for key in ("a", "a/b", "a/b/c"):
        assert body(client, bucket, key) == key.encode()
    client.delete_object(Bucket=bucket, Key="a/b")
    assert body(client, bucket, "a") == b"a"
    assert body(client, bucket, "a/b/c") == b"a/b/c"
    wait()
    client.delete_object(Bucket=bucket, Key="a/b/c")
    assert body(client, bucket, "a") == b"a"
