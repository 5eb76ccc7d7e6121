"""int8 in graphs that read images: convolutions, what lies between them, and linears of two axes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import openvino
import pytest
from numpy.typing import NDArray

from alula.core.errors import CompileError, InputError
from alula.graphs import (
    channel_axes,
    costs,
    layers,
    observe,
    quantize,
    rewrite,
    scheme_for,
    smoothing_for,
    switchable,
)
from alula.graphs.passes.fold import FoldAffine
from alula.graphs.passes.quantize import Scheme
from alula.graphs.passes.split import SplitGemm

SHAPE = ("batch", 3, 32, 32)
Floats = NDArray[np.float32]
Ranges = Mapping[str, tuple[float, float]]
Runner = Callable[[ir.Model, Mapping[str, Any]], list[Floats]]
Grower = Callable[..., ir.Model]


class Image:
    """Adds convolutions with random weights to a graph."""

    def __init__(self, b: Any) -> None:
        self.b, self.rng = b, np.random.default_rng(0)

    def weight(self, name: str, *shape: int, size: float = 1.0) -> Any:
        return self.b.weight(name, (self.rng.standard_normal(shape) * size).astype(np.float32))

    def conv(
        self, x: Any, name: str, inner: int, outer: int, kernel: int = 3, group: int = 1, **more: Any
    ) -> Any:
        size = (2 / (inner // group * kernel * kernel)) ** 0.5
        w = self.weight(f"{name}.w", outer, inner // group, kernel, kernel, size=size)
        pads = [kernel // 2] * 4
        return self.b.op("Conv", x, w, kernel_shape=[kernel] * 2, pads=pads, group=group, **more)

    def norm(self, x: Any, name: str, channels: int) -> Any:
        positive = self.b.weight(f"{name}.v", self.rng.uniform(0.5, 2, channels).astype(np.float32))
        gain, shift, mean = (self.weight(f"{name}.{part}", channels) for part in ("g", "b", "m"))
        return self.b.op("BatchNormalization", x, gain, shift, mean, positive, epsilon=1e-3)


def resnet(b: Any, x: ir.Value) -> Any:
    """A stem and a pool, a block with a projection, one without that is depthwise, a mean and a classifier."""
    net = Image(b)
    x = b.op("Relu", net.norm(net.conv(x, "stem", 3, 16, 7, strides=[2, 2]), "n0", 16))
    x = b.op("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    y = b.op("Relu", net.norm(net.conv(x, "a", 16, 16), "n1", 16))
    y = net.norm(net.conv(y, "b", 16, 32), "n2", 32)
    x = b.op("Relu", b.op("Add", y, net.norm(net.conv(x, "project", 16, 32, 1), "n3", 32)))
    y = b.op("Relu", net.norm(net.conv(x, "deep", 32, 32, 3, group=32), "n4", 32))
    x = b.op("Relu", b.op("Add", net.conv(y, "point", 32, 32, 1), x))
    x = b.op("Flatten", b.op("GlobalAveragePool", x))
    return b.op("Gemm", x, net.weight("fc.w", 10, 32, size=0.3), net.weight("fc.b", 10), transB=1)


@pytest.fixture
def model(grow: Grower) -> ir.Model:
    return grow(resnet, SHAPE, ("batch", 10))


@pytest.fixture
def x() -> Floats:
    return np.random.default_rng(1).standard_normal((4, 3, 32, 32)).astype(np.float32)


def spans(model: ir.Model, x: Floats, run_graph: Runner) -> Ranges:
    observed, names = observe(model)
    values = run_graph(observed, {"x": x})[1:]
    return {name: (float(v.min()), float(v.max())) for name, v in zip(names, values, strict=True)}


@pytest.fixture
def ranges(model: ir.Model, x: Floats, run_graph: Runner) -> Ranges:
    return spans(model, x, run_graph)


def kinds(model: ir.Model, scratch: Path) -> Counter[str]:
    """The operators that ONNX Runtime runs."""
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(scratch / "optimised.onnx")
    options.log_severity_level = 3
    proto = ir.to_proto(model).SerializeToString()
    onnxruntime.InferenceSession(proto, options, providers=["CPUExecutionProvider"])
    return Counter(node.op_type for node in onnx.load(scratch / "optimised.onnx").graph.node)


def precisions(model: ir.Model, kind: str) -> list[str]:
    """In what OpenVINO runs one kind of layer."""
    core = openvino.Core()
    read = core.read_model(ir.to_proto(model).SerializeToString())
    compiled = core.compile_model(read, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return [
        str(node.get_rt_info()["runtimePrecision"].astype(str))
        for node in compiled.get_runtime_model().get_ordered_ops()
        if str(node.get_rt_info()["layerType"].astype(str)) == kind
    ]


def error(one: Floats, other: Floats) -> float:
    return float(np.abs(one - other).max() / np.abs(one).max())


def test_convolutions_and_linears_are_layers_and_pixels_are_an_activation(
    model: ir.Model, x: Floats, ranges: Ranges
) -> None:
    names = layers(model)
    assert len(names) == 7
    assert next(iter(ranges)) == f"{names[0]}/input"
    assert ranges[f"{names[0]}/input"] == (x.min(), x.max())
    inputs = [f"{name}/input" for name in names]
    # The projection reads what the first convolution of the block does. What convolutions give comes last.
    assert [name for name in ranges if name.endswith("/input")] == [each for each in inputs if each in ranges]
    assert sum(name.endswith("/output") for name in ranges) == 4
    assert sum(name.endswith("/input") for name in ranges) == 6


def test_costs_are_multiplications_of_an_image(model: ir.Model) -> None:
    assert list(costs(model).values()) == [
        16 * 3 * 49 * 16 * 16,
        16 * 16 * 9 * 64,
        32 * 16 * 9 * 64,
        32 * 16 * 64,
        32 * 9 * 64,
        32 * 32 * 64,
        320,
    ]


def test_a_size_that_is_free_costs_once(grow: Grower) -> None:
    free = grow(lambda b, x: Image(b).conv(x, "c", 3, 4), ("batch", 3, 8, "width"), ("batch", 4, 8, "width"))
    assert list(costs(free).values()) == [4 * 3 * 9 * 8]


def test_int8_stays_near_and_weights_have_a_scale_per_output_channel(
    model: ir.Model, ranges: Ranges, x: Floats, run_graph: Runner
) -> None:
    graph = quantize(model, ranges)
    assert layers(graph) == ()
    assert 0 < error(run_graph(model, {"x": x})[0], run_graph(graph, {"x": x})[0]) < 0.02
    shapes = {
        str(node.name).split("/")[0]: (node.attributes["axis"].as_int(), tuple(node.inputs[1].shape or ()))
        for node in graph.graph
        if node.op_type == "DequantizeLinear" and node.name and node.name.endswith("/weight")
        if node.inputs[1] is not None
    }
    channels = [16, 16, 32, 32, 32, 32]
    assert list(shapes.values()) == [*((0, (count,)) for count in channels), (1, (10,))]


def test_a_scale_off_by_two_is_seen(model: ir.Model, ranges: Ranges, x: Floats, run_graph: Runner) -> None:
    (plain,) = run_graph(model, {"x": x})
    good = error(plain, run_graph(quantize(model, ranges), {"x": x})[0])
    for kind, count in (("restored", 3), ("weight", 2)):
        wrong = quantize(model, ranges)
        node = next(each for each in wrong.graph if each.name and each.name.endswith(f"/{kind}"))
        assert len(node.inputs) == count
        twice = ir.node("Add", [node.inputs[1], node.inputs[1]], name="twice")
        wrong.graph.insert_before(node, twice)
        node.replace_input_with(1, twice.outputs[0])
        assert error(plain, run_graph(wrong, {"x": x})[0]) > 10 * good


def test_onnx_runtime_stays_in_int8_between_convolutions(
    model: ir.Model, ranges: Ranges, tmp_path: Path
) -> None:
    found = kinds(quantize(model, ranges), tmp_path)
    assert found["QLinearConv"] == 6
    assert found["Conv"] == 0
    assert found["QLinearAdd"] == 1  # the second goes to the mean in fp32
    assert found["MatMulIntegerToFloat"] == 1
    assert found["Gemm"] == 0


def test_openvino_multiplies_int8(model: ir.Model, ranges: Ranges) -> None:
    assert set(precisions(quantize(model, ranges), "Convolution")) <= {"u8", "i8"}
    assert precisions(quantize(model, ranges), "FullyConnected") == ["u8"]


def test_kept_convolutions_are_as_they_were(
    model: ir.Model, ranges: Ranges, x: Floats, run_graph: Runner
) -> None:
    names = layers(model)
    same = quantize(model, {}, keep=frozenset(names))
    np.testing.assert_allclose(
        run_graph(same, {"x": x})[0], run_graph(model, {"x": x})[0], rtol=1e-4, atol=1e-4
    )
    one = quantize(model, ranges, keep=frozenset(names[1:]))
    assert layers(one) == names[1:]
    assert (
        Counter(node.op_type for node in one.graph)["QuantizeLinear"] == 2
    )  # pixels, and what the pool reads


def test_what_a_convolution_gives_is_int8_where_that_is_asked_for(grow: Grower, tmp_path: Path) -> None:
    def build(b: Any, x: ir.Value) -> Any:
        return b.op("HardSwish", Image(b).conv(x, "c", 3, 4))

    model = grow(build, SHAPE, ("batch", 4, 32, 32))
    ranges = {"n0/input": (-1.0, 1.0), "n0/output": (-1.0, 1.0)}
    assert kinds(quantize(model, ranges), tmp_path)["QLinearConv"] == 1
    without = quantize(model, {"n0/input": (-1.0, 1.0)}, scheme=Scheme(exchange="sums"))
    assert Counter(node.op_type for node in without.graph)["QuantizeLinear"] == 1
    with pytest.raises(InputError, match="no range for n0/output; 1 ranges are given"):
        quantize(model, {"n0/input": (-1.0, 1.0)})


@pytest.mark.parametrize(
    "scheme", [Scheme(), Scheme(exchange="sums"), scheme_for("tensorrt")], ids=lambda one: str(one.exchange)
)
def test_switches_give_what_keeping_gives(
    scheme: Scheme, model: ir.Model, ranges: Ranges, x: Floats, run_graph: Runner
) -> None:
    names = layers(model)
    graph = switchable(model, ranges, scheme=scheme)
    some = np.random.default_rng(0).random((4, len(names))) < 0.5
    for flags in (
        np.zeros(len(names), bool),
        np.ones(len(names), bool),
        *np.eye(len(names), dtype=bool),
        *some,
    ):
        keep = frozenset(name for name, flag in zip(names, flags, strict=True) if not flag)
        (wanted,) = run_graph(quantize(model, ranges, keep=keep, scheme=scheme), {"x": x})
        assert np.array_equal(run_graph(graph, {"x": x, "quantised": flags})[0], wanted), flags


def test_constants_in_nodes_are_found(model: ir.Model) -> None:
    inside = model.clone()
    for name, value in list(inside.graph.initializers.items()):
        tensor = value.const_value
        assert tensor is not None
        made = ir.node("Constant", [], {"value": ir.AttrTensor("value", tensor)}, name=f"constant {name}")
        value.replace_all_uses_with(made.outputs[0])
        inside.graph.initializers.pop(name)
        made.outputs[0].name = name
        inside.graph.insert_before(inside.graph[0], made)
    assert layers(inside) == layers(model)
    assert costs(inside) == costs(model)


def test_smoothing_leaves_convolutions_alone_and_is_told_where_channels_are(
    model: ir.Model, x: Floats, run_graph: Runner
) -> None:
    observed, names = observe(model)
    values = dict(zip(names, run_graph(observed, {"x": x})[1:], strict=True))
    axes = channel_axes(model)
    assert list(axes) == list(names)
    assert {name: values[name].shape[axes[name]] for name in names} == {
        name: values[name].shape[1] for name in names
    }
    sizes = {
        name: np.abs(np.moveaxis(v, axes[name], -1)).reshape(-1, v.shape[axes[name]]).max(0)
        for name, v in values.items()
    }
    assert smoothing_for(model, sizes) == {}


def stack(b: Any, x: ir.Value) -> Any:
    """A norm, a product and a sum per channel, one product for all, behind one another; then what cannot be folded."""
    net = Image(b)
    y = net.norm(net.conv(x, "c", 3, 6), "n", 6)
    y = b.op("Mul", net.weight("s", 1, 6, 1, 1), y)
    y = b.op("Add", y, net.weight("t", 6, 1, 1))
    y = b.op("Mul", y, b.weight("two", np.array([2.0], np.float32)))
    w = net.weight("up.w", 6, 4, 2, 2)
    y = net.norm(b.op("ConvTranspose", y, w, net.weight("up.b", 4), strides=[2, 2]), "m", 4)
    return b.op("Add", y, net.weight("along the width", 64))


def test_what_scales_and_shifts_channels_is_folded_into_the_convolution(
    grow: Grower, x: Floats, run_graph: Runner
) -> None:
    model = grow(stack, SHAPE, ("batch", 4, 64, 64))
    folded = rewrite(model, [FoldAffine()])
    assert [node.op_type for node in folded.graph] == ["Conv", "ConvTranspose", "Add"]
    np.testing.assert_allclose(
        run_graph(folded, {"x": x})[0], run_graph(model, {"x": x})[0], rtol=1e-4, atol=1e-3
    )
    assert len(folded.graph.initializers) == 5


@pytest.mark.parametrize("what", ["read twice", "output", "training"])
def test_what_others_need_is_not_folded(what: str, grow: Grower) -> None:
    def build(b: Any, x: ir.Value) -> Any:
        net = Image(b)
        y = net.conv(x, "c", 3, 6)
        if what == "training":
            parts = [net.weight(name, 6) for name in "gbmv"]
            return b.op("BatchNormalization", y, *parts, outputs=3, training_mode=1)[0]
        scaled = b.op("Mul", y, net.weight("s", 6, 1, 1))
        return b.op("Add", scaled, y) if what == "read twice" else scaled

    model = grow(build, SHAPE, ("batch", 6, 32, 32))
    if what == "output":
        value = model.graph[0].outputs[0]
        value.shape, value.type = ir.Shape(("batch", 6, 32, 32)), ir.TensorType(ir.DataType.FLOAT)
        model.graph.outputs.append(value)
    assert len(rewrite(model, [FoldAffine()]).graph) == len(model.graph)


def test_a_norm_left_behind_is_a_fault_of_the_pass(model: ir.Model) -> None:
    class Idle(FoldAffine):
        def call(self, model: ir.Model) -> Any:
            return ir.passes.PassResult(model, False)

    with pytest.raises(CompileError, match="Idle did not do what it promises: n1: not folded into n0"):
        rewrite(model, [Idle()])


def rows(kind: str) -> Callable[[Any, ir.Value], Any]:
    def build(b: Any, x: ir.Value) -> Any:
        net = Image(b)
        bias = net.weight("b", 24)
        if kind == "sum":
            return b.op("Add", bias, b.op("MatMul", x, net.weight("w", 32, 24)))
        shape = (24, 32) if kind == "transposed" else (32, 24)
        more = (
            {"transB": 1} if kind == "transposed" else {"alpha": 0.5, "beta": 3.0} if kind == "scaled" else {}
        )
        return b.op("Gemm", x, net.weight("w", *shape), *([] if kind == "bare" else [bias]), **more)

    return build


@pytest.mark.parametrize("kind", ["sum", "plain", "transposed", "scaled", "bare"])
def test_linears_of_two_axes_run_int8_in_onnx_runtime(
    kind: str, grow: Grower, run_graph: Runner, tmp_path: Path
) -> None:
    model = grow(rows(kind), ("batch", 32), ("batch", 24))
    x = np.random.default_rng(0).standard_normal((5, 32)).astype(np.float32)
    (plain,) = run_graph(model, {"x": x})
    split = rewrite(model, [SplitGemm()])
    assert {node.op_type for node in split.graph} == ({"MatMul"} if kind == "bare" else {"MatMul", "Sub"})
    np.testing.assert_allclose(run_graph(split, {"x": x})[0], plain, rtol=1e-4, atol=1e-4)
    graph = quantize(model, spans(model, x, run_graph))
    assert error(plain, run_graph(graph, {"x": x})[0]) < 0.02
    assert kinds(graph, tmp_path)["MatMulIntegerToFloat"] == 1
    if kind != "sum":
        assert layers(model) == (model.graph[0].name,)


def test_a_gemm_left_is_a_fault_of_the_pass(grow: Grower) -> None:
    class Idle(SplitGemm):
        def call(self, model: ir.Model) -> Any:
            return ir.passes.PassResult(model, False)

    with pytest.raises(CompileError, match="Idle did not do what it promises: n0: not split"):
        rewrite(grow(rows("plain"), ("batch", 32), ("batch", 24)), [Idle()])


def test_linears_of_three_axes_keep_their_sum(grow: Grower) -> None:
    model = grow(rows("sum"), ("batch", "length", 32), ("batch", "length", 24))
    assert [node.op_type for node in rewrite(model, [SplitGemm()]).graph] == ["MatMul", "Add"]
