"""What every pass edits a graph with: new nodes in front of an old one, constants that are shared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from alula.core.tensor import Array

Attribute = int | float | str | Sequence[int]

LAST = (1 << 63) - 1
"""Where a Slice or a Shape ends that goes to the end."""


@dataclass(slots=True)
class Editor:
    """Puts new nodes in front of `node`, named after it; `node` itself goes in `replace`."""

    node: ir.Node
    _made: int = 0

    @property
    def graph(self) -> ir.Graph:
        """The graph that is edited."""
        graph = self.node.graph
        assert isinstance(graph, ir.Graph)
        return graph

    def op(
        self,
        op_type: str,
        *inputs: ir.Value | None,
        dtype: ir.DataType | None = None,
        **attributes: Attribute,
    ) -> ir.Value:
        """Add a node with one output, of the dtype of its first input unless told otherwise."""
        made = ir.node(op_type, inputs, attributes=attributes)
        # ONNX Runtime refuses two nodes of one name.
        made.name = made.outputs[0].name = f"{self.node.name}/{self._made}.{op_type}"
        self._made += 1
        self.graph.insert_before(self.node, made)
        output = made.outputs[0]
        first = inputs[0] if inputs else None
        known = dtype if dtype is not None or first is None else first.dtype
        if known is not None:
            retype(output, known)
        return output

    def ints(self, *values: int) -> ir.Value:
        """A shared int64 vector, for shapes and axes."""
        label = "_".join(str(value).replace("-", "m") for value in values)
        return constant(self.graph, f"ints_{label}", np.array(values, np.int64))

    def integer(self, value: int) -> ir.Value:
        """A shared int64 scalar."""
        return constant(self.graph, f"int64_{value}".replace("-", "m"), np.array(value, np.int64))

    def number(self, value: float, dtype: ir.DataType) -> ir.Value:
        """A shared scalar."""
        label = f"{value:.9g}".replace("-", "m").replace("+", "").replace(".", "p")
        return constant(self.graph, f"{dtype.name.lower()}_{label}", np.array(value, dtype.numpy()))

    def replace(self, *outputs: ir.Value) -> None:
        """Let `outputs` stand for the node's own, keeping names and graph outputs, and remove the node."""
        graph = self.graph
        for old, new in zip(self.node.outputs, outputs, strict=True):
            hand_over(old, new)
        graph.remove(self.node, safe=True)


def retype(value: ir.Value, dtype: ir.DataType) -> None:
    """Give the value a type of its own: a copy of a model shares the type objects of the original."""
    value.type = ir.TensorType(dtype)


def hand_over(old: ir.Value, new: ir.Value) -> None:
    """Make every user of `old` use `new`, which also takes over its name when it is a graph output."""
    if old.dtype is not None:
        retype(new, old.dtype)
    new.shape = old.shape if old.shape is not None else new.shape
    name, is_output = old.name, old.is_graph_output()
    old.replace_all_uses_with(new, replace_graph_outputs=True)
    if is_output:
        old.name = f"{name}_replaced"
        new.name = name


def constant(graph: ir.Graph, name: str, array: Array) -> ir.Value:
    """The initializer `name`, made if the graph has none yet with this very content."""
    label, serial = name, 0
    while (found := graph.initializers.get(label)) is not None:
        if found.const_value is not None and _same(found.const_value, array):
            return found
        serial += 1
        label = f"{name}_{serial}"
    return weight(graph, label, ir.tensor(array, name=label))


def weight(graph: ir.Graph, name: str, tensor: ir.TensorProtocol) -> ir.Value:
    """Register a tensor as a new initializer; a taken name gets a number."""
    label, serial = name, 0
    while label in graph.initializers:
        serial += 1
        label = f"{name}_{serial}"
    value = ir.Value(
        name=label,
        type=ir.TensorType(tensor.dtype),
        shape=ir.Shape(tensor.shape),  # type: ignore[arg-type] # a tensor's own shape is fixed
        const_value=tensor,
    )
    graph.register_initializer(value)
    return value


def is_constant(value: ir.Value | None) -> bool:
    """Whether the value is an initializer that no caller can feed."""
    return value is not None and value.const_value is not None and not value.is_graph_input()


def array_of(value: ir.Value | None) -> NDArray[np.generic] | None:
    """The numbers of a small constant, be it an initializer or a Constant node; None for anything else."""
    if value is None:
        return None
    tensor = ir.convenience.get_const_tensor(value)
    return None if tensor is None else tensor.numpy()


def ints_of(value: ir.Value | None) -> tuple[int, ...] | None:
    """The numbers of a constant vector of integers; None for anything else."""
    array = array_of(value)
    return None if array is None else tuple(int(number) for number in array.reshape(-1))


def _same(tensor: ir.TensorProtocol, array: Array) -> bool:
    if tensor.nbytes != array.nbytes or tensor.dtype.numpy() != array.dtype:
        return False
    return tuple(tensor.shape.numpy()) == array.shape and bool(np.array_equal(tensor.numpy(), array))


def first_input(node: ir.Node) -> ir.Value:
    """The first input of a node that must have one."""
    value = node.inputs[0]
    assert value is not None
    return value


def constant_linear(value: ir.Value) -> tuple[tuple[ir.Node, int], ...]:
    """The constants (user and input index) of the linear that gives `value`; empty if it is none.

    Scaling all of them scales `value`. Nobody else may see the linear's result on its way here.
    """
    found: list[tuple[ir.Node, int]] = []
    node = value.producer()
    while node is not None and len(value.uses()) == 1 and not value.is_graph_output():
        index = next((index for index, each in enumerate(node.inputs[:2]) if is_constant(each)), None)
        if node.op_type in {"Reshape", "Transpose"}:
            source = node.inputs[0]
        elif node.op_type == "Add" and index is not None:
            found.append((node, index))
            source = node.inputs[1 - index]
        elif node.op_type == "MatMul" and is_constant(node.inputs[1]):
            return (*found, (node, 1))
        else:
            return ()
        assert source is not None
        value, node = source, source.producer()
    return ()


def scale_constant(user: ir.Node, index: int, scale: float) -> None:
    """Give `user` a constant times `scale`, computed when it is saved."""
    factor = float(scale)
    replace_constant(user, index, "scaled", lambda array: array * array.dtype.type(factor))


def replace_constant(
    user: ir.Node,
    index: int,
    what: str,
    change: Callable[[NDArray[Any]], NDArray[Any]],
    dtype: ir.DataType | None = None,
) -> ir.Value:
    """Give `user` a constant changed by a function, which runs when the model is saved.

    The old constant goes with its last user.
    """
    old, graph = user.inputs[index], user.graph
    assert old is not None
    assert isinstance(graph, ir.Graph)
    tensor = old.const_value
    assert tensor is not None
    name = f"{old.name}_{what}"
    changed = ir.LazyTensor(
        lambda: ir.tensor(np.asarray(change(tensor.numpy()))),
        dtype=dtype if dtype is not None else tensor.dtype,
        shape=ir.Shape(tensor.shape),  # type: ignore[arg-type] # a tensor's own shape is fixed
        name=name,
    )
    new = weight(graph, name, changed)
    user.replace_input_with(index, new)
    if not old.uses() and not old.is_graph_output():
        graph.initializers.pop(str(old.name))
    return new


def is_over_last_axis(node: ir.Node) -> bool:
    """Whether a norm is of the last axis alone."""
    x = node.inputs[0]
    last = -1 if x is None or x.shape is None else len(x.shape) - 1
    return node.attributes.get_int("axis", -1) in {-1, last}
