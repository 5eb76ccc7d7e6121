"""Pages that are drawn here, seeded, where a model has to be shown something and nobody's pages are at hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from alula.core.errors import MissingExtraError

if TYPE_CHECKING:
    from PIL.Image import Image

LINE = 24
"""Pixels from one line to the next."""
NUMBERS = 12


def drawn_page(width: int, height: int, *, seed: int) -> Image:
    """A white page with lines of random numbers, the same for the same seed."""
    try:
        from PIL import Image as pillow  # noqa: PLC0415, N813 - texts are served without Pillow
        from PIL import ImageDraw  # noqa: PLC0415
    except ImportError as error:
        raise MissingExtraError("drawing pages for a model that reads images", "images") from error
    rng = np.random.default_rng(seed)
    page = pillow.new("RGB", (width, height), "white")
    draw = ImageDraw.Draw(page)
    for top in range(4, height - 8, LINE):
        draw.text(
            (4, top), " ".join(str(number) for number in rng.integers(0, 10_000, NUMBERS)), fill="black"
        )
    return page
