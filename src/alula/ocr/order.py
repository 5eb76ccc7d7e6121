"""Boxes of lines in the order in which a page is read: column after column, row after row."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Corners: TypeAlias = NDArray[np.float64]
"""One box: four points clockwise, from the one where the text begins, [4, 2]."""

Extents: TypeAlias = NDArray[np.float64]
"""Left, top, right and bottom of each box, [boxes, 4]."""

_LONG = 3.0
"""Boxes so many times as wide as high say how a page is turned."""

_GUTTER = 0.7
"""Columns are so many heights of a line apart at least."""

_ROWS = 3
"""Lines that a column has at least."""

_WIDE = 0.2
"""The middle line of a column of text has this share of the width of all; columns of tables are narrower."""

_WIDE_IN_ROWS = 0.26
"""Where each line of one side has one of the other beside it, as the names in a form have what is filled in."""


def rows_in_order(boxes: Sequence[Corners]) -> list[list[int]]:
    """Which boxes stand in each row, from left to right; rows in reading order.

    Two columns are read one after the other where a gap runs between them and their lines are long, tables row by row.
    """
    if not boxes:
        return []
    extents = _level(boxes)
    return [row for group in _columns(list(range(len(boxes))), extents) for row in _rows(group, extents)]


def skew(boxes: Sequence[Corners]) -> float:
    """By how much lines rise or fall, in radians: the middle one of long boxes, nought where there is none."""
    edges = [(box[1] - box[0], np.linalg.norm(box[3] - box[0])) for box in boxes]
    angles = [np.arctan2(edge[1], edge[0]) for edge, high in edges if np.linalg.norm(edge) > _LONG * high]
    return float(np.median(angles)) if angles else 0.0


def _level(boxes: Sequence[Corners]) -> Extents:
    """Where the boxes are once the page is turned level."""
    angle = skew(boxes)
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    turned = np.array(boxes) @ turn
    return np.concatenate([turned.min(axis=1), turned.max(axis=1)], axis=1)


def _columns(group: list[int], extents: Extents) -> list[list[int]]:
    """Groups to be read one after the other: the longest band with two columns in it, what is above, and below."""
    bands = _bands(group, extents)
    if sum(len(band) > 1 for band in bands) < _ROWS and len(bands) > 1:
        return [group]
    spans = [(first, last) for first in range(len(bands)) for last in range(first + 1, len(bands) + 1)]
    for first, last in sorted(spans, key=lambda span: span[0] - span[1]):
        if cut := _side_by_side([at for band in bands[first:last] for at in band], extents):
            above, below = ([at for band in part for at in band] for part in (bands[:first], bands[last:]))
            halves = [part for half in cut for part in _columns(half, extents)]
            return [*([above] if above else []), *halves, *(_columns(below, extents) if below else [])]
    return [group]


def _bands(group: list[int], extents: Extents) -> list[list[int]]:
    """Boxes by the bands that they stand in, from the top down, cut wherever nothing is in the way."""
    ordered = sorted(group, key=lambda at: extents[at, 1])
    bands, bottom = [[ordered[0]]], extents[ordered[0], 3]
    for at in ordered[1:]:
        if extents[at, 1] >= bottom:
            bands.append([])
        bands[-1].append(at)
        bottom = max(bottom, extents[at, 3])
    return bands


def _side_by_side(group: list[int], extents: Extents) -> tuple[list[int], list[int]] | None:
    """Two columns of text, if a gap runs between them from top to bottom."""
    if len(group) < 2 * _ROWS:
        return None
    gutter = _GUTTER * float(np.median(extents[group, 3] - extents[group, 1]))
    ordered = sorted(group, key=lambda at: extents[at, 0])
    reach = np.maximum.accumulate(extents[ordered, 2])
    whole = float(reach[-1] - extents[ordered[0], 0])
    for at in np.flatnonzero(extents[ordered[1:], 0] - reach[:-1] > gutter) + 1:
        sides = ordered[:at], ordered[at:]
        widths = [np.median(extents[side, 2] - extents[side, 0]) for side in sides]
        least = _WIDE_IN_ROWS if _in_rows(*sides, extents) else _WIDE
        if min(map(len, sides)) >= _ROWS and min(widths) >= least * whole:
            return sides
    return None


def _in_rows(one: Sequence[int], other: Sequence[int], extents: Extents) -> bool:
    """Whether the middle of each line of the shorter side lies within one of the other."""
    few, many = sorted((one, other), key=len)
    middles = (extents[few, 1] + extents[few, 3])[:, None] / 2
    return bool(((extents[many, 1] < middles) & (middles < extents[many, 3])).any(axis=1).all())


def _rows(group: list[int], extents: Extents) -> list[list[int]]:
    """Boxes side by side are one row: the middle of each lies within the one before."""
    ordered = sorted(group, key=lambda at: extents[at, 1] + extents[at, 3])
    rows = [[ordered[0]]]
    for before, at in pairwise(ordered):
        middle = (extents[at, 1] + extents[at, 3]) / 2
        if extents[before, 1] < middle < extents[before, 3] and _beside(at, rows[-1], extents):
            rows[-1].append(at)
        else:
            rows.append([at])
    return [sorted(row, key=lambda at: extents[at, 0]) for row in rows]


def _beside(at: int, row: list[int], extents: Extents) -> bool:
    """Whether a box shares less than half its width with each in the row."""
    left, right = extents[at, 0], extents[at, 2]
    shared = np.minimum(right, extents[row, 2]) - np.maximum(left, extents[row, 0])
    return bool((shared < (right - left) / 2).all())
