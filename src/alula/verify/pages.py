"""Pages of digits in plain numpy: what a detector of text says something about, which noise is not."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

DIGITS = (
    *("01110100011001110101110011000101110", "00100011000010000100001000010001110"),
    *("01110100010000100010001000100011111", "11111000100010000010000011000101110"),
    *("00010001100101010010111110001000010", "11111100001111000001000011000101110"),
    *("00110010001000011110100011000101110", "11111000010001000100010000100001000"),
    *("01110100011000101110100011000101110", "01110100011000101111000010001001100"),
)
"""Seven rows of five dots for each digit."""

_HIGH, _WIDE = 7, 5
_SCALES = (2, 5)
"""How many pixels a dot is wide and high: from the first number, below the second."""


def drawn_page(rng: np.random.Generator, height: int, width: int) -> NDArray[np.float32]:
    """Dark words of digits on a light page, as colours from -1 to 1: [3, height, width]."""
    page = np.full((height, width), rng.uniform(0.8, 1.0))
    top = int(rng.integers(2, 8))
    while top < height - _SCALES[0] * _HIGH:
        scale = int(rng.integers(*_SCALES))
        _write_line(rng, page[top : top + scale * _HIGH], scale)
        top += int(scale * _HIGH * rng.uniform(1.6, 2.8))
    page += rng.normal(scale=0.02, size=page.shape)
    return np.repeat(page[None].astype(np.float32), 3, axis=0)


def _write_line(rng: np.random.Generator, line: NDArray[np.float64], scale: int) -> None:
    """Words of a few digits, dark where the dots are, as far as the line is wide and high."""
    ink, left = rng.uniform(-1.0, -0.5), int(rng.integers(4, 16))
    while left + scale * _WIDE < line.shape[1]:
        for _ in range(int(rng.integers(2, 9))):
            glyph = _glyph(int(rng.integers(len(DIGITS))), scale)[: len(line)]
            if left + glyph.shape[1] > line.shape[1]:
                return
            line[: len(glyph), left : left + glyph.shape[1]][glyph] = ink
            left += glyph.shape[1] + scale
        left += scale * int(rng.integers(4, 16))


def _glyph(digit: int, scale: int) -> NDArray[np.bool_]:
    dots = np.array([dot == "1" for dot in DIGITS[digit]]).reshape(_HIGH, _WIDE)
    return np.kron(dots, np.ones((scale, scale), np.bool_))
