"""Tracing: DeBERTa-v2 in its two styles, and a model with PyTorch's own attention."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
import torch
import transformers
from numpy.typing import NDArray

from alula.core.errors import InputError
from alula.core.model import ModelSpec
from alula.core.tensor import Feeds
from alula.engines.torch import reference
from alula.families import Checkpoint, describe, open_checkpoint, traced
from alula.graphs import passes_for, rewrite
from alula.graphs.half import fp16_passes

# A trace takes PyTorch ten seconds, most of it symbolic arithmetic on shapes.
pytestmark = pytest.mark.timeout(400)

Floats: TypeAlias = NDArray[np.float32]

SIZES = {"vocab_size": 99, "hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 48}
STYLE_V3 = {
    "relative_attention": True,
    "pos_att_type": ["p2c", "c2p"],
    "position_buckets": 8,
    "norm_rel_ebd": "layer_norm",
    "share_att_key": True,
    "position_biased_input": False,
    "max_relative_positions": -1,
}
STYLE_V2 = {
    "relative_attention": True,
    "pos_att_type": ["c2p"],
    "position_biased_input": True,
    "conv_kernel_size": 3,
    "conv_act": "gelu",
}


class Traced:
    """A checkpoint of random weights, what it is, and its traced graph."""

    def __init__(self, folder: Path, model: transformers.PreTrainedModel, task: str, opset: int) -> None:
        model.save_pretrained(folder)
        self.checkpoint: Checkpoint = open_checkpoint(str(folder))
        described = describe(self.checkpoint, task)
        self.spec: ModelSpec = replace(described, family="traced")
        self.model = traced.write(self.checkpoint, self.spec, "encoder", opset)

    def feeds(self, batch: int, length: int) -> dict[str, NDArray[np.int64]]:
        rng = np.random.default_rng(100 * batch + length)
        kept = np.arange(length) < rng.integers(1, length + 1, (batch, 1))
        ids = np.where(kept, rng.integers(3, SIZES["vocab_size"], (batch, length)), 0)
        feeds = {"input_ids": ids, "attention_mask": kept.astype(np.int64)}
        if len(self.spec.part("encoder").inputs) == 3:
            feeds["token_type_ids"] = np.zeros_like(ids)
        return feeds

    def expected(self, feeds: Feeds) -> Feeds:
        return reference(self.checkpoint.root, self.spec, threads=1).run(feeds)


def random_deberta(layers: int, **settings: Any) -> transformers.PreTrainedModel:
    torch.manual_seed(0)
    config = transformers.DebertaV2Config(
        num_hidden_layers=layers,
        max_position_embeddings=64,
        type_vocab_size=0,
        id2label={0: "a", 1: "b", 2: "c"},
        initializer_range=0.3,
        **SIZES,
        **settings,
    )
    return transformers.AutoModelForSequenceClassification.from_config(config)


@pytest.fixture(scope="module")
def newer(tmp_path_factory: pytest.TempPathFactory) -> Traced:
    model = random_deberta(1, **STYLE_V3)
    return Traced(tmp_path_factory.mktemp("v3"), model, "sequence-classification", 23)


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> Traced:
    model = random_deberta(1, **STYLE_V2)
    return Traced(tmp_path_factory.mktemp("v2"), model, "embeddings", 18)


@pytest.fixture(scope="module")
def attentive(tmp_path_factory: pytest.TempPathFactory) -> Traced:
    torch.manual_seed(0)
    config = transformers.BertConfig(num_hidden_layers=1, initializer_range=0.3, **SIZES)
    model = transformers.BertForTokenClassification(config)
    return Traced(tmp_path_factory.mktemp("sdpa"), model, "token-classification", 23)


def run(model: ir.Model, feeds: Mapping[str, Any]) -> list[Floats]:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    serialized = ir.to_proto(model).SerializeToString()
    session = onnxruntime.InferenceSession(serialized, options, providers=["CPUExecutionProvider"])
    outputs: list[Floats] = session.run(None, dict(feeds))
    return outputs


@pytest.mark.parametrize("which", ["newer", "older", "attentive"])
def test_a_traced_graph_equals_the_model_at_sizes_it_was_not_traced_at(
    which: str, request: pytest.FixtureRequest
) -> None:
    """kotaro-kinoshita/yomitoku#215: a trace froze the batch or the length that it was made with."""
    case: Traced = request.getfixturevalue(which)
    for batch, length in [(1, 1), (1, 20), (3, 33), (45, 20), (2, 7)]:
        feeds = case.feeds(batch, length)
        expected = case.expected(feeds)
        for output, got in zip(expected.values(), run(case.model, feeds), strict=True):
            np.testing.assert_allclose(got, np.asarray(output, np.float32), atol=2e-5)


@pytest.mark.parametrize(("which", "opset"), [("newer", 23), ("older", 18)])
def test_the_opset_asked_for_is_the_opset_of_the_graph(
    which: str, opset: int, request: pytest.FixtureRequest
) -> None:
    case: Traced = request.getfixturevalue(which)
    assert case.model.opset_imports == {"": opset}


def test_inputs_and_outputs_are_those_of_the_spec_and_no_stack_trace_is_left(newer: Traced) -> None:
    part = newer.spec.part("encoder")
    for values, specs in ((newer.model.graph.inputs, part.inputs), (newer.model.graph.outputs, part.outputs)):
        assert [value.name for value in values] == [spec.name for spec in specs]
        shapes = [[getattr(dim, "value", dim) for dim in value.shape or ()] for value in values]
        assert shapes == [list(spec.shape) for spec in specs]
    assert not any(node.metadata_props for node in newer.model.graph)
    assert not newer.model.functions


@pytest.mark.parametrize("which", ["newer", "older", "attentive"])
def test_the_passes_for_openvino_keep_a_traced_graph_equal(
    which: str, request: pytest.FixtureRequest
) -> None:
    case: Traced = request.getfixturevalue(which)
    plain = rewrite(case.model, passes_for("openvino", "fp32"))
    feeds = case.feeds(3, 9)
    np.testing.assert_allclose(run(plain, feeds)[0], run(case.model, feeds)[0], atol=2e-5)


def test_deberta_in_half_precision_runs_on_four_tokens_without_padding(newer: Traced) -> None:
    """The report huggingface/transformers#35332: mask fill and scale fixed to float32."""
    half = rewrite(newer.model, passes_for("openvino", "bf16"))
    feeds = {"input_ids": np.array([[5, 6, 7, 8]]), "attention_mask": np.ones((1, 4), np.int64)}
    wanted = run(newer.model, feeds)[0]
    got = in_openvino(half, feeds)
    assert np.isfinite(got).all()
    np.testing.assert_allclose(got, wanted, atol=0.02 * float(np.abs(wanted).max()))


def test_deberta_in_fp16_runs_on_four_tokens_without_padding(newer: Traced) -> None:
    """The report huggingface/transformers#35332 had a twin in fp16, where the lowest fp32 number has no place."""
    half = rewrite(newer.model, passes_for("onnxruntime", "fp16"))
    for mask in (np.ones((1, 4), np.int64), np.array([[1, 1, 1, 0]])):
        feeds = {"input_ids": np.array([[5, 6, 7, 8]]), "attention_mask": mask}
        wanted = run(newer.model, feeds)[0]
        got = run(half, feeds)[0]
        assert np.isfinite(got).all()
        np.testing.assert_allclose(got, wanted, atol=0.004 * float(np.abs(wanted).max()))
    plain = rewrite(newer.model, fp16_passes())
    # The fault that all casting would make: a fill that is -inf in fp16.
    stored = [value.const_value.numpy() for value in plain.graph.initializers.values() if value.const_value]
    assert any(array.dtype == np.float32 and np.abs(array).max(initial=0) > 65504 for array in stored)
    assert all(np.isfinite(array).all() for array in stored if array.dtype == np.float16)
    kinds = {(node.op_type, value.dtype) for node in plain.graph for value in node.outputs}
    assert ("MatMul", ir.DataType.FLOAT16) in kinds
    assert ("Where", ir.DataType.FLOAT16) not in kinds
    assert ("Softmax", ir.DataType.FLOAT16) not in kinds


def test_masks_and_softmax_of_deberta_stay_fp32_in_half_precision(newer: Traced) -> None:
    half = rewrite(newer.model, passes_for("openvino", "bf16"))
    kinds = {(node.op_type, value.dtype) for node in half.graph for value in node.outputs}
    assert ("MatMul", ir.DataType.BFLOAT16) in kinds
    assert ("Softmax", ir.DataType.FLOAT) in kinds
    assert ("Softmax", ir.DataType.BFLOAT16) not in kinds
    assert ("Where", ir.DataType.BFLOAT16) not in kinds


@pytest.mark.parametrize("which", ["newer", "attentive"])
def test_a_row_without_any_token_equals_eager_and_is_finite(
    which: str, request: pytest.FixtureRequest
) -> None:
    case: Traced = request.getfixturevalue(which)
    feeds = case.feeds(2, 5)
    feeds["attention_mask"][0] = 0
    (expected,) = case.expected(feeds).values()
    plain = rewrite(case.model, passes_for("openvino", "fp32"))
    for model in (case.model, plain):
        got = run(model, feeds)[0]
        assert np.isfinite(got).all()
        np.testing.assert_allclose(got, np.asarray(expected, np.float32), atol=2e-5)


def test_missing_weights_are_refused_by_name(newer: Traced) -> None:
    spec = replace(newer.spec, task="question-answering")
    with pytest.raises(InputError, match=r"has no weights for qa_outputs.bias, qa_outputs.weight"):
        traced.write(newer.checkpoint, spec, "encoder", 23)


def test_an_architecture_that_transformers_does_not_know_is_refused_in_one_line(
    newer: Traced, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "nonesuch", "architectures": ["NonesuchModel"]}')
    checkpoint = replace(newer.checkpoint, root=tmp_path)
    with pytest.raises(InputError, match=r"^transformers cannot load .*`nonesuch`.*$") as refused:
        traced.write(checkpoint, newer.spec, "encoder", 23)
    assert len(str(refused.value).splitlines()) == 1


def in_openvino(model: ir.Model, feeds: Mapping[str, Any]) -> Floats:
    import openvino  # noqa: PLC0415 - slow to import, and needed once

    core = openvino.Core()
    serialized = ir.to_proto(model).SerializeToString()
    compiled = core.compile_model(core.read_model(serialized), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    result: Floats = compiled(dict(feeds))[0]
    return result.copy()
