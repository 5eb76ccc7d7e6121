"""Why a node of the graph is done by no layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from alula.core.nodes import Node

DO_NOTHING = {"Identity", "Dropout"}
_SHAPES = {"Reshape", "Squeeze", "Unsqueeze", "Flatten", "Expand", "Transpose"}
# Inputs, by their places, that say how large something is and not what is in it.
_SIZES: Mapping[str, Sequence[int]] = {
    **dict.fromkeys(("Reshape", "Expand", "Tile", "Pad", "Squeeze", "Unsqueeze", "Split"), (1,)),
    "Slice": (1, 2, 3, 4),
    "Resize": (2, 3),
    "ConstantOfShape": (0,),
    "Range": (0, 1, 2),
}
_SCALES = {"QuantizeLinear", "DequantizeLinear"}

NOTHING = "does nothing when a model answers"
CONSTANT = "has constant inputs, and was computed when the engine was built"
UNREAD = "is read by nodes that were removed, and by nothing else"
CAST = "a cast that is not needed"
SHAPE = "a change of shape that costs nothing here"
SCALE = "its scale went into the layers around it"
SIZES = "works out sizes, which the runtime does in a way of its own"
UNKNOWN = "the runtime does not say where it went"


def why_removed(
    node: Node, readers: Sequence[Node], *, constant: bool, same_as: Node | None, unread: bool
) -> str:
    """The first reason that holds; what a runtime does not tell is derived from the graph."""
    reasons = (
        (node.op in DO_NOTHING, NOTHING),
        (constant and node.op not in _SCALES, CONSTANT),
        (same_as is not None, f"the same as {same_as.name}" if same_as else ""),
        (unread, UNREAD),
        (bool(readers) and all(_reads_sizes(reader, node) for reader in readers), SIZES),
        (node.op in _SCALES, SCALE),
        (node.op in _SHAPES, SHAPE),
        (node.op == "Cast", CAST),
        (True, UNKNOWN),
    )
    return next(reason for holds, reason in reasons if holds)


def _reads_sizes(reader: Node, node: Node) -> bool:
    places = [at for at, value in enumerate(reader.inputs) if value in node.outputs]
    return all(at in _SIZES.get(reader.op, ()) for at in places)
