"""Grids of four and eight bits: how far from a matrix they are, and which they give back as it was."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from alula.families.ggml import TYPES, unpack
from alula.graphs.passes.blocks import Grid, Zeros, grid_of

Floats = NDArray[np.float32]


def drawn(rows: int = 96, columns: int = 40, seed: int = 0) -> Floats:
    return np.random.default_rng(seed).standard_normal((rows, columns)).astype(np.float32)


def off(matrix: Floats, grid: Grid) -> float:
    return float(np.sqrt(np.mean((grid.restored(matrix) - matrix) ** 2)))


@pytest.mark.parametrize(
    ("bits", "block", "zeros"),
    [(4, 32, "whole"), (4, 16, "whole"), (4, 32, "real"), (8, 32, "whole"), (8, 96, "none"), (4, 32, "none")],
)
def test_numbers_are_the_nearest_and_within_their_bits(bits: int, block: int, zeros: Zeros) -> None:
    matrix = drawn()
    grid = grid_of(matrix, bits, block, zeros)
    numbers = grid.numbers(matrix)
    ends = (-(1 << (bits - 1)) + 1, (1 << (bits - 1)) - 1) if zeros == "none" else (0, (1 << bits) - 1)
    assert (numbers.min(), numbers.max()) == ends
    steps = np.repeat(grid.scales, block, axis=0)
    away = np.abs(grid.restored(matrix) - matrix) / steps
    inside = ((numbers > ends[0]) & (numbers < ends[1])).reshape(matrix.shape)
    assert away[inside].max() <= 0.51


def test_zero_is_exact_where_zeros_are_whole() -> None:
    matrix = drawn()
    matrix[:32, 0] = 0.0
    matrix[:32, 1] = np.random.default_rng(1).uniform(3, 4, 32)
    matrix[5, 2] = 0.0
    restored = grid_of(matrix, 4, 32, "whole").restored(matrix)
    assert (restored[:32, 0] == 0).all()
    assert restored[5, 2] == 0
    # All of one sign: the range is widened to hold zero.
    assert np.abs(restored[:32, 1] - matrix[:32, 1]).max() < 0.5 * 4 / 15 + 1e-6


def test_a_block_of_one_value_is_that_value() -> None:
    for value in (0.0, 0.3, -7.0):
        matrix = np.full((32, 3), value, np.float32)
        for zeros in ("none", "whole", "real"):
            np.testing.assert_allclose(grid_of(matrix, 4, 32, zeros).restored(matrix), matrix, rtol=1e-6)


def unpacked(kind: int, halves: int, kept: int) -> Floats:
    """Blocks of llama.cpp with random bytes, of which some bits are kept, as a matrix whose columns they lie along."""
    rng = np.random.default_rng(kind)
    raw = rng.integers(0, 256, (60, TYPES[kind].size), np.uint8) & np.uint8(kept)
    raw[:, : 2 * halves] = rng.uniform(0.01, 0.1, (60, halves)).astype("<f2").view(np.uint8)
    # Each block has its least number.
    raw[:, -1] &= 0x0F
    return unpack(TYPES[kind], raw).reshape(20, 96).T


def test_the_minimum_of_q4_1_is_kept_by_real_zeros_alone() -> None:
    matrix = unpacked(3, 2, 0xFF)
    size = float(np.abs(matrix).max())
    assert off(matrix, grid_of(matrix, 4, 32, "real")) < 1e-6 * size
    assert off(matrix, grid_of(matrix, 4, 32, "whole")) > 1e-3 * size
    assert off(matrix, grid_of(matrix, 8, 32, "whole")) < 4e-3 * size


def test_the_grid_of_q4_0_is_found_where_a_block_does_not_reach_its_end() -> None:
    matrix = unpacked(2, 1, 0xDD)
    for zeros in ("whole", "real"):
        assert off(matrix, grid_of(matrix, 4, 32, zeros)) < 1e-6 * float(np.abs(matrix).max())


def test_steps_that_are_searched_leave_less_than_the_whole_width() -> None:
    matrix = drawn(1536, 64)
    low, high = (each(matrix.reshape(48, 32, 64), axis=1) for each in (np.min, np.max))
    plain = Grid(scales=(high - low) / 15, zeros=-low * 15 / (high - low), bits=4)
    assert off(matrix, grid_of(matrix, 4, 32, "real")) < 0.965 * off(matrix, plain)


def test_larger_blocks_lose_more() -> None:
    matrix = drawn(768, 64)
    losses = [off(matrix, grid_of(matrix, 4, block, "whole")) for block in (16, 32, 64, 128)]
    assert losses == sorted(losses)
    assert losses[-1] > 1.25 * losses[0]
