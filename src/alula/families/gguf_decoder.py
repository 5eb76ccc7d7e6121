"""What a GGUF file holds as config.json and the weights of a HuggingFace checkpoint would say it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from alula.core.errors import InputError
from alula.families.gguf import Gguf, PackedWeight, read_gguf
from alula.families.weights import Weights

_CLASSES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
_AROUND = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
# What the frequencies of the rotation are divided by: how "llama3" scaling is written.
_DIVISORS = "rope_freqs.weight"


@dataclass(frozen=True, kw_only=True, slots=True)
class Decoder:
    """Settings and weights under HuggingFace's names."""

    config: Mapping[str, Any]
    weights: Weights


def read_decoder(path: Path) -> Decoder:
    """A decoder-only model from a GGUF file; architectures and tensors without a place are refused by name."""
    file = read_gguf(path)
    family = file.metadata.get("general.architecture")
    if family not in _CLASSES:
        raise InputError(f"{path}: general.architecture is {family!r}, expected one of {', '.join(_CLASSES)}")
    config = _config(file, str(family))
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    pairs = heads if family == "llama" else {}
    weights = {
        _name(file, name): _apart(file, weight, pairs)
        for name, weight in file.tensors.items()
        if name != _DIVISORS
    }
    return Decoder(config=config, weights=weights)


def _name(file: Gguf, name: str) -> str:
    stem, _, last = name.rpartition(".")
    if last in ("weight", "bias"):
        if stem in _AROUND:
            return f"{_AROUND[stem]}.{last}"
        found = re.fullmatch(r"blk\.(\d+)\.(\w+)", stem)
        if found and found[2] in _LAYER:
            return f"model.layers.{found[1]}.{_LAYER[found[2]]}.{last}"
    raise InputError(f"{file.path}: no graph is written for a tensor named {name!r}")


def _apart(file: Gguf, weight: PackedWeight, pairs: Mapping[str, int]) -> PackedWeight:
    heads = pairs.get(weight.name.split(".")[-2], 0)
    if heads and weight.shape[0] % (2 * heads):
        raise InputError(
            f"{file.path}: {weight.name} has {weight.shape[0]} rows for {heads} heads of even size"
        )
    return replace(weight, pairs=heads)


def _config(file: Gguf, family: str) -> dict[str, Any]:
    def size(key: str, default: int | None = None) -> int:
        value = file.metadata.get(f"{family}.{key}", default)
        if type(value) is not int or value < 1:
            given = "missing" if value is None else f"{value!r}"
            raise InputError(f"{file.path}: {family}.{key} is {given}, expected a whole number of at least 1")
        return value

    if file.metadata.get(f"{family}.expert_count"):
        raise InputError(
            f"{file.path}: {family}.expert_count is set; no graph is written for mixtures of experts"
        )
    hidden, heads = size("embedding_length"), size("attention.head_count")
    head = size("attention.key_length", size("rope.dimension_count", max(1, hidden // heads)))
    for key in ("attention.value_length", "rope.dimension_count"):
        if size(key, head) != head:
            raise InputError(
                f"{file.path}: {family}.{key} is {size(key)}, expected {head}, the size of a head"
            )
    if "token_embd.weight" not in file.tensors:
        raise InputError(f"{file.path} has no token_embd.weight")
    window = file.metadata.get(f"{family}.attention.sliding_window")
    return {
        "architectures": [_CLASSES[family]],
        "model_type": family,
        "hidden_size": hidden,
        "intermediate_size": size("feed_forward_length"),
        "num_hidden_layers": size("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": size("attention.head_count_kv", heads),
        "head_dim": head,
        "vocab_size": file.tensors["token_embd.weight"].shape[0],
        "max_position_embeddings": size("context_length"),
        "rms_norm_eps": file.metadata.get(f"{family}.attention.layer_norm_rms_epsilon", 1e-6),
        "rope_parameters": _rope(file, family),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "attention_bias": "blk.0.attn_q.bias" in file.tensors,
        "mlp_bias": "blk.0.ffn_up.bias" in file.tensors,
        "sliding_window": window or None,
        "use_sliding_window": bool(window),
        "eos_token_id": _tokens(file, "eos", "eot", "eom"),
        "bos_token_id": next(iter(_tokens(file, "bos")), None),
        "pad_token_id": next(iter(_tokens(file, "padding")), None),
    }


def _tokens(file: Gguf, *names: str) -> list[int]:
    """The ids of tokens that the file gives these parts; several may end an answer."""
    found = (file.metadata.get(f"tokenizer.ggml.{name}_token_id") for name in names)
    return list(dict.fromkeys(token for token in found if isinstance(token, int)))


def _rope(file: Gguf, family: str) -> dict[str, Any]:
    rope: dict[str, Any] = {"rope_theta": file.metadata.get(f"{family}.rope.freq_base", 10000.0)}
    kind = file.metadata.get(f"{family}.rope.scaling.type", "none")
    if _DIVISORS in file.tensors:
        if kind != "none":
            raise InputError(f"{file.path} has both {_DIVISORS} and {family}.rope.scaling.type {kind!r}")
        return {**rope, "rope_type": "divided", "divisors": file.tensors[_DIVISORS].read().tolist()}
    if file.metadata.get(f"{family}.rope.scale_linear", 1.0) != 1.0:
        raise InputError(
            f"{file.path}: {family}.rope.scale_linear is of an old way of writing; convert the model again"
        )
    if kind == "none":
        return {**rope, "rope_type": "default"}
    return {**rope, "rope_type": kind, "factor": file.metadata.get(f"{family}.rope.scaling.factor")}
