"""Decoders from GGUF files: the names, orders and settings of llama.cpp as HuggingFace has them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
import torch
import transformers
from numpy.typing import NDArray
from tiny_gguf import Packed, floats, gguf, written

from alula.core.errors import InputError
from alula.families.decoder_settings import read_decoder_settings
from alula.families.gguf_decoder import read_decoder
from alula.families.llama import write_decoder

Floats = NDArray[np.float32]

SIZES: Mapping[str, Any] = {
    "vocab_size": 32,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32,
    "head_dim": 8,
}
LEAVES = {
    **{"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"},
    **{"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v"},
    **{
        "self_attn.o_proj": "attn_output",
        "self_attn.q_norm": "attn_q_norm",
        "self_attn.k_norm": "attn_k_norm",
    },
    **{"mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"},
    **{"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"},
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}


def model_of(family: str, **changes: Any) -> Any:
    config = transformers.AutoConfig.for_model(family, **{**SIZES, **changes})
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model.eval()


def converted(model: Any) -> dict[str, Packed]:
    """Its tensors as llama.cpp's converter names and orders them."""
    tensors = {}
    for name, tensor in model.state_dict().items():
        stem, _, last = name.rpartition(".")
        layer, leaf = stem.removeprefix("model.layers.").split(".", 1) if "layers" in stem else ("", stem)
        named = f"blk.{layer}.{LEAVES[leaf]}" if layer else LEAVES[leaf]
        array = tensor.numpy()
        if model.config.model_type == "llama" and leaf in ("self_attn.q_proj", "self_attn.k_proj"):
            heads = {"q": "num_attention_heads", "k": "num_key_value_heads"}[leaf[10]]
            count = SIZES[heads]
            array = array.reshape(count, 2, -1, *array.shape[1:]).swapaxes(1, 2).reshape(array.shape)
        tensors[f"{named}.{last}"] = floats(array)
    if model.config.tie_word_embeddings:
        del tensors["output.weight"]
    return tensors


def settings_of(family: str, **changes: object) -> dict[str, object]:
    given: dict[str, object] = {
        "block_count": 1,
        "context_length": 32,
        "embedding_length": 32,
        "feed_forward_length": 64,
        "attention.head_count": 4,
        "attention.head_count_kv": 2,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "rope.freq_base": 10000.0,
        **changes,
    }
    return {"general.architecture": family, **{f"{family}.{key}": value for key, value in given.items()}}


def logits_of(path: Path, ids: NDArray[np.int64]) -> Floats:
    found = read_decoder(path)
    graph = write_decoder(found.weights, read_decoder_settings(found.config, str(path)))
    session = onnxruntime.InferenceSession(ir.to_proto(graph).SerializeToString())
    empty = np.zeros((len(ids), 2, 0, 8), np.float32)
    positions = np.tile(np.arange(ids.shape[1]), (len(ids), 1))
    feeds = {
        "input_ids": ids,
        "position_ids": positions,
        "attention_mask": np.ones_like(ids),
        "answers": np.arange(ids.shape[1]),
    }
    logits: Floats = session.run(["logits"], {**feeds, "past.0.key": empty, "past.0.value": empty})[0]
    return logits


@pytest.mark.parametrize(
    ("family", "changes", "said"),
    [
        ("llama", {}, {"rope.dimension_count": 8}),
        ("llama", {"tie_word_embeddings": True}, {}),
        ("llama", {"attention_bias": True, "mlp_bias": True}, {}),
        ("llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}}, {
            "rope.scaling.type": "linear", "rope.scaling.factor": 4.0}),
        ("llama", {"rope_parameters": LLAMA3}, {"rope.freq_base": 500.0}),
        ("qwen2", {}, {}),
        ("qwen3", {}, {"attention.key_length": 8, "attention.value_length": 8}),
    ],
)  # fmt: skip
def test_a_converted_model_gives_what_the_original_gives(
    tmp_path: Path, family: str, changes: dict[str, Any], said: dict[str, object]
) -> None:
    model = model_of(family, **changes)
    tensors = converted(model)
    if "rope_parameters" in changes and changes["rope_parameters"] is LLAMA3:
        plain = 500.0 ** (-np.arange(0, 8, 2) / 8)
        divisors = plain / model.model.rotary_emb.inv_freq.numpy()
        assert divisors.max() > 2
        tensors["rope_freqs.weight"] = floats(divisors.astype(np.float32))
    path = written(tmp_path / "m.gguf", gguf(settings_of(family, **said), tensors))
    ids = np.random.default_rng(0).integers(0, 32, (2, 9))
    with torch.no_grad():
        expected = model(torch.from_numpy(ids)).logits.numpy()
    assert np.abs(logits_of(path, ids) - expected).max() < 2e-5 * np.abs(expected).max()


def test_queries_left_in_pairs_would_show(tmp_path: Path) -> None:
    """The comparison above can fail: LLaMA's weights under a family that keeps halves apart give something else."""
    model = model_of("llama")
    tensors = converted(model)
    right = written(tmp_path / "right.gguf", gguf(settings_of("llama"), tensors))
    biases = {
        f"blk.0.attn_{x}.bias": floats(np.zeros(n, np.float32)) for x, n in (("q", 32), ("k", 16), ("v", 16))
    }
    wrong = written(tmp_path / "wrong.gguf", gguf(settings_of("qwen2"), {**tensors, **biases}))
    ids = np.random.default_rng(0).integers(0, 32, (1, 9))
    assert np.abs(logits_of(right, ids) - logits_of(wrong, ids)).max() > 0.05


@pytest.mark.parametrize(
    ("family", "said", "extra", "message"),
    [
        ("gemma3", {}, (), "general.architecture is 'gemma3', expected one of llama, qwen2, qwen3"),
        (
            "llama",
            {"expert_count": 8},
            (),
            "llama.expert_count is set; no graph is written for mixtures of exp",
        ),
        ("llama", {"attention.head_count": [4, 4]}, (), r"llama.attention.head_count is array\(\[4, 4\]"),
        ("llama", {"block_count": 0}, (), "llama.block_count is 0, expected a whole number of at least 1"),
        (
            "llama",
            {"rope.dimension_count": 4, "attention.key_length": 8},
            (),
            "rope.dimension_count is 4, expected 8",
        ),
        (
            "llama",
            {"attention.value_length": 4},
            (),
            "llama.attention.value_length is 4, expected 8, the size of",
        ),
        ("llama", {"rope.scale_linear": 4.0}, (), "llama.rope.scale_linear is of an old way of writing"),
        (
            "llama",
            {},
            ("blk.0.attn_sinks.weight",),
            "no graph is written for a tensor named 'blk.0.attn_sinks.w",
        ),
        (
            "llama",
            {},
            ("v.patch_embd.weight",),
            "no graph is written for a tensor named 'v.patch_embd.weight'",
        ),
        (
            "llama",
            {"rope.scaling.type": "linear"},
            ("rope_freqs.weight",),
            "has both rope_freqs.weight and llama.rope.scaling.type 'linear'",
        ),
        (
            "llama",
            {"attention.head_count": 3, "attention.key_length": 8},
            (),
            "attn_q.weight has 32 rows for 3 heads",
        ),
    ],
)
def test_what_a_graph_would_not_honour_is_refused_by_name(
    tmp_path: Path, family: str, said: dict[str, object], extra: tuple[str, ...], message: str
) -> None:
    tensors = {**converted(model_of("llama")), **{name: floats(np.ones(4, np.float32)) for name in extra}}
    path = written(tmp_path / "m.gguf", gguf(settings_of(family, **said), tensors))
    with pytest.raises(InputError, match=message):
        read_decoder(path)


def test_a_file_without_embeddings_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "m.gguf", gguf(settings_of("llama"), {}))
    with pytest.raises(InputError, match=r"m.gguf has no token_embd.weight"):
        read_decoder(path)


def test_a_scaling_of_positions_that_is_not_known_is_refused_under_the_name_of_the_file(
    tmp_path: Path,
) -> None:
    said = settings_of("llama", **{"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0})
    path = written(tmp_path / "m.gguf", gguf(said, converted(model_of("llama"))))
    with pytest.raises(
        InputError, match=r"m.gguf.*rope_type: is 'yarn', expected one of default, linear, llama3"
    ):
        read_decoder_settings(read_decoder(path).config, path.name)
