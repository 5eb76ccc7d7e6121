"""Whether the places that a model gives are where something is printed: pages that it was not taught have others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from alula.documents import Block, Notice, Pixels, Quad, printed

MOST_OUTSIDE = 0.1
"""Of the ink of a page: docs/ocr.md has what was counted."""

_AROUND = 0.15
"""Of a box's height: letters reach over boxes that are right."""


def misplaced(pixels: Pixels, blocks: Sequence[Block]) -> Iterator[Notice]:
    """What of a page (height, width, colour) the boxes leave out, where that is too much. Pure.

    Pictures and stains are ink, too: ask it only of pages that are nothing but print.
    """
    share = outside(printed(pixels), [block.box for block in blocks if block.box is not None])
    if share >= MOST_OUTSIDE:
        said = f"{share:.0%} of what is printed stands outside of the boxes: lines are missing, or in other places"
        yield Notice(code="unplaced", message=said)


def outside(ink: NDArray[np.bool_], boxes: Sequence[Quad]) -> float:
    """The share of ink (height, width) that is in none of the boxes, whose sides are level. Pure."""
    total = int(np.count_nonzero(ink))
    if not total:
        return 0.0
    left = ink.copy()
    for box in boxes:
        xs, ys = zip(*box, strict=True)
        more = _AROUND * (max(ys) - min(ys))
        top, bottom, begin, end = (
            max(0, round(at)) for at in (min(ys) - more, max(ys) + more, min(xs) - more, max(xs) + more)
        )
        left[top:bottom, begin:end] = False
    return int(np.count_nonzero(left)) / total
