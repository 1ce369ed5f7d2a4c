"""Keys, leaders and options: pure functions, no engine."""

from __future__ import annotations

from pathlib import Path

import pytest
from fakes import FakeNamespace
from millpond.vllm.config import ConfigError, ConnectorConfig
from millpond.vllm.identity import namespace_name
from millpond.vllm.keys import RUN_KEYS, KeySpace
from millpond.vllm.weights import UnknownModelError, fingerprint

HASHES = [bytes([i]) * 32 for i in range(1, 100)]


@pytest.mark.parametrize("parts", [1, 2, 3, 8, 16, 20])
def test_part_keys_name_the_leaders_of_the_whole_prompt(parts: int) -> None:
    space = KeySpace(0, parts)
    flat = space.flat(HASHES)
    leaders = [flat[i - i % RUN_KEYS] for i in range(len(flat))]
    for first, last in [(0, 5), (7, 40), (33, 34), (98, 99)]:
        start = space.lead_block(first)
        for part in range(parts):
            blocks = list(range(first, last))
            keys, led = space.part_keys(HASHES[start:last], start, blocks, part)
            assert keys == [flat[b * parts + part] for b in blocks]
            assert led == [leaders[b * parts + part] for b in blocks]


@pytest.mark.parametrize("parts", [2, 3])
def test_a_block_counts_only_when_all_ranks_stored_their_part(parts: int) -> None:
    namespace = FakeNamespace()
    space = KeySpace(0, parts)
    for part in range(parts):
        # The last rank lost block 4.
        blocks = [b for b in range(10) if not (part == parts - 1 and b == 4)]
        keys, leaders = space.part_keys(HASHES, 0, blocks, part)
        namespace.put(keys, [[]] * len(keys), leaders=leaders)
    flat = space.flat(HASHES[:10])
    found = namespace.match_prefix(flat, leaders=space.flat_leaders(flat))
    assert found // parts == 4


def test_groups_parts_and_epochs_never_share_a_key() -> None:
    keys = {
        KeySpace(group, 4, epoch).key(HASHES[0], part)
        for group in (0, 1, 256)
        for part in range(4)
        for epoch in (b"", b"12345678")
    }
    assert len(keys) == 3 * 4 * 2


def test_a_key_over_128_bytes_is_refused() -> None:
    with pytest.raises(ValueError, match="over 128"):
        KeySpace(0, 1).key(b"x" * 125, 0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"adress": "127.0.0.1:1"}, "unknown key 'adress'"),
        ({"connections": "4"}, "connections must be of type int"),
        ({"connections": True}, "connections must be of type int"),
        ({"transport": "carrier-pigeon"}, "transport must be one of auto, shm, unix, tcp"),
        ({"ack": "maybe"}, "ack must be one of memory, disk"),
        ({"load_deadline_ms": 0}, "load_deadline_ms must be between 1 and"),
        ({"save_pool_fraction": 1}, "save_pool_fraction must be between"),
        ({"token": "a", "token_file": "b"}, "not both"),
        ({"quota_bytes": "ten"}, "quota_bytes: 'ten' is not a size"),
        ({"quota_bytes": "8 EiB"}, "quota_bytes: '8 EiB' is not a size"),
        ({"quota_bytes": "9999999TiB"}, "quota_bytes must be between"),
        ({"quota_bytes": 1.5}, "quota_bytes must be of type int"),
    ],
)
def test_a_bad_option_is_refused_by_name(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ConnectorConfig.parse(options)


@pytest.mark.parametrize("quota", ["10GiB", "10 gib", "10240m", 10 << 30])
def test_sizes_are_taken_with_units_as_everywhere(quota: int | str) -> None:
    assert ConnectorConfig.parse({"quota_bytes": quota}).quota_bytes == 10 << 30


def test_the_environment_gives_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLPOND_ADDRESS", "127.0.0.9:1")
    monkeypatch.setenv("MILLPOND_TOKEN", "secret")
    assert ConnectorConfig.parse({}).address == "127.0.0.9:1"
    assert ConnectorConfig.parse({}).read_token() == "secret"
    assert ConnectorConfig.parse({"address": "127.0.0.8:1"}).address == "127.0.0.8:1"


def test_the_token_is_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "token"
    with pytest.raises(ConfigError, match="token_file"):
        ConnectorConfig.parse({"token_file": str(path)}).read_token()
    path.write_text("s3cret\n")
    assert ConnectorConfig.parse({"token_file": str(path)}).read_token() == "s3cret"


def test_the_same_files_are_the_same_model_wherever_they_lie(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    weights = b"w" * 1_000_000
    # A fine-tune: the same length, and the same bytes at both ends.
    tuned = weights[:500_000] + b"v" + weights[500_001:]
    for name, content in [("a", weights), ("b", weights), ("c", tuned)]:
        folder = tmp_path / name
        folder.mkdir()
        (folder / "config.json").write_text("{}")
        (folder / "model.safetensors").write_bytes(content)
    prints = [fingerprint(str(tmp_path / name), None) for name in "abc"]
    assert prints[0] == prints[1]
    assert prints[0] != prints[2]
    # Stored digests belong to the earlier files.
    assert [fingerprint(str(tmp_path / name), None) for name in "abc"] == prints
    (tmp_path / "a" / "model.safetensors").write_bytes(tuned)
    assert fingerprint(str(tmp_path / "a"), None) == prints[2]


def test_files_of_the_hub_are_known_by_their_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    model = tmp_path / "models--org--model"
    (model / "blobs").mkdir(parents=True)
    (model / "refs").mkdir()
    (model / "refs" / "main").write_text("c0ffee")
    prints = []
    for digest in ["ab" * 32, "cd" * 32]:
        blob, snapshot = model / "blobs" / digest, model / "snapshots" / digest
        # Nothing reads it.
        blob.write_bytes(b"")
        snapshot.mkdir(parents=True)
        (snapshot / "model.safetensors").symlink_to(blob)
        prints.append(fingerprint(str(snapshot), None))
    assert prints[0] != prints[1]
    assert fingerprint("org/model", None) == "name:org/model@c0ffee"
    assert fingerprint("org/model:Q4_K_M", None) == "name:org/model:Q4_K_M@c0ffee"
    assert fingerprint("org/model", "a" * 40) != fingerprint("org/model", "b" * 40)
    # A branch that this host cannot resolve may have any weights.
    with pytest.raises(UnknownModelError, match="names no commit"):
        fingerprint("org/model", "v1")
    with pytest.raises(UnknownModelError, match="names no commit"):
        fingerprint("org/model", None, str(tmp_path / "other"))


def test_namespace_names_are_readable() -> None:
    assert namespace_name("/models/Llama 3.1/", b"\xab" * 32) == "vllm-llama-3-1-abababababababab"
