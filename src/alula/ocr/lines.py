"""What is decided of lines before they are read: how finely to look, which way they run, how wide, and with which."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from alula.ocr.order import Corners

STEP = 32
"""Sides of what is looked at, and widths of batches, are multiples of this: engines see few sizes."""

TALL = 2.0
"""A line that is so many times as high as wide runs downwards."""

LONG, PIECE = 2.0, 1.5
"""A page that is so many times as high as wide is looked at in pieces, each so many times: letters of a long receipt
would be too low to be seen."""

LEAST_SURE = 0.95
"""What is read with a lower score is read once more."""

CROWDED, CROWDED_SURE = 12.0, 0.99
"""Where a character has fewer pixels of the width that is read, one of two that are alike is dropped: recognisers tell
one every eight pixels, and need some between these. Such lines are sure from a higher score on."""

_CUT = 0.05
"""The share of a piece at its lower edge that the next one is to show whole."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Looking:
    """How finely lines are looked for.

    A page is looked at with its longer side at `side` pixels: PP-OCR's detectors lose parts of long lines the more, the
    larger a page is. Where half of the boxes found are lower than `low` there, text may be too small to be seen at all,
    and it is looked at once more so that they are `good`, with its longer side at `most` at most.
    """

    side: int = 736
    low: float = 9.0
    good: float = 11.0
    most: int = 1600


def looked_at(width: int, height: int, side: int) -> tuple[int, int]:
    """Width and height with the longer one at about `side`, in multiples of `STEP`."""
    ratio = side / max(width, height)
    across, down = (max(STEP, round(each * ratio / STEP) * STEP) for each in (width, height))
    return across, down


def closer(heights: Sequence[float], looking: Looking, longest: int = 0) -> int | None:
    """The side to look again with, if lines of these heights are so low that others may have been missed.

    Where there are none, all may have been, if the page's longer side, `longest` pixels, was made shorter: letters on a
    long receipt are then too low to be seen.
    """
    if not heights:
        return min(longest, looking.most) if longest > looking.side else None
    middle = float(np.median(heights))
    side = min(round(looking.side * looking.good / max(middle, 1.0)), looking.most)
    return side if middle < looking.low and side > looking.side else None


def piece_end(top: int, width: int, height: int, side: int) -> int:
    """Where the piece of a page that begins at `top` ends: what is shown at `side` pixels has as many, at least."""
    wide = max(width, side / PIECE)
    return height if height - top <= LONG * wide else top + round(PIECE * wide)


def cut_above(boxes: Sequence[Corners], height: int) -> int:
    """Where the next piece begins: above whatever the lower edge of this one, so high, may have cut through."""
    spans = sorted(((box[:, 1].min(), box[:, 1].max()) for box in boxes), reverse=True)
    cut = height * (1 - _CUT)
    for high, low in spans:
        if high < cut < low + 1:
            cut = high - 1
    return math.floor(cut) if cut > height / 2 else height


def size(box: Corners) -> tuple[float, float]:
    """How long a box is from where its text begins, and how high."""
    return float(np.linalg.norm(box[1] - box[0])), float(np.linalg.norm(box[3] - box[0]))


def run_down(boxes: Sequence[Corners]) -> bool:
    """Whether most of the ink that boxes hold is in tall ones: the page lies on its side."""
    areas = {True: 0.0, False: 0.0}
    for box in boxes:
        long, high = size(box)
        areas[high >= TALL * long] += long * high
    return areas[True] > areas[False]


def along(box: Corners) -> Corners:
    """A tall box as a line that runs downwards, every other as it is."""
    long, high = size(box)
    return np.roll(box, -1, axis=0) if high >= TALL * long else box


def upside_down(box: Corners) -> Corners:
    """The same box, its text the other way round."""
    return np.roll(box, 2, axis=0)


def begun(box: Corners, heights: float) -> Corners:
    """As much of the beginning of a line as so many of its heights."""
    long, high = size(box)
    share = min(1.0, heights * high / max(long, 1.0))
    first, second, third, last = box
    return np.array([first, first + (second - first) * share, last + (third - last) * share, last])


def with_ends(box: Corners, heights: float) -> Corners:
    """The box with so many of its heights more before and behind."""
    long, high = size(box)
    by = (box[1] - box[0]) * (heights * high / max(long, 1.0))
    return np.asarray(box + np.array([-by, by, by, -by]), np.float64)


def turned_back(box: Corners, turns: int, width: int, height: int) -> Corners:
    """A box found on a page after so many quarter turns to the left, on the page as it was, `width` x `height`."""
    across, down = box[:, 0], box[:, 1]
    places = {
        0: (across, down),
        1: (width - down, across),
        2: (width - across, height - down),
        3: (down, height - across),
    }
    return np.column_stack(places[turns % 4])


def doubtful(score: float, characters: int, width: int) -> bool:
    """Whether a line that was read so, in so many pixels of width, is to be read once more."""
    return score < (CROWDED_SURE if width < CROWDED * characters else LEAST_SURE)


def reading_width(box: Corners, height: int, squeeze: float, widest: int) -> int:
    """How wide a line is read when it is read `height` high: in proportion, times `squeeze`."""
    long, high = size(box)
    return min(max(math.ceil(height * long / max(high, 1.0) * squeeze), height // 2), widest)


def batches(widths: Sequence[int], *, cells: int, rows: int, waste: float = 0.1) -> Iterator[list[int]]:
    """Lines to be read together, narrow ones first, of which padding is at most a share `waste`.

    A batch has at most `rows` lines and `cells` columns in all, but that one line may have more.
    """
    batch: list[int] = []
    for at in sorted(range(len(widths)), key=lambda at: widths[at]):
        whole = widths[at] * (len(batch) + 1)
        filled = sum(widths[each] for each in batch) + widths[at]
        if batch and (len(batch) == rows or whole > cells or whole - filled > waste * whole):
            yield batch
            batch = []
        batch.append(at)
    if batch:
        yield batch
