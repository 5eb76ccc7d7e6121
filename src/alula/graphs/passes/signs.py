"""Signs and magnitudes of integers, in operators that every parser takes."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir
from onnx_ir.passes import InPlacePass, PassResult, PostconditionError
from onnx_ir.passes.common import ShapeInferencePass

from alula.graphs.passes.edit import Editor, first_input

_INTEGERS = frozenset({ir.DataType.INT32, ir.DataType.INT64})


class CompareForSigns(InPlacePass):
    """Writes Abs, Neg and Sign of integers as differences, maxima and comparisons.

    TensorRT 8.6 has them for floating point alone, and DeBERTa counts the distance of two tokens in integers.
    """

    def requires(self, model: ir.Model) -> None:
        """Types are known."""
        if any(first_input(node).dtype is None for node in _candidates(model)):
            ShapeInferencePass()(model)

    def call(self, model: ir.Model) -> PassResult:
        """Rewrite them one by one."""
        nodes = _of_integers(model)
        for node in nodes:
            edit, x = Editor(node), first_input(node)
            edit.replace(_WRITTEN[node.op_type](edit, x))
        return PassResult(model, bool(nodes))

    def ensures(self, model: ir.Model) -> None:
        """None is left."""
        if left := _of_integers(model):
            raise PostconditionError(f"{left[0].name}: {left[0].op_type} of integers is still there")


def _candidates(model: ir.Model) -> list[ir.Node]:
    return [node for node in model.graph.all_nodes() if node.op_type in _WRITTEN]


def _of_integers(model: ir.Model) -> list[ir.Node]:
    return [node for node in _candidates(model) if first_input(node).dtype in _INTEGERS]


def _negated(edit: Editor, x: ir.Value) -> ir.Value:
    return edit.op("Sub", _zero(edit, x), x)


def _magnitude(edit: Editor, x: ir.Value) -> ir.Value:
    return edit.op("Max", x, _negated(edit, x))


def _sign(edit: Editor, x: ir.Value) -> ir.Value:
    above, below = (
        edit.op(
            "Cast",
            edit.op(than, x, _zero(edit, x), dtype=ir.DataType.BOOL),
            dtype=x.dtype,
            to=int(_dtype(x)),
        )
        for than in ("Greater", "Less")
    )
    return edit.op("Sub", above, below)


def _zero(edit: Editor, x: ir.Value) -> ir.Value:
    return edit.number(0, _dtype(x))


def _dtype(x: ir.Value) -> ir.DataType:
    assert x.dtype is not None
    return x.dtype


_WRITTEN: dict[str, Callable[[Editor, ir.Value], ir.Value]] = {
    "Abs": _magnitude,
    "Neg": _negated,
    "Sign": _sign,
}
