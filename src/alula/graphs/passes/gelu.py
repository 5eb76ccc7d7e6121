"""The Gelu operator (opset 20) in operators that older parsers read."""

from __future__ import annotations

import math

import onnx_ir as ir
from onnx_ir.passes import InPlacePass, PassResult, PostconditionError, PreconditionError

from alula.graphs.passes.edit import Editor, constant_linear, scale_constant


class DecomposeGelu(InPlacePass):
    """Replaces every Gelu by its definition: 0.5 x (1 + erf(x / sqrt(2))), or the form with tanh."""

    def requires(self, model: ir.Model) -> None:
        """Its approximation is one of the two that ONNX has."""
        for node in _gelus(model):
            if _approximation(node) not in {"none", "tanh"}:
                raise PreconditionError(f"{node.name}: no Gelu with approximate={_approximation(node)!r}")

    def call(self, model: ir.Model) -> PassResult:
        """Rewrite them one by one."""
        nodes = _gelus(model)
        for node in nodes:
            _tanh_form(Editor(node)) if _approximation(node) == "tanh" else _erf_form(Editor(node))
        return PassResult(model, bool(nodes))

    def ensures(self, model: ir.Model) -> None:
        """None is left."""
        if left := _gelus(model):
            raise PostconditionError(f"{left[0].name}: still there")


class FoldGelu(InPlacePass):
    """Replaces a Gelu (erf form) between two constant linears by z (1 + erf(z)), its factors in their weights.

    Other Gelus stay as they are.
    """

    def call(self, model: ir.Model) -> PassResult:
        """Rewrite those that allow it."""
        folded = [node for node in _gelus(model) if _approximation(node) == "none" and _fold(Editor(node))]
        return PassResult(model, bool(folded))


def _gelus(model: ir.Model) -> list[ir.Node]:
    return [node for node in model.graph.all_nodes() if node.op_type == "Gelu" and node.domain == ""]


def _approximation(node: ir.Node) -> str:
    return node.attributes.get_string("approximate", "none")


def _input(node: ir.Node) -> tuple[ir.Value, ir.DataType]:
    x = node.inputs[0]
    assert x is not None
    return x, x.dtype if x.dtype is not None else ir.DataType.FLOAT


def _erf_form(edit: Editor) -> None:
    x, dtype = _input(edit.node)
    erf = edit.op("Erf", edit.op("Mul", x, edit.number(math.sqrt(0.5), dtype)))
    half = edit.op("Mul", x, edit.number(0.5, dtype))
    edit.replace(edit.op("Mul", half, edit.op("Add", erf, edit.number(1.0, dtype))))


def _tanh_form(edit: Editor) -> None:
    x, dtype = _input(edit.node)
    cube = edit.op("Mul", edit.op("Mul", x, x), x)
    inner = edit.op("Add", x, edit.op("Mul", cube, edit.number(0.044715, dtype)))
    tanh = edit.op("Tanh", edit.op("Mul", inner, edit.number(math.sqrt(2 / math.pi), dtype)))
    half = edit.op("Mul", x, edit.number(0.5, dtype))
    edit.replace(edit.op("Mul", half, edit.op("Add", tanh, edit.number(1.0, dtype))))


def _fold(edit: Editor) -> bool:
    node = edit.node
    x, dtype = _input(node)
    output = node.outputs[0]
    users = output.consumers()
    before = constant_linear(x)
    if not before or len(users) != 1 or output.is_graph_output():
        return False
    after = users[0]
    if after.op_type != "MatMul" or after.inputs[0] is not output or after.inputs[1] is None:
        return False
    if after.inputs[1].const_value is None or after.inputs[1].is_graph_input():
        return False
    for user, index in (*before, (after, 1)):
        scale_constant(user, index, math.sqrt(0.5))
    edit.replace(edit.op("Mul", x, edit.op("Add", edit.op("Erf", x), edit.number(1.0, dtype))))
    return True
