"""int8 in a graph: where it is, what the engines make of it, how near the results stay, what is refused."""

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

from alula.core.errors import InputError
from alula.graphs import layers, load, observe, quantize, rewrite, save, smoothing_for
from alula.graphs.passes.attention import DecomposeAttention
from alula.graphs.passes.opset import LowerOpset
from alula.graphs.passes.quantize import Scheme, step

SIZE = 32
SHAPE = ("batch", "length", SIZE)
Floats = NDArray[np.float32]
Ranges = Mapping[str, tuple[float, float]]
Runner = Callable[[ir.Model, Mapping[str, Any]], list[Floats]]


def encoder(b: Any, x: ir.Value) -> Any:
    """One encoder layer and a mean."""
    rng = np.random.default_rng(0)

    def linear(x: ir.Value, name: str, inner: int = SIZE, outer: int = SIZE) -> Any:
        w = b.weight(f"{name}.w", (rng.standard_normal((inner, outer)) / inner**0.5).astype(np.float32))
        return b.op("Add", b.op("MatMul", x, w), b.weight(f"{name}.b", np.full(outer, 0.1, np.float32)))

    def norm(x: ir.Value, name: str) -> Any:
        return b.op("LayerNormalization", x, b.weight(f"{name}.g", np.ones(SIZE, np.float32)), axis=-1)

    q, k, v = (linear(x, n) for n in "qkv")
    y = linear(b.op("Attention", q, k, v, q_num_heads=4, kv_num_heads=4), "o")
    x = norm(b.op("Add", x, y), "n1")
    y = linear(b.op("Gelu", linear(x, "wide", SIZE, 64)), "back", 64, SIZE)
    return b.op("ReduceMean", norm(b.op("Add", y, x), "n2"), b.ints(1), keepdims=0)


@pytest.fixture
def model(grow: Callable[..., ir.Model]) -> ir.Model:
    return grow(encoder, SHAPE, ("batch", SIZE))


@pytest.fixture
def x() -> Floats:
    return np.random.default_rng(1).standard_normal((3, 17, SIZE)).astype(np.float32)


@pytest.fixture
def ranges(model: ir.Model, x: Floats, run_graph: Runner) -> Ranges:
    observed, names = observe(model)
    values = run_graph(observed, {"x": x})[1:]
    return {name: (float(v.min()), float(v.max())) for name, v in zip(names, values, strict=True)}


def cosine(one: Floats, other: Floats) -> float:
    return float(
        ((one * other).sum(-1) / np.linalg.norm(one, axis=-1) / np.linalg.norm(other, axis=-1)).min()
    )


def test_layers_are_the_linears_in_order_however_attention_is_written(model: ir.Model) -> None:
    assert len(layers(model)) == 6
    assert layers(rewrite(model, [DecomposeAttention()])) == layers(model)


def test_what_is_observed_changes_no_output_and_is_named_by_the_first_reader(
    model: ir.Model, x: Floats, run_graph: Runner
) -> None:
    observed, names = observe(model)
    first, *_, last = layers(model)
    assert names[0] == f"{first}/input"
    assert names[-1] == f"{last}/input"
    assert len(names) == 4  # q, k and v read the same
    plain, seen = run_graph(model, {"x": x}), run_graph(observed, {"x": x})
    assert np.array_equal(plain[0], seen[0])
    assert np.array_equal(seen[1], x)
    assert len(model.graph.outputs) == 1


def test_decomposed_attention_is_observed_under_the_same_names_with_the_same_values(
    model: ir.Model, x: Floats, run_graph: Runner
) -> None:
    one, names = observe(model)
    other, others = observe(rewrite(model, [DecomposeAttention()]))
    assert names == others
    for a, b in zip(run_graph(one, {"x": x}), run_graph(other, {"x": x}), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


def test_every_linear_multiplies_int8_and_stays_near(
    model: ir.Model, ranges: Ranges, x: Floats, run_graph: Runner
) -> None:
    graph = quantize(model, ranges)
    kinds = Counter(node.op_type for node in graph.graph)
    assert kinds["QuantizeLinear"] == 4
    assert kinds["DequantizeLinear"] == 4 + 6
    stored = [
        value.const_value for value in graph.graph.initializers.values() if value.dtype == ir.DataType.INT8
    ]
    assert len(stored) == 6
    assert all(np.abs(tensor.numpy()).max() == 63 for tensor in stored if tensor is not None)
    assert layers(graph) == ()
    assert cosine(run_graph(model, {"x": x})[0], run_graph(graph, {"x": x})[0]) > 0.999


def test_the_engines_run_int8_kernels(model: ir.Model, ranges: Ranges, tmp_path: Path) -> None:
    graph = quantize(model, ranges)
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimised.onnx")
    options.log_severity_level = 3
    proto = ir.to_proto(graph).SerializeToString()
    onnxruntime.InferenceSession(proto, options, providers=["CPUExecutionProvider"])
    kinds = Counter(node.op_type for node in onnx.load(tmp_path / "optimised.onnx").graph.node)
    assert kinds["MatMulIntegerToFloat"] == 6
    core = openvino.Core()
    decomposed = quantize(rewrite(model, [DecomposeAttention()]), ranges)
    read = core.read_model(ir.to_proto(decomposed).SerializeToString())
    compiled = core.compile_model(read, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    full = [
        str(node.get_rt_info()["runtimePrecision"].astype(str))
        for node in compiled.get_runtime_model().get_ordered_ops()
        if str(node.get_rt_info()["layerType"].astype(str)) == "FullyConnected"
    ]
    assert full == ["u8"] * 6


def test_kept_layers_stay_as_they_are(model: ir.Model, ranges: Ranges, x: Floats, run_graph: Runner) -> None:
    names = layers(model)
    graph = quantize(model, ranges, keep=frozenset(names[1:]))
    assert layers(graph) == names[1:]
    assert Counter(node.op_type for node in graph.graph)["QuantizeLinear"] == 1
    same = quantize(model, {}, keep=frozenset(names))
    assert np.array_equal(run_graph(model, {"x": x})[0], run_graph(same, {"x": x})[0])


def test_ranges_are_needed_only_for_what_is_quantised(model: ir.Model, ranges: Ranges) -> None:
    *_, last = layers(model)
    without = {name: span for name, span in ranges.items() if name != f"{last}/input"}
    quantize(model, without, keep=frozenset({last}))
    with pytest.raises(InputError, match=f"no range for {last}/input; 3 ranges are given"):
        quantize(model, without)


@pytest.mark.parametrize(
    ("span", "reason"),
    [
        ((0.0, float("nan")), r"is 0.0\.\.nan, expected finite numbers"),
        ((float("-inf"), 1.0), r"is -inf\.\.1.0, expected finite numbers"),
        ((2.0, 1.0), r"is 2.0\.\.1.0, expected the lower end first"),
    ],
)
def test_a_range_that_is_none_is_refused_by_name(
    span: tuple[float, float], reason: str, model: ir.Model, ranges: Ranges
) -> None:
    name = list(ranges)[1]
    with pytest.raises(InputError, match=f"the range of {name} {reason}"):
        quantize(model, {**ranges, name: span})


def test_a_layer_to_keep_that_is_not_there_is_refused(model: ir.Model, ranges: Ranges) -> None:
    with pytest.raises(InputError, match="no layer 'pooler' to keep; there are 6 layers"):
        quantize(model, ranges, keep=frozenset({"pooler"}))


def test_a_graph_without_linears_is_refused(grow: Callable[..., ir.Model]) -> None:
    bare = grow(lambda b, x: b.op("Relu", x), SHAPE, SHAPE)
    with pytest.raises(InputError, match="there is no linear"):
        observe(bare)
    with pytest.raises(InputError, match="there is no linear"):
        quantize(bare, {})


def test_an_opset_without_scales_per_channel_is_refused(model: ir.Model, ranges: Ranges) -> None:
    old = rewrite(model, [DecomposeAttention(), LowerOpset(17)])
    old.opset_imports[""] = 12
    with pytest.raises(InputError, match="opset 12 has no scale per channel; expected 13 or later"):
        quantize(old, ranges)


def test_batch_and_length_stay_free(
    model: ir.Model, ranges: Ranges, run_graph: Runner, tmp_path: Path
) -> None:
    graph = save(quantize(model, ranges), tmp_path / "g.onnx", "int8")
    assert graph.inputs[0].shape == SHAPE
    again = load(tmp_path / "g.onnx")
    for batch, length in ((1, 1), (5, 3), (2, 40)):
        x = np.random.default_rng(0).standard_normal((batch, length, SIZE)).astype(np.float32)
        assert run_graph(again, {"x": x})[0].shape == (batch, SIZE)


def test_it_lowers_to_opset_17(model: ir.Model, ranges: Ranges, x: Floats, run_graph: Runner) -> None:
    decomposed = rewrite(model, [DecomposeAttention()])
    low = rewrite(quantize(decomposed, ranges), [LowerOpset(17)])
    assert low.opset_imports[""] == 17
    assert cosine(run_graph(model, {"x": x})[0], run_graph(low, {"x": x})[0]) > 0.999


def test_a_step_holds_zero_exactly_and_both_ends_to_half_a_step() -> None:
    for span in ((-1.0, 3.0), (0.5, 2.0), (-7.0, -6.0), (-1e-3, 1e3), (0.0, 0.0)):
        for scheme in (Scheme(), Scheme(symmetric=True)):
            scale, zero = step(span, scheme)
            low, high = (-127, 127) if scheme.symmetric else (0, 255)
            assert low <= zero <= high
            for end in span:
                rounded = np.clip(np.rint(end / scale) + zero, low, high)
                assert abs((rounded - zero) * scale - end) <= scale * 0.51


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("bits", [7, 8])
def test_other_schemes_compute_the_same(
    symmetric: bool, bits: int, model: ir.Model, ranges: Ranges, x: Floats, run_graph: Runner
) -> None:
    graph = quantize(model, ranges, scheme=Scheme(symmetric=symmetric, weight_bits=bits))
    assert cosine(run_graph(model, {"x": x})[0], run_graph(graph, {"x": x})[0]) > 0.999


@pytest.fixture
def uneven(grow: Callable[..., ir.Model]) -> ir.Model:
    """A norm that makes one channel fifty times as large as the others, as trained encoders do."""

    def build(b: Any, x: ir.Value) -> Any:
        rng = np.random.default_rng(0)
        gain = np.ones(SIZE, np.float32)
        gain[5] = 50.0
        x = b.op("LayerNormalization", x, b.weight("gain", gain), axis=-1)
        w = (rng.standard_normal((SIZE, SIZE)) / 6).astype(np.float32)
        w[5] /= 50
        one, other = (
            b.op("MatMul", x, b.weight(name, w * sign)) for name, sign in (("one", 1), ("other", 2))
        )
        return b.op("Add", one, b.op("Relu", other))

    return grow(build, SHAPE, SHAPE)


def seen(model: ir.Model, x: Floats, run_graph: Runner) -> dict[str, Floats]:
    observed, names = observe(model)
    return dict(zip(names, run_graph(observed, {"x": x})[1:], strict=True))


def sizes(model: ir.Model, x: Floats, run_graph: Runner) -> dict[str, Floats]:
    return {name: np.abs(v).max(axis=(0, 1)) for name, v in seen(model, x, run_graph).items()}


def test_smoothing_changes_no_result(uneven: ir.Model, x: Floats, run_graph: Runner) -> None:
    factors = smoothing_for(uneven, sizes(uneven, x, run_graph))
    ((name, channels),) = factors.items()
    assert name == f"{layers(uneven)[0]}/input"
    assert channels[5] > 10 * np.median(channels)
    smoothed, _ = observe(uneven, factors)
    np.testing.assert_allclose(
        run_graph(smoothed, {"x": x})[0], run_graph(uneven, {"x": x})[0], rtol=1e-4, atol=1e-4
    )


def test_smoothing_saves_what_one_large_channel_costs(uneven: ir.Model, x: Floats, run_graph: Runner) -> None:
    def lost(factors: Mapping[str, Any]) -> float:
        observed, names = observe(uneven, factors)
        values = run_graph(observed, {"x": x})[1:]
        found = {name: (float(v.min()), float(v.max())) for name, v in zip(names, values, strict=True)}
        given = run_graph(quantize(uneven, found, smoothing=factors), {"x": x})[0]
        return float(np.abs(given - run_graph(uneven, {"x": x})[0]).mean())

    assert lost(smoothing_for(uneven, sizes(uneven, x, run_graph))) < lost({}) / 3


def test_layers_that_are_all_kept_are_not_smoothed_and_one_of_two_that_is_stays_equal(
    uneven: ir.Model, x: Floats, run_graph: Runner
) -> None:
    factors = smoothing_for(uneven, sizes(uneven, x, run_graph))
    both = quantize(uneven, {}, keep=frozenset(layers(uneven)), smoothing=factors)
    assert len(both.graph) == len(uneven.graph)
    first, second = layers(uneven)
    ranges = {f"{first}/input": (-20.0, 20.0)}
    for kept in (first, second):
        graph = quantize(uneven, ranges, keep=frozenset({kept}), smoothing=factors)
        assert layers(graph) == (kept,)
        assert cosine(run_graph(uneven, {"x": x})[0], run_graph(graph, {"x": x})[0]) > 0.99


def test_factors_and_amplitudes_that_do_not_fit_are_refused_by_name(uneven: ir.Model) -> None:
    name = f"{layers(uneven)[0]}/input"
    with pytest.raises(InputError, match=f"no amplitudes for {name}; 0 are given"):
        smoothing_for(uneven, {})
    with pytest.raises(InputError, match="no activation y/input; there are 1"):
        observe(uneven, {"y/input": [1.0]})
    for wrong in ([1.0] * 31, [0.0] * 32, [float("nan")] * 32):
        with pytest.raises(InputError, match=f"{name}: expected 32 positive factors, one per channel"):
            observe(uneven, {name: wrong})
