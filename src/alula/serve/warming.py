"""The shapes that an engine is warmed up for before it serves. Pure."""

from __future__ import annotations

from itertools import product

from alula.core.profile import Profile, Range

CELLS = 4096
"""Rows times the sizes of the other axes, tokens or steps: beyond, an engine computes longer than a launch takes."""
MOST = 48
"""Shapes at most; each keeps a graph."""


def shapes_to_warm(profile: Profile, *, padded: bool) -> list[dict[str, int]]:
    """Powers of two of every axis and its ends, small calls first; with `padded` axes that hold tokens.

    Axes of images are warmed at the tuned size alone: they are not padded, and every size is its own.
    """
    axes = {
        axis: _steps(sizes) if padded or axis == "batch" else [sizes.opt]
        for axis, sizes in profile.axes.items()
    }
    found = [dict(zip(axes, sizes, strict=True)) for sizes in product(*axes.values())]
    within = [sizes for sizes in found if (not padded or _cells(sizes) <= CELLS) and profile.takes(sizes)]
    return sorted(within, key=_cells)[:MOST]


def _cells(sizes: dict[str, int]) -> int:
    cells = 1
    for size in sizes.values():
        cells *= size
    return cells


def _steps(sizes: Range) -> list[int]:
    powers = [1 << power for power in range(sizes.max.bit_length()) if sizes.min <= 1 << power <= sizes.max]
    return sorted({sizes.min, *powers, sizes.opt, sizes.max})
