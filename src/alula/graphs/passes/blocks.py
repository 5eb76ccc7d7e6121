"""Matrices in four or eight bits: numbers that stand for a block of neighbours along the sum, and their scale."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Zeros = Literal["none", "whole", "real"]
"""What zero is among the numbers of a block: the number 0, one of them, or any real number between two."""

# What a step is tried as, in shares of a block's width. The first leaves no number unused. Fewer find a grid that is
# there already, such as llama.cpp's Q4_0, whose block may not reach its upper end; more cut off the ends.
_STEPS = (15, 16, 17, 14, 13, 12, 11, 10, 9, 8)
_EXACT = 1e-6


@dataclass(frozen=True, kw_only=True, slots=True)
class Grid:
    """A scale and a zero for each block and column; without zeros numbers are signed and zero is 0."""

    scales: Floats
    zeros: Floats | None
    bits: int

    def numbers(self, matrix: Floats) -> NDArray[np.int16]:
        """What stands for each element of a matrix, [blocks, block, columns]."""
        return _numbers(_cut(matrix, len(self.scales)), self)

    def restored(self, matrix: Floats) -> Floats:
        """What a matrix becomes."""
        values = _values(self.numbers(matrix), self)
        return values.reshape(matrix.shape)


def held_in_half(scales: Floats) -> Floats:
    """The scales, or the next larger ones that fp16 holds; what is beyond fp16 stays as it is."""
    with np.errstate(over="ignore"):
        half = scales.astype(np.float16)
    half = np.where(half < scales, np.nextafter(half, np.float16(np.inf)), half)
    return np.where(np.isfinite(half), half, scales).astype(np.float32)


def grid_of(matrix: Floats, bits: int, block: int, zeros: Zeros, *, half: bool = False) -> Grid:
    """The grid of a matrix [rows, columns], `block` rows to a scale: the steps that leave the least squared error.

    With `half` fp16 holds every scale of numbers that are signed.
    """
    cut = _cut(matrix, len(matrix) // block)
    if zeros == "none":
        largest = (1 << (bits - 1)) - 1
        scales = _positive(np.abs(cut).max(axis=1) / largest)
        return Grid(scales=held_in_half(scales) if half else scales, zeros=None, bits=bits)
    best, error = None, None
    for steps in _STEPS if bits == 4 else ((1 << bits) - 1,):
        grid = _stepped(cut, steps, bits, zeros)
        off = np.square(_values(_numbers(cut, grid), grid) - cut, dtype=np.float32).sum(axis=1)
        if best is None or error is None:
            best, error = grid, off
        else:
            best, error = _better(best, error, grid, off)
        if (np.sqrt(error / block) <= _EXACT * best.scales).all():
            break
    assert best is not None
    return best


def _better(one: Grid, off: Floats, other: Grid, other_off: Floats) -> tuple[Grid, Floats]:
    """Of each block the grid with less error, and that error."""
    assert one.zeros is not None
    assert other.zeros is not None
    less = other_off < off
    scales, zeros = (np.where(less, b, a) for a, b in ((one.scales, other.scales), (one.zeros, other.zeros)))
    return Grid(scales=scales, zeros=zeros, bits=one.bits), np.where(less, other_off, off)


def _stepped(cut: Floats, steps: int, bits: int, zeros: Zeros) -> Grid:
    """A grid whose step is one of so many that a block's width has; whole zeros are within it, as zero itself is."""
    low, high, most = cut.min(axis=1), cut.max(axis=1), (1 << bits) - 1
    if zeros == "whole":
        low, high = np.minimum(low, 0), np.maximum(high, 0)
    scales = _positive((high - low) / np.float32(steps), np.abs(low))
    # Of a width that is cut off, both ends alike.
    centred = -low / scales - np.float32(max(0, steps - most) / 2)
    at = np.rint(centred).clip(0, most) if zeros == "whole" else centred
    return Grid(scales=scales, zeros=at.astype(np.float32), bits=bits)


def _positive(scales: Floats, instead: Floats | None = None) -> Floats:
    """Of a block of one value its own size is the scale, or 1."""
    other = np.float32(1) if instead is None else np.where(instead > 0, instead, 1)
    return np.where(scales > 0, scales, other).astype(np.float32)


def _cut(matrix: Floats, blocks: int) -> Floats:
    rows, columns = matrix.shape
    return matrix.reshape(blocks, rows // blocks, columns)


def _numbers(cut: Floats, grid: Grid) -> NDArray[np.int16]:
    raised = cut / grid.scales[:, None]
    if grid.zeros is None:
        most = (1 << (grid.bits - 1)) - 1
        least = -most
    else:
        least, most = 0, (1 << grid.bits) - 1
        raised += grid.zeros[:, None]
    numbers: NDArray[np.int16] = np.rint(raised).clip(least, most).astype(np.int16)
    return numbers


def _values(numbers: NDArray[np.int16], grid: Grid) -> Floats:
    if grid.zeros is None:
        return numbers.astype(np.float32) * grid.scales[:, None]
    return (numbers.astype(np.float32) - grid.zeros[:, None]) * grid.scales[:, None]
