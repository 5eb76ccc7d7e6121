"""Weights in four or eight bits, restored where they are read; what is computed with them stays as it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from onnx_ir.passes import InPlacePass, PassResult, PostconditionError, PreconditionError

from alula.graphs.passes.blocks import Floats, Grid, Zeros, grid_of
from alula.graphs.passes.choice import reaches_output
from alula.graphs.passes.edit import Editor, is_constant
from alula.graphs.passes.layers import is_convolution, layers_of, weight_of
from alula.graphs.passes.quantize import lazy

FP32 = ir.DataType.FLOAT

_OPSET = 21
_TYPES = {
    (4, True): (ir.DataType.INT4, ml_dtypes.int4),
    (4, False): (ir.DataType.UINT4, ml_dtypes.uint4),
    (8, True): (ir.DataType.INT8, np.int8),
    (8, False): (ir.DataType.UINT8, np.uint8),
}
# Below, a look-up's two nodes more cost about what reading less wins.
_LEAST_TABLE = 1 << 16


@dataclass(frozen=True, kw_only=True, slots=True)
class Packing:
    """How the weights of linears are stored: in so many bits, and `blocks` neighbours along the sum to a scale.

    The first block that divides the rows is taken. Where none does, and for the last linear before an output, it is
    eight bits and a scale for the whole column; with `tables` so have tables that rows are looked up in, by row. With
    `half_scales` fp16 holds the scales, so that what is restored may be fp16.
    """

    bits: int
    blocks: tuple[int, ...]
    zeros: Zeros = "none"
    tables: bool = True
    half_scales: bool = False

    def by_column(self) -> Packing:
        """Eight bits and a scale for each column."""
        return Packing(bits=8, blocks=(), half_scales=self.half_scales)


class PackWeights(InPlacePass):
    """Stores the weight of every linear, those of `keep` excepted, and every table of embeddings in few bits."""

    def __init__(self, packing: Packing, keep: frozenset[str] = frozenset()) -> None:
        super().__init__()
        self.packing, self.keep = packing, keep

    def requires(self, model: ir.Model) -> None:
        """The opset has blocks and four bits, there is a linear, and those to keep exist."""
        if (opset := model.opset_imports.get("", 0)) < _OPSET:
            raise PreconditionError(f"opset {opset} has no blocks of int4; expected {_OPSET} or later")
        found = linears(model)
        if not found:
            raise PreconditionError("there is no linear with a constant fp32 weight")
        if unknown := sorted(self.keep - {str(node.name) for node in found}):
            raise PreconditionError(f"no linear {unknown[0]!r} to keep; there are {len(found)}")

    def call(self, model: ir.Model) -> PassResult:
        """One by one; each weight is packed when the model is saved."""
        chosen = [node for node in linears(model) if node.name not in self.keep]
        last = {node for node in chosen if reaches_output(node)}
        for node in chosen:
            _pack_linear(node, self.packing.by_column() if node in last else self.packing)
        for table in _tables(model) if self.packing.tables else ():
            _pack_table(table, self.packing.by_column())
        return PassResult(model, bool(chosen))

    def ensures(self, model: ir.Model) -> None:
        """Whatever still multiplies by an fp32 constant was to be kept."""
        for node in linears(model):
            if node.name not in self.keep:
                raise PostconditionError(f"{node.name}: not packed")


def linears(model: ir.Model) -> list[ir.Node]:
    """Products with a constant fp32 matrix, in order."""
    return [node for node in layers_of(model) if not is_convolution(node)]


def _pack_linear(node: ir.Node, packing: Packing) -> None:
    old, tensor = node.inputs[1], weight_of(node)
    assert old is not None
    rows, columns = tensor.shape.numpy()
    block = next((each for each in packing.blocks if rows % each == 0), 0)
    if not block:
        packing = packing.by_column()
    stored = _Stored(name=str(old.name), packing=packing, block=block or rows, read=tensor.numpy)
    edit = Editor(node)
    if packing.zeros == "real":
        restored = _with_real_zeros(edit, stored, (rows, columns))
    else:
        restored = _dequantised(edit, stored, (rows, columns), axis=0 if block else 1)
    restored.name = restored.producer().name = f"{node.name}/weight"  # type: ignore[union-attr]
    restored.shape = ir.Shape([rows, columns])
    node.replace_input_with(1, restored)
    _drop(edit.graph, old)


@dataclass(frozen=True, kw_only=True)
class _Stored:
    """A matrix that is packed when the model is saved."""

    name: str
    packing: Packing
    block: int
    read: Callable[[], NDArray[Any]]

    @cached_property
    def grid(self) -> Grid:
        """Found once, as up to three constants need it: it is small, and numbers are made again."""
        packing = self.packing
        return grid_of(self.read(), packing.bits, self.block, packing.zeros, half=packing.half_scales)

    def numbers(self, graph: ir.Graph, shape: tuple[int, ...]) -> ir.Value:
        """The constant of four or eight bits."""
        dtype, kind = _TYPES[self.packing.bits, self.packing.zeros == "none"]
        return lazy(
            graph,
            f"{self.name}_{dtype.name.lower()}",
            dtype,
            shape,
            lambda: self.grid.numbers(self.read()).reshape(shape).astype(kind),
        )

    def scales(self, graph: ir.Graph, shape: tuple[int, ...]) -> ir.Value:
        """The constant of scales."""
        return lazy(graph, f"{self.name}_scales", FP32, shape, lambda: self.grid.scales.reshape(shape))

    def zeros(self, graph: ir.Graph, shape: tuple[int, ...]) -> ir.Value:
        """The constant of zeros, whole ones as the numbers are."""
        whole = self.packing.zeros == "whole"
        dtype, kind = _TYPES[self.packing.bits, False] if whole else (FP32, np.float32)
        return lazy(
            graph, f"{self.name}_zeros", dtype, shape, lambda: self._zeros().reshape(shape).astype(kind)
        )

    def _zeros(self) -> Floats:
        found = self.grid.zeros
        assert found is not None
        return found


def _dequantised(edit: Editor, stored: _Stored, shape: tuple[int, int], axis: int) -> ir.Value:
    """By blocks along axis 0, or by column."""
    few = (shape[0] // stored.block, shape[1]) if axis == 0 else shape[1:]
    inputs = [stored.numbers(edit.graph, shape), stored.scales(edit.graph, few)]
    if stored.packing.zeros == "whole":
        inputs.append(stored.zeros(edit.graph, few))
    blocks = {"block_size": stored.block} if axis == 0 else {}
    return edit.op("DequantizeLinear", *inputs, dtype=FP32, axis=axis, **blocks)


def _with_real_zeros(edit: Editor, stored: _Stored, shape: tuple[int, int]) -> ir.Value:
    """DequantizeLinear takes zeros of the numbers' own type alone, so this is written out."""
    rows, columns = shape
    few = (rows // stored.block, 1, columns)
    numbers = stored.numbers(edit.graph, (rows // stored.block, stored.block, columns))
    floats = edit.op("Cast", numbers, to=FP32, dtype=FP32)
    moved = edit.op("Sub", floats, stored.zeros(edit.graph, few))
    scaled = edit.op("Mul", moved, stored.scales(edit.graph, few))
    return edit.op("Reshape", scaled, edit.ints(rows, columns))


def _tables(model: ir.Model) -> list[ir.Value]:
    """Large fp32 constants that rows are looked up in, and that at most a linear reads beside, the other way round."""
    found: dict[ir.Value, None] = {}
    for node in model.graph:
        table = node.inputs[0] if node.op_type == "Gather" else None
        if table is None or not is_constant(table) or table.dtype != FP32 or not _is_large(table):
            continue
        if all(_is_row(*use) or _is_head(*use) for use in table.uses()):
            found[table] = None
    return list(found)


def _is_large(table: ir.Value) -> bool:
    tensor = table.const_value
    return tensor is not None and len(tensor.shape) == 2 and tensor.size >= _LEAST_TABLE


def _is_row(node: ir.Node, index: int) -> bool:
    """Whether rows are looked up here; cosines and sines of positions stay exact."""
    looked_up = node.op_type == "Gather" and index == 0 and node.attributes.get_int("axis", 0) == 0
    return looked_up and not any(user.op_type == "RotaryEmbedding" for user in node.outputs[0].consumers())


def _is_head(node: ir.Node, index: int) -> bool:
    turned = node.op_type == "Transpose" and index == 0 and node.attributes.get_ints("perm", ()) == (1, 0)
    return turned and all(user.op_type == "MatMul" for user in node.outputs[0].consumers())


def _pack_table(table: ir.Value, packing: Packing) -> None:
    """Eight bits and a scale by row, for those who look rows up and for the head, which sums along them."""
    tensor, name = table.const_value, str(table.name)
    assert tensor is not None
    rows, width = tensor.shape.numpy()
    turned = _Stored(name=name, packing=packing, block=width, read=lambda: tensor.numpy().T)
    users = list(table.uses())
    graph = users[0].node.graph
    assert isinstance(graph, ir.Graph)

    def numbers() -> NDArray[np.int8]:
        return np.ascontiguousarray(turned.grid.numbers(turned.read())[0].T.astype(np.int8))

    small = lazy(graph, f"{name}_int8", ir.DataType.INT8, (rows, width), numbers)
    for node, index in users:
        edit = Editor(node)
        # ONNX Runtime fuses a DequantizeLinear whose scales nobody else reads, so each has its own.
        if node.op_type == "Gather":
            edit.replace(_row(edit, small, turned.scales(graph, (rows, 1))))
        else:
            scales = turned.scales(graph, (rows,))
            node.replace_input_with(index, edit.op("DequantizeLinear", small, scales, dtype=FP32, axis=0))
    _drop(graph, table)


def _row(edit: Editor, numbers: ir.Value, scales: ir.Value) -> ir.Value:
    ids = edit.node.inputs[1]
    small = edit.op("Gather", numbers, ids, dtype=ir.DataType.INT8)
    return edit.op("Mul", edit.op("Cast", small, to=FP32, dtype=FP32), edit.op("Gather", scales, ids))


def _drop(graph: ir.Graph, value: ir.Value) -> None:
    if not value.uses() and not value.is_graph_output():
        graph.initializers.pop(str(value.name))
