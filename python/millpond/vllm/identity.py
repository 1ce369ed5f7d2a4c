"""The namespace of an engine, and the layout digest that guards it.

Block hashes cover tokens, images, adapters and salts, but neither the model
nor its number format. The namespace must cover the rest: two engines may
share a namespace only if each would compute, byte for byte, the blocks that
the other writes.
"""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import json
import os
import platform
import re
from collections.abc import Mapping
from typing import Any

from millpond.vllm.config import ConfigError
from millpond.vllm.options import ENVIRONMENT_DECIDES, ENVIRONMENT_IGNORED, decision
from millpond.vllm.weights import UnknownModelError, fingerprint

_FORMAT = 3
"""Grows when this module changes the meaning of a stored value."""


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
    """Lists everything besides block hashes that decides the bytes of a block.

    Args:
        vllm_config: vLLM's configuration.
        kv_cache_config: the resolved KV cache groups.
        model_id: identity given by the user, or empty to derive it.

        Raises:
            ConfigError: the weights or the value of an option cannot be identified.
    """
    return {
        **describe_options(vllm_config, model_id),
        "kv_layout": kv_cache_config.kv_cache_layout,
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


def describe_options(vllm_config: Any, model_id: str) -> dict[str, Any]:
    """Lists the engine's options that decide the bytes of a block, and its model.

    Raises:
        ConfigError: the weights or the value of an option cannot be identified.
    """
    import vllm

    device = str(getattr(vllm_config.device_config, "device_type", ""))
    model, load = vllm_config.model_config, vllm_config.load_config
    speculative = vllm_config.speculative_config
    draft = None if speculative is None else speculative.draft_model_config
    scales = getattr(model.multimodal_config, "mm_encoder_fp8_scale_path", None)
    return {
        "format": _FORMAT,
        "engine": f"vllm {vllm.__version__}",
        "device": device,
        "isa": cpu_isa() if device == "cpu" else "",
        "model": describe_model(model, load, model_id),
        "draft": None
        if draft is None
        else describe_model(draft, speculative.draft_load_config or load, model_id),
        "scales": "" if model_id or not scales else _print(str(scales), None, None),
        "options": _Options(bool(model_id)).section(vllm_config),
        "environment": _environment(),
    }


def describe_model(model: Any, load: Any, model_id: str) -> dict[str, Any]:
    """Describes the weights, the tokenizer and the configuration that the engine resolved.

    Args:
        model: vLLM's configuration of the model.
        load: source of its weights.
        model_id: identity of weights and tokenizer given by the user, or empty to derive it.

        Raises:
            ConfigError: the weights cannot be identified.
    """
    described: dict[str, Any] = {
        # With overrides, and without paths: a model may be stored anywhere.
        "config": _plain_config(model.hf_config),
        "text": _plain_config(model.hf_text_config),
    }
    if model_id:
        return {**described, "weights": model_id}
    tokenizer = model.tokenizer and _print(str(model.tokenizer), model.tokenizer_revision, None)
    code = [_print(repository, model.code_revision, None) for repository in _foreign_code(model)]
    return {**described, "weights": _weights(model, load), "tokenizer": tokenizer, "code": code}


_FROM_THE_MODEL = (
    *("auto", "hf", "pt", "safetensors", "fastsafetensors", "instanttensor", "npcache"),
    *("mistral", "sharded_state", "bitsandbytes", "gguf"),
    *("runai_streamer", "runai_streamer_sharded"),
)
"""Formats with a loader that reads the weights from the model's own folder or repository."""
_LOADER_HOW = re.compile(r"key|secret|token|thread|reader|concurrency|memory|chunk|enable_")
"""Options of loaders for the method of reading weights, and for credentials."""


def _weights(model: Any, load: Any) -> list[Any]:
    """Identifies weights by their real source."""
    form = str(load.load_format)
    extra = dict(load.model_loader_extra_config or {})
    if form == "dummy":
        return ["dummy", model.seed]
    if form == "tensorizer":
        source = extra.pop("tensorizer_uri", None) or extra.pop("tensorizer_dir", None)
        weights = [_print(str(source), None, None), _print(str(model.model), None, None)]
    elif form in _FROM_THE_MODEL:
        source = str(model.model_weights or model.model)
        weights = [_print(source, model.revision, load.download_dir)]
    else:
        raise ConfigError(_unknown(f"load_format {form!r} takes weights from elsewhere"))
    rest = {name: value for name, value in extra.items() if not _LOADER_HOW.search(name)}
    for name, value in rest.items():
        if isinstance(value, str) and ("://" in value or os.path.exists(value)):
            rest[name] = _print(value, None, None)
    return [*weights, _plain("model_loader_extra_config", rest)]


def _foreign_code(model: Any) -> list[str]:
    """Names the repositories, besides the model's own, with code of the model."""
    if not model.trust_remote_code:
        return []
    classes = getattr(model.hf_config, "auto_map", None) or {}
    named = [name for value in classes.values() for name in _listed(value)]
    return sorted({name.split("--")[0] for name in named if "--" in name})


def _listed(value: Any) -> list[str]:
    many = value if isinstance(value, (list, tuple)) else [value]
    return [str(one) for one in many if one is not None]


def _print(source: str, revision: str | None, hub: str | None) -> str:
    """Fingerprints a source.

    Raises:
        ConfigError: the bytes of the source cannot be identified on this host.
    """
    try:
        if "://" in source:
            raise UnknownModelError(f"the bytes of {source!r} are not on this host")
        return fingerprint(source, revision, hub)
    except UnknownModelError as error:
        raise ConfigError(_unknown(str(error))) from error


def _unknown(why: str) -> str:
    return (
        f"model_id: {why}; give `model_id` in the connector's extra config: a text that is "
        "unique for these weights and this tokenizer"
    )


def _plain_config(config: Any) -> Any:
    """Describes a resolved configuration of Hugging Face, independent of its source."""
    if config is None:
        return None
    values = config.to_dict() if hasattr(config, "to_dict") else vars(config)
    return _plain(type(config).__name__, _without_places(values))


def _without_places(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {
            name: _without_places(inner)
            for name, inner in value.items()
            if name not in ("_name_or_path", "_commit_hash", "transformers_version")
        }
    return value


def _environment() -> dict[str, Any]:
    """Describes the variables that decide, and each undeclared variable that is set."""
    from vllm import envs

    found = {}
    for name, value in envs.environment_variables.items():
        undeclared = name not in ENVIRONMENT_IGNORED and name in os.environ
        if name in ENVIRONMENT_DECIDES or undeclared:
            found[name] = _plain(name, value())
    return found


class _Options:
    """Describes vLLM's configuration by the tables of `options.py`.

    Args:
        named: whether the user names the model; a value without a description then counts
            with its type alone.
    """

    def __init__(self, named: bool) -> None:
        self._named = named

    def section(self, config: Any) -> dict[str, Any]:
        """Describes one configuration object."""
        name, described = type(config).__name__, {}
        for option in dataclasses.fields(config):
            what = decision(name, option.name)
            if what in ("decides", "unknown"):
                value = getattr(config, option.name, None)
                described[option.name] = self._value(f"{name}.{option.name}", value)
        return described

    def _value(self, name: str, value: Any) -> Any:
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return self.section(value)
        if isinstance(value, Mapping):
            return {str(key): self._value(name, inner) for key, inner in value.items()}
        if isinstance(value, (list, tuple)):
            return [self._value(name, inner) for inner in value]
        try:
            return _plain(name, value)
        except ConfigError:
            if not self._named:
                raise
            return type(value).__qualname__


def _plain(name: str, value: Any) -> Any:
    """Turns a value into one with the same text in every process.

    Raises:
        ConfigError: the value has no fixed text.
    """
    if value is None or isinstance(value, (bool, int, float, str)):
        plain: Any = value
    elif isinstance(value, enum.Enum):
        plain = value.name
    elif isinstance(value, Mapping):
        plain = {str(key): _plain(name, inner) for key, inner in value.items()}
    elif isinstance(value, (list, tuple)):
        plain = [_plain(name, inner) for inner in value]
    elif isinstance(value, (set, frozenset)):
        plain = sorted(json.dumps(_plain(name, inner), sort_keys=True) for inner in value)
    elif isinstance(value, (bytes, bytearray)):
        plain = bytes(value).hex()
    elif isinstance(value, os.PathLike):
        plain = os.fspath(value)
    elif isinstance(value, type) or type(value).__module__ == "torch":
        # Classes, and number formats and devices of PyTorch.
        plain = value.__qualname__ if isinstance(value, type) else str(value)
    elif dataclasses.is_dataclass(value):
        plain = {
            field.name: _plain(name, getattr(value, field.name, None))
            for field in dataclasses.fields(value)
        }
    elif hasattr(value, "to_dict"):
        plain = _plain_config(value)
    elif hasattr(value, "compute_hash"):
        plain = str(value.compute_hash())
    else:
        raise ConfigError(_unknown(f"{name} is {type(value).__name__}, which has no fixed text"))
    return plain
