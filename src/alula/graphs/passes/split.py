"""Products and biases of two axes, written so that ONNX Runtime does not make one Gemm of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from onnx_ir.passes import InPlacePass, PassResult, PostconditionError

from alula.graphs.passes.edit import Editor, array_of, is_constant, replace_constant, weight

# It fuses MatMul and Add of two axes to Gemm before it looks for int8, and its int8 Gemm takes int8 results alone: then
# weights are restored to fp32 in every run. 1x2048 times 2048x1000 on a Zen 3, milliseconds: 0.7 in fp32, 7.5 with
# Gemm in int8. A difference it leaves alone.


class SplitGemm(InPlacePass):
    """Rewrites Gemm with a constant weight, and products of two axes with a bias, to MatMul and Sub."""

    def call(self, model: ir.Model) -> PassResult:
        """Gemm first, since it leaves nothing to do for the other."""
        nodes = [node for node in model.graph if _is_gemm(node)]
        for node in nodes:
            _split(node)
        sums = [node for node in model.graph if _adds_to_rows(node)]
        for node in sums:
            _subtract(node)
        return PassResult(model, bool(nodes or sums))

    def ensures(self, model: ir.Model) -> None:
        """Neither is left."""
        for node in model.graph:
            if _is_gemm(node) or _adds_to_rows(node):
                raise PostconditionError(f"{node.name}: not split")


def _is_gemm(node: ir.Node) -> bool:
    """Whether weight and bias are constants, and the activation is read as it is."""
    if node.op_type != "Gemm" or node.domain != "" or node.attributes.get_int("transA"):
        return False
    value, *constants = node.inputs
    return not is_constant(value) and all(is_constant(each) for each in constants if each is not None)


def _adds_to_rows(node: ir.Node) -> bool:
    """Whether this adds a constant vector to the product of a matrix, of known rank, with a constant."""
    if node.op_type != "Add" or not any(is_constant(value) for value in node.inputs):
        return False
    product, bias = sorted(node.inputs, key=is_constant)
    producer = product.producer() if product is not None else None
    if producer is None or producer.op_type != "MatMul" or not is_constant(producer.inputs[1]):
        return False
    value, added = producer.inputs[0], array_of(bias)
    if value is None or value.shape is None or len(value.shape) != 2:
        return False
    return added is not None and added.dtype == np.float32


def _split(node: ir.Node) -> None:
    alpha, beta = (node.attributes.get_float(name, 1.0) for name in ("alpha", "beta"))
    matrix = node.inputs[1]
    assert matrix is not None
    assert matrix.const_value is not None
    edit = Editor(node)
    graph = edit.graph
    product = edit.op("MatMul", node.inputs[0], matrix)
    made = product.producer()
    assert made is not None
    product.shape = node.outputs[0].shape
    if node.attributes.get_int("transB"):
        _transpose(made)
    if alpha != 1.0:
        replace_constant(made, 1, "scaled", _times(alpha))
    bias, result = array_of(node.inputs[2]) if len(node.inputs) > 2 else None, product
    if bias is not None and beta != 0.0:
        label = f"{node.name}/minus"
        minus = np.multiply(bias, np.float32(-beta), dtype=np.float32)
        result = edit.op("Sub", product, weight(graph, label, ir.tensor(minus, name=label)))
    constants, name = node.inputs[1:], node.name
    edit.replace(result)
    made.name = name
    _drop(graph, *constants)


def _times(factor: float) -> Callable[[NDArray[Any]], NDArray[Any]]:
    return lambda array: array * array.dtype.type(factor)


def _transpose(node: ir.Node) -> None:
    """The weight with its axes exchanged, when the model is saved."""
    old, graph = node.inputs[1], node.graph
    assert old is not None
    assert old.const_value is not None
    assert isinstance(graph, ir.Graph)
    tensor, name = old.const_value, f"{old.name}_transposed"
    lazy = ir.LazyTensor(
        lambda: ir.tensor(np.ascontiguousarray(tensor.numpy().T)),
        dtype=tensor.dtype,
        shape=ir.Shape(tensor.shape.numpy()[::-1]),
        name=name,
    )
    node.replace_input_with(1, weight(graph, name, lazy))


def _subtract(node: ir.Node) -> None:
    product, bias = sorted(node.inputs, key=is_constant)
    added = array_of(bias)
    assert added is not None
    edit, name = Editor(node), f"{node.name}/minus"
    graph = edit.graph
    minus = weight(graph, name, ir.tensor(np.negative(added, dtype=np.float32), name=name))
    edit.replace(edit.op("Sub", product, minus))
    _drop(graph, bias)


def _drop(graph: ir.Graph, *constants: ir.Value | None) -> None:
    for each in constants:
        if each is not None and not each.uses() and not each.is_graph_output():
            graph.initializers.pop(str(each.name), None)
