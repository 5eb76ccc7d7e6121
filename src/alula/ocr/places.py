"""Whether the places that a model gives are where something is printed: pages that it was not taught have others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from alula.core.listing import some
from alula.documents import Block, Notice, Pixels, Quad, printed

MOST_OUTSIDE = 0.06
"""Of the ink of a page: docs/ocr.md has what was counted."""

LEAST_INK = 0.02
"""Of the pixels of a box."""

_AROUND = 0.15
"""Of a box's height: letters reach over boxes that are right."""

_SHOWN = 40


def misplaced(pixels: Pixels, blocks: Sequence[Block]) -> Iterator[Notice]:
    """What of a page (height, width, colour) the boxes leave out, where that is too much. Pure.

    Pictures and stains are ink, too: ask it only of pages that are nothing but print.
    """
    ink = printed(pixels)
    share = outside(ink, [block.box for block in blocks if block.box is not None])
    if share >= MOST_OUTSIDE:
        said = f"{share:.0%} of what is printed stands outside of the boxes: lines are missing, or in other places"
        yield Notice(code="unplaced", message=said)
    empty = [
        f"{block.text[:_SHOWN]!r}" for block in blocks if block.box is not None and not _inked(ink, block.box)
    ]
    if empty:
        said = f"nothing is printed where these are said to stand: {some(empty)}"
        yield Notice(code="unplaced", message=said)


def outside(ink: NDArray[np.bool_], boxes: Sequence[Quad]) -> float:
    """The share of ink (height, width) that is in none of the boxes, whose sides are level. Pure."""
    total = int(np.count_nonzero(ink))
    if not total:
        return 0.0
    left = ink.copy()
    for box in boxes:
        left[_within(box)] = False
    return int(np.count_nonzero(left)) / total


def _inked(ink: NDArray[np.bool_], box: Quad) -> bool:
    part = ink[_within(box)]
    return int(np.count_nonzero(part)) > LEAST_INK * part.size


def _within(box: Quad) -> tuple[slice, slice]:
    """The rows and columns of a box whose sides are level, and around it as far as letters may reach."""
    xs, ys = zip(*box, strict=True)
    more = _AROUND * (max(ys) - min(ys))
    top, bottom, begin, end = (
        max(0, round(at)) for at in (min(ys) - more, max(ys) + more, min(xs) - more, max(xs) + more)
    )
    return slice(top, bottom), slice(begin, end)
