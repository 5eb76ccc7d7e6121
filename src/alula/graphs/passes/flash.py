"""Attention that sees everything, as ONNX Runtime computes it without a score for every pair in memory."""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes import InPlacePass, PassResult, PostconditionError

DOMAIN, VERSION = "com.microsoft", 1
KIND = "MultiHeadAttention"


class FlashAttention(InPlacePass):
    """Replaces Attention over flat states without mask or cache by ONNX Runtime's own operator, which works in blocks.

    Its Attention writes out a score for every pair of every head: 17 GB for a page of 16,384 patches and 16 heads.
    Graphs whose inputs have one size but for the number of rows have few tokens, and are left alone.
    """

    def call(self, model: ir.Model) -> PassResult:
        """Rewrite them one by one."""
        found = _found(model)
        for node in found:
            _replace(node)
        if found:
            model.graph.opset_imports[DOMAIN] = VERSION
        return PassResult(model, bool(found))

    def ensures(self, model: ir.Model) -> None:
        """None of them is left."""
        if left := _found(model):
            raise PostconditionError(f"{left[0].name}: still there")


def _found(model: ir.Model) -> list[ir.Node]:
    if not any(isinstance(size, ir.SymbolicDim) for value in model.graph.inputs for size in _behind(value)):
        return []
    return [node for node in model.graph if _sees_everything(node)]


def _behind(value: ir.Value) -> tuple[int | ir.SymbolicDim, ...]:
    """The sizes of an input behind the number of rows."""
    return () if value.shape is None else tuple(value.shape)[1:]


def _sees_everything(node: ir.Node) -> bool:
    """Whether a node is Attention of as many heads of queries as of keys, in one row of features, of all tokens."""
    if node.op_type != "Attention" or node.domain or len(node.inputs) != 3 or len(node.outputs) != 1:
        return False
    heads = node.attributes.get_int("q_num_heads", 0)
    plain = {"q_num_heads", "kv_num_heads"}
    return heads > 0 and heads == node.attributes.get_int("kv_num_heads", 0) and set(node.attributes) <= plain


def _replace(node: ir.Node) -> None:
    graph = node.graph
    assert graph is not None
    heads = node.attributes.get_int("q_num_heads", 0)
    made = ir.node(
        KIND, list(node.inputs), {"num_heads": heads}, domain=DOMAIN, name=node.name, num_outputs=1
    )
    output, new = node.outputs[0], made.outputs[0]
    new.type, new.shape, new.name = output.type, output.shape, output.name
    ir.convenience.replace_all_uses_with(output, new, replace_graph_outputs=True)
    graph.insert_before(node, made)
    graph.remove(node, safe=True)
