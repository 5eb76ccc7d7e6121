"""Identity taken out: what is read stays the same, and so does every name outside."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import TensorProto, helper
from onnx_ir.passes import PostconditionError

from alula.graphs import rewrite
from alula.graphs.passes.identities import DropIdentities

X = np.array([1.0, -2.0], np.float32)


def value(name: str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, [2])


def model_of(nodes: list[onnx.NodeProto], outputs: list[str], inputs: tuple[str, ...] = ("x",)) -> ir.Model:
    graph = helper.make_graph(nodes, "g", [value(name) for name in inputs], [value(name) for name in outputs])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11)
    onnx.checker.check_model(made)
    return ir.serde.deserialize_model(made)


def run(model: ir.Model) -> dict[str, list[float]]:
    session = onnxruntime.InferenceSession(ir.serde.serialize_model(model).SerializeToString())
    names = [output.name for output in session.get_outputs()]
    return {name: array.tolist() for name, array in zip(names, session.run(None, {"x": X}), strict=True)}


def kinds(model: ir.Model) -> list[str]:
    return [node.op_type for node in model.graph]


def node(kind: str, given: str, made: str) -> onnx.NodeProto:
    return helper.make_node(kind, [given], [made])


def test_identities_between_nodes_and_before_an_output_go() -> None:
    model = model_of([node("Neg", "x", "a"), node("Identity", "a", "b"), node("Identity", "b", "y")], ["y"])
    dropped = rewrite(model, [DropIdentities()])
    assert kinds(dropped) == ["Neg"]
    assert run(dropped) == {"y": [-1.0, 2.0]}


def test_two_outputs_of_one_value_keep_both_names() -> None:
    model = model_of([node("Neg", "x", "a"), node("Identity", "a", "b")], ["a", "b"])
    dropped = rewrite(model, [DropIdentities()])
    assert kinds(dropped) == ["Neg", "Identity"]
    assert run(dropped) == {"a": [-1.0, 2.0], "b": [-1.0, 2.0]}


def test_an_input_that_is_an_output_stays_both() -> None:
    model = model_of([node("Identity", "x", "y")], ["y"])
    dropped = rewrite(model, [DropIdentities()])
    assert run(dropped) == {"y": X.tolist()}


def test_a_branch_that_gives_a_value_from_outside_is_left_alone() -> None:
    then = helper.make_graph([node("Identity", "a", "t")], "then", [], [value("t")])
    other = helper.make_graph([node("Abs", "a", "e")], "else", [], [value("e")])
    condition = helper.make_node(
        "Constant", [], ["c"], value=helper.make_tensor("c", TensorProto.BOOL, [], [1])
    )
    branch = helper.make_node("If", ["c"], ["y"], then_branch=then, else_branch=other)
    model = model_of([node("Neg", "x", "n"), node("Identity", "n", "a"), condition, branch], ["y", "a"])
    before = run(model)
    dropped = rewrite(model, [DropIdentities()])
    assert kinds(dropped) == ["Neg", "Constant", "If"]
    assert run(dropped) == before == {"y": [-1.0, 2.0], "a": [-1.0, 2.0]}


def test_what_it_promises_is_checked() -> None:
    model = model_of([node("Neg", "x", "a"), node("Identity", "a", "y")], ["y"])
    with pytest.raises(PostconditionError, match="still there"):
        DropIdentities().ensures(model)
