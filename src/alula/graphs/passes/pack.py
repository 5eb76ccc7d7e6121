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
from alula.graphs.passes.casts import FP16, FP32
from alula.graphs.passes.choice import reaches_output
from alula.graphs.passes.edit import Editor, is_constant
from alula.graphs.passes.layers import is_convolution, layers_of, weight_of
from alula.graphs.passes.quantize import lazy

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

    The first block that divides the rows is taken. Where none does, it is eight bits and a scale for the whole column.
    The last linear before an output has eight bits, by blocks of 32; with `tables` so have tables that rows are looked
    up in: by row where nobody else reads them. With `half_scales` fp16 holds the scales, so that what is restored may
    be fp16. With `apart` real zeros are a product of their own, and the numbers are signed and have none. Without
    `heads` the last linear and a table that is one stay as they are.
    """

    bits: int
    blocks: tuple[int, ...]
    zeros: Zeros = "none"
    tables: bool = True
    half_scales: bool = False
    apart: bool = False
    heads: bool = True

    def block_of(self, rows: int) -> int:
        """How many rows have a scale together; 0 where none of the blocks divides them."""
        return next((block for block in self.blocks if rows % block == 0), 0)

    def last(self) -> Packing:
        """What the last linear has: half of all that is lost in eight bits, if its columns have one scale each."""
        return Packing(bits=8, blocks=(32, 16) if self.blocks else (), half_scales=self.half_scales)

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
        chosen = [node for node in linears(model) if not self._stays(node)]
        last = {node for node in chosen if reaches_output(node)}
        for node in chosen:
            _pack_linear(node, self.packing.last() if node in last else self.packing)
        for table in _tables(model) if self.packing.tables else ():
            if self.packing.heads or not any(_is_head(*use) for use in table.uses()):
                _pack_table(table, self.packing)
        return PassResult(model, bool(chosen))

    def ensures(self, model: ir.Model) -> None:
        """Whatever still multiplies by an fp32 constant was to be kept."""
        for node in linears(model):
            if not self._stays(node):
                raise PostconditionError(f"{node.name}: not packed")

    def _stays(self, node: ir.Node) -> bool:
        return node.name in self.keep or (not self.packing.heads and reaches_output(node))


def linears(model: ir.Model) -> list[ir.Node]:
    """Products with a constant fp32 matrix, in order."""
    return [node for node in layers_of(model) if not is_convolution(node)]


def _pack_linear(node: ir.Node, packing: Packing) -> None:
    old, tensor = node.inputs[1], weight_of(node)
    assert old is not None
    rows, columns = tensor.shape.numpy()
    block = packing.block_of(rows)
    if not block:
        packing = packing.by_column()
    stored = _Stored(name=str(old.name), packing=packing, block=block or rows, read=tensor.numpy)
    edit = Editor(node)
    graph = edit.graph
    if packing.zeros == "real" and not packing.apart:
        restored = _with_real_zeros(edit, stored, (rows, columns))
    else:
        numbers = stored.numbers(graph, (rows, columns))
        restored = _restored(edit, stored, numbers, (rows, columns), blocks=block > 0)
    restored.name = restored.producer().name = f"{node.name}/weight"  # type: ignore[union-attr]
    restored.shape = ir.Shape([rows, columns])
    if packing.apart:
        _add_moved(edit, stored, restored)
    else:
        node.replace_input_with(1, restored)
    _drop(graph, old)


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
        dtype, kind = _TYPES[self.packing.bits, self.packing.zeros == "none" or self.packing.apart]
        middle = self._middle
        return lazy(
            graph,
            f"{self.name}_{dtype.name.lower()}",
            dtype,
            shape,
            lambda: (self.grid.numbers(self.read()) - middle).reshape(shape).astype(kind),
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

    def moved(self, graph: ir.Graph, shape: tuple[int, int]) -> ir.Value:
        """The constant of what every block adds for each one that it reads, in fp16."""
        return lazy(
            graph,
            f"{self.name}_moved",
            FP16,
            shape,
            lambda: (self.grid.scales * (self._middle - self._zeros())).astype(np.float16),
        )

    @property
    def _middle(self) -> int:
        """What is taken from numbers that are to be signed."""
        return 1 << (self.packing.bits - 1) if self.packing.apart else 0

    def _zeros(self) -> Floats:
        found = self.grid.zeros
        assert found is not None
        return found


def _restored(
    edit: Editor, stored: _Stored, numbers: ir.Value, shape: tuple[int, int], *, blocks: bool
) -> ir.Value:
    """By blocks along axis 0, or by column."""
    few = (shape[0] // stored.block, shape[1]) if blocks else shape[1:]
    inputs = [numbers, stored.scales(edit.graph, few)]
    if stored.packing.zeros == "whole":
        inputs.append(stored.zeros(edit.graph, few))
    if not blocks:
        return edit.op("DequantizeLinear", *inputs, dtype=FP32, axis=1)
    return edit.op("DequantizeLinear", *inputs, dtype=FP32, axis=0, block_size=stored.block)


def _with_real_zeros(edit: Editor, stored: _Stored, shape: tuple[int, int]) -> ir.Value:
    """DequantizeLinear takes zeros of the numbers' own type alone, so this is written out."""
    rows, columns = shape
    few = (rows // stored.block, 1, columns)
    numbers = stored.numbers(edit.graph, (rows // stored.block, stored.block, columns))
    floats = edit.op("Cast", numbers, to=FP32, dtype=FP32)
    moved = edit.op("Sub", floats, stored.zeros(edit.graph, few))
    scaled = edit.op("Mul", moved, stored.scales(edit.graph, few))
    return edit.op("Reshape", scaled, edit.ints(rows, columns))


def _add_moved(edit: Editor, stored: _Stored, restored: ir.Value) -> None:
    """Beside the product: sums of what each block reads, times what its zero is away from the middle.

    Exact as the zeros written out are, but for fp16, and the numbers have no zeros: OpenVINO rounds activations then.
    """
    given = edit.node.inputs[0]
    assert restored.shape is not None
    rows, columns = restored.shape.numpy()
    blocks = rows // stored.block
    parts = edit.op("Reshape", given, edit.ints(0, 0, blocks, stored.block))
    sums = edit.op("ReduceSum", parts, edit.ints(-1), keepdims=0)
    moved = edit.op("Cast", stored.moved(edit.graph, (blocks, columns)), to=FP32, dtype=FP32)
    product = edit.op("MatMul", given, restored)
    edit.replace(edit.op("Add", product, edit.op("MatMul", sums, moved)))


def _tables(model: ir.Model) -> list[ir.Value]:
    """Large fp32 constants that rows are looked up in, and that at most a linear reads beside, the other way round."""
    found: dict[ir.Value, None] = {}
    for node in model.graph:
        table = node.inputs[0] if node.op_type == "Gather" else None
        if table is None or not is_constant(table) or table.dtype != FP32 or not _is_large(table):
            continue
        heads = [use for use in table.uses() if _is_head(*use)]
        rows = [use for use in table.uses() if _is_row(*use)]
        if len(heads) + len(rows) == len(table.uses()) and (
            not heads or all(_has_two_axes(use.node) for use in rows)
        ):
            found[table] = None
    return list(found)


def _is_large(table: ir.Value) -> bool:
    tensor = table.const_value
    return tensor is not None and len(tensor.shape) == 2 and tensor.size >= _LEAST_TABLE


def _is_row(node: ir.Node, index: int) -> bool:
    """Whether rows are looked up here; cosines and sines of positions stay exact."""
    looked_up = node.op_type == "Gather" and index == 0 and node.attributes.get_int("axis", 0) == 0
    return looked_up and not any(user.op_type == "RotaryEmbedding" for user in node.outputs[0].consumers())


def _has_two_axes(node: ir.Node) -> bool:
    ids = node.inputs[1]
    return ids is not None and ids.shape is not None and len(ids.shape) == 2


def _is_head(node: ir.Node, index: int) -> bool:
    turned = node.op_type == "Transpose" and index == 0 and node.attributes.get_ints("perm", ()) == (1, 0)
    return turned and all(user.op_type == "MatMul" for user in node.outputs[0].consumers())


def _pack_table(table: ir.Value, packing: Packing) -> None:
    """Eight bits, by row; of a table that is the head too the other way round, by blocks along its sum."""
    tensor, users, graph = table.const_value, list(table.uses()), table.graph
    assert tensor is not None
    assert graph is not None
    rows, width = tensor.shape.numpy()
    name, headed = str(table.name), any(node.op_type == "Transpose" for node, _ in users)
    last = packing.last()
    block = (headed and last.block_of(width)) or width
    turned = _Stored(name=name, packing=last, block=block, read=lambda: tensor.numpy().T)

    def by_row() -> NDArray[np.int8]:
        return np.ascontiguousarray(turned.grid.numbers(turned.read())[0].T.astype(np.int8))

    def by_id() -> Floats:
        return np.ascontiguousarray(turned.grid.scales.T)

    if headed:
        numbers = turned.numbers(graph, (width, rows))
    else:
        numbers = lazy(graph, f"{name}_int8", ir.DataType.INT8, (rows, width), by_row)
    for node, _ in users:
        edit = Editor(node)
        # ONNX Runtime fuses a DequantizeLinear whose scales nobody else reads, so each has its own.
        if node.op_type == "Transpose":
            edit.replace(_restored(edit, turned, numbers, (width, rows), blocks=block < width))
        elif headed:
            scales = lazy(graph, f"{name}_scales", FP32, (rows, width // block), by_id)
            edit.replace(_columns(edit, numbers, scales, block))
        else:
            edit.replace(_row(edit, numbers, turned.scales(graph, (rows, 1))))
    _drop(graph, table)


def _row(edit: Editor, numbers: ir.Value, scales: ir.Value) -> ir.Value:
    ids = edit.node.inputs[1]
    small = edit.op("Gather", numbers, ids, dtype=ir.DataType.INT8)
    return edit.op("Mul", edit.op("Cast", small, to=FP32, dtype=FP32), edit.op("Gather", scales, ids))


def _columns(edit: Editor, numbers: ir.Value, scales: ir.Value, block: int) -> ir.Value:
    """What lies in columns, for ids of two axes: [batch, length, width].

    Engines turn the constant when they load it. In ONNX Runtime the head's DequantizeLinear is then the only one to
    read the numbers as they are, without which it would have no kernel.
    """
    ids = edit.node.inputs[1]
    rows = edit.op("Transpose", numbers, perm=[1, 0])
    floats = edit.op("Cast", edit.op("Gather", rows, ids), to=FP32, dtype=FP32)
    apart = edit.op("Reshape", floats, edit.ints(0, 0, -1, block))
    scale = edit.op("Unsqueeze", edit.op("Gather", scales, ids), edit.ints(-1))
    return edit.op("Reshape", edit.op("Mul", apart, scale), edit.ints(0, 0, -1))


def _drop(graph: ir.Graph, value: ir.Value) -> None:
    if not value.uses() and not value.is_graph_output():
        graph.initializers.pop(str(value.name))
