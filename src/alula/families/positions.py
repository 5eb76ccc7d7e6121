"""Positions of patches where an image is of another size than in training, interpolated as PyTorch does it.

That is bicubic, corners not aligned, edges repeated, nothing smoothed beforehand: a product with one matrix for each
side of the image. Where the size is known the product is taken here, and otherwise in the graph.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from alula.families.builder import Builder
from alula.families.image_settings import VisionSettings
from alula.families.weights import Floats

NAME = "embeddings.position_embeddings"
"""The positions of the tokens before the patches, then those of the patches, [1, firsts + patches, hidden]."""

_PATH = "embeddings.positions"
_CUBIC = -0.75
_REACH = 2
"""How far the curve goes, in places of the table: as many times the edge stands around the table."""


def fixed(b: Builder, grid: tuple[int, int], s: VisionSettings) -> ir.Value:
    """The positions of so many patches, down and across: [1, patches, hidden]."""
    shape = (1, grid[0] * grid[1], s.hidden)
    return b.lazy(NAME, shape, lambda: _interpolated(b.read(NAME)[0, s.firsts :], grid, s))


def computed(b: Builder, patches: ir.Value, s: VisionSettings) -> ir.Value:
    """The positions of as many patches as `patches`, [batch, hidden, down, across], are: [hidden, patches].

    At the size of training both matrices are made of zeros and ones alone, and so nothing is rounded.
    """
    # Resize does it in one node, on whose cubic form parsers differ, and not faster everywhere. Median and best of 12
    # interleaved runs in ms, 768 channels from 37 x 37 to 80 x 80, two threads of a busy EPYC (family 25, model 17):
    # ONNX Runtime 36 16, with Resize 712 570; OpenVINO 38 23, with Resize 20 10.
    side = s.grid[0]
    wide = side + 2 * _REACH
    table = b.lazy(NAME, (s.hidden, wide, wide), lambda: _surrounded(b.read(NAME)[0, s.firsts :], side))
    shape = b.op("Shape", patches, path=_PATH)
    down, across = (_matrix(b, b.op("Gather", shape, b.index(axis), path=_PATH), side) for axis in (2, 3))
    # What multiplies a constant that stands second is taken for a layer, and quantised; and where one of the sizes
    # turns out to be fixed, OpenVINO fails on a second factor of three axes that it has folded to a constant.
    x = b.op("Transpose", b.op("MatMul", table, down, path=_PATH), path=_PATH, perm=(0, 2, 1))
    return b.op("Reshape", b.op("MatMul", x, across, path=_PATH), b.ints(s.hidden, -1), path=_PATH)


def _matrix(b: Builder, count: ir.Value, side: int) -> ir.Value:
    """What each of `count` places takes from each row of the surrounded table, [rows, count].

    Engines divide by multiplying with what they take for the inverse, so that side / count need not be one where both
    are equal; 1 + (side - count) / count is.
    """
    places = b.op("Range", b.index(0), count, b.index(1), path=_PATH)
    places, count = (b.op("Cast", x, path=_PATH, to=int(ir.DataType.FLOAT)) for x in (places, count))
    more = b.op("Div", b.op("Sub", b.floats(side), count, path=_PATH), count, path=_PATH)
    middles, scale = (
        b.op("Add", places, b.floats(0.5), path=_PATH),
        b.op("Add", more, b.floats(1), path=_PATH),
    )
    rows = b.lazy(
        "embeddings.rows",
        (side + 2 * _REACH, 1),
        lambda: np.arange(-_REACH, side + _REACH, dtype=np.float32).reshape(-1, 1) + np.float32(0.5),
    )
    distance = b.op("Sub", b.op("Mul", middles, scale, path=_PATH), rows, path=_PATH)
    return _curve(b, b.op("Abs", distance, path=_PATH))


def _curve(b: Builder, distance: ir.Value) -> ir.Value:
    """The two cubics of `_weights` as one, which holds for a coefficient of -0.75 alone.

    With e = max(2 - d, 0) and f = e - 1 it is 0.75 f e^2 - 2 max(f, 0)^3.
    """

    def times(x: ir.Value, y: ir.Value) -> ir.Value:
        return b.op("Mul", x, y, path=_PATH)

    e = b.op("Relu", b.op("Sub", b.floats(_REACH), distance, path=_PATH), path=_PATH)
    f = b.op("Sub", e, b.floats(1), path=_PATH)
    near = b.op("Relu", f, path=_PATH)
    far = times(times(f, b.floats(-_CUBIC)), times(e, e))
    return b.op("Sub", far, times(times(near, b.floats(2)), times(near, near)), path=_PATH)


def _surrounded(table: Floats, side: int) -> Floats:
    """The table as [hidden, across, down], its edges repeated around it."""
    square = table.reshape(side, side, -1).transpose(2, 1, 0)
    return np.pad(square, ((0, 0), (_REACH, _REACH), (_REACH, _REACH)), mode="edge")


def _interpolated(table: Floats, grid: tuple[int, int], s: VisionSettings) -> Floats:
    if grid == s.grid:
        return table[None]
    side = s.grid[0]
    down, across = _weights(side, grid[0]), _weights(side, grid[1])
    square = table.reshape(side, side, -1).astype(np.float64)
    spread = np.einsum("oh,pw,hwd->opd", down, across, square, optimize=True)
    positions: Floats = spread.reshape(1, grid[0] * grid[1], -1).astype(np.float32)
    return positions


def _weights(given: int, wanted: int) -> NDArray[np.float64]:
    """What each of `wanted` places takes from each of `given`."""
    places = (np.arange(wanted) + 0.5) * given / wanted - 0.5
    start = np.floor(places).astype(int)
    matrix = np.zeros((wanted, given))
    for step in range(1 - _REACH, 1 + _REACH):
        distance = np.abs(places - (start + step))
        near = ((_CUBIC + 2) * distance - (_CUBIC + 3)) * distance**2 + 1
        far = _CUBIC * (((distance - 5) * distance + 8) * distance - 4)
        np.add.at(
            matrix,
            (np.arange(wanted), np.clip(start + step, 0, given - 1)),
            np.where(distance <= 1, near, far),
        )
    return matrix
