"""Decoders whose cache OpenVINO keeps in pages: what other passes leave alone there, and their weights in bf16."""

from __future__ import annotations

import ml_dtypes
import onnx_ir as ir
from onnx_ir.passes import InPlacePass, PassResult, PostconditionError

from alula.core.decoding import is_alone
from alula.graphs.passes.casts import BF16, FP32
from alula.graphs.passes.choice import table_of
from alula.graphs.passes.edit import Editor, is_constant, weight


def is_paged(model: ir.Model) -> bool:
    """Whether OpenVINO keeps the cache of this graph in pages."""
    return is_alone(str(value.name) for value in model.graph.inputs)


def reads_encoder(model: ir.Model) -> bool:
    """Whether this is a decoder that is given something of an encoder."""
    names = [str(value.name) for value in model.graph.inputs]
    return any(name.startswith("past.") for name in names) and not is_alone(names)


class UnlessPaged(InPlacePass):
    """Another pass, for graphs that are not such decoders: attention over pages is made of a whole Attention."""

    def __init__(self, other: InPlacePass) -> None:
        super().__init__()
        self.other = other

    def call(self, model: ir.Model) -> PassResult:
        """Run the other pass, or nothing."""
        if is_paged(model):
            return PassResult(model, modified=False)
        return self.other(model)


class IfPaged(InPlacePass):
    """Another pass, for such decoders alone."""

    def __init__(self, other: InPlacePass) -> None:
        super().__init__()
        self.other = other

    def call(self, model: ir.Model) -> PassResult:
        """Run the other pass, or nothing."""
        return self.other(model) if is_paged(model) else PassResult(model, modified=False)


class StoreBfloat16(InPlacePass):
    """Stores what a decoder multiplies by in bf16, and casts it where it is read; a table that is the head too, once.

    OpenVINO then computes all of it in bf16, as its hint says: the graph is the weights that it has in memory.
    """

    def call(self, model: ir.Model) -> PassResult:
        """One Cast for each weight, whoever reads it; other graphs are left alone."""
        found = _multiplied(model) if is_paged(model) else []
        for value in found:
            _store(value)
        return PassResult(model, bool(found))

    def ensures(self, model: ir.Model) -> None:
        """No product reads a constant of fp32."""
        if is_paged(model) and (left := _multiplied(model)):
            raise PostconditionError(f"{left[0].name}: still fp32")


def _multiplied(model: ir.Model) -> list[ir.Value]:
    """Constants of fp32 that are the second factor of a product, as they are or transposed."""
    found: dict[ir.Value, None] = {}
    for node in model.graph:
        if node.op_type != "MatMul":
            continue
        table = table_of(node)
        factor = node.inputs[1] if table is None else table
        if factor is not None and is_constant(factor) and factor.dtype == FP32:
            found[factor] = None
    return list(found)


def _store(value: ir.Value) -> None:
    tensor = value.const_value
    assert tensor is not None
    uses = list(value.uses())
    [graph] = {use.node.graph for use in uses}
    assert graph is not None
    edit = Editor(next(node for node in graph if any(use.node is node for use in uses)))
    stored = ir.LazyTensor(
        lambda: ir.Tensor(tensor.numpy().astype(ml_dtypes.bfloat16), dtype=BF16),
        dtype=BF16,
        shape=ir.Shape(tensor.shape),  # type: ignore[arg-type] # a tensor's own shape is fixed
    )
    small = weight(edit.graph, f"{value.name}.bf16", stored)
    read = edit.op("Cast", small, dtype=FP32, to=int(FP32))
    read.shape = value.shape
    for use in uses:
        use.node.replace_input_with(use.idx, read)
    del edit.graph.initializers[str(value.name)]
