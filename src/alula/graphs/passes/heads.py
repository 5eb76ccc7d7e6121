"""The heads of an Attention: how many there are, and how its states are parted into them."""

from __future__ import annotations

import onnx_ir as ir

from alula.graphs.passes.edit import Editor


def head_size(node: ir.Node) -> int | None:
    """How many numbers one head of an Attention has; None where shapes do not tell."""
    query = node.inputs[0]
    if query is None or query.shape is None:
        return None
    last = query.shape[-1]
    if not isinstance(last, int):
        return None
    return last // node.attributes.get_int("q_num_heads", 1) if len(query.shape) == 3 else last


def is_packed(node: ir.Node) -> bool:
    """Whether the inputs are [batch, length, heads * size] rather than [batch, heads, length, size]."""
    query = node.inputs[0]
    return query is not None and query.shape is not None and len(query.shape) == 3


def head_counts(node: ir.Node) -> tuple[int, int]:
    """Heads of the query and of the key; 0 where unknown."""
    if is_packed(node):
        return node.attributes.get_int("q_num_heads", 0), node.attributes.get_int("kv_num_heads", 0)
    counts = []
    for value in node.inputs[:2]:
        known = value.shape[1] if value is not None and value.shape is not None else 0
        counts.append(known if isinstance(known, int) else 0)
    return counts[0], counts[1]


def split_heads(edit: Editor, value: ir.Value, heads: int) -> ir.Value:
    """[batch, length, hidden] as [batch, heads, length, size]."""
    return edit.op("Transpose", edit.op("Reshape", value, edit.ints(0, 0, heads, -1)), perm=[0, 2, 1, 3])


def shared_heads(edit: Editor, value: ir.Value) -> ir.Value:
    """Packed keys or values as [batch, length, query heads, size]; a head that queries share is repeated."""
    of_query, of_key = head_counts(edit.node)
    if of_query == of_key:
        return edit.op("Reshape", value, edit.ints(0, 0, of_key, -1))
    value = edit.op("Reshape", value, edit.ints(0, 0, of_key, 1, -1))
    value = edit.op("Expand", value, edit.ints(1, 1, 1, of_query // of_key, 1))
    return edit.op("Reshape", value, edit.ints(0, 0, of_query, -1))


def of_keys(edit: Editor, value: ir.Value) -> ir.Value:
    """[batch, query heads, length, any], the queries of one key one after another: no key is repeated for them."""
    of_query, of_key = head_counts(edit.node)
    return value if of_query == of_key else edit.op("Reshape", value, edit.ints(0, of_key, -1, 0))


def of_queries(edit: Editor, value: ir.Value) -> ir.Value:
    """The other way round."""
    of_query, of_key = head_counts(edit.node)
    return value if of_query == of_key else edit.op("Reshape", value, edit.ints(0, of_query, -1, 0))
