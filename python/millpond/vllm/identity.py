"""Which namespace an engine uses, and the layout digest that guards it.

Block hashes cover tokens, images, adapters and salts, but neither the model
nor its number format. The namespace must cover the rest: two engines may
share a namespace exactly if a block written by one is, byte for byte, what
the other would have computed.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
from collections.abc import Mapping
from typing import Any

from millpond.vllm.weights import fingerprint

_FORMAT = 2
"""Grows when this module changes what a stored value means."""


def namespace_name(model: str, digest: bytes) -> str:
    """Returns a readable name that no other layout shares."""
    slug = re.sub(r"[^A-Za-z0-9]+", "-", os.path.basename(model.rstrip("/"))).strip("-").lower()
    return f"vllm-{slug[:40] or 'model'}-{digest.hex()[:16]}"


def cpu_isa() -> str:
    """Names the instruction set that decides how a CPU backend packs keys."""
    flags = ""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            flags = next((line for line in file if line.startswith("flags")), "")
    except OSError:
        pass
    words = set(flags.split())
    wanted = ("amx_tile", "amx_bf16", "avx512f", "avx512_bf16", "avx2")
    return "-".join([platform.machine(), *(flag for flag in wanted if flag in words)])


def layout_digest(described: Mapping[str, Any]) -> bytes:
    """Returns the 32-byte layout digest of a description."""
    text = json.dumps(described, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).digest()


def describe_engine(vllm_config: Any, kv_cache_config: Any, model_id: str) -> dict[str, Any]:
    """Lists everything besides block hashes that decides what a block holds.

    Args:
        vllm_config: vLLM's configuration.
        kv_cache_config: the resolved KV cache groups.
        model_id: identity given by the user, or empty to derive it.
    """
    import vllm

    model = vllm_config.model_config
    cache = vllm_config.cache_config
    parallel = vllm_config.parallel_config
    attention = getattr(vllm_config, "attention_config", None)
    speculative = vllm_config.speculative_config
    device = str(getattr(vllm_config.device_config, "device_type", ""))
    return {
        "format": _FORMAT,
        "engine": f"vllm {vllm.__version__}",
        "model": model_id or fingerprint(str(model.model), model.revision),
        "tokenizer": ""
        if model_id
        else fingerprint(str(model.tokenizer), model.tokenizer_revision),
        "quantization": model.quantization,
        "dtype": model.dtype,
        "cache_dtype": cache.cache_dtype,
        "hash": cache.prefix_caching_hash_algo,
        "device": device,
        "isa": cpu_isa() if device == "cpu" else "",
        "attention": getattr(attention, "backend", None),
        "kv_layout": kv_cache_config.kv_cache_layout,
        "tensor_parallel": parallel.tensor_parallel_size,
        "pipeline_parallel": parallel.pipeline_parallel_size,
        "speculative": "" if speculative is None else f"{speculative.method}:{speculative.model}",
        "groups": [
            {
                "block_size": group.kv_cache_spec.block_size,
                "page_bytes": group.kv_cache_spec.page_size_bytes,
                "kind": type(group.kv_cache_spec).__name__,
                "layers": len(group.layer_names),
            }
            for group in kv_cache_config.kv_cache_groups
        ],
    }
