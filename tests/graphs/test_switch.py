"""Every layer behind a switch: any pattern gives what a graph that keeps those layers gives, to the last bit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from numpy.typing import NDArray

from alula.core.errors import CompileError, InputError
from alula.graphs import (
    costs,
    layers,
    load,
    observe,
    quantize,
    rewrite,
    save,
    scheme_for,
    smoothing_for,
    switchable,
)
from alula.graphs.passes.attention import DecomposeAttention
from alula.graphs.passes.quantize import Scheme
from alula.graphs.passes.switch import SWITCHES, Switch

SIZE = 32
SHAPE = ("batch", "length", SIZE)
Floats = NDArray[np.float32]
Ranges = Mapping[str, tuple[float, float]]
Runner = Callable[[ir.Model, Mapping[str, Any]], list[Floats]]


def encoder(b: Any, x: ir.Value) -> Any:
    """Attention, whose three linears share what they read, and two linears of different sizes."""
    rng = np.random.default_rng(0)

    def linear(x: ir.Value, name: str, inner: int = SIZE, outer: int = SIZE) -> Any:
        w = b.weight(f"{name}.w", (rng.standard_normal((inner, outer)) / inner**0.5).astype(np.float32))
        return b.op("MatMul", x, w)

    gain = np.ones(SIZE, np.float32)
    gain[5] = 20.0
    x = b.op("LayerNormalization", x, b.weight("gain", gain), axis=-1)
    q, k, v = (linear(x, n) for n in "qkv")
    y = b.op("Attention", q, k, v, q_num_heads=4, kv_num_heads=4)
    return linear(b.op("Gelu", linear(b.op("Add", x, y), "wide", SIZE, 64)), "back", 64, SIZE)


@pytest.fixture
def model(grow: Callable[..., ir.Model]) -> ir.Model:
    return grow(encoder, SHAPE, SHAPE)


@pytest.fixture
def x() -> Floats:
    return np.random.default_rng(1).standard_normal((3, 17, SIZE)).astype(np.float32)


def seen(model: ir.Model, x: Floats, run_graph: Runner, smoothing: Mapping[str, Any]) -> dict[str, Floats]:
    observed, names = observe(model, smoothing)
    return dict(zip(names, run_graph(observed, {"x": x})[1:], strict=True))


def spans(model: ir.Model, x: Floats, run_graph: Runner, smoothing: Mapping[str, Any]) -> Ranges:
    values = seen(model, x, run_graph, smoothing)
    return {name: (float(v.min()), float(v.max())) for name, v in values.items()}


@pytest.fixture
def ranges(model: ir.Model, x: Floats, run_graph: Runner) -> Ranges:
    return spans(model, x, run_graph, {})


def patterns(count: int) -> list[NDArray[np.bool_]]:
    """None, all, each alone, and some at random."""
    some = np.random.default_rng(0).random((4, count)) < 0.5
    return [np.zeros(count, bool), np.ones(count, bool), *np.eye(count, dtype=bool), *some]


@pytest.mark.parametrize("scheme", [Scheme(), Scheme(symmetric=True, weight_bits=8), scheme_for("tensorrt")])
def test_every_pattern_is_what_keeping_the_others_gives(
    scheme: Scheme, model: ir.Model, ranges: Ranges, x: Floats, run_graph: Runner
) -> None:
    names = layers(model)
    graph = switchable(model, ranges, scheme=scheme)
    results = []
    for flags in patterns(len(names)):
        keep = frozenset(name for name, flag in zip(names, flags, strict=True) if not flag)
        (wanted,) = run_graph(quantize(model, ranges, keep=keep, scheme=scheme), {"x": x})
        (given,) = run_graph(graph, {"x": x, SWITCHES: flags})
        assert np.array_equal(given, wanted), flags
        results.append(given)
    (plain,) = run_graph(model, {"x": x})
    assert np.array_equal(results[0], plain)
    assert all(not np.array_equal(result, plain) for result in results[1 : 2 + len(names)])


def test_smoothing_is_always_applied_and_changes_fp32_by_rounding_alone(
    model: ir.Model, x: Floats, run_graph: Runner
) -> None:
    sizes = {n: np.abs(v).max(axis=(0, 1)) for n, v in seen(model, x, run_graph, {}).items()}
    smoothing = smoothing_for(model, sizes)
    ranges = spans(model, x, run_graph, smoothing)
    graph = switchable(model, ranges, smoothing=smoothing)
    none, every, *_ = patterns(len(layers(model)))
    (plain,) = run_graph(model, {"x": x})
    np.testing.assert_allclose(run_graph(graph, {"x": x, SWITCHES: none})[0], plain, rtol=1e-4, atol=1e-4)
    (wanted,) = run_graph(quantize(model, ranges, smoothing=smoothing), {"x": x})
    assert np.array_equal(run_graph(graph, {"x": x, SWITCHES: every})[0], wanted)


def test_flags_are_an_input_in_the_order_of_layers_and_the_graph_is_kept_and_rewritten_as_any(
    model: ir.Model, ranges: Ranges, x: Floats, run_graph: Runner, tmp_path: Path
) -> None:
    graph = rewrite(switchable(model, ranges), [DecomposeAttention()])
    saved = save(graph, tmp_path / "g.onnx", "fp32")
    assert [(each.name, each.dtype, each.shape) for each in saved.inputs] == [
        ("x", "float32", SHAPE),
        ("quantised", "bool", (5,)),
    ]
    assert layers(graph) == ()
    flags = np.array([True, False, True, False, True])
    feeds = {"x": x, SWITCHES: flags}
    kept = frozenset(np.array(layers(model))[~flags])
    (wanted,) = run_graph(rewrite(quantize(model, ranges, keep=kept), [DecomposeAttention()]), {"x": x})
    assert np.array_equal(run_graph(load(tmp_path / "g.onnx"), feeds)[0], wanted)


def test_onnx_runtime_runs_one_branch_and_int8_kernels_in_it(
    model: ir.Model, ranges: Ranges, tmp_path: Path
) -> None:
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimised.onnx")
    options.log_severity_level = 3
    proto = ir.to_proto(switchable(model, ranges)).SerializeToString()
    onnxruntime.InferenceSession(proto, options, providers=["CPUExecutionProvider"])
    optimised = onnx.load(tmp_path / "optimised.onnx").graph
    switches = [node for node in optimised.node if node.op_type == "If"]
    assert len(switches) == 5
    for node in switches:
        branches = {each.name: [one.op_type for one in each.g.node] for each in node.attribute}
        assert "MatMulIntegerToFloat" in branches["then_branch"]
        assert branches["else_branch"] == ["MatMul"]


def test_ranges_are_needed_for_all_layers(model: ir.Model, ranges: Ranges) -> None:
    *_, last = layers(model)
    without = {name: span for name, span in ranges.items() if name != f"{last}/input"}
    with pytest.raises(InputError, match=f"no range for {last}/input; 2 ranges are given"):
        switchable(model, without)


def test_a_layer_without_switch_is_a_fault_of_the_pass(model: ir.Model, ranges: Ranges) -> None:
    class Forgetful(Switch):
        def call(self, model: ir.Model) -> Any:
            switched = super().call(model)
            first, last = model.graph.inputs[0], model.graph[-1]
            w = model.graph.initializers["q.w"]
            model.graph.insert_before(last, ir.node("MatMul", [first, w], name="forgotten"))
            return switched

    with pytest.raises(CompileError, match="Forgetful did not do what it promises: forgotten: has no switch"):
        rewrite(model, [Forgetful(ranges)])


def test_a_layer_costs_its_multiplications_per_token(model: ir.Model) -> None:
    assert list(costs(model)) == list(layers(model))
    assert list(costs(model).values()) == [SIZE * SIZE] * 3 + [SIZE * 64] * 2
