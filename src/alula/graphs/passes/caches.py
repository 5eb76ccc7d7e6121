"""Keys and values that go in and out of a decoder, by the names that families give them."""

from __future__ import annotations

import re

import onnx_ir as ir

_NAMES = re.compile(r"(past|present|cross)\.\d+\.(key|value)")


def is_cache(value: ir.Value) -> bool:
    """Whether this is an input or output of the graph that a session keeps from one step to the next."""
    outside = value.is_graph_input() or value.is_graph_output()
    return outside and _NAMES.fullmatch(str(value.name)) is not None
