"""RotaryEmbedding and RMSNormalization written out: equal to the operators, in fp16 too; what is not is refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from numpy.typing import NDArray
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

from alula.core.errors import CompileError, InputError
from alula.graphs import rewrite
from alula.graphs.passes.opset import LowerOpset
from alula.graphs.passes.rms import DecomposeRms
from alula.graphs.passes.rotary import DecomposeRotary

HEADS = ("batch", 3, 5, 8)
ROWS = ("batch", 4, 8)
FP16 = ir.DataType.FLOAT16
Floats = NDArray[np.float32]
Runner = Callable[[ir.Model, Mapping[str, Any]], list[Floats]]
Grower = Callable[..., ir.Model]


def turned(b: Any, x: ir.Value, **attributes: Any) -> Any:
    """Queries and keys by one table, as a decoder has them."""
    rng = np.random.default_rng(0)
    turns = [b.weight(name, rng.standard_normal((2, 5, 4)).astype(np.float32)) for name in ("cos", "sin")]
    queries = b.op("RotaryEmbedding", x, *turns, **attributes)
    return b.op("Add", queries, b.op("RotaryEmbedding", b.op("Neg", x), *turns, **attributes))


def numbers(*shape: int) -> Floats:
    return np.random.default_rng(1).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("opset", [17, 22])
def test_heads_are_turned_as_the_operator_turns_them(opset: int, grow: Grower, run_graph: Runner) -> None:
    model = grow(lambda b, x: turned(b, b.op("Mul", x, x)), HEADS, HEADS)
    lowered = rewrite(model, [LowerOpset(opset)])
    x = numbers(2, 3, 5, 8)
    (given,), (expected,) = run_graph(lowered, {"x": x}), run_graph(model, {"x": x})
    np.testing.assert_allclose(given, expected, atol=1e-6)
    # What two share is spread over heads once: a cosine and a sine.
    assert Counter(node.op_type for node in lowered.graph)["Unsqueeze"] == 2


def test_the_sign_of_a_sine_is_seen(grow: Grower, run_graph: Runner) -> None:
    def build(b: Any, x: ir.Value) -> Any:
        rng = np.random.default_rng(0)
        turns = [b.weight(name, rng.standard_normal((2, 5, 4)).astype(np.float32)) for name in ("cos", "sin")]
        return b.op("RotaryEmbedding", x, *turns)

    model = grow(build, HEADS, HEADS)
    wrong = rewrite(model, [DecomposeRotary()])
    one = next(node for node in wrong.graph if node.op_type == "Sub")
    one.replace_input_with(1, next(node for node in wrong.graph if node.op_type == "Add").inputs[0])
    x = numbers(2, 3, 5, 8)
    assert np.abs(run_graph(wrong, {"x": x})[0] - run_graph(model, {"x": x})[0]).max() > 0.1


@pytest.mark.parametrize(
    ("attributes", "shape", "message"),
    [
        ({"interleaved": 1}, HEADS, "n0: RotaryEmbedding of neighbours is not supported"),
        ({"rotary_embedding_dim": 4}, HEADS, "n0: RotaryEmbedding of a part of each head is not supported"),
        (
            {"num_heads": 3},
            ("batch", 5, 24),
            "n0: RotaryEmbedding of other than .batch, heads, length, size.",
        ),
    ],
)
def test_other_rotations_are_refused(
    attributes: Mapping[str, Any], shape: Any, message: str, grow: Grower
) -> None:
    model = grow(lambda b, x: turned(b, x, **attributes), shape, shape)
    with pytest.raises(InputError, match=message):
        rewrite(model, [DecomposeRotary()])


def normed(b: Any, x: ir.Value, **attributes: Any) -> Any:
    return b.op("RMSNormalization", x, b.weight("scale", numbers(8)), **attributes)


@pytest.mark.parametrize("opset", [17, 22])
@pytest.mark.parametrize("epsilon", [1e-6, 0.1])
def test_a_norm_written_out_is_the_norm(opset: int, epsilon: float, grow: Grower, run_graph: Runner) -> None:
    model = grow(lambda b, x: normed(b, x, epsilon=epsilon), ROWS, ROWS)
    lowered = rewrite(model, [LowerOpset(opset)])
    x = numbers(2, 4, 8)
    np.testing.assert_allclose(run_graph(lowered, {"x": x})[0], run_graph(model, {"x": x})[0], atol=1e-6)


def test_a_row_of_300_in_fp16_is_the_weight(grow: Grower, run_graph: Runner) -> None:
    """300 * 300 is infinite in fp16: squares are summed in fp32."""

    def build(b: Any, x: ir.Value) -> Any:
        half = b.op("Cast", x, to=int(FP16))
        y = b.op("RMSNormalization", half, b.weight("scale", np.arange(8).astype(np.float16)))
        return b.op("Cast", y, to=int(ir.DataType.FLOAT))

    lowered = rewrite(grow(build, ROWS, ROWS), [LowerOpset(17)])
    (given,) = run_graph(lowered, {"x": np.full((1, 4, 8), 300, np.float32)})
    np.testing.assert_allclose(given, np.tile(np.arange(8.0), (1, 4, 1)), rtol=2e-3)
    kinds = {node.outputs[0].dtype for node in lowered.graph if node.op_type == "ReduceMean"}
    assert kinds == {ir.DataType.FLOAT}


@pytest.mark.parametrize("bounded", [True, False])
@pytest.mark.parametrize("size", [0.0, 1e-3, 1.0, 300.0, 2e4])
def test_a_bounded_norm_is_right_where_all_of_it_is_fp16(size: float, bounded: bool, grow: Grower) -> None:
    """As a region of TensorRT 8.6 counts it; without the bound squares are infinite, or nothing."""

    def build(b: Any, x: ir.Value) -> Any:
        return b.op("RMSNormalization", x, b.weight("scale", np.ones(8, np.float32)), epsilon=1e-6)

    model = rewrite(grow(build, ROWS, ROWS), [DecomposeRms(bounded=bounded), LowerOpset(17)])
    x = np.random.default_rng(0).standard_normal((1, 4, 8)) * size
    expected = x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6)
    with np.errstate(over="ignore", invalid="ignore"):
        (given,) = ReferenceEvaluator(in_fp16(model)).run(None, {"x": x.astype(np.float16)})
    off = np.abs(np.asarray(given, np.float64) - expected).max()
    right = bool(off < 4e-3)
    assert right == (bounded or size in {0.0, 1.0}), off


def in_fp16(model: ir.Model) -> onnx.ModelProto:
    """Every float of a graph made fp16, casts and all."""
    proto = ir.to_proto(model)
    for tensor in proto.graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT:
            halved = numpy_helper.to_array(tensor).astype(np.float16)
            tensor.CopyFrom(numpy_helper.from_array(halved, tensor.name))
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT16
    del proto.graph.value_info[:]
    return proto


def test_norms_of_more_than_the_last_axis_are_refused(grow: Grower) -> None:
    def build(b: Any, x: ir.Value) -> Any:
        return b.op("RMSNormalization", x, b.weight("scale", numbers(4, 8)), axis=1)

    with pytest.raises(InputError, match="n0: RMSNormalization from axis 1 on is not supported"):
        rewrite(grow(build, ROWS, ROWS), [DecomposeRms()])


@pytest.mark.parametrize("kind", [DecomposeRms, DecomposeRotary])
def test_one_that_is_left_is_a_fault_of_the_pass(kind: type[Any], grow: Grower) -> None:
    class Idle(kind):  # type: ignore[misc] # the class is the parameter
        def call(self, model: ir.Model) -> Any:
            return ir.passes.PassResult(model, False)

    model = grow(lambda b, x: turned(b, normed(b, x)), HEADS, HEADS)
    with pytest.raises(CompileError, match=r"Idle did not do what it promises: n[01]: still there"):
        rewrite(model, [Idle()])
