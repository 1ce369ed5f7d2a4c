"""The identity of a namespace, from configurations made by vLLM itself."""

from __future__ import annotations

import dataclasses
import inspect
import json
import typing
from pathlib import Path
from typing import Any

import pytest
from millpond.vllm import options
from millpond.vllm.config import ConfigError
from millpond.vllm.identity import describe_options, layout_digest
from vllm import envs
from vllm.config import VllmConfig
from vllm.engine.arg_utils import EngineArgs

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "torch_dtype": "float32",
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "rope_theta": 10000.0,
}


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model's folder, small enough to hash quickly."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return make_model(tmp_path / "model")


def make_model(folder: Path) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    # A header that vLLM can read, without tensors.
    (folder / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    (folder / "tokenizer.model").write_bytes(b"tokenizer")
    (folder / "modeling_own.py").write_text("scale = 1\n")
    return folder


def vllm_config(model: Path, **arguments: Any) -> Any:
    """The configuration that vLLM makes from its arguments."""
    known = {"model": str(model), "max_model_len": 1024, "enforce_eager": True}
    return EngineArgs(**{**known, **arguments}).create_engine_config()


def identity(model: Path, model_id: str = "", **arguments: Any) -> bytes:
    return layout_digest(describe_options(vllm_config(model, **arguments), model_id))


def sections() -> dict[str, set[str]]:
    """The options of every vLLM class in the identity, by the name of the class."""
    found: dict[str, set[str]] = {}

    def classes(hint: Any) -> typing.Iterator[Any]:
        if inspect.isclass(hint) and dataclasses.is_dataclass(hint):
            yield hint
        for inner in typing.get_args(hint):
            yield from classes(inner)

    def enter(section: Any) -> None:
        if section.__name__ in found:
            return
        found[section.__name__] = {field.name for field in dataclasses.fields(section)}
        hints = typing.get_type_hints(section)
        for name in found[section.__name__]:
            if options.decision(section.__name__, name) != "ignored":
                for inner in classes(hints[name]):
                    enter(inner)

    enter(VllmConfig)
    return found


def test_every_option_of_vllm_is_declared_to_decide_kv_or_not() -> None:
    undeclared = [
        f"{section}.{name}"
        for section, names in sections().items()
        for name in sorted(names)
        if options.decision(section, name) == "unknown"
    ]
    assert undeclared == [], "say in millpond/vllm/options.py whether these decide KV"


def test_the_tables_name_no_option_that_vllm_lacks() -> None:
    known = sections()
    named = {*options.DECIDES, *options.RESOLVED, *options.IGNORED}
    assert named <= set(known)
    for section in named:
        assert set(options.options(section)) <= known[section], section


def test_every_variable_of_vllm_is_declared_to_decide_kv_or_not() -> None:
    known = set(envs.environment_variables)
    declared = options.ENVIRONMENT_DECIDES | options.ENVIRONMENT_IGNORED
    assert known - declared == set(), "say in millpond/vllm/options.py whether these decide KV"
    assert declared - known == set()
    assert not options.ENVIRONMENT_DECIDES & options.ENVIRONMENT_IGNORED


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param({"hf_overrides": {"rope_theta": 20000.0}}, id="rope theta"),
        pytest.param(
            {
                "hf_overrides": {
                    "rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}
                }
            },
            id="rope scaling",
        ),
        pytest.param({"hf_overrides": {"rms_norm_eps": 1e-3}}, id="another norm"),
        pytest.param(
            {"hf_overrides": lambda config: setattr(config, "rope_theta", 3.0) or config},
            id="overrides by a function",
        ),
        pytest.param({"dtype": "float32"}, id="number format"),
        pytest.param({"max_model_len": 2048}, id="longest context"),
        pytest.param({"prefix_caching_hash_algo": "sha256_cbor"}, id="hash"),
        pytest.param({"model_impl": "transformers"}, id="implementation"),
        pytest.param({"load_format": "dummy"}, id="dummy weights"),
        pytest.param({"load_format": "pt"}, id="other files of the folder"),
        pytest.param({"disable_sliding_window": True}, id="sliding window"),
        pytest.param({"tokenizer_mode": "slow"}, id="tokenizer mode"),
        pytest.param({"additional_config": {"plugin": 1}}, id="a plugin's options"),
    ],
)
def test_an_option_that_decides_kv_changes_the_identity(
    model: Path, arguments: dict[str, Any]
) -> None:
    assert identity(model, **arguments) != identity(model)
    # A name given by the user replaces weights and tokenizer, not options.
    if "load_format" not in arguments:
        assert identity(model, "named", **arguments) != identity(model, "named")


@pytest.mark.parametrize(
    "arguments",
    [
        {"max_num_seqs": 7},
        {"gpu_memory_utilization": 0.5},
        {"served_model_name": "another"},
        {"max_num_batched_tokens": 2048},
        {"enable_prefix_caching": False},
        {"disable_log_stats": True},
    ],
    ids=str,
)
def test_an_option_that_decides_nothing_keeps_the_identity(
    model: Path, arguments: dict[str, Any]
) -> None:
    assert identity(model, **arguments) == identity(model)


def test_a_model_that_moves_keeps_its_identity(model: Path) -> None:
    before = identity(model)
    assert identity(model.rename(model.parent / "elsewhere")) == before


def test_quantization_is_that_of_the_configuration(model: Path, tmp_path: Path) -> None:
    for bits in (4, 8):
        quantized = {
            "quant_method": "gptq",
            "bits": bits,
            "group_size": 128,
            "desc_act": False,
            "sym": True,
        }
        config = {**CONFIG, "torch_dtype": "float16", "quantization_config": quantized}
        (model / "config.json").write_text(json.dumps(config))
        (tmp_path / str(bits)).write_bytes(identity(model, "named"))
    assert (tmp_path / "4").read_bytes() != (tmp_path / "8").read_bytes()


@pytest.mark.parametrize(
    "file", ["tokenizer.model", "modeling_own.py", "model.safetensors", "sub/part.json"]
)
def test_every_file_that_decides_is_part_of_the_identity(model: Path, file: str) -> None:
    before = identity(model)
    (model / file).parent.mkdir(exist_ok=True)
    (model / file).write_bytes(b"other")
    assert identity(model) != before


def test_weights_that_nothing_here_tells_need_a_name(model: Path) -> None:
    streamed = vllm_config(model)
    # As vLLM does for weights at a URI: a folder of JSON, and the real source.
    streamed.model_config.model_weights = "s3://bucket/model"
    streamed.load_config.load_format = "runai_streamer"
    tensorized = vllm_config(model)
    tensorized.load_config.load_format = "tensorizer"
    tensorized.load_config.model_loader_extra_config = {"tensorizer_uri": "s3://b/m.tensors"}
    plugin = vllm_config(model)
    plugin.load_config.load_format = "somebodys_loader"
    branch = vllm_config(model)
    branch.model_config.model = "org/model"
    for config in (streamed, tensorized, plugin, branch):
        with pytest.raises(ConfigError, match=r"model_id: .*give `model_id`"):
            describe_options(config, "")
        assert describe_options(config, "v1") != describe_options(config, "v2")


def test_tensorized_weights_are_known_by_their_file(model: Path, tmp_path: Path) -> None:
    prints = []
    for content in (b"one", b"two"):
        (tmp_path / "m.tensors").write_bytes(content)
        config = vllm_config(model)
        config.load_config.load_format = "tensorizer"
        config.load_config.model_loader_extra_config = {
            "tensorizer_uri": str(tmp_path / "m.tensors"),
            "num_readers": len(prints),
        }
        prints.append(layout_digest(describe_options(config, "")))
    assert prints[0] != prints[1]


def test_an_option_without_a_fixed_text_needs_a_name(model: Path) -> None:
    config = vllm_config(model)
    config.additional_config = {"plugin": object()}
    with pytest.raises(ConfigError, match=r"model_id: VllmConfig.additional_config is object"):
        describe_options(config, "")
    assert describe_options(config, "named") == describe_options(config, "named")


def test_variables_that_decide_kv_change_the_identity(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = identity(model)
    monkeypatch.setenv("VLLM_LOG_STATS_INTERVAL", "3")
    assert identity(model) == before
    monkeypatch.setenv("VLLM_KV_CACHE_LAYOUT", "HND")
    assert identity(model) != before
