"""Buckets with a SeaweedFS backend, which keeps objects in folders. Only with BACKED=."""

from __future__ import annotations

import boto3
import pytest
from backed import BEHIND, Backed
from botocore.exceptions import ClientError
from clients import Endpoint

# SeaweedFS lists objects of `logs/` before `logs-old`; key order is the reverse.
KEYS = [
    "a/b-c/1",
    "a/b/1",
    "a/b/c-d",
    "a/b/c/d",
    "logs-old/1",
    "logs.bak/1",
    "logs/1",
    "logs/2",
    "logs0",
    "zz",
]
FOLDERS = ["a/", "logs-old/", "logs.bak/", "logs/"]


@pytest.fixture
def backed(sides: tuple[Endpoint, Backed | None]) -> Backed:
    backed = sides[1]
    if backed is None or backed.mode == "transient":
        pytest.skip("the buckets have no backend")
    return backed


def listed(client: boto3.client, operation: str, **options: object) -> tuple[list[str], list[str]]:
    """The keys and the prefixes of all pages."""
    pages = list(client.get_paginator(operation).paginate(**options))
    keys = [entry["Key"] for page in pages for entry in page.get("Contents", [])]
    prefixes = [entry["Prefix"] for page in pages for entry in page.get("CommonPrefixes", [])]
    return keys, prefixes


@pytest.mark.parametrize("operation", ["list_objects", "list_objects_v2"])
@pytest.mark.parametrize("size", [1, 2, 1000])
def test_what_only_the_store_has_is_listed_in_the_order_of_keys(
    backed: Backed, endpoint: Endpoint, bucket: str, operation: str, size: int
) -> None:
    store, client = backed.store.boto3(), endpoint.boto3()
    for key in KEYS:
        store.put_object(Bucket=BEHIND, Key=f"{bucket}/{key}", Body=key.encode())
    client.put_object(Bucket=bucket, Key="logs!", Body=b"here")
    keys = sorted([*KEYS, "logs!"])
    asked = {"Bucket": bucket, "PaginationConfig": {"PageSize": size}}
    assert listed(client, operation, **asked) == (keys, [])
    below = [key for key in keys if key.startswith("logs")]
    assert listed(client, operation, Prefix="logs", **asked) == (below, [])
    assert listed(client, operation, Delimiter="/", **asked) == (["logs!", "logs0", "zz"], FOLDERS)
    for key in KEYS:
        assert client.get_object(Bucket=bucket, Key=key)["Body"].read() == key.encode()


def test_more_keys_than_a_page_are_listed_in_order(
    backed: Backed, endpoint: Endpoint, bucket: str
) -> None:
    store, client = backed.store.boto3(), endpoint.boto3()
    keys = [f"{folder}/{n:04}" for folder in ("d", "d-1") for n in range(520)]
    for key in keys:
        store.put_object(Bucket=BEHIND, Key=f"{bucket}/{key}", Body=b"")
    asked = {"Bucket": bucket, "PaginationConfig": {"PageSize": 300}}
    assert listed(client, "list_objects_v2", **asked) == (sorted(keys), [])
    for key in keys:
        store.delete_object(Bucket=BEHIND, Key=f"{bucket}/{key}")


@pytest.mark.parametrize("key", ["a//b", "/b", "a/./b", "a/c/../b", "a\\b"])
def test_a_key_that_leads_to_another_is_refused(
    backed: Backed, endpoint: Endpoint, bucket: str, key: str
) -> None:
    client = endpoint.boto3()
    for other in ("a/b", "b"):
        client.put_object(Bucket=bucket, Key=other, Body=other.encode())
    backed.wait(bucket)
    with pytest.raises(ClientError, match="keeps objects in folders"):
        client.put_object(Bucket=bucket, Key=key, Body=b"another")
    with pytest.raises(ClientError, match="keeps objects in folders"):
        client.create_multipart_upload(Bucket=bucket, Key=key)
    with pytest.raises(ClientError, match="NoSuchKey"):
        client.get_object(Bucket=bucket, Key=key)
    client.delete_object(Bucket=bucket, Key=key)
    backed.wait(bucket)
    for other in ("a/b", "b"):
        there = backed.store.boto3().get_object(Bucket=BEHIND, Key=f"{bucket}/{other}")
        assert there["Body"].read() == other.encode()
