"""The connector's assumptions about vLLM; these tests fail first when vLLM changes."""

from __future__ import annotations

import importlib
import subprocess
import sys
import threading
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from fakes import FakeNamespace
from millpond.vllm.keys import KeySpace
from millpond.vllm.lookup import Group, PrefixLookup
from millpond.vllm.stats import COUNTERS, TIMES, MillpondStats
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import generate_block_hash_extra_keys, hash_block_tokens


def test_importing_millpond_does_not_import_vllm() -> None:
    code = "import sys, millpond, millpond.vllm; sys.exit('vllm' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_multi_connector_finds_our_statistics_by_name() -> None:
    from vllm.distributed.kv_transfer.kv_connector.v1.multi_connector import MultiConnector

    importlib.import_module("millpond.vllm.connector")
    stats = MultiConnector.build_kv_connector_stats({"MillpondConnector": {"lookups": 2}})
    assert stats.reduce() == {"MillpondConnector": {"lookups": 2}}


def test_ranks_without_the_page_of_this_host_are_heard_with_their_steps() -> None:
    from millpond.vllm.connector import MillpondConnector
    from millpond.vllm.meta import WorkerHello, WorkerMeta

    connected = threading.Event()
    connector = MillpondConnector.__new__(MillpondConnector)
    pages = SimpleNamespace(hellos=lambda: {0: bytes(32)}, hide=lambda: None)
    planner = SimpleNamespace(target=None, on_worker_report=lambda report: None)
    state = {"_ranks": 3, "_layouts": {}, "_late": None, "_fence": pages, "_scheduler": planner}
    connector.__dict__.update(state, _connect=connected.set)
    # Metadata of another connector is not a layout.
    foreign: Any = {(0, 0): SimpleNamespace(layout="theirs"), (0, 1): WorkerHello(1, bytes(32))}
    connector.set_xfer_handshake_metadata_pp_aware(foreign)
    assert not connected.is_set()
    report = WorkerMeta(hellos={1: bytes(32)}).aggregate(WorkerMeta(hellos={2: bytes(32)}))
    connector.update_connector_output(SimpleNamespace(kv_connector_worker_meta=report))
    assert connected.wait(5)


def test_adapters_and_salts_are_part_of_block_hashes() -> None:
    from vllm.v1.core.kv_cache_utils import init_none_hash

    init_none_hash(sha256)

    def block_hash(**changes: Any) -> bytes:
        request = SimpleNamespace(
            lora_request=None,
            mm_features=[],
            cache_salt=None,
            prompt_embeds=None,
            prompt_embeds_per_block_hashes=None,
        )
        for name, value in changes.items():
            setattr(request, name, value)
        extra, _ = generate_block_hash_extra_keys(request, 0, 16, 0)
        return bytes(hash_block_tokens(sha256, None, list(range(16)), extra))

    def adapter(name: str, path: str) -> Any:
        return SimpleNamespace(lora_name=name, lora_path=path)

    plain = block_hash()
    assert len(plain) == 32
    assert plain == block_hash()
    poet = block_hash(lora_request=adapter("poet", "/a"))
    assert plain != poet
    assert poet != block_hash(lora_request=adapter("poet", "/b"))
    assert plain != block_hash(cache_salt="tenant")


def window_group(index: int, window: int) -> Group:
    import torch
    from vllm.v1.kv_cache_interface import SlidingWindowSpec

    spec = SlidingWindowSpec(
        block_size=16, num_kv_heads=1, head_size=8, dtype=torch.float32, sliding_window=window
    )
    return Group(index, 16, 1, spec, full=False, drop_last=False)


def full_group(index: int) -> Group:
    import torch
    from vllm.v1.kv_cache_interface import FullAttentionSpec

    spec = FullAttentionSpec(block_size=16, num_kv_heads=1, head_size=8, dtype=torch.float32)
    return Group(index, 16, 1, spec, full=True, drop_last=False)


@pytest.mark.parametrize(
    ("full_blocks", "window_blocks", "tokens"),
    [
        (range(10), range(10), 9 * 16),
        # Of the sliding group only the window's blocks are needed.
        (range(10), range(6, 10), 9 * 16),
        # The window is incomplete at the end and complete earlier.
        (range(10), range(0, 6), 6 * 16),
        # A hole in full attention ends the prefix; the window reaches it.
        ([0, 1, 2, 3, 5, 6, 7, 8, 9], range(10), 4 * 16),
        ([], range(10), 0),
        (range(10), [9], 0),
    ],
)
@pytest.mark.parametrize("parts", [1, 2])
def test_hybrid_prefixes_need_each_group_its_own_way(
    full_blocks: Any, window_blocks: Any, tokens: int, parts: int
) -> None:
    hashes = [bytes([i]) * 32 for i in range(1, 11)]
    groups = [replace(group, parts=parts) for group in (full_group(0), window_group(1, 32))]
    namespace = FakeNamespace()
    for group, blocks in zip(groups, (full_blocks, window_blocks)):
        space = KeySpace(group.index, parts)
        for part in range(parts):
            keys, leaders = space.part_keys(hashes, 0, list(blocks), part)
            namespace.put(keys, [[]] * len(keys), leaders=leaders)
    lookup = PrefixLookup(groups, hash_tokens=16, align_tokens=16, lease_ms=1000)
    hit = lookup.find(namespace, hashes, 160, 159, b"")
    assert hit.tokens == tokens
    if tokens == 9 * 16:
        window = [KeySpace(1, parts).key(hashes[b], 0) for b in range(10)]
        assert [b for b in range(10) if window[b] in namespace.leased] == [7, 8]


def test_latents_are_known_by_every_rank_alike() -> None:
    import torch
    from millpond.vllm.connector import _has_latents
    from vllm.v1.kv_cache_interface import (
        FullAttentionSpec,
        MLAAttentionSpec,
        UniformTypeKVCacheSpecs,
    )

    shape: Any = {"block_size": 16, "num_kv_heads": 1, "head_size": 8, "dtype": torch.float32}
    latent, full = MLAAttentionSpec(**shape), FullAttentionSpec(**shape)
    assert _has_latents(latent)
    assert not _has_latents(full)

    def layers(**specs: Any) -> Any:
        return UniformTypeKVCacheSpecs(block_size=16, kv_cache_specs=specs)

    assert _has_latents(layers(a=latent, b=latent))
    assert not _has_latents(layers(a=latent, b=full))


def test_statistics_add_up_and_name_every_metric() -> None:
    one, two = MillpondStats(), MillpondStats()
    one.add("load_blocks", 3)
    one.observe("load_seconds", 0.5)
    two.add("load_blocks", 4)
    two.observe("load_seconds", 0.1)
    both = MillpondStats(one.aggregate(two).data)
    assert both.reduce() == {"load_blocks": 7, "load_p50_ms": 500.0, "load_max_ms": 500.0}
    assert MillpondStats().is_empty()
    assert not set(COUNTERS) & set(TIMES)
