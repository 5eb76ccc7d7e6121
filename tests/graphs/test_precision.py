"""bf16 in a graph: where it is, where it never is, and how near the results stay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
import openvino
import pytest

from alula.core.errors import InputError
from alula.graphs import rewrite
from alula.graphs.passes.attention import DecomposeAttention
from alula.graphs.passes.choice import BROAD, FUSED, PRODUCTS, Policy
from alula.graphs.passes.precision import ToBfloat16

SIZE = 32
SHAPE = ("batch", "length", SIZE)
BF16, FP32 = ir.DataType.BFLOAT16, ir.DataType.FLOAT


def encoder(b: Any, x: ir.Value) -> Any:
    """Two encoder layers, mean pooling, a dense layer and a norm to length 1."""
    rng = np.random.default_rng(0)
    table = b.weight("table", rng.standard_normal((16, SIZE)).astype(np.float32))
    ids = b.op("Cast", b.op("ReduceSum", b.op("Abs", b.op("Sign", x)), b.ints(2), keepdims=0), to=7)
    x = b.op("Add", x, b.op("Gather", table, b.op("Min", ids, b.ints(15))))

    def linear(x: ir.Value, name: str, inner: int = SIZE, outer: int = SIZE) -> Any:
        w = b.weight(f"{name}.w", (rng.standard_normal((inner, outer)) / inner**0.5).astype(np.float32))
        return b.op("Add", b.op("MatMul", x, w), b.weight(f"{name}.b", np.full(outer, 0.1, np.float32)))

    def norm(x: ir.Value, name: str) -> Any:
        return b.op("LayerNormalization", x, b.weight(f"{name}.g", np.ones(SIZE, np.float32)), axis=-1)

    for layer in range(2):
        q, k, v = (linear(x, f"{layer}.{n}") for n in "qkv")
        y = linear(b.op("Attention", q, k, v, q_num_heads=4, kv_num_heads=4), f"{layer}.o")
        x = norm(b.op("Add", x, y), f"{layer}.n1")
        y = linear(b.op("Gelu", linear(x, f"{layer}.wide", SIZE, 64)), f"{layer}.back", 64, SIZE)
        x = norm(b.op("Add", y, x), f"{layer}.n2")
    pooled = b.op("ReduceMean", x, b.ints(1), keepdims=0)
    dense = linear(pooled, "dense")
    return b.op("Div", dense, b.op("ReduceL2", dense, b.ints(1), keepdims=1))


@pytest.fixture
def model(grow: Callable[..., ir.Model]) -> ir.Model:
    return grow(encoder, SHAPE, ("batch", SIZE))


def half(model: ir.Model, policy: Policy) -> ir.Model:
    return rewrite(model, [DecomposeAttention(), ToBfloat16(policy)])


def in_openvino(model: ir.Model, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    core = openvino.Core()
    read = core.read_model(ir.to_proto(model).SerializeToString())
    compiled = core.compile_model(read, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return np.array(compiled({"x": x})[0])


def precision_of(model: ir.Model, kind: str) -> list[ir.DataType | None]:
    return [node.outputs[0].dtype for node in model.graph if node.op_type == kind]


@pytest.mark.parametrize("policy", [PRODUCTS, BROAD])
def test_products_are_bf16_and_norms_softmax_pooling_and_the_last_linear_are_not(
    policy: Policy, model: ir.Model
) -> None:
    graph = half(model, policy)
    products = precision_of(graph, "MatMul")
    assert products == [BF16] * 16 + [FP32]
    for kind in ("LayerNormalization", "Softmax", "ReduceMean", "Div", "ReduceL2"):
        assert set(precision_of(graph, kind)) == {FP32}, kind
    assert graph.graph.outputs[0].dtype == FP32
    assert graph.graph.outputs[0].name == "y"


@pytest.mark.parametrize(
    ("policy", "gelu", "per_layer"),
    [(PRODUCTS, FP32, 14), (BROAD, BF16, 6), (FUSED, BF16, 4)],
)
def test_the_policy_decides_the_number_of_casts(
    policy: Policy, gelu: ir.DataType, per_layer: int, model: ir.Model
) -> None:
    graph = half(model, policy)
    assert set(precision_of(graph, "Gelu")) == {gelu}
    casts = [node for node in graph.graph if node.op_type == "Cast" and node.inputs[0] is not None]
    assert len(casts) - 1 - policy.tables <= 2 * per_layer


def test_softmax_is_bf16_for_the_one_policy_that_says_so(model: ir.Model) -> None:
    graph = half(model, FUSED)
    assert set(precision_of(graph, "Softmax")) == {BF16}
    assert set(precision_of(graph, "LayerNormalization")) == {FP32}


@pytest.mark.parametrize("policy", [PRODUCTS, BROAD, FUSED])
def test_results_stay_near_those_of_fp32(policy: Policy, model: ir.Model, run_graph: Any) -> None:
    graph = half(model, policy)
    rng = np.random.default_rng(3)
    for batch, length in [(1, 1), (3, 17)]:
        x = rng.standard_normal((batch, length, SIZE)).astype(np.float32)
        cosines = (in_openvino(graph, x) * run_graph(model, {"x": x})[0]).sum(-1)
        assert cosines.min() > 0.999


def test_weights_are_half_as_large_and_made_when_they_are_saved(model: ir.Model) -> None:
    graph = half(model, BROAD)
    for name, value in graph.graph.initializers.items():
        tensor = value.const_value
        assert tensor is not None
        if name.endswith("_bfloat16"):
            assert isinstance(tensor, ir.LazyTensor)
            assert tensor.dtype == BF16
            assert tensor.numpy().dtype == ml_dtypes.bfloat16
    kept = {name for name, value in graph.graph.initializers.items() if value.dtype == FP32}
    assert kept == {"dense.w", "dense.b", *(f"{layer}.n{n}.g" for layer in range(2) for n in (1, 2))}


def test_the_model_that_was_given_stays_fp32(model: ir.Model) -> None:
    rewrite(model, [DecomposeAttention()])
    plain = rewrite(model, [DecomposeAttention()])
    before = ir.to_proto(plain).SerializeToString()
    rewrite(plain, [ToBfloat16()])
    assert ir.to_proto(plain).SerializeToString() == before
    assert precision_of(plain, "MatMul") in ([None] * 17, [FP32] * 17)


def test_numbers_that_bf16_cannot_reach_stay_finite(grow: Callable[..., ir.Model]) -> None:
    def lowest(b: Any, x: ir.Value) -> Any:
        w = b.weight("w", np.full((SIZE, SIZE), np.finfo(np.float32).min, np.float32))
        gain = b.weight("g", np.ones(SIZE, np.float32))
        return b.op("LayerNormalization", b.op("MatMul", x, w), gain)

    graph = rewrite(grow(lowest, SHAPE, SHAPE), [ToBfloat16()])
    tensor = graph.graph.initializers["w_bfloat16"].const_value
    assert tensor is not None
    assert np.isfinite(tensor.numpy().astype(np.float32)).all()


def test_a_mask_is_bounded_before_it_is_bf16(grow: Callable[..., ir.Model], run_graph: Any) -> None:
    """The lowest fp32 number would round to -inf, and a row of nothing else to NaN."""
    lowest = float(np.finfo(np.float32).min)

    def masked(b: Any, x: ir.Value) -> Any:
        def linear() -> Any:
            return b.op("MatMul", x, b.weight("w", np.eye(SIZE, dtype=np.float32)))

        mask = b.op("Min", b.op("ReduceMax", x, keepdims=1), b.weight("low", np.array(lowest, np.float32)))
        scores = b.op("Add", b.op("MatMul", linear(), b.op("Transpose", linear(), perm=[0, 2, 1])), mask)
        context = b.op("MatMul", b.op("Softmax", scores, axis=-1), linear())
        return b.op("LayerNormalization", context, b.weight("g", np.ones(SIZE, np.float32)))

    model = grow(masked, SHAPE, SHAPE)
    graph = rewrite(model, [ToBfloat16()])
    assert set(precision_of(graph, "Softmax")) == {BF16}
    (bound,) = [node for node in graph.graph if node.op_type == "Max"]
    assert bound.inputs[1] is not None
    assert bound.inputs[1].const_value is not None
    assert np.isfinite(bound.inputs[1].const_value.numpy().astype(ml_dtypes.bfloat16))
    (user,) = bound.outputs[0].consumers()
    assert (user.op_type, user.outputs[0].dtype) == ("Cast", BF16)
    x = np.random.default_rng(0).standard_normal((2, 5, SIZE)).astype(np.float32)
    assert np.isfinite(in_openvino(graph, x)).all()


def test_an_output_that_is_also_read_inside_keeps_name_and_type(grow: Callable[..., ir.Model]) -> None:
    """The sum of two products is the output, and feeds a norm that is another."""

    def both(b: Any, x: ir.Value) -> Any:
        w = b.weight("w", np.eye(SIZE, dtype=np.float32))
        return b.op("LayerNormalization", b.op("MatMul", x, w), b.weight("g", np.ones(SIZE, np.float32)))

    model = grow(both, SHAPE, SHAPE)
    product = model.graph[0].outputs[0]
    product.name, product.type, product.shape = "z", ir.TensorType(FP32), ir.Shape(SHAPE)
    model.graph.outputs.append(product)
    graph = rewrite(model, [ToBfloat16()])
    assert [(value.name, value.dtype) for value in graph.graph.outputs] == [("y", FP32), ("z", FP32)]


def test_attention_as_one_operator_is_refused(model: ir.Model) -> None:
    with pytest.raises(InputError, match=r"ToBfloat16 .*: n\d+: Attention has to be decomposed first"):
        rewrite(model, [ToBfloat16()])


def test_a_graph_that_is_half_precision_already_is_refused(model: ir.Model) -> None:
    with pytest.raises(InputError, match="is BFLOAT16, expected FLOAT"):
        rewrite(half(model, BROAD), [ToBfloat16()])
