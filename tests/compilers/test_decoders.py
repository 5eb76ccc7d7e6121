"""Decoders with a cache as TensorRT-RTX compiles them and as OpenVINO runs them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import openvino
import pytest
import torch
from numpy.typing import NDArray
from oldest import refusals
from rtx import compiled
from tiny_decoders import Decoder, checkpoint, opened, session_of, tokens

from alula.core.errors import InputError
from alula.graphs import beyond_fp16, half_policy, observe_magnitudes, pack, passes_for, rewrite, save

FAMILIES = ("llama", "qwen2", "qwen3", "hunyuan_v1_dense")
# Four queries on two keys, heads of 64, which TensorRT has a kernel for.
SIZES: Mapping[str, Any] = {
    "hidden_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "num_hidden_layers": 2,
    "tie_word_embeddings": True,
}
PROFILE = {
    "batch": (1, 2, 4),
    "length": (1, 8, 16),
    "past": (0, 8, 16),
    "total": (1, 16, 32),
    "answers": (1, 1, 16),
}
LIMITS = {"fp32": 1e-5, "fp16": 5e-3}
# How far from fp32, and how many bytes of a weight's two in fp16 are saved, at least and at most.
WEIGHTS = [("int8-weights", 0.06, 0.8, 1.2), ("int4-weights", 0.6, 1.2, 1.6)]


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


class InOpenVino:
    """A graph in OpenVINO, in fp32 on every CPU."""

    def __init__(self, path: Path) -> None:
        core = openvino.Core()
        self._model = core.compile_model(
            core.read_model(path), "CPU", {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1}
        )

    def run(self, names: None, feeds: Mapping[str, NDArray[Any]], /) -> Sequence[NDArray[Any]]:
        del names
        given = self._model(dict(feeds))
        return [given[output].copy() for output in self._model.outputs]


def shapes(model: ir.Model) -> dict[str, tuple[tuple[int, ...], ...]]:
    dims = {str(value.name): value.shape or () for value in model.graph.inputs}
    return {
        name: tuple(tuple(d if isinstance(d, int) else PROFILE[str(d)][at] for d in shape) for at in range(3))
        for name, shape in dims.items()
    }


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("family", FAMILIES)
def test_tensorrt_compiles_a_decoder_with_a_kernel_for_each_attention(
    family: str, precision: str, tmp_path: Path
) -> None:
    decoder = opened(tmp_path, checkpoint(tmp_path, family, **SIZES))
    graph = rewrite(decoder.graph, passes_for("tensorrt-rtx", precision))
    saved = save(graph, tmp_path / "out" / "graph.onnx", precision)
    # Only in fp32 may attention be taken apart.
    assert compiled(saved.path, shapes(graph), decomposable=precision == "fp32").attentions == 2
    # ONNX Runtime has no kernels for bf16.
    if precision == "bf16":
        return
    ids = tokens(2, 12)
    changed = Decoder(
        settings=decoder.settings, graph=graph, session=session_of(graph), reference=decoder.reference
    )
    expected, given = decoder.expected(ids), changed.parts(ids, [5, 4, 1, 1, 1])
    assert np.linalg.norm(given - expected) < LIMITS[precision] * np.linalg.norm(expected)


def test_a_step_for_tensorrt_8_6_scores_in_fp16_and_widens_no_cache(tmp_path: Path) -> None:
    """Keys of the past in fp32 would be all of the cache, copied in each layer of each step."""
    decoder = opened(tmp_path, checkpoint(tmp_path, "llama", **SIZES))
    graph = rewrite(decoder.graph, passes_for("tensorrt", "fp16", 17))
    softmaxes = [node for node in graph.graph if node.op_type == "Softmax"]
    assert [node.outputs[0].dtype for node in softmaxes] == [ir.DataType.FLOAT16] * 2
    seen = [value for value in graph.graph.inputs if str(value.name).startswith("past.")]
    while seen:
        users = [user for user, _ in seen.pop().uses()]
        assert "Cast" not in {user.op_type for user in users}
        seen += [user.outputs[0] for user in users if user.op_type in {"Transpose", "Reshape"}]


def test_scores_of_a_decoder_that_outgrow_fp16_stay_fp32_for_tensorrt_8_6(tmp_path: Path) -> None:
    """They are measured in the form in which they are built."""
    decoder = opened(tmp_path, checkpoint(tmp_path, "llama", **SIZES))
    policy = half_policy("tensorrt", 17)
    _, names = observe_magnitudes(decoder.graph, policy)
    largest = {name: 1e6 if "/Attention/" in name else 1.0 for name in names}
    keep = beyond_fp16(decoder.graph, largest, policy)
    graph = rewrite(decoder.graph, passes_for("tensorrt", "fp16", 17, policy, keep))
    softmaxes = [node for node in graph.graph if node.op_type == "Softmax"]
    assert [node.outputs[0].dtype for node in softmaxes] == [ir.DataType.FLOAT] * 2


@pytest.mark.parametrize(("precision", "limit", "least", "most"), WEIGHTS)
def test_tensorrt_keeps_weights_of_few_bits_so(
    precision: str, limit: float, least: float, most: float, tmp_path: Path
) -> None:
    """The rest is fp16; the engine's size says that nothing restored them when it was compiled."""
    wide = {
        **SIZES,
        "hidden_size": 256,
        "intermediate_size": 2048,
        "num_hidden_layers": 1,
        "vocab_size": 1024,
    }
    decoder = opened(tmp_path, checkpoint(tmp_path, "llama", **wide))
    packed = rewrite(pack(decoder.graph, "tensorrt-rtx", precision), passes_for("tensorrt-rtx", precision))
    halved = rewrite(decoder.graph, passes_for("tensorrt-rtx", "fp16"))
    sizes = []
    for name, graph in (("packed", packed), ("halved", halved)):
        saved = save(graph, tmp_path / name / "graph.onnx", precision)
        made = compiled(saved.path, shapes(graph))
        assert made.attentions == 1
        sizes.append(len(made.engine))
    # 1.77 million weights of linears, and the table of embeddings.
    linears, table = 1.77e6, 1024 * 256
    assert least * linears < sizes[1] - sizes[0] < most * linears + 2 * table
    rounded = {node.outputs[0].dtype for node in packed.graph if node.op_type == "DequantizeLinear"}
    assert ir.DataType.FLOAT16 in rounded
    ids = tokens(2, 12)
    changed = Decoder(
        settings=decoder.settings, graph=packed, session=session_of(packed), reference=decoder.reference
    )
    expected, given = decoder.expected(ids), changed.parts(ids, [5, 4, 1, 1, 1])
    assert np.linalg.norm(given - expected) < limit * np.linalg.norm(expected)


def test_other_versions_of_tensorrt_refuse_weights_of_few_bits() -> None:
    for precision in ("int8-weights", "int4-weights"):
        with pytest.raises(InputError, match=f"engine 'tensorrt' offers fp32, .*, not '{precision}'"):
            passes_for("tensorrt", precision, 17)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_decoder_in_the_words_of_tensorrt_8_6(family: str, precision: str, tmp_path: Path) -> None:
    decoder = opened(tmp_path, checkpoint(tmp_path, family, **SIZES))
    graph = rewrite(decoder.graph, passes_for("tensorrt", precision, 17))
    assert refusals(graph) == []
    # No key is repeated for the queries that share it.
    assert not [node for node in graph.graph if node.op_type in {"Expand", "Tile"}]
    onnx.checker.check_model(ir.to_proto(graph), full_check=True)
    older = Decoder(
        settings=decoder.settings, graph=graph, session=session_of(graph), reference=decoder.reference
    )
    ids, expected = tokens(2, 12), decoder.expected(tokens(2, 12))
    for lengths in ([12], [5, 4, 1, 1, 1]):
        given = older.parts(ids, lengths)
        assert np.linalg.norm(given - expected) < LIMITS[precision] * np.linalg.norm(expected)
    mask = (np.arange(12) >= np.array([[0], [5]])).astype(np.int64)
    padded, alone = older.parts(ids, [7, 1, 4], mask)[1, 5:], decoder.expected(ids[1:, 5:])[0]
    assert np.linalg.norm(padded - alone) < LIMITS[precision] * np.linalg.norm(alone)
    saved = save(graph, tmp_path / "out" / "graph.onnx", precision)
    assert compiled(saved.path, shapes(graph)).attentions == 0


@pytest.mark.parametrize("family", FAMILIES)
def test_openvino_runs_a_decoder_whole_in_parts_and_padded(family: str, tmp_path: Path) -> None:
    decoder = opened(tmp_path, checkpoint(tmp_path, family, **SIZES))
    graph = rewrite(decoder.graph, passes_for("openvino", "fp32"))
    saved = save(graph, tmp_path / "out" / "graph.onnx", "fp32")
    inside = Decoder(
        settings=decoder.settings, graph=graph, session=InOpenVino(saved.path), reference=decoder.reference
    )
    ids, expected = tokens(2, 12), decoder.expected(tokens(2, 12))
    for lengths in ([12], [5, 4, 3], [1] * 12):
        assert np.abs(inside.parts(ids, lengths) - expected).max() < 2e-5 * np.abs(expected).max()
    mask = (np.arange(12) >= np.array([[0], [5]])).astype(np.int64)
    padded, alone = inside.parts(ids, [7, 1, 4], mask)[1, 5:], decoder.expected(ids[1:, 5:])[0]
    assert np.abs(padded - alone).max() < 2e-5 * np.abs(alone).max()
