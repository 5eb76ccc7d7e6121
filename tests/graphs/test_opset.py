"""Lowering: the graph asked for, with equal results, or a refusal that names the operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from alula.core.errors import CompileError, InputError
from alula.graphs import passes_for, rewrite
from alula.graphs.passes.gelu import DecomposeGelu, FoldGelu
from alula.graphs.passes.opset import LowerOpset
from alula.graphs.passes.shape import SliceShape
from alula.graphs.passes.signs import CompareForSigns

X = np.random.default_rng(0).standard_normal((3, 5, 8)).astype(np.float32)
SHAPE = ("batch", "length", 8)


def kinds(model: ir.Model) -> list[str]:
    return [node.op_type for node in model.graph]


def encoder_layer(b: Any, x: ir.Value) -> Any:
    """Everything our dialect has, in one layer."""
    rng = np.random.default_rng(1)
    w, wide, back = (b.weight(n, rng.standard_normal(s).astype(np.float32)) for n, s in WEIGHTS)
    scale, bias = b.weight("g", np.ones(8, np.float32)), b.weight("b", np.zeros(8, np.float32))
    q = b.op("Add", b.op("MatMul", x, w), bias)
    y = b.op("Attention", q, x, x, q_num_heads=2, kv_num_heads=2)
    y = b.op("LayerNormalization", b.op("Add", x, y), scale, bias, axis=-1)
    y = b.op("MatMul", b.op("Gelu", b.op("MatMul", y, wide)), back)
    table, length = b.weight("table", np.eye(16, 8, dtype=np.float32)), b.op("Shape", x, start=1, end=2)
    y = b.op("Add", y, b.op("Slice", table, b.ints(0), length, b.ints(0)))
    y = b.op("ReduceMax", y, b.ints(1), keepdims=0)
    norm = b.op("ReduceL2", y, b.ints(1), keepdims=1)
    first, second = b.op("Split", b.op("Div", y, norm), outputs=2, axis=1, num_outputs=2)
    return b.op("Concat", second, first, axis=1)


WEIGHTS = (("w", (8, 8)), ("wide", (8, 16)), ("back", (16, 8)))


@pytest.mark.parametrize("opset", range(17, 25))
def test_our_dialect_is_lowered_to_every_opset_with_equal_results(
    opset: int, grow: Callable[..., ir.Model], run_graph: Any
) -> None:
    model = grow(encoder_layer, SHAPE, ("batch", 8), opset=24)
    lowered = rewrite(model, [LowerOpset(opset)])
    assert lowered.opset_imports == {"": opset}
    onnx.checker.check_model(ir.to_proto(lowered), full_check=True)
    assert ("Attention" in kinds(lowered)) == (opset >= 23)
    assert ("Gelu" in kinds(lowered)) == (opset >= 20)
    for size in (1, 3):
        feeds = {"x": X[:size, : size + 2]}
        np.testing.assert_allclose(run_graph(lowered, feeds)[0], run_graph(model, feeds)[0], atol=2e-6)


def test_an_uneven_split_gets_its_sizes(grow: Callable[..., ir.Model], run_graph: Any) -> None:
    def split(b: Any, x: ir.Value) -> Any:
        one, two, three = b.op("Split", x, outputs=3, axis=2, num_outputs=3)
        return b.op("Concat", three, two, one, axis=2)

    model = grow(split, SHAPE, SHAPE)
    lowered = rewrite(model, [LowerOpset(17)])
    np.testing.assert_array_equal(run_graph(lowered, {"x": X})[0], run_graph(model, {"x": X})[0])


def test_swish_is_written_out(grow: Callable[..., ir.Model], run_graph: Any) -> None:
    lowered = rewrite(
        grow(lambda b, x: b.op("Swish", x, alpha=1.5), SHAPE, SHAPE, opset=24), [LowerOpset(20)]
    )
    np.testing.assert_allclose(run_graph(lowered, {"x": X})[0], X / (1 + np.exp(-1.5 * X)), atol=1e-6)


@pytest.mark.parametrize(
    ("kind", "opset", "message"),
    [
        ("TensorScatter", 23, r"n0: TensorScatter of opset 24 has no form in opset 23"),
        ("Mish", 17, r"n0: Mish of opset 24 has no form in opset 17"),
    ],
)
def test_an_operator_without_an_older_form_is_refused_by_name(
    kind: str, opset: int, message: str, grow: Callable[..., ir.Model]
) -> None:
    def one(b: Any, x: ir.Value) -> Any:
        return b.op(kind, x, *([x] if kind == "TensorScatter" else []))

    with pytest.raises(InputError, match=message):
        rewrite(grow(one, SHAPE, SHAPE, opset=24), [LowerOpset(opset)])


def test_axes_that_are_computed_are_refused(grow: Callable[..., ir.Model]) -> None:
    def computed(b: Any, x: ir.Value) -> Any:
        return b.op("ReduceMax", x, b.op("Add", b.ints(0), b.ints(1)), keepdims=0)

    with pytest.raises(InputError, match="n1: ReduceMax with axes that are computed has no form in opset 17"):
        rewrite(grow(computed, SHAPE, ("batch", 8)), [LowerOpset(17)])


def test_an_attribute_that_means_something_is_refused_and_a_default_is_dropped(
    grow: Callable[..., ir.Model],
) -> None:
    def cast(saturate: int) -> ir.Model:
        return grow(lambda b, x: b.op("Cast", x, to=1, saturate=saturate), SHAPE, SHAPE)

    (node,) = rewrite(cast(1), [LowerOpset(17)]).graph
    assert set(node.attributes) == {"to"}
    with pytest.raises(InputError, match="saturate=0 has no older form"):
        rewrite(cast(0), [LowerOpset(17)])


def test_a_type_that_the_older_operator_does_not_take_is_found_afterwards(
    grow: Callable[..., ir.Model],
) -> None:
    def norm(b: Any, x: ir.Value) -> Any:
        half = b.op("Cast", x, to=int(ir.DataType.BFLOAT16))
        half.dtype = ir.DataType.BFLOAT16
        return b.op("Cast", b.op("LpNormalization", half), to=int(ir.DataType.FLOAT))

    with pytest.raises(CompileError, match="LpNormalization of opset 17 takes no bfloat16 as input"):
        rewrite(grow(norm, SHAPE, SHAPE), [LowerOpset(17)])


def test_a_graph_is_not_raised_and_unknown_opsets_are_refused(grow: Callable[..., ir.Model]) -> None:
    model = grow(lambda b, x: b.op("Relu", x), SHAPE, SHAPE, opset=20)
    with pytest.raises(InputError, match=r"LowerOpset .* opset 20, which cannot be raised to 23"):
        rewrite(model, [LowerOpset(23)])
    with pytest.raises(InputError, match=r"opset 16 is not one of 17\.\.24"):
        LowerOpset(16)


def test_shape_of_a_range_becomes_shape_and_slice(grow: Callable[..., ir.Model], run_graph: Any) -> None:
    def middle(b: Any, x: ir.Value) -> Any:
        return b.op("Cast", b.op("Shape", x, start=-2, end=-1), to=1)

    sliced = rewrite(grow(middle, SHAPE, (1,)), [SliceShape()])
    assert kinds(sliced) == ["Shape", "Slice", "Cast"]
    assert run_graph(sliced, {"x": X})[0].tolist() == [5.0]
    assert kinds(rewrite(grow(middle, SHAPE, (1,)), passes_for("fake", "fp32", opset=17)))[1] == "Slice"


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu_written_out_equals_gelu(
    approximate: str, grow: Callable[..., ir.Model], run_graph: Any
) -> None:
    model = grow(lambda b, x: b.op("Gelu", x, approximate=approximate), SHAPE, SHAPE)
    plain = rewrite(model, [DecomposeGelu()])
    assert "Gelu" not in kinds(plain)
    np.testing.assert_allclose(
        run_graph(plain, {"x": X * 4})[0], run_graph(model, {"x": X * 4})[0], atol=2e-6
    )


def feed_forward(b: Any, x: ir.Value) -> Any:
    rng = np.random.default_rng(1)
    _, wide, back = (b.weight(n, rng.standard_normal(s).astype(np.float32)) for n, s in WEIGHTS)
    bias = b.weight("bias", rng.standard_normal(16).astype(np.float32))
    return b.op("MatMul", b.op("Gelu", b.op("Add", b.op("MatMul", x, wide), bias)), back)


def test_gelu_between_linears_gives_its_factors_to_them(
    grow: Callable[..., ir.Model], run_graph: Any
) -> None:
    model = grow(feed_forward, SHAPE, SHAPE)
    folded = rewrite(model, [FoldGelu()])
    assert kinds(folded) == ["MatMul", "Add", "Erf", "Add", "Mul", "MatMul"]
    assert {"wide", "back", "bias"}.isdisjoint(folded.graph.initializers)
    np.testing.assert_allclose(run_graph(folded, {"x": X})[0], run_graph(model, {"x": X})[0], atol=2e-5)


def test_gelu_whose_input_others_read_is_not_folded(grow: Callable[..., ir.Model]) -> None:
    def shared(b: Any, x: ir.Value) -> Any:
        w = b.weight("w", np.eye(8, dtype=np.float32))
        z = b.op("MatMul", x, w)
        return b.op("Add", z, b.op("MatMul", b.op("Gelu", z), w))

    assert "Gelu" in kinds(rewrite(grow(shared, SHAPE, SHAPE), [FoldGelu()]))


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_signs_of_integers_are_compared(
    dtype: type, known: bool, grow: Callable[..., ir.Model], run_graph: Any
) -> None:
    kind = ir.DataType.from_numpy(np.dtype(dtype))

    def signed(b: Any, x: ir.Value) -> Any:
        steps = b.op("Cast", x, to=int(kind))
        steps.type = ir.TensorType(kind) if known else None
        parts = [b.op(op, steps) for op in ("Abs", "Neg", "Sign")]
        return b.op("Cast", b.op("Concat", *parts, axis=0), to=int(ir.DataType.FLOAT))

    model = grow(signed, SHAPE, ("places", "length", 8))
    lowered = rewrite(model, [CompareForSigns()])
    assert not {"Abs", "Neg", "Sign"} & {*kinds(lowered)}
    assert {"Abs", "Neg", "Sign"} <= {*kinds(model)}
    feeds = {"x": np.round(X * 40)}
    given = run_graph(lowered, feeds)[0]
    np.testing.assert_array_equal(given, run_graph(model, feeds)[0])
    assert given.min() < -1
    assert given.max() > 1


def test_signs_of_floats_stay_as_they_are(grow: Callable[..., ir.Model]) -> None:
    model = grow(lambda b, x: b.op("Neg", b.op("Abs", x)), SHAPE, SHAPE)
    assert kinds(rewrite(model, [CompareForSigns()])) == kinds(model)
