"""What public reports say fp16 breaks: each graph finite and right, and broken again when all of it is cast."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir
import openvino
import pytest
from numpy.typing import NDArray
from onnx.reference import ReferenceEvaluator
from onnx_ir.passes.common import ShapeInferencePass
from rtx import compile_on_cpu

from alula.graphs import Pass, beyond_fp16, observe_magnitudes, passes_for, rewrite, save
from alula.graphs.half import fp16_passes
from alula.graphs.passes.attention import DecomposeAttention
from alula.graphs.passes.choice import WHOLE_ATTENTION
from alula.graphs.passes.precision import ToBfloat16, ToFloat16
from alula.graphs.passes.rounding import RoundResults

Floats: TypeAlias = NDArray[np.float32]
Grow: TypeAlias = Callable[..., ir.Model]
Run: TypeAlias = Callable[..., list[Floats]]

FP16, FP32 = ir.DataType.FLOAT16, ir.DataType.FLOAT
SIZE = 16
SHAPE = ("rows", SIZE)
EYE = np.eye(SIZE, dtype=np.float32)
GAIN = np.linspace(0.5, 2, SIZE, dtype=np.float32)


def all_cast(model: ir.Model) -> ir.Model:
    """The fault: every float of the graph is fp16, whatever it is for."""
    cast = rewrite(model, [ShapeInferencePass()])
    graph = cast.graph
    for value in graph.initializers.values():
        if value.dtype == FP32 and value.const_value is not None:
            with np.errstate(over="ignore"):
                half = value.const_value.numpy().astype(np.float16)
            value.const_value, value.type = ir.tensor(half, name=value.name), ir.TensorType(FP16)
    for node in graph:
        if node.op_type == "Cast" and node.attributes.get_int("to", 0) == int(FP32):
            node.attributes["to"] = ir.AttrInt64("to", int(FP16))
        for value in node.outputs:
            if value.dtype == FP32:
                value.type = ir.TensorType(FP16)
    for given in graph.inputs:
        if given.dtype == FP32:
            entry = ir.node("Cast", [given], {"to": int(FP16)}, name=f"{given.name}/half")
            given.replace_all_uses_with(entry.outputs[0])
            entry.replace_input_with(0, given)
            entry.outputs[0].name = entry.name
            graph.insert_before(graph[0], entry)
    return cast


def in_numpy(model: ir.Model, feeds: dict[str, NDArray[Any]]) -> Floats:
    """ONNX's reference computes fp16 in fp16."""
    with np.errstate(all="ignore"):
        result = ReferenceEvaluator(ir.to_proto(model)).run(None, feeds)
    return np.asarray(result[0], np.float32)


def kept(model: ir.Model, feeds: dict[str, NDArray[Any]], run: Run) -> frozenset[str]:
    """What is measured beyond fp16."""
    observed, names = observe_magnitudes(model)
    measured = dict(zip([value.name for value in observed.graph.outputs], run(observed, feeds), strict=True))
    return beyond_fp16(model, {name: float(measured[name]) for name in names})


def half(model: ir.Model, keep: frozenset[str] = frozenset()) -> ir.Model:
    """As ONNX Runtime gets it: rounded as a GPU does."""
    return rewrite(model, passes_for("onnxruntime", "fp16", keep=keep))


def compiled(model: ir.Model, keep: frozenset[str], at: Path) -> bytes:
    """By TensorRT-RTX, as a GPU would get it."""
    saved = save(rewrite(model, fp16_passes(WHOLE_ATTENTION, keep)), at / "half.onnx", "fp16")
    return compile_on_cpu(saved.path, {"x": ((1, SIZE), (4, SIZE), (8, SIZE))})


def types_of(model: ir.Model, kind: str) -> set[ir.DataType | None]:
    return {node.outputs[0].dtype for node in model.graph if node.op_type == kind}


# --- a feed-forward layer whose hidden state ends above 65504

HIDDEN = 66246.39


@pytest.fixture
def wide(grow: Grow) -> tuple[ir.Model, Floats]:
    """T5's feed-forward layer, scaled so that the largest hidden value is the report's."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((6, SIZE)).astype(np.float32)
    normed = x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5)
    into = rng.standard_normal((SIZE, 32)).astype(np.float32)
    into *= np.float32(HIDDEN / (normed @ into).max())
    back = (rng.standard_normal((32, SIZE)) * 1e-2).astype(np.float32)

    def layer(b: Any, x: ir.Value) -> Any:
        ones = b.weight("ones", np.ones(SIZE, np.float32))
        wide = b.op("Relu", b.op("MatMul", b.op("RMSNormalization", x, ones), b.weight("wi", into)))
        x = b.op("Add", x, b.op("MatMul", wide, b.weight("wo", back)))
        return b.op("RMSNormalization", x, ones)

    return grow(layer, SHAPE, SHAPE), x


def test_a_hidden_state_above_65504_stays_finite(
    wide: tuple[ir.Model, Floats], run_graph: Run, tmp_path: Path
) -> None:
    """The report huggingface/transformers#5651: 66246.39 before T5's output projection became infinite."""
    model, x = wide
    expected = run_graph(model, {"x": x})[0]
    keep = kept(model, {"x": x}, run_graph)
    assert {node.op_type for node in model.graph if node.name in keep} == {"MatMul", "Relu"}
    got = run_graph(half(model, keep), {"x": x})[0]
    np.testing.assert_allclose(got, expected, atol=1e-3)
    assert compiled(model, keep, tmp_path)


def test_it_is_infinite_where_nothing_is_measured_or_all_is_cast(
    wide: tuple[ir.Model, Floats], run_graph: Run
) -> None:
    model, x = wide
    assert not np.isfinite(run_graph(half(model), {"x": x})[0]).all()
    assert not np.isfinite(in_numpy(all_cast(model), {"x": x})).all()


def test_a_tenth_of_it_is_fp16(wide: tuple[ir.Model, Floats], run_graph: Run) -> None:
    model, x = wide
    into = model.graph.initializers["wi"]
    assert into.const_value is not None
    into.const_value = ir.tensor(into.const_value.numpy() / 10, name="wi")
    assert kept(model, {"x": x}, run_graph) == frozenset()
    assert np.isfinite(run_graph(half(model), {"x": x})[0]).all()


# --- norms, whose squares end above 65504 from 256 on


def rms_norm(b: Any, h: ir.Value) -> Any:
    return b.op("RMSNormalization", h, b.weight("g", GAIN), axis=-1, epsilon=1e-6)


def written_rms_norm(b: Any, h: ir.Value, square: Callable[[Any, ir.Value], Any]) -> Any:
    mean = b.op("ReduceMean", square(b, h), b.ints(-1))
    root = b.op("Sqrt", b.op("Add", mean, b.weight("epsilon", np.array(1e-6, np.float32))))
    return b.op("Mul", b.op("Div", h, root), b.weight("g", GAIN))


def by_power(b: Any, h: ir.Value) -> Any:
    return b.op("Pow", h, b.weight("two", np.array(2, np.float32)))


def by_product(b: Any, h: ir.Value) -> Any:
    return b.op("Mul", h, h)


def layer_norm(b: Any, h: ir.Value) -> Any:
    return b.op("LayerNormalization", h, b.weight("g", GAIN), axis=-1, epsilon=1e-6)


SIGNS = np.where(np.arange(SIZE) % 2, -1, 1).astype(np.float32)
NORMS = {
    "RMSNormalization": (rms_norm, np.ones(SIZE, np.float32)),
    "written out with Pow": (lambda b, h: written_rms_norm(b, h, by_power), np.ones(SIZE, np.float32)),
    "written out with Mul": (lambda b, h: written_rms_norm(b, h, by_product), np.ones(SIZE, np.float32)),
    # Of a constant row it gives zeros; of one that is 300 and -300 in turn, the weight with these signs.
    "LayerNormalization": (layer_norm, SIGNS),
}


def normed(grow: Grow, norm: Callable[[Any, ir.Value], Any]) -> ir.Model:
    """A linear that makes 300 of 1, a norm, and a last linear that changes nothing."""

    def build(b: Any, x: ir.Value) -> Any:
        h = b.op("MatMul", x, b.weight("w", 300 * EYE))
        return b.op("MatMul", norm(b, h), b.weight("last", EYE))

    return grow(build, SHAPE, SHAPE)


@pytest.mark.parametrize("form", NORMS)
def test_the_norm_of_a_row_of_300_is_its_weight(
    form: str, grow: Grow, run_graph: Run, tmp_path: Path
) -> None:
    """The report pytorch/pytorch#133085: 300 * 300 is infinite in fp16, and the row became zeros."""
    norm, signs = NORMS[form]
    model, feeds = normed(grow, norm), {"x": np.tile(signs, (2, 1))}
    keep = kept(model, feeds, run_graph)
    plain = rewrite(model, fp16_passes(keep=keep))
    first = next(node for node in plain.graph if node.op_type == "MatMul")
    assert first.outputs[0].dtype == FP16
    for kind in ("RMSNormalization", "LayerNormalization", "Pow", "ReduceMean", "Sqrt"):
        assert types_of(plain, kind) <= {FP32}, kind
    expected = np.tile(GAIN * signs, (2, 1))
    np.testing.assert_allclose(run_graph(half(model, keep), feeds)[0], expected, rtol=1e-3)
    np.testing.assert_allclose(in_numpy(plain, feeds), expected, rtol=1e-3)
    assert compiled(model, keep, tmp_path)


@pytest.mark.parametrize("form", NORMS)
def test_it_is_zero_where_all_is_cast(form: str, grow: Grow) -> None:
    norm, signs = NORMS[form]
    broken = in_numpy(all_cast(normed(grow, norm)), {"x": np.tile(signs, (2, 1))})
    assert not broken.any() or not np.isfinite(broken).all()


def test_a_norm_written_out_behind_a_convolution_stays_fp32(grow: Grow) -> None:
    """There products of maps are fp16, and a square must not be one of them."""

    def build(b: Any, x: ir.Value) -> Any:
        h = b.op("Conv", x, b.weight("w", np.full((4, 3, 1, 1), 300, np.float32)))
        mean = b.op("ReduceMean", b.op("Mul", h, h), b.ints(1))
        y = b.op("Div", h, b.op("Sqrt", mean))
        return b.op("Conv", y, b.weight("last", np.ones((2, 4, 1, 1), np.float32)))

    plain = rewrite(grow(build, ("n", 3, 4, 4), ("n", 2, 4, 4)), fp16_passes())
    assert {node.op_type for node in plain.graph if node.outputs[0].dtype == FP16} == {"Cast", "Conv"}


# --- standardisation whose difference ends above 65504


def standardised(grow: Grow, kind: str) -> ir.Model:
    """(h - 54000) / 10000 of h = -12000, as the difference is written."""

    def build(b: Any, x: ir.Value) -> Any:
        h = b.op("MatMul", x, b.weight("w", -12000 * EYE))
        bias = b.weight("bias", np.full(SIZE, 54000 if kind == "Sub" else -54000, np.float32))
        scaled = b.op("Mul", b.op(kind, h, bias), b.weight("scale", np.full(SIZE, 1e-4, np.float32)))
        y = b.op("Gelu", b.op("MatMul", scaled, b.weight("next", EYE)))
        return b.op("MatMul", y, b.weight("last", EYE))

    return grow(build, SHAPE, SHAPE)


@pytest.mark.parametrize("kind", ["Sub", "Add"])
def test_a_difference_beyond_65504_is_that_of_fp32(
    kind: str, grow: Grow, run_graph: Run, tmp_path: Path
) -> None:
    """The report vllm-project/vllm#40290: a vision tower's standardisation, biases near 54000."""
    model, feeds = standardised(grow, kind), {"x": np.ones((2, SIZE), np.float32)}
    keep = kept(model, feeds, run_graph)
    graph = half(model, keep)
    got, expected = run_graph(graph, feeds)[0], run_graph(model, feeds)[0]
    assert np.isfinite(got).all()
    np.testing.assert_allclose(got, expected, atol=1e-3)
    assert FP16 in {value.dtype for node in graph.graph for value in node.outputs}
    assert compiled(model, keep, tmp_path)


def test_it_is_infinite_where_the_difference_is_cast(grow: Grow, run_graph: Run) -> None:
    feeds = {"x": np.ones((2, SIZE), np.float32)}
    for kind in ("Sub", "Add"):
        broken = in_numpy(all_cast(standardised(grow, kind)), feeds)
        assert not np.isfinite(broken).all() or not broken.any(), kind
    # A sum with a constant looks like a bias, and only measuring tells.
    unmeasured = rewrite(standardised(grow, "Add"), fp16_passes())
    assert types_of(unmeasured, "Add") == {FP16}
    assert types_of(rewrite(standardised(grow, "Sub"), fp16_passes()), "Sub") == {FP32}


# --- a row that attends to nothing


def masked(grow: Grow) -> ir.Model:
    """Attention over heads in front with a boolean mask, 2 x 4 x 8 x 16."""
    shape = ("b", 4, "s", 16)
    model = grow(lambda b, x: b.op("Attention", x, None, None, None), shape, shape)
    node = model.graph[0]
    inputs = [ir.val(name, dtype=FP32, shape=shape) for name in "qkv"]
    inputs.append(ir.val("mask", dtype=ir.DataType.BOOL, shape=("s", "s")))
    for index, value in enumerate(inputs):
        node.replace_input_with(index, value)
    model.graph.inputs.clear()
    model.graph.inputs.extend(inputs)
    return model


def in_openvino(model: ir.Model, feeds: dict[str, NDArray[Any]]) -> list[Floats]:
    core = openvino.Core()
    read = core.read_model(ir.to_proto(model).SerializeToString())
    found = core.compile_model(read, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})(feeds)
    return [np.array(found[0])]


@pytest.fixture
def feeds() -> dict[str, NDArray[Any]]:
    rng = np.random.default_rng(0)
    mask = rng.standard_normal((8, 8)) > 0
    mask[3] = False
    return {**{name: rng.standard_normal((2, 4, 8, 16)).astype(np.float32) for name in "qkv"}, "mask": mask}


@pytest.mark.parametrize(
    ("passes", "tolerance"),
    [
        ([], 1e-6),
        ([DecomposeAttention()], 2e-6),
        ([ToFloat16(WHOLE_ATTENTION)], 5e-3),
        ([ToFloat16(WHOLE_ATTENTION), RoundResults()], 5e-3),
        ([DecomposeAttention(), ToFloat16(), RoundResults()], 5e-3),
        ([DecomposeAttention(), ToBfloat16()], 4e-2),
    ],
    ids=["fp32", "fp32 written out", "fp16", "fp16 rounded", "fp16 written out", "bf16 written out"],
)
def test_a_row_that_attends_to_nothing_gives_zeros_in_every_precision(
    passes: list[Pass], tolerance: float, grow: Grow, run_graph: Run, feeds: dict[str, NDArray[Any]]
) -> None:
    """The report microsoft/onnxscript#2479: NaN in ONNX where PyTorch gives zeros."""
    model = rewrite(masked(grow), passes)
    bf16 = isinstance(passes[-1], ToBfloat16) if passes else False
    got = (in_openvino if bf16 else run_graph)(model, feeds)[0]
    assert not np.isnan(got).any()
    assert not got[:, :, 3].any()
    np.testing.assert_allclose(got, attended(feeds), atol=tolerance)


def attended(feeds: dict[str, NDArray[Any]]) -> Floats:
    """Attention in numpy; nothing attended to is zero."""
    scores = feeds["q"] @ feeds["k"].swapaxes(-1, -2) / 4
    weights = np.exp(scores) * feeds["mask"]
    total = weights.sum(-1, keepdims=True)
    result: Floats = np.divide(weights, total, out=np.zeros_like(weights), where=total > 0) @ feeds["v"]
    return result


def test_it_is_nan_where_the_mask_is_cast(grow: Grow, feeds: dict[str, NDArray[Any]]) -> None:
    written = rewrite(masked(grow), [DecomposeAttention()])
    assert np.isnan(in_numpy(all_cast(written), feeds)).any()
