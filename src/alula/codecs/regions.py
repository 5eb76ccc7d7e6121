"""From a map of probabilities to quadrilaterals: the regions of a bitmap, the smallest rectangle around each, grown.

As PaddleOCR reads the maps of its detectors (differentiable binarisation), with the same numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Points = NDArray[np.float64]
"""Places of a map, [points, 2]: across, down."""

Flags = NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True, slots=True)
class Rectangle:
    """Four corners in order around it, and its two sides."""

    corners: Points
    sides: tuple[float, float]

    @property
    def least(self) -> float:
        """The shorter side."""
        return min(self.sides)

    def grown(self, ratio: float) -> Rectangle:
        """All sides moved out by as much as area times `ratio` over its circumference is.

        Rounded corners, which PaddleOCR's have, do not change the smallest rectangle around them.
        """
        wide, high = self.sides
        by = wide * high * ratio / (2 * (wide + high))
        middle, (first, second, _, last) = self.corners.mean(axis=0), self.corners
        across, down = ((end - first) / max(size, 1e-9) for end, size in ((second, wide), (last, high)))
        halves = across * (wide / 2 + by), down * (high / 2 + by)
        corners = [middle - halves[0] - halves[1], middle + halves[0] - halves[1]]
        corners += [middle + halves[0] + halves[1], middle - halves[0] + halves[1]]
        return Rectangle(corners=np.array(corners), sides=(wide + 2 * by, high + 2 * by))


def widened(bitmap: Flags) -> Flags:
    """Every pixel that has one of the bitmap's at its place, above, on its left or above that."""
    wide = bitmap.copy()
    wide[1:] |= bitmap[:-1]
    wide[:, 1:] |= wide[:, :-1].copy()
    return wide


def regions(bitmap: Flags) -> Iterator[Points]:
    """The outermost pixels of each row of every region, pixels that touch at sides or corners; lowest regions first."""
    rows, starts, ends = _runs(bitmap)
    if not len(rows):
        return
    number = _joined(rows, starts, ends)
    order = np.argsort(number, kind="stable")
    rows, starts, ends, number = rows[order], starts[order], ends[order], number[order]
    for run in np.split(np.arange(len(rows)), np.flatnonzero(np.diff(number)) + 1)[::-1]:
        across = np.concatenate([starts[run], ends[run]])
        yield np.column_stack([across, np.concatenate([rows[run], rows[run]])]).astype(np.float64)


def _runs(bitmap: Flags) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Row, first and last column of every run of pixels, row by row."""
    edges = np.diff(np.pad(bitmap, ((0, 0), (1, 1))).astype(np.int8), axis=1)
    rows, starts = np.nonzero(edges == 1)
    return rows, starts, np.nonzero(edges == -1)[1] - 1


def _joined(rows: NDArray[np.int64], starts: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.int64]:
    """For each run the first run of its region."""
    parent = list(range(len(rows)))

    def root(at: int) -> int:
        while parent[at] != at:
            parent[at] = parent[parent[at]]
            at = parent[at]
        return at

    first = np.searchsorted(rows, rows - 1, side="left")
    above = 0
    for at, (row, start, end) in enumerate(zip(rows.tolist(), starts.tolist(), ends.tolist(), strict=True)):
        if at == 0 or rows[at - 1] != row:
            above = int(first[at])
        while above < at and rows[above] == row - 1 and ends[above] < start - 1:
            above += 1
        touching = above
        while touching < at and rows[touching] == row - 1 and starts[touching] <= end + 1:
            one, other = sorted((root(touching), root(at)))
            parent[other] = one
            touching += 1
    return np.array([root(at) for at in range(len(rows))])


def smallest_rectangle(points: Points) -> Rectangle:
    """The rectangle of the least area around points, at any angle; one of its sides lies on a side of their hull."""
    hull = _hull(points)
    if len(hull) == 1:
        return Rectangle(corners=np.repeat(hull, 4, axis=0), sides=(0.0, 0.0))
    edges = np.roll(hull, -1, axis=0) - hull
    along = edges / np.linalg.norm(edges, axis=1, keepdims=True)
    across = np.column_stack([-along[:, 1], along[:, 0]])
    on_along, on_across = along @ hull.T, across @ hull.T
    low, high = on_along.min(axis=1), on_along.max(axis=1)
    near, far = on_across.min(axis=1), on_across.max(axis=1)
    best = int(((high - low) * (far - near)).argmin())
    ends = ((low, near), (high, near), (high, far), (low, far))
    corners = [along[best] * a[best] + across[best] * b[best] for a, b in ends]
    return Rectangle(
        corners=np.array(corners),
        sides=(float(high[best] - low[best]), float(far[best] - near[best])),
    )


def _hull(points: Points) -> Points:
    """The corners of the convex hull, in order."""
    ordered = sorted(set(map(tuple, points.tolist())))
    if len(ordered) <= 2:
        return np.array(ordered)

    def chain(each: list[tuple[float, ...]]) -> list[tuple[float, ...]]:
        kept: list[tuple[float, ...]] = []
        for x, y in each:
            while len(kept) > 1:
                (ax, ay), (bx, by) = kept[-2], kept[-1]
                if (bx - ax) * (y - ay) - (by - ay) * (x - ax) > 0:
                    break
                kept.pop()
            kept.append((x, y))
        return kept[:-1]

    return np.array([*chain(ordered), *chain(ordered[::-1])])


def mean_within(probabilities: NDArray[np.float32], corners: Points) -> float:
    """The mean over the pixels of a polygon, its edges included."""
    from PIL import Image, ImageDraw  # noqa: PLC0415 - texts are served without Pillow

    height, width = probabilities.shape
    last = np.array([width - 1, height - 1])
    left, top = np.clip(np.floor(corners.min(axis=0)), 0, last).astype(int).tolist()
    right, bottom = np.clip(np.ceil(corners.max(axis=0)), 0, last).astype(int).tolist()
    mask = Image.new("1", (right - left + 1, bottom - top + 1))
    # Whole places, as the fraction is dropped there too.
    polygon = [(int(x - left), int(y - top)) for x, y in corners.tolist()]
    ImageDraw.Draw(mask).polygon(polygon, fill=1, outline=1)
    inside = np.asarray(mask)
    part = probabilities[top : bottom + 1, left : right + 1]
    return float(part[inside].mean()) if inside.any() else 0.0


def clockwise(corners: Points) -> Points:
    """From the upper left corner: of the two on the left the higher one, then the higher and the lower on the right."""
    ordered = corners[np.argsort(corners[:, 0], kind="stable")]
    (top_left, bottom_left), (top_right, bottom_right) = (
        side[np.argsort(side[:, 1], kind="stable")] for side in (ordered[:2], ordered[2:])
    )
    return np.array([top_left, top_right, bottom_right, bottom_left])
