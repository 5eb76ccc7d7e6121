"""Weights in four bits: what they are restored to, what the engines make of them, what is refused."""

from __future__ import annotations

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
from alula.engines.openvino import settings
from alula.graphs import layers, load, pack_int4, rewrite, save
from alula.graphs.passes.opset import LowerOpset
from alula.graphs.passes.pack import PackInt4, packed

SHAPE = ("batch", "length", 96)
HALF = np.full(80, 0.5, np.float32)
Floats = NDArray[np.float32]
Runner = Callable[[ir.Model, Mapping[str, Any]], list[Floats]]
Grower = Callable[..., ir.Model]


def two(b: Any, x: ir.Value) -> Any:
    """Two linears, the second of 80 rows, which are no whole blocks of 32."""
    rng = np.random.default_rng(0)
    one, other = (
        b.weight(name, (rng.standard_normal(shape) / shape[0] ** 0.5).astype(np.float32))
        for name, shape in (("one", (96, 80)), ("other", (80, 96)))
    )
    # A Relu right behind a product keeps ONNX Runtime from MatMulNBits; a bias in between does not.
    return b.op("MatMul", b.op("Relu", b.op("Add", b.op("MatMul", x, one), b.weight("half", HALF))), other)


@pytest.fixture
def model(grow: Grower) -> ir.Model:
    return grow(two, SHAPE, SHAPE)


@pytest.fixture
def x() -> Floats:
    return np.random.default_rng(1).standard_normal((2, 5, 96)).astype(np.float32)


def restored(matrix: Floats, block: int) -> Floats:
    found = packed(matrix, block)
    zeros = np.repeat(found.zeros, block, axis=0).astype(np.float32)
    result: Floats = (found.values.astype(np.float32) - zeros) * np.repeat(found.scales, block, axis=0)
    return result


def test_a_block_is_restored_to_half_a_step_and_zero_exactly() -> None:
    rng = np.random.default_rng(0)
    matrix = rng.standard_normal((96, 7)).astype(np.float32)
    matrix[:32, 0] = 0.0
    matrix[:32, 1] = rng.uniform(3, 4, 32)
    matrix[5, 2] = 0.0
    off = np.abs(restored(matrix, 32) - matrix) / np.repeat(packed(matrix, 32).scales, 32, axis=0)
    # Ends are moved by up to half a step so that zero is exact, which costs them that much again.
    assert off.max() <= 1.01
    assert np.mean(off <= 0.51) > 0.95
    assert (restored(matrix, 32)[:32, 0] == 0).all()
    assert restored(matrix, 32)[5, 2] == 0


def test_the_graph_computes_with_what_is_restored(model: ir.Model, x: Floats, run_graph: Runner) -> None:
    one, other = (model.graph.initializers[name].const_value for name in ("one", "other"))
    assert one is not None
    assert other is not None
    wanted = np.maximum(x @ restored(one.numpy(), 32) + HALF, 0) @ restored(other.numpy(), 16)
    (given,) = run_graph(pack_int4(model), {"x": x})
    np.testing.assert_allclose(given, wanted, rtol=1e-4, atol=1e-4)
    (plain,) = run_graph(model, {"x": x})
    assert 0 < np.abs(given - plain).max() < 0.2 * np.abs(plain).max()


def test_a_scale_off_by_two_is_seen(model: ir.Model, x: Floats, run_graph: Runner) -> None:
    wrong = pack_int4(model)
    node = next(node for node in wrong.graph if node.op_type == "DequantizeLinear")
    twice = ir.node("Add", [node.inputs[1], node.inputs[1]], name="twice")
    wrong.graph.insert_before(node, twice)
    node.replace_input_with(1, twice.outputs[0])
    (plain,) = run_graph(model, {"x": x})
    assert np.abs(run_graph(wrong, {"x": x})[0] - plain).max() > 0.5 * np.abs(plain).max()


def test_the_engines_read_four_bits_and_the_file_is_small(
    model: ir.Model, x: Floats, run_graph: Runner, tmp_path: Path
) -> None:
    saved = save(pack_int4(model), tmp_path / "int4.onnx", "int4-weights")
    whole = save(model, tmp_path / "fp32.onnx", "fp32")
    assert saved.path.stat().st_size < whole.path.stat().st_size / 4
    (wanted,) = run_graph(load(saved.path), {"x": x})
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimised.onnx")
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(saved.path, options, providers=["CPUExecutionProvider"])
    kinds = [node.op_type for node in onnx.load(tmp_path / "optimised.onnx").graph.node]
    assert kinds.count("MatMulNBits") == 2
    np.testing.assert_allclose(session.run(None, {"x": x})[0], wanted, rtol=0.05, atol=0.05)
    compiled = openvino.Core().compile_model(saved.path, "CPU", settings(threads=1))
    np.testing.assert_allclose(compiled({0: x})[0], wanted, rtol=1e-3, atol=1e-3)


def test_kept_linears_are_as_they_were(model: ir.Model) -> None:
    first, second = layers(model)
    graph = pack_int4(model, keep=frozenset({first}))
    assert layers(graph) == (first,)
    stored = {value.name for value in graph.graph.initializers.values() if value.dtype == ir.DataType.UINT4}
    assert stored == {"other_int4", "other_zeros"}
    assert second not in layers(graph)


def test_a_linear_that_no_block_divides_stays_fp32(grow: Grower) -> None:
    def build(b: Any, x: ir.Value) -> Any:
        one, other = (np.ones(shape, np.float32) for shape in ((96, 20), (20, 96)))
        return b.op("MatMul", b.op("MatMul", x, b.weight("one", one)), b.weight("other", other))

    model = grow(build, SHAPE, SHAPE)
    assert layers(pack_int4(model)) == layers(model)[1:]


def test_what_cannot_be_packed_is_refused(model: ir.Model, grow: Grower) -> None:
    with pytest.raises(InputError, match="no linear 'pooler' to keep; there are 2"):
        pack_int4(model, keep=frozenset({"pooler"}))
    with pytest.raises(
        InputError, match="there is no linear with a constant fp32 weight whose rows 16 divides"
    ):
        pack_int4(grow(lambda b, x: b.op("Relu", x), SHAPE, SHAPE))
    with pytest.raises(InputError, match="opset 17 has no blocks of int4; expected 21 or later"):
        pack_int4(rewrite(model, [LowerOpset(17)]))


def test_a_linear_left_is_a_fault_of_the_pass(model: ir.Model) -> None:
    class Idle(PackInt4):
        def call(self, model: ir.Model) -> Any:
            return ir.passes.PassResult(model, False)

    with pytest.raises(CompileError, match="Idle did not do what it promises: n0: not packed"):
        rewrite(model, [Idle()])
