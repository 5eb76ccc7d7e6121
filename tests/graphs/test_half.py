"""fp16 in a graph: what computes in it, what stays fp32 and why, and what is measured to know that."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir
import pytest
from numpy.typing import NDArray

from alula.core.errors import CompileError, InputError
from alula.graphs import beyond_fp16, half_layers, observe_magnitudes, passes_for, rewrite
from alula.graphs.half import BEYOND, fp16_passes
from alula.graphs.passes.choice import HALF, WHOLE_ATTENTION, Policy
from alula.graphs.passes.precision import ToFloat16
from alula.graphs.passes.rounding import RoundResults

Floats: TypeAlias = NDArray[np.float32]
Grow: TypeAlias = Callable[..., ir.Model]
Run: TypeAlias = Callable[..., list[Floats]]

FP16, FP32 = ir.DataType.FLOAT16, ir.DataType.FLOAT
SIZE = 64
TOKENS = ("batch", "length", SIZE)
IMAGES = ("batch", 3, "height", "width")


def random(*shape: int, seed: int = 0) -> Floats:
    scale = math.prod(shape[1:]) ** -0.5 if len(shape) > 2 else shape[0] ** -0.5
    numbers: Floats = (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)
    return numbers


def kinds(model: ir.Model, dtype: ir.DataType) -> Counter[str]:
    return Counter(
        node.op_type for node in model.graph if node.op_type != "Cast" and node.outputs[0].dtype == dtype
    )


def named(model: ir.Model, kind: str) -> list[str]:
    return [str(node.name) for node in model.graph if node.op_type == kind]


# --- what computes in fp16


def test_products_biases_and_activations_are_fp16_and_the_rest_is_not(encoder: ir.Model) -> None:
    half = rewrite(encoder, fp16_passes())
    assert kinds(half, FP16) == {"MatMul": 8, "Add": 6, "Gelu": 1, "Reshape": 4, "Transpose": 4}
    assert kinds(half, FP32) == {
        **{"LayerNormalization": 2, "Softmax": 1, "ReduceMean": 1, "MatMul": 1},
        "Add": 3,  # two residual sums, and the bias of the last linear
    }
    assert [(value.name, value.dtype) for value in half.graph.outputs] == [("y", FP32)]


def test_convolutions_and_what_follows_them_are_fp16_and_means_and_the_classifier_are_not(
    images: ir.Model,
) -> None:
    half = rewrite(images, fp16_passes())
    assert kinds(half, FP16) == {
        **{"Conv": 5, "BatchNormalization": 1, "Clip": 1, "HardSwish": 1, "HardSigmoid": 1, "Relu": 2},
        **{"Mul": 1, "Add": 1, "MaxPool": 1},
    }
    assert kinds(half, FP32) == {"GlobalAveragePool": 2, "Flatten": 1, "Gemm": 1, "Softmax": 1}
    high = half.graph.initializers["high_float16"].const_value
    assert high is not None
    assert high.numpy() == 65504


def test_convolutions_stay_fp32_where_the_policy_leaves_them(images: ir.Model) -> None:
    half = rewrite(images, [ToFloat16(Policy(bias=True, activation=True))])
    assert kinds(half, FP16) == {}


def test_sums_of_tokens_that_come_from_a_convolution_stay_fp32(grow: Grow) -> None:
    """Patches of an image are tokens once they are in a row: what is carried from layer to layer is no map."""

    def build(b: Any, x: ir.Value) -> Any:
        patches = b.op("Conv", x, b.weight("w", random(8, 3, 2, 2)), kernel_shape=[2, 2], strides=[2, 2])
        tokens = b.op("Transpose", b.op("Reshape", patches, b.ints(0, 8, -1)), perm=[0, 2, 1])
        wide = b.op("Relu", b.op("MatMul", tokens, b.weight("wide", random(8, 8))))
        return b.op("MatMul", b.op("Add", tokens, wide), b.weight("last", random(8, 2)))

    half = rewrite(grow(build, IMAGES, ("batch", "tokens", 2)), fp16_passes())
    assert kinds(half, FP16)["Conv"] == kinds(half, FP16)["Relu"] == 1
    assert kinds(half, FP32) == {"Add": 1, "MatMul": 1}


class Careless(ToFloat16):
    """Takes every node."""

    def chosen(self, model: ir.Model) -> dict[ir.Node, None]:
        return dict.fromkeys(model.graph)


@pytest.mark.parametrize("kind", ["RMSNormalization", "LayerNormalization", "Softmax"])
def test_a_norm_or_softmax_in_fp16_does_not_pass(kind: str, grow: Grow) -> None:
    def build(b: Any, x: ir.Value) -> Any:
        return b.op(kind, x, *([] if kind == "Softmax" else [b.weight("ones", np.ones(SIZE, np.float32))]))

    with pytest.raises(CompileError, match=f"Careless did not do what it promises: n0: {kind} is FLOAT16"):
        rewrite(grow(build, TOKENS, TOKENS), [Careless()])


@pytest.mark.parametrize("policy", [HALF, WHOLE_ATTENTION], ids=["written out", "whole"])
def test_results_of_an_encoder_stay_near_those_of_fp32_for_all_sizes(
    policy: Policy, encoder: ir.Model, run_graph: Run
) -> None:
    half = rewrite(encoder, passes_for("onnxruntime", "fp16", policy=policy))
    assert ("Attention" in kinds(half, FP32)) == policy.attention
    for batch, length in [(1, 1), (3, 17)]:
        x = np.random.default_rng(3).standard_normal((batch, length, SIZE)).astype(np.float32)
        expected = run_graph(encoder, {"x": x})[0]
        got = run_graph(half, {"x": x})[0]
        assert not np.array_equal(got, expected)
        np.testing.assert_allclose(got, expected, atol=2e-3)


def test_results_of_a_convolutional_network_stay_near_those_of_fp32_for_all_sizes(
    images: ir.Model, run_graph: Run
) -> None:
    half = rewrite(images, passes_for("onnxruntime", "fp16"))
    for batch, height, width in [(1, 4, 6), (3, 8, 8)]:
        x = np.random.default_rng(3).standard_normal((batch, 3, height, width)).astype(np.float32)
        np.testing.assert_allclose(run_graph(half, {"x": x})[0], run_graph(images, {"x": x})[0], atol=2e-3)


def test_weights_in_constant_nodes_are_found(grow: Grow) -> None:
    def build(b: Any, x: ir.Value) -> Any:
        w = b.op("Constant", value=ir.AttrTensor("value", ir.tensor(random(SIZE, SIZE))).value)
        last = b.op("Constant", value=ir.tensor(random(SIZE, SIZE)))
        return b.op("MatMul", b.op("Relu", b.op("MatMul", x, w)), last)

    half = rewrite(grow(build, ("n", SIZE), ("n", SIZE)), fp16_passes())
    assert kinds(half, FP16) == {"MatMul": 1, "Relu": 1}


# --- what it cannot hold


def one_layer(grow: Grow, weights: Floats, bias: Floats) -> ir.Model:
    def build(b: Any, x: ir.Value) -> Any:
        y = b.op("Add", b.op("MatMul", x, b.weight("w", weights)), b.weight("b", bias))
        return b.op("MatMul", y, b.weight("last", random(weights.shape[1], 2)))

    return grow(build, ("n", weights.shape[0]), ("n", 2))


def with_column(value: float) -> Floats:
    weights = np.full((64, 8), 0.05, np.float32)
    weights[:, 3] = value
    return weights


ZEROS = np.zeros(8, np.float32)


@pytest.mark.parametrize(
    ("weights", "bias", "layers"),
    [
        (with_column(0.05), ZEROS, 1),
        (with_column(0.0), ZEROS, 1),
        (with_column(7e4), ZEROS, 0),
        (with_column(3.007e-5), ZEROS, 0),
        (with_column(3.007e-5) * np.float32(20), ZEROS, 1),
        (np.full((64, 8), 3e-8, np.float32), ZEROS, 0),
        (np.full((64, 8), 1e-9, np.float32), ZEROS, 0),
        # A channel beside which all others are large: it is dead, and batch norms leave many such.
        (with_column(1e-6), ZEROS, 1),
        (with_column(1e-20), ZEROS, 1),
        # A few small weights among others.
        (random(64, 8) * (np.arange(512).reshape(64, 8) % 3 > 0) + np.float32(1e-7), ZEROS, 1),
    ],
)
def test_a_layer_whose_weights_fp16_cannot_hold_stays_fp32(
    weights: Floats, bias: Floats, layers: int, grow: Grow
) -> None:
    assert len(half_layers(one_layer(grow, weights, bias))) == layers


def test_the_digits_of_a_small_channel_are_those_of_fp32(grow: Grow, run_graph: Run) -> None:
    """5.004e-5 is subnormal in fp16, its step there 6e-8; a linear behind makes it large again."""

    def build(b: Any, x: ir.Value) -> Any:
        small = b.op("MatMul", x, b.weight("w", np.full((4, 4), 3.33e-7, np.float32)))
        return b.op(
            "MatMul", b.op("MatMul", small, b.weight("up", np.full((4, 4), 1e4, np.float32))), last(b)
        )

    def last(b: Any) -> Any:
        return b.weight("last", np.eye(4, dtype=np.float32))

    model = grow(build, ("n", 4), ("n", 4))
    feeds = {"x": np.full((1, 4), 1000, np.float32)}
    got = run_graph(rewrite(model, passes_for("onnxruntime", "fp16")), feeds)[0]
    np.testing.assert_allclose(got, run_graph(model, feeds)[0], rtol=1e-3)
    cast = np.float32(np.float16(3.33e-7))
    assert abs(cast / np.float32(3.33e-7) - 1) > 0.05


def test_a_bias_that_fp16_cannot_hold_is_added_in_fp32(grow: Grow) -> None:
    half = rewrite(one_layer(grow, with_column(0.05), ZEROS + np.float32(7e4)), fp16_passes())
    assert kinds(half, FP16) == {"MatMul": 1}
    assert kinds(half, FP32) == {"MatMul": 1, "Add": 1}


def test_a_table_is_stored_in_fp16_if_it_fits(grow: Grow) -> None:
    def build(largest: float) -> ir.Model:
        def looked_up(b: Any, x: ir.Value) -> Any:
            table = b.weight("table", np.full((4, SIZE), largest, np.float32))
            x = b.op("Add", x, b.op("Gather", table, b.ints(0)))
            y = b.op("MatMul", x, b.weight("w", random(SIZE, SIZE)))
            return b.op("MatMul", y, b.weight("v", random(SIZE, 2)))

        return rewrite(grow(looked_up, ("n", SIZE), ("n", 2)), fp16_passes())

    assert kinds(build(6e4), FP16)["Gather"] == 1
    assert kinds(build(7e4), FP16)["Gather"] == 0


# --- what is kept


def test_a_kept_layer_stays_fp32_with_what_follows_it(encoder: ir.Model) -> None:
    wide = list(half_layers(encoder))[4]
    half = rewrite(encoder, passes_for("onnxruntime", "fp16-mixed", keep=frozenset({wide}))[:-3])
    assert half_layers(encoder)[wide] == SIZE * 32
    assert kinds(half, FP32)["Gelu"] == 1
    assert kinds(half, FP16)["MatMul"] == 7
    (node,) = [node for node in half.graph if node.name == wide]
    assert node.outputs[0].dtype == FP32


def test_layers_come_in_order_with_their_number_of_weights(encoder: ir.Model, images: ir.Model) -> None:
    assert list(half_layers(encoder).values()) == [SIZE * SIZE] * 4 + [SIZE * 32] * 2
    assert list(half_layers(images)) == named(images, "Conv")
    assert list(half_layers(images).values()) == [8 * 3 * 9, 8 * 8 * 9, 32, 32, 128]


def test_all_kept_is_fp32(encoder: ir.Model, run_graph: Run) -> None:
    model, _ = observe_magnitudes(encoder)
    keep = frozenset(str(node.name) for node in model.graph if node.op_type in {"MatMul", "Gather"})
    half = rewrite(encoder, passes_for("onnxruntime", "fp16", keep=keep))
    x = np.random.default_rng(0).standard_normal((2, 5, SIZE)).astype(np.float32)
    np.testing.assert_allclose(run_graph(half, {"x": x})[0], run_graph(encoder, {"x": x})[0], atol=2e-6)


def test_a_name_that_is_no_node_is_refused(encoder: ir.Model) -> None:
    with pytest.raises(
        InputError, match="ToFloat16 cannot take this graph: no node 'nonesuch' to keep in fp32"
    ):
        rewrite(encoder, passes_for("onnxruntime", "fp16", keep=frozenset({"nonesuch"})))


# --- what is measured


def measured(model: ir.Model, x: Floats, run: Run) -> dict[str, float]:
    observed, names = observe_magnitudes(model)
    outputs = dict(
        zip([value.name for value in observed.graph.outputs], run(observed, {"x": x}), strict=True)
    )
    assert all(outputs[name].shape == () for name in names)
    return {name: float(outputs[name]) for name in names}


def test_magnitudes_are_those_of_what_would_be_fp16(grow: Grow, run_graph: Run) -> None:
    weights = np.diag(np.array([1, -300, 2, 3], np.float32))
    model = one_layer(grow, weights, np.array([0, 0, 0, 50], np.float32))
    product, last = named(model, "MatMul")
    (bias,) = named(model, "Add")
    found = measured(model, np.array([[1, 2, -3, 4]], np.float32), run_graph)
    values = {node.name: node.outputs[0].name for node in model.graph}
    assert found == {"x/magnitude": 4, f"{values[product]}/magnitude": 600, f"{values[bias]}/magnitude": 600}
    assert last not in half_layers(model)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_measures_as_infinity(value: float, grow: Grow, run_graph: Run) -> None:
    model = one_layer(grow, with_column(0.05), ZEROS)
    x = np.ones((3, 64), np.float32)
    x[1, 5] = value
    found = measured(model, x, run_graph)
    assert set(found.values()) == {math.inf}
    assert beyond_fp16(model, found) == frozenset(named(model, "MatMul")[:1] + named(model, "Add"))


def test_a_value_keeps_what_gives_and_takes_it(grow: Grow) -> None:
    model = one_layer(grow, with_column(0.05), ZEROS)
    (product, _), (bias,) = named(model, "MatMul"), named(model, "Add")
    _, (given, product_of, sum_of) = observe_magnitudes(model)
    small = dict.fromkeys((given, product_of, sum_of), 1.0)
    assert beyond_fp16(model, small | {given: BEYOND}) == frozenset()
    assert beyond_fp16(model, small | {given: BEYOND * 1.01}) == {product}
    assert beyond_fp16(model, small | {product_of: math.nan}) == {product, bias}
    assert beyond_fp16(model, small | {sum_of: math.inf}) == {bias}


def test_a_missing_magnitude_is_refused(grow: Grow) -> None:
    model = one_layer(grow, with_column(0.05), ZEROS)
    with pytest.raises(InputError, match=r"no magnitude for .*/magnitude; 1 are given, expected 3"):
        beyond_fp16(model, {"x/magnitude": 1.0})


def test_a_graph_without_layers_has_nothing_to_measure(grow: Grow) -> None:
    with pytest.raises(InputError, match="nothing in this graph would be fp16"):
        observe_magnitudes(grow(lambda b, x: b.op("Relu", x), TOKENS, TOKENS))


def test_the_model_that_was_given_stays_as_it_was(encoder: ir.Model) -> None:
    before = ir.to_proto(encoder).SerializeToString()
    observe_magnitudes(encoder)
    half_layers(encoder)
    rewrite(encoder, passes_for("onnxruntime", "fp16"))
    assert ir.to_proto(encoder).SerializeToString() == before


# --- what ONNX Runtime does with it


def test_results_in_between_are_rounded_as_on_a_gpu(grow: Grow, run_graph: Run) -> None:
    """ONNX Runtime's own casts leave that out: 300 times 300 came back from 90000 as if fp16 held it."""

    def build(b: Any, x: ir.Value) -> Any:
        up = b.op("MatMul", x, b.weight("up", 300 * np.eye(4, dtype=np.float32)))
        down = b.op("MatMul", b.op("Relu", up), b.weight("down", np.eye(4, dtype=np.float32) / 300))
        return b.op("MatMul", b.op("Relu", down), b.weight("last", np.eye(4, dtype=np.float32)))

    model, feeds = grow(build, ("n", 4), ("n", 4)), {"x": np.full((1, 4), 300, np.float32)}
    half = rewrite(model, fp16_passes())
    assert not np.isfinite(run_graph(rewrite(half, [RoundResults()]), feeds)[0]).any()
    np.testing.assert_allclose(run_graph(half, feeds)[0], feeds["x"], rtol=1e-3)
