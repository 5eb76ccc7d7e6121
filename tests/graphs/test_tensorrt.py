"""Graphs for TensorRT: attention whole or not, int8 with fp16 beside it, the words of old opsets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir
import openvino
import pytest
from numpy.typing import NDArray
from onnx_ir.passes import PassResult

from alula.core.errors import CompileError, InputError
from alula.graphs import (
    beyond_fp16,
    half_policy,
    layers,
    observe,
    observe_magnitudes,
    passes_for,
    quantize,
    rewrite,
    scheme_for,
)
from alula.graphs.passes.choice import float_producers
from alula.graphs.passes.count import CountByProduct
from alula.graphs.passes.opset import LowerOpset
from alula.graphs.passes.quantize import Scheme, step
from alula.graphs.passes.rounding import RoundResults
from alula.graphs.passes.shape import NameAxes
from alula.graphs.passes.weights import FloatWeights

Floats: TypeAlias = NDArray[np.float32]
Grow: TypeAlias = Callable[..., ir.Model]
Run: TypeAlias = Callable[..., list[Floats]]
Ranges: TypeAlias = Mapping[str, tuple[float, float]]

FP16, FP32, INT8, INT64 = ir.DataType.FLOAT16, ir.DataType.FLOAT, ir.DataType.INT8, ir.DataType.INT64
SIZE = 64
TOKENS = ("batch", "length", SIZE)
SCHEME = scheme_for("tensorrt")


def kinds(model: ir.Model, dtype: ir.DataType | None = None) -> Counter[str]:
    return Counter(
        node.op_type
        for node in model.graph
        if dtype is None or (node.outputs[0].dtype == dtype and node.op_type != "Cast")
    )


def types_of(model: ir.Model, kind: str) -> list[ir.DataType | None]:
    return [node.outputs[0].dtype for node in model.graph if node.op_type == kind]


def named(model: ir.Model, kind: str) -> list[str]:
    return [str(node.name) for node in model.graph if node.op_type == kind]


@pytest.fixture
def x() -> Floats:
    return np.random.default_rng(1).standard_normal((3, 17, SIZE)).astype(np.float32)


def ranges_of(model: ir.Model, x: NDArray[Any], run_graph: Run) -> Ranges:
    observed, names = observe(model)
    values = run_graph(observed, {"x": x})[len(model.graph.outputs) :]
    return {name: (float(v.min()), float(v.max())) for name, v in zip(names, values, strict=True)}


@pytest.fixture
def ranges(encoder: ir.Model, x: Floats, run_graph: Run) -> Ranges:
    return ranges_of(encoder, x, run_graph)


def tensorrt(
    model: ir.Model, precision: str, opset: int | None = None, keep: frozenset[str] = frozenset()
) -> ir.Model:
    return rewrite(model, passes_for("tensorrt", precision, opset, keep=keep))


# --- attention


@pytest.mark.parametrize(
    ("precision", "opset", "whole"),
    [
        *(
            (precision, None, True)
            for precision in ("fp32", "fp16", "fp16-mixed", "bf16", "int8", "int8-mixed")
        ),
        *((precision, 23, True) for precision in ("fp32", "fp16")),
        *((precision, 22, False) for precision in ("fp32", "fp16", "bf16")),
        *((precision, 17, False) for precision in ("fp32", "fp16", "bf16", "int8")),
    ],
)
def test_attention_is_whole_where_the_opset_has_it(
    precision: str, opset: int | None, whole: bool, encoder: ir.Model
) -> None:
    for engine in ("tensorrt", "tensorrt-rtx"):
        graph = rewrite(encoder, passes_for(engine, precision, opset))
        assert ("Attention" in kinds(graph)) == whole
        assert ("Gelu" in kinds(graph)) == (opset is None or opset >= 20)
        assert graph.opset_imports[""] == (opset or 23)


def attentive(size: int, heads: int = 2) -> Callable[[Any, ir.Value], Any]:
    """Attention with heads of this size, between linears and a norm."""

    def build(b: Any, x: ir.Value) -> Any:
        rng = np.random.default_rng(0)
        wide = size * heads

        def linear(x: ir.Value, name: str, inner: int, outer: int) -> Any:
            return b.op(
                "MatMul", x, b.weight(name, rng.standard_normal((inner, outer)).astype(np.float32) / 8)
            )

        q, k, v = (linear(x, name, SIZE, wide) for name in "qkv")
        context = b.op("Attention", q, k, v, q_num_heads=heads, kv_num_heads=heads)
        return b.op(
            "LayerNormalization", linear(context, "o", wide, SIZE), b.weight("g", np.ones(SIZE, np.float32))
        )

    return build


@pytest.mark.parametrize(
    ("size", "whole"), [(8, False), (12, False), (16, True), (72, True), (256, True), (264, False)]
)
@pytest.mark.parametrize("precision", ["fp16", "bf16", "int8"])
def test_in_half_precision_it_is_written_out_where_there_is_no_kernel_for_its_heads(
    precision: str, size: int, whole: bool, grow: Grow
) -> None:
    graph = tensorrt(grow(attentive(size), TOKENS, TOKENS), precision)
    assert ("Attention" in kinds(graph)) == whole
    assert ("Softmax" in kinds(graph)) != whole


def test_in_fp32_it_stays_whole_whatever_its_heads_are(grow: Grow) -> None:
    assert "Attention" in kinds(tensorrt(grow(attentive(8), TOKENS, TOKENS), "fp32"))


def test_an_attention_of_which_a_part_is_kept_is_written_out_and_the_others_are_not(
    grow: Grow, x: Floats, run_graph: Run
) -> None:
    """What is measured has all attention written out, so the names to keep may be of parts."""

    def build(b: Any, x: ir.Value) -> Any:
        y = b.op("Add", x, attentive(32)(b, x))
        gain = b.weight("h", np.full(SIZE, 4e3, np.float32))
        strong = b.op("LayerNormalization", y, gain, axis=-1)
        return attentive(32)(b, strong)

    model = grow(build, TOKENS, TOKENS)
    first, second = named(model, "Attention")
    observed, names = observe_magnitudes(model)
    found = run_graph(observed, {"x": x})[1:]
    keep = beyond_fp16(model, dict(zip(names, map(float, found), strict=True)))
    assert any(name.startswith(f"{second}/") for name in keep)
    assert not any(name.startswith(f"{first}/") for name in keep)
    graph = tensorrt(model, "fp16", keep=keep)
    assert named(graph, "Attention") == [first]
    wanted, given = (run_graph(each, {"x": x})[0] for each in (model, graph))
    assert np.isfinite(given).all()
    # Scores this large choose one token each, and now and then another.
    assert np.median(np.abs(given - wanted)) < 5e-3
    assert named(tensorrt(model, "fp16"), "Attention") == [first, second]


def test_in_opset_17_all_of_a_fp16_transformer_but_the_inside_of_its_norms_is_fp16(
    encoder: ir.Model, x: Floats, run_graph: Run
) -> None:
    """The form in which 8.6 has a kernel for attention: the scale behind the product, the softmax in fp16."""
    graph = tensorrt(encoder, "fp16", 17)
    assert "LayerNormalization" not in kinds(graph)
    assert set(types_of(graph, "Softmax")) == {FP16}
    assert set(types_of(graph, "Sqrt")) == {FP32}
    divided = next(n for n in graph.graph if n.op_type == "Div" and n.outputs[0].dtype == FP16)
    assert {n.op_type for n in float_producers(divided)} == {"MatMul"}
    wanted, given = (run_graph(each, {"x": x})[0] for each in (encoder, graph))
    assert np.abs(given - wanted).max() < 2e-2 * np.abs(wanted).max()


def test_scores_and_sums_that_outgrow_fp16_stay_fp32_in_opset_17(
    grow: Grow, x: Floats, run_graph: Run
) -> None:
    """What is measured is what is built: scores before their scale, which are larger than behind it."""

    def build(b: Any, x: ir.Value) -> Any:
        gain = b.weight("h", np.full(SIZE, 3e2, np.float32))
        return attentive(32)(b, b.op("LayerNormalization", x, gain, axis=-1))

    model, policy = grow(build, TOKENS, TOKENS), half_policy("tensorrt", 17)
    observed, names = observe_magnitudes(model, policy)
    found = run_graph(observed, {"x": x})[1:]
    keep = beyond_fp16(model, dict(zip(names, map(float, found), strict=True)), policy)
    assert any(name.endswith(".Div") for name in keep)
    wanted, given = (run_graph(each, {"x": x})[0] for each in (model, tensorrt(model, "fp16", 17, keep=keep)))
    assert np.isfinite(given).all()
    assert np.median(np.abs(given - wanted)) < 5e-2 * np.abs(wanted).max()


def test_bf16_keeps_attention_whole_and_results_near(grow: Grow, x: Floats, run_graph: Run) -> None:
    """OpenVINO runs it, which ONNX Runtime does not."""
    model = grow(attentive(32), TOKENS, TOKENS)
    graph = tensorrt(model, "bf16")
    assert types_of(graph, "Attention") == [ir.DataType.BFLOAT16]
    read = openvino.Core().read_model(ir.to_proto(graph).SerializeToString())
    given = openvino.Core().compile_model(read, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})({"x": x})[0]
    np.testing.assert_allclose(given, run_graph(model, {"x": x})[0], atol=0.1)


def test_bf16_convolutions_have_no_form_in_opset_17(images: ir.Model) -> None:
    tensorrt(images, "bf16")
    with pytest.raises(CompileError, match="Conv of opset 17 takes no bfloat16 as X"):
        tensorrt(images, "bf16", 17)


# --- int8


def test_activations_are_symmetric_with_a_zero_point_of_zero_and_all_eight_bits_are_used(
    encoder: ir.Model, ranges: Ranges
) -> None:
    graph = quantize(encoder, ranges, scheme=SCHEME)
    for node in graph.graph:
        if node.op_type == "QuantizeLinear":
            zero = node.inputs[2]
            assert zero is not None
            assert (zero.dtype, zero.const_value.numpy()) == (INT8, 0)  # type: ignore[union-attr]
    stored = [value.const_value for value in graph.graph.initializers.values() if value.dtype == INT8]
    assert max(np.abs(tensor.numpy()).max() for tensor in stored if tensor is not None) == 127


@pytest.mark.parametrize("span", [(-1.0, 3.0), (-1e-4, 1e-5), (-7.0, 7e6), (0.0, 0.0), (-1e9, 1.0)])
def test_a_scale_is_the_next_that_fp16_holds_and_loses_no_range(span: tuple[float, float]) -> None:
    exact, _ = step(span, Scheme(symmetric=True))
    scale, zero = step(span, SCHEME)
    assert zero == 0
    assert scale >= exact
    if exact <= 65504:
        assert np.float16(scale) == scale
        assert scale <= max(exact * (1 + 2**-10), exact + 2**-24)
    else:
        assert scale == exact


def test_what_int8_leaves_is_fp16_and_layers_give_it_without_a_cast(
    encoder: ir.Model, ranges: Ranges, x: Floats, run_graph: Run
) -> None:
    graph = tensorrt(quantize(encoder, ranges, scheme=SCHEME), "int8")
    assert types_of(graph, "MatMul") == [FP16] * 6 + [FP32]
    assert types_of(graph, "Attention") == types_of(graph, "Gelu") == [FP16]
    assert types_of(graph, "LayerNormalization") == [FP32] * 2
    # The last linear gives the output, so what is restored for it stays fp32.
    assert Counter(types_of(graph, "DequantizeLinear")) == {FP16: 4 + 6, FP32: 2}
    for node in graph.graph:
        if node.op_type in {"QuantizeLinear", "DequantizeLinear"}:
            real = node.inputs[0] if node.op_type == "QuantizeLinear" else node.outputs[0]
            scale = node.inputs[1]
            assert real is not None
            assert scale is not None
            assert real.dtype == scale.dtype, node.name
            assert all(user.op_type != "Cast" for user in node.outputs[0].consumers()), node.name
    wanted = run_graph(encoder, {"x": x})[0]
    plain = run_graph(quantize(encoder, ranges, scheme=SCHEME), {"x": x})[0]
    given = run_graph(rewrite(graph, [RoundResults()]), {"x": x})[0]
    assert np.abs(given - plain).max() < np.abs(plain - wanted).max()
    np.testing.assert_allclose(given, wanted, atol=2e-2 * np.abs(wanted).max())


def test_in_opset_17_eight_bits_meet_fp32_alone_and_attention_is_fp16(
    encoder: ir.Model, ranges: Ranges, x: Floats, run_graph: Run
) -> None:
    graph = tensorrt(quantize(encoder, ranges, scheme=SCHEME), "int8", 17)
    assert set(types_of(graph, "DequantizeLinear")) == {FP32}
    products = types_of(graph, "MatMul")
    assert (products.count(FP16), products.count(FP32)) == (2, 7)
    for node in graph.graph:
        if node.op_type == "DequantizeLinear":
            assert all(user.op_type != "Cast" for user in node.outputs[0].consumers()), node.name
    np.testing.assert_allclose(
        run_graph(rewrite(graph, [RoundResults()]), {"x": x})[0],
        run_graph(quantize(encoder, ranges, scheme=SCHEME), {"x": x})[0],
        atol=2e-2,
    )


@pytest.mark.parametrize("opset", [None, 17])
def test_a_linear_that_is_kept_out_of_int8_is_fp16(
    opset: int | None, encoder: ir.Model, ranges: Ranges
) -> None:
    first, *_ = layers(encoder)
    graph = tensorrt(quantize(encoder, ranges, keep=frozenset({first}), scheme=SCHEME), "int8-mixed", opset)
    (kept,) = [node for node in graph.graph if node.name == first]
    assert [value.dtype for value in (*kept.inputs, *kept.outputs) if value is not None] == [FP16] * 3


def test_nodes_that_fp16_must_not_touch_are_those_of_the_graph_before_it_was_quantised(
    encoder: ir.Model, ranges: Ranges
) -> None:
    (attention,), (gelu,) = named(encoder, "Attention"), named(encoder, "Gelu")
    *_, back, _ = layers(encoder)
    keep = frozenset({f"{attention}/3.MatMul", gelu, back, "gone/0.Sub"})
    graph = tensorrt(quantize(encoder, ranges, scheme=SCHEME), "int8", keep=keep)
    assert types_of(graph, "Gelu") == [FP32]
    parts = [node for node in graph.graph if str(node.name).startswith(f"{attention}/")]
    assert {node.outputs[0].dtype for node in parts if node.op_type in {"MatMul", "Softmax"}} == {FP32}
    assert types_of(graph, "MatMul").count(FP16) == 6 - 1
    with pytest.raises(InputError, match=r"no node 'gone/0\.Sub' to keep in fp32"):
        tensorrt(encoder, "fp16", keep=frozenset({"gone/0.Sub"}))


def test_a_layer_whose_scale_fp16_does_not_hold_stays_fp32(encoder: ir.Model, ranges: Ranges) -> None:
    exact = Scheme(symmetric=True, weight_bits=8, exchange="residuals")
    graph = tensorrt(quantize(encoder, ranges, scheme=exact), "int8")
    assert set(types_of(graph, "DequantizeLinear")) == {FP32}
    assert set(types_of(graph, "MatMul")) == {FP32}


def residual(b: Any, x: ir.Value) -> Any:
    """Two blocks of a ResNet: one with a convolution beside it, one without."""
    rng = np.random.default_rng(0)

    def conv(x: ir.Value, name: str, inner: int, outer: int) -> Any:
        w = b.weight(name, (rng.standard_normal((outer, inner, 3, 3)) / 5).astype(np.float32))
        return b.op("Conv", x, w, pads=[1, 1, 1, 1])

    beside = conv(x, "beside", 3, 8)
    x = b.op("Relu", b.op("Add", conv(b.op("Relu", conv(x, "a", 3, 8)), "b", 8, 8), beside))
    y = conv(b.op("Relu", conv(x, "c", 8, 8)), "d", 8, 8)
    return b.op("Flatten", b.op("GlobalAveragePool", b.op("Relu", b.op("Add", y, x))))


def test_of_a_sum_the_operand_that_is_carried_past_is_int8_and_not_what_is_convolved(
    grow: Grow, run_graph: Run
) -> None:
    """So that TensorRT computes the sum with the convolution, and that in int8 from end to end."""
    model = grow(residual, ("batch", 3, 12, 12), ("batch", 8))
    x = np.random.default_rng(0).standard_normal((2, 3, 12, 12)).astype(np.float32)
    graph = quantize(model, ranges_of(model, x, run_graph), scheme=SCHEME)
    for node in graph.graph:
        if node.op_type == "Add":
            producers = sorted(str(value.producer().op_type) for value in node.inputs)  # type: ignore[union-attr]
            assert producers == ["Conv", "DequantizeLinear"]
    # What five convolutions read (two of them the same), and what the one beside gives; not what the pool reads.
    assert kinds(graph)["QuantizeLinear"] == 4 + 1
    plain, given = (run_graph(each, {"x": x})[0] for each in (model, tensorrt(graph, "int8")))
    np.testing.assert_allclose(given, plain, atol=0.05 * np.abs(plain).max())
    kept = quantize(model, ranges_of(model, x, run_graph), scheme=SCHEME, keep=frozenset({layers(model)[-1]}))
    assert [
        sorted(str(value.producer().op_type) for value in node.inputs)  # type: ignore[union-attr]
        for node in kept.graph
        if node.op_type == "Add"
    ] == [["Conv", "DequantizeLinear"], ["Conv", "Relu"]]


def test_weights_as_floats_give_the_same_to_the_last_bit(
    encoder: ir.Model, ranges: Ranges, x: Floats, run_graph: Run
) -> None:
    eight = quantize(encoder, ranges, scheme=SCHEME)
    floats = rewrite(eight, [FloatWeights()])
    left = [value.const_value for value in floats.graph.initializers.values() if value.dtype == INT8]
    assert not any(tensor.numpy().any() for tensor in left if tensor is not None)
    assert kinds(floats)["QuantizeLinear"] == kinds(eight)["QuantizeLinear"] + 7
    assert np.array_equal(run_graph(floats, {"x": x})[0], run_graph(eight, {"x": x})[0])


def test_weights_with_zero_points_have_no_such_form(encoder: ir.Model, ranges: Ranges) -> None:
    eight = quantize(encoder, ranges, scheme=SCHEME)
    node = next(each for each in eight.graph if str(each.name).endswith("/weight"))
    zero = ir.val("three", const_value=ir.tensor(np.full(SIZE, 3, np.int8), name="three"))
    eight.graph.register_initializer(zero)
    node.resize_inputs(3)
    node.replace_input_with(2, zero)
    with pytest.raises(InputError, match=f"{node.name}: the zero point is not zero"):
        rewrite(eight, [FloatWeights()])


# --- the words of old opsets


@pytest.mark.parametrize("exclusive", [0, 1])
@pytest.mark.parametrize("reverse", [0, 1])
@pytest.mark.parametrize("dtype", [INT64, FP32])
def test_counting_is_a_product(
    exclusive: int, reverse: int, dtype: ir.DataType, grow: Grow, run_graph: Run
) -> None:
    def build(b: Any, x: ir.Value) -> Any:
        kept = b.op("Cast", b.op("Greater", x, b.weight("zero", np.float32(0))), to=int(dtype))
        axis = b.weight("axis", np.array(-1, np.int64))
        return b.op("Cast", b.op("CumSum", kept, axis, exclusive=exclusive, reverse=reverse), to=int(FP32))

    model = grow(build, ("batch", "length"), ("batch", "length"))
    product = rewrite(model, [CountByProduct()])
    assert "CumSum" not in kinds(product)
    assert "CumSum" not in kinds(tensorrt(model, "fp32", 17))
    assert "CumSum" in kinds(tensorrt(model, "fp32"))
    for shape in ((1, 1), (3, 40)):
        x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
        assert np.array_equal(run_graph(product, {"x": x})[0], run_graph(model, {"x": x})[0])


def test_sums_of_anything_else_stay_sums(grow: Grow) -> None:
    def build(b: Any, x: ir.Value) -> Any:
        return b.op("CumSum", b.op("Abs", x), b.weight("axis", np.array(1, np.int64)))

    assert "CumSum" in kinds(
        rewrite(grow(build, ("batch", "length"), ("batch", "length")), [CountByProduct()])
    )


def test_axes_are_named(grow: Grow, run_graph: Run, x: Floats) -> None:
    def build(b: Any, x: ir.Value) -> Any:
        part = b.op("Slice", x, b.ints(0, 1), b.ints(2, 9))
        size = b.op("Squeeze", b.op("Shape", part, start=1, end=2))
        return b.op("Mul", part, b.op("Cast", size, to=int(FP32)))

    model = grow(build, TOKENS, ("some", 8, SIZE))
    graph = rewrite(model, [NameAxes()])
    for node in graph.graph:
        if node.op_type in {"Slice", "Squeeze"}:
            axes = node.inputs[3 if node.op_type == "Slice" else 1]
            assert axes is not None
            assert axes.const_value.numpy().tolist() == ([0, 1] if node.op_type == "Slice" else [0])  # type: ignore[union-attr]
    assert np.array_equal(run_graph(graph, {"x": x})[0], run_graph(model, {"x": x})[0])


def test_a_slice_of_an_unknown_number_of_starts_is_refused(grow: Grow) -> None:
    def build(b: Any, x: ir.Value) -> Any:
        starts = b.op("Cast", b.op("ReduceMax", x, b.ints(0), keepdims=0), to=int(INT64))
        return b.op("Slice", x, starts, b.ints(2))

    with pytest.raises(InputError, match="n2: Slice without axes, and how many starts it has is not known"):
        rewrite(grow(build, ("n", "m"), ("a", "b")), [NameAxes()])


def resized(**attributes: Any) -> Callable[[Any, ir.Value], Any]:
    def build(b: Any, x: ir.Value) -> Any:
        scales = b.weight("scales", np.array([1, 1, 2, 2], np.float32))
        return b.op("Resize", x, None, scales, mode="linear", **attributes)

    return build


def test_resizing_and_pooling_lose_what_says_nothing(grow: Grow, run_graph: Run) -> None:
    def build(b: Any, x: ir.Value) -> Any:
        y = resized(antialias=0, keep_aspect_ratio_policy="stretch")(b, x)
        return b.op("AveragePool", y, kernel_shape=[2, 2], dilations=[1, 1])

    model = grow(build, ("batch", 3, 8, 8), ("batch", 3, 15, 15))
    lowered = rewrite(model, [LowerOpset(17)])
    assert {name for node in lowered.graph for name in node.attributes} == {"mode", "kernel_shape"}
    x = np.random.default_rng(0).standard_normal((2, 3, 8, 8)).astype(np.float32)
    np.testing.assert_allclose(run_graph(lowered, {"x": x})[0], run_graph(model, {"x": x})[0], atol=1e-6)


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"antialias": 1}, "n0: Resize with antialias=1 has no form in opset 17"),
        (
            {"coordinate_transformation_mode": "half_pixel_symmetric"},
            "n0: Resize by half_pixel_symmetric has no form",
        ),
        ({"axes": [0, 1, 2, 3]}, "n0: Resize with axes has no form in opset 17"),
    ],
)
def test_a_resize_that_means_something_new_is_refused(
    attributes: dict[str, Any], message: str, grow: Grow
) -> None:
    model = grow(resized(**attributes), ("batch", 3, 8, 8), ("batch", 3, 16, 16))
    with pytest.raises(InputError, match=message):
        rewrite(model, [LowerOpset(17)])


def test_what_exporters_say_about_nodes_is_gone(encoder: ir.Model) -> None:
    encoder.graph[0].metadata_props["pkg.torch.stack_trace"] = "File\nline 1"
    graph = tensorrt(encoder, "fp32")
    assert all(not node.metadata_props for node in graph.graph)


def idle(one: type[Any]) -> Any:
    """The fault: a pass that finds nothing to do."""

    class Idle(one):  # type: ignore[misc] # a class that is only known here
        def call(self, model: ir.Model) -> Any:
            return PassResult(model, modified=False)

    return Idle()


@pytest.mark.parametrize(
    ("one", "message"),
    [
        (CountByProduct, "n4: still there"),
        (FloatWeights, "n7/weight: still restores a constant"),
        (NameAxes, "n6: Slice without axes"),
    ],
)
def test_a_pass_that_does_nothing_is_found_out(one: type[Any], message: str, grow: Grow) -> None:
    def build(b: Any, x: ir.Value) -> Any:
        kept = b.op("Cast", b.op("Greater", x, b.weight("zero", np.float32(0))), to=int(FP32))
        axis = b.weight("axis", np.array(-1, np.int64))
        counted = b.op("Add", x, b.op("Cast", kept, to=int(FP32)))
        total = b.op("CumSum", kept, axis)
        return b.op(
            "MatMul",
            b.op("Slice", b.op("Add", counted, total), b.ints(0, 0), b.ints(1, 8)),
            b.weight("w", np.eye(8, dtype=np.float32)),
        )

    model = quantize(grow(build, ("batch", 8), ("one", 8)), {"n7/input": (0.0, 1.0)}, scheme=SCHEME)
    with pytest.raises(CompileError, match=f"Idle did not do what it promises: {message}"):
        rewrite(model, [idle(one)])
