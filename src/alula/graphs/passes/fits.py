"""Which constants fp16 holds: not too large, and not so small that their digits go."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from alula.graphs.passes.casts import FP16, FP32, LARGEST
from alula.graphs.passes.choice import is_layer
from alula.graphs.passes.edit import first_input, is_constant

# No number that fp16 has all eleven bits for (from 2^-14 up) is off by more than this share of itself, so no row of
# such numbers is. Rows that are far below the largest one of their layer are dead: what is lost of them is less than
# what rounding takes of the others. Trained convolutions with batch norms folded in are full of them: 12 of 54 layers
# of a ResNet for images, 9 of 47 of a text recogniser and 27 of 50 of an EfficientNet have a row below 2^-14, and each
# such row is less than 2^-11 of another.
_ROUNDING = 2.0**-11

# Their bounds may be cut off where fp16 ends, since what they bound does.
_BOUNDS = frozenset({"Clip"})
_WEIGHT = 1


def fits(node: ir.Node) -> bool:
    """Whether fp16 holds every constant of a node, and keeps the digits of what a layer multiplies by."""
    for index, value in enumerate(node.inputs):
        if value is None or not is_constant(value) or value.dtype != FP32 or node.op_type in _BOUNDS:
            continue
        tensor = value.const_value
        assert tensor is not None
        array = tensor.numpy()
        if not _within(array):
            return False
        if index == _WEIGHT and is_layer(node) and _loses_digits(array, _channel_axis(node, array.ndim)):
            return False
    return True


def table_fits(node: ir.Node) -> bool:
    """Whether fp16 holds the table of a Gather."""
    tensor = first_input(node).const_value if node.op_type == "Gather" else None
    return tensor is not None and _within(tensor.numpy())


def _within(array: NDArray[Any]) -> bool:
    return bool(np.abs(array).max(initial=0) <= LARGEST[FP16])


def _channel_axis(node: ir.Node, rank: int) -> int:
    """The axis of output channels: one of them may be tiny beside all others."""
    if node.op_type == "Conv" or (node.op_type == "Gemm" and node.attributes.get_int("transB", 0) == 1):
        return 0
    return 1 if node.op_type == "ConvTranspose" else rank - 1


def _loses_digits(array: NDArray[Any], axis: int) -> bool:
    """Whether rounding changes what a channel multiplies by, a dead one excepted, more than fp16 should."""
    rows = np.moveaxis(array, axis, 0).reshape(array.shape[axis], -1)
    size = np.linalg.norm(rows, axis=1)
    off = np.linalg.norm(rows - rows.astype(np.float16).astype(np.float32), axis=1)
    alive = size > _ROUNDING * size.max(initial=0)
    return bool((off[alive] > _ROUNDING * size[alive]).any())
