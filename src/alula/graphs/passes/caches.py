"""Keys and values that go in and out of a decoder, by the names that families give them."""

from __future__ import annotations

import re

import onnx_ir as ir

from alula.graphs.passes.edit import Editor

PLACES = 2
"""The axis of a cache [batch, heads, places, features] along which tokens lie."""

_NAMES = re.compile(r"(past|present|cross)\.\d+\.(key|value)")
_CROSS = "cross."


def is_cache(value: ir.Value) -> bool:
    """Whether this is an input or output of the graph that a session keeps from one step to the next."""
    outside = value.is_graph_input() or value.is_graph_output()
    return outside and _NAMES.fullmatch(str(value.name)) is not None


def reads_source(model: ir.Model) -> bool:
    """Whether a decoder looks at what an encoder read."""
    return any(str(value.name).startswith(_CROSS) for value in model.graph.inputs)


def joins(model: ir.Model) -> list[ir.Node]:
    """What puts new places behind those of a past, and gives both."""
    return [
        node
        for node in model.graph.all_nodes()
        if node.op_type == "Concat"
        and node.outputs[0].is_graph_output()
        and is_cache(node.outputs[0])
        and node.inputs[0] is not None
        and is_cache(node.inputs[0])
    ]


def joined_again(edit: Editor, given: ir.Value) -> ir.Value:
    """Past and new tokens joined once more, for all that use them inside the graph, so that `given` may change."""
    node = edit.node
    whole = edit.op("Concat", *node.inputs, axis=PLACES)
    whole.shape = given.shape
    for use in [use for use in given.uses() if use.node is not node]:
        use.node.replace_input_with(use.idx, whole)
    return whole
