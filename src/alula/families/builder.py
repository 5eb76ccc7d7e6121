"""Nodes and weights of one ONNX graph, as a family adds them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from alula.core.errors import InputError
from alula.core.model import Part
from alula.core.tensor import TensorSpec
from alula.families.weights import Floats, Weights

Attribute = int | float | str | Sequence[int]


class Builder:
    """A graph under construction; every node is named after the layer it belongs to.

    Weights stay where they are: each is read when the graph is saved, and again whenever it is asked for.
    """

    def __init__(self, weights: Weights, prefix: str) -> None:
        self._weights = weights
        self._prefix = prefix if any(name.startswith(prefix) for name in weights) else ""
        self._nodes: list[ir.Node] = []
        self._initializers: dict[str, ir.Value] = {}
        self._names: dict[str, int] = {}

    def op(self, kind: str, *inputs: ir.Value | None, path: str, **attributes: Attribute) -> ir.Value:
        """Add a node with one output."""
        return self.ops(kind, *inputs, path=path, outputs=1, **attributes)[0]

    def ops(
        self, kind: str, *inputs: ir.Value | None, path: str, outputs: int, **attributes: Attribute
    ) -> tuple[ir.Value, ...]:
        """Add a node with several outputs."""
        name = self._unique(f"{path}/{kind}")
        values = [ir.Value(name=name if outputs == 1 else f"{name}:{index}") for index in range(outputs)]
        self._nodes.append(ir.node(kind, inputs, attributes, outputs=values, name=name))
        return tuple(values)

    def rename(self, value: ir.Value, spec: TensorSpec) -> ir.Value:
        """Make `value` the output that `spec` describes."""
        value.name = spec.name
        value.type = _type_of(spec)
        value.shape = ir.Shape(spec.shape)
        return value

    def has(self, name: str) -> bool:
        """Whether the checkpoint holds this weight of the encoder."""
        return self._prefix + name in self._weights

    def shape(self, name: str, *, head: bool = False) -> tuple[int, ...]:
        """The shape of a weight as the checkpoint stores it."""
        return self._weights[self._find(name, head=head)].shape

    def require_rows(self, name: str, expected: int, what: str, *, head: bool = False) -> None:
        """Refuse a weight whose size is not what config.json says."""
        found = next(iter(self.shape(name, head=head)), 0)
        if found != expected:
            raise InputError(f"{name} has {found} rows, config.json says {expected} ({what})")

    def require(self, name: str, *expected: int, head: bool = False) -> None:
        """Refuse a weight whose shape is not what the settings call for."""
        found = self.shape(name, head=head)
        if found != expected:
            raise InputError(f"{name} is {_sizes(found)}, its config.json calls for {_sizes(expected)}")

    def numbered(self, path: str, count: int, key: str) -> range:
        """The numbers of the layers below a path; refuses a checkpoint with more than `key` of config.json counts."""
        inside = f"{self._prefix}{path}."
        numbers = [
            name.removeprefix(inside).split(".")[0] for name in self._weights if name.startswith(inside)
        ]
        found = 1 + max((int(number) for number in numbers if number.isdecimal()), default=-1)
        if found > count:
            raise InputError(
                f"the checkpoint has {found} layers in {inside}*, its config.json calls for {count} ({key}), which "
                f"would make another model of it; put {key} right, or leave the weights of the other layers out"
            )
        return range(count)

    def weight(self, name: str, *expected: int, head: bool = False, transposed: bool = False) -> ir.Value:
        """A weight of the encoder, or of a head beside it; asked for twice, it is stored once."""
        self.require(name, *expected, head=head)
        source = self._weights[self._find(name, head=head)]
        if not transposed:
            return self.lazy(name, source.shape, source.read)
        return self.lazy(name, source.shape[::-1], source.read_transposed)

    def read(self, name: str, *, head: bool = False) -> Floats:
        """The values of a weight of the encoder, or of a head beside it, for use inside a lazy one."""
        return self._weights[self._find(name, head=head)].read()

    def lazy(self, name: str, shape: tuple[int, ...], read: Callable[[], Floats]) -> ir.Value:
        """An fp32 initializer whose values are made when they are needed, and not kept."""
        if name not in self._initializers:
            tensor = ir.LazyTensor(
                lambda: ir.Tensor(read(), name=name),
                dtype=ir.DataType.FLOAT,
                shape=ir.Shape(shape),
                name=name,
            )
            self._initializers[name] = _initializer(name, shape, tensor)
        return self._initializers[name]

    def floats(self, *values: float) -> ir.Value:
        """A small fp32 constant: a scalar if one value is given."""
        return self._constant(np.array(values if len(values) > 1 else values[0], dtype=np.float32))

    def ints(self, *values: int) -> ir.Value:
        """A small int64 constant of one dimension."""
        return self._constant(np.array(values, dtype=np.int64))

    def index(self, value: int) -> ir.Value:
        """An int64 scalar."""
        return self._constant(np.array(value, dtype=np.int64))

    def count(self, name: str, size: int) -> ir.Value:
        """The numbers 0, 1, ... size - 1."""
        return self._stored(name, np.arange(size, dtype=np.int64))

    def model(
        self, inputs: Sequence[ir.Value], outputs: Sequence[ir.Value], name: str, opset: int
    ) -> ir.Model:
        """The finished graph."""
        graph = ir.Graph(
            inputs,
            outputs,
            nodes=self._nodes,
            initializers=list(self._initializers.values()),
            opset_imports={"": opset},
            name=name,
        )
        return ir.Model(graph, ir_version=_IR_VERSION[opset], producer_name="alula")

    def extend(self, graph: ir.Graph) -> None:
        """Put what was added behind the nodes of a graph that exists."""
        for value in self._initializers.values():
            graph.register_initializer(value)
        graph.extend(self._nodes)

    def _constant(self, array: NDArray[np.generic]) -> ir.Value:
        return self._stored(
            "_".join([array.dtype.name, "x".join(map(str, array.shape)), *map(str, array.flat)]), array
        )

    def _stored(self, name: str, array: NDArray[np.generic]) -> ir.Value:
        if name not in self._initializers:
            self._initializers[name] = _initializer(name, array.shape, ir.Tensor(array, name=name))
        return self._initializers[name]

    def _find(self, name: str, *, head: bool) -> str:
        full = name if head else self._prefix + name
        # TensorFlow's names for the two weights of a norm, still found in old checkpoints.
        old = full.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
        for candidate in (full, old):
            if candidate in self._weights:
                return candidate
        raise InputError(f"the checkpoint has no weight {full!r}, which its config.json calls for")

    def _unique(self, name: str) -> str:
        count = self._names.get(name, 0)
        self._names[name] = count + 1
        return f"{name}.{count}" if count else name


_ONNX = {"float32": "FLOAT", "float64": "DOUBLE"}
"""ONNX's names of element types that are not numpy's in capitals."""

_IR_VERSION = {23: 11, 24: 12}
OPSETS = tuple(_IR_VERSION)


def ir_version_of(opset: int) -> int:
    """The version of the file format that a graph of this opset is written in."""
    if opset not in _IR_VERSION:
        raise InputError(f"opset {opset} is not one that graphs are written in: {OPSETS}")
    return _IR_VERSION[opset]


def graph_input(spec: TensorSpec) -> ir.Value:
    """An input as `spec` describes it."""
    return ir.Value(name=spec.name, type=_type_of(spec), shape=ir.Shape(spec.shape))


def _type_of(spec: TensorSpec) -> ir.TensorType:
    return ir.TensorType(ir.DataType[_ONNX.get(spec.dtype, spec.dtype.upper())])


def declare(graph: ir.Graph, part: Part) -> None:
    """Give a graph's inputs and outputs the names, types and axes of the part."""
    for given, specs in ((graph.inputs, part.inputs), (graph.outputs, part.outputs)):
        for value, spec in zip(given, specs, strict=True):
            declared = graph_input(spec)
            value.name, value.type, value.shape = declared.name, declared.type, declared.shape


def _sizes(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape)) or "a single number"


def _initializer(name: str, shape: tuple[int, ...], tensor: ir.TensorProtocol) -> ir.Value:
    return ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(shape), const_value=tensor)
