"""A page's pixels in other sizes: the whole of it, and single lines of it set straight."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from alula.codecs.images import Pixels

if TYPE_CHECKING:
    from PIL.Image import Image

Levels = NDArray[np.uint8]
"""Height, width, and red, green and blue."""

_WHITE = (255, 255, 255)


class Raster:
    """One page. What is made smaller is averaged first, so that thin strokes stay."""

    def __init__(self, levels: Levels) -> None:
        from PIL import Image  # noqa: PLC0415 - texts are served without Pillow

        self.height, self.width = levels.shape[:2]
        self._halves: list[Image.Image] = [Image.fromarray(levels)]

    def resized(self, width: int, height: int) -> Levels:
        """All of it."""
        from PIL import Image  # noqa: PLC0415

        smaller = self._halves[0].resize((width, height), Image.Resampling.BILINEAR, reducing_gap=2.0)
        return np.asarray(smaller, dtype=np.uint8)

    def rows(self, top: int, bottom: int) -> Raster:
        """A part of it over all of its width."""
        return Raster(np.asarray(self._halves[0].crop((0, top, self.width, bottom)), dtype=np.uint8))

    def line(self, corners: NDArray[np.float64], width: int, height: int) -> Levels:
        """What a rectangle at any angle holds, made so wide and high; beyond the page is white.

        The corners, [4, 2], go clockwise from the one where the text begins, as (across, down). A detector's boxes are
        rectangles, so three of them say all.
        """
        from PIL import Image  # noqa: PLC0415

        first, second, _, last = corners
        times = 0
        while np.linalg.norm(last - first) >= height * 2 ** (times + 1):
            times += 1
        scale = 2**times
        across, down = (second - first) / scale / width, (last - first) / scale / height
        left, top = first / scale
        where = (across[0], down[0], left, across[1], down[1], top)
        straight = self._half(times).transform(
            (width, height),
            Image.Transform.AFFINE,
            tuple(float(each) for each in where),
            Image.Resampling.BILINEAR,
            fillcolor=_WHITE,
        )
        return np.asarray(straight, dtype=np.uint8)

    def _half(self, times: int) -> Image:
        """The page halved so many times."""
        while len(self._halves) <= times:
            self._halves.append(self._halves[-1].reduce(2))
        return self._halves[times]


def blue_first(levels: Levels) -> Pixels:
    """As PP-OCR's models take colours: [3, height, width] of blue, green and red from -1 to 1."""
    scaled = (levels[:, :, ::-1].astype(np.float32) / 255 - 0.5) / 0.5
    return np.ascontiguousarray(scaled.transpose(2, 0, 1), dtype=np.float32)
