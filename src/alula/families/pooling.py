"""Token states into one vector per row, whatever the side of the padding."""

from __future__ import annotations

import onnx_ir as ir

from alula.core.errors import InputError
from alula.families.builder import Builder
from alula.families.layers import activation
from alula.families.sentence import Dense
from alula.families.weights import read_weights

_FLOAT = int(ir.DataType.FLOAT)
# The smallest divisor of a mean and of a norm, as sentence-transformers and torch have them: an empty row gives zeros.
_LEAST_COUNT = 1e-9
_LEAST_NORM = 1e-12


def pool(b: Builder, states: ir.Value, mask: ir.Value, kind: str) -> ir.Value:
    """Pool [batch, length, hidden] into [batch, hidden], counting only what the mask keeps."""
    if kind == "max":
        return _maximum(b, states, mask)
    weights, divisor = _weights(b, mask, kind)
    row = b.op("Unsqueeze", weights, b.ints(1), path="pooling")
    total = b.op("Squeeze", b.op("MatMul", row, states, path="pooling"), b.ints(1), path="pooling")
    return b.op("Div", total, divisor, path="pooling") if divisor else total


def _weights(b: Builder, mask: ir.Value, kind: str) -> tuple[ir.Value, ir.Value | None]:
    """What each token counts, and what the sum is divided by."""
    kept = b.op("Cast", mask, path="pooling", to=_FLOAT)
    if kind in {"mean", "mean_sqrt_len_tokens"}:
        count = _at_least(b, _sum(b, kept), _LEAST_COUNT)
        return kept, count if kind == "mean" else b.op("Sqrt", count, path="pooling")
    # The running sum numbers the kept tokens 1, 2, ... in every row, padded on whichever side.
    number = b.op("Mul", b.op("CumSum", mask, b.index(1), path="pooling"), mask, path="pooling")
    if kind == "weightedmean":
        weights = b.op("Cast", number, path="pooling", to=_FLOAT)
        return weights, _at_least(b, _sum(b, weights), _LEAST_COUNT)
    wanted = b.index(1) if kind == "cls" else b.op("ReduceMax", number, b.ints(1), path="pooling", keepdims=1)
    chosen = b.op("Cast", b.op("Equal", number, wanted, path="pooling"), path="pooling", to=_FLOAT)
    return b.op("Mul", chosen, kept, path="pooling"), None


def _maximum(b: Builder, states: ir.Value, mask: ir.Value) -> ir.Value:
    kept = b.op("Cast", mask, path="pooling", to=_FLOAT)
    lowered = b.op("Mul", b.op("Sub", b.floats(1), kept, path="pooling"), b.floats(-1e9), path="pooling")
    lowered = b.op("Unsqueeze", lowered, b.ints(2), path="pooling")
    states = b.op("Add", states, lowered, path="pooling")
    highest = b.op("ReduceMax", states, b.ints(1), path="pooling", keepdims=0)
    any_kept = b.op("ReduceMax", kept, b.ints(1), path="pooling", keepdims=1)
    return b.op("Mul", highest, any_kept, path="pooling")


def dense(b: Builder, x: ir.Value, layer: Dense) -> ir.Value:
    """A Dense module of sentence-transformers, from its own folder."""
    path, found = layer.folder.name, read_weights(layer.folder)
    weight, bias = found.get("linear.weight"), found.get("linear.bias")
    if weight is None or weight.shape != (layer.size, layer.given):
        raise InputError(f"{path}: model.safetensors has no linear.weight of {layer.size} x {layer.given}")
    matrix = b.lazy(f"{path}.weight", weight.shape[::-1], weight.read_transposed)
    x = b.op("MatMul", x, matrix, path=path)
    if bias:
        x = b.op("Add", x, b.lazy(f"{path}.bias", bias.shape, bias.read), path=path)
    return activation(b, x, layer.activation, path)


def normalize(b: Builder, x: ir.Value) -> ir.Value:
    """Scale every row to length 1; a row of zeros stays one."""
    length = b.op("ReduceL2", x, b.ints(1), path="normalize", keepdims=1)
    return b.op("Div", x, _at_least(b, length, _LEAST_NORM), path="normalize")


def _sum(b: Builder, x: ir.Value) -> ir.Value:
    return b.op("ReduceSum", x, b.ints(1), path="pooling", keepdims=1)


def _at_least(b: Builder, x: ir.Value, least: float) -> ir.Value:
    return b.op("Max", x, b.floats(least), path="pooling")
