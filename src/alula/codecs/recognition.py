"""Pictures of single lines to pixels, and the probabilities of a recogniser to the line, both as PaddleOCR does."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from alula.codecs.images import Pixels
from alula.codecs.pictures import MOST_PIXELS, decode
from alula.codecs.scores import finite
from alula.core.errors import InputError
from alula.core.model import ModelSpec
from alula.core.profile import Profile
from alula.core.tensor import Array, Feeds

if TYPE_CHECKING:
    from PIL.Image import Image

STEP = 32
"""Widths of batches are multiples of this, so that engines see few of them."""

WIDEST = 3200
"""Pixels of a line at most; longer ones are squeezed, as PaddleOCR does with lines wider than their batch."""

_BLANK = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """What a line says, and the mean probability of its characters (nought where there is none)."""

    text: str
    score: float


class RecognitionCodec:
    """Lines in, text out. Safe to use from several threads: nothing changes after it is made."""

    def __init__(self, spec: ModelSpec, *, widest: int = WIDEST, most_pixels: int = MOST_PIXELS) -> None:
        (self._input,) = spec.part("encoder").inputs
        channels, height = self._input.shape[1:3]
        if channels != 3 or not isinstance(height, int):
            raise InputError(
                f"{spec.name} takes {self._input.shape}, expected lines: (batch, 3, height, width)"
            )
        self.spec, self.widest = spec, widest
        self._height, self._most_pixels = height, most_pixels

    def encode(self, image: Path | bytes, name: str = "") -> Pixels:
        """One picture of a line, a file or its bytes, as blue, green and red from -1 to 1.

        The height is the model's, the width in proportion; `name` is what errors call it.
        """
        picture = decode(image, name, most_pixels=self._most_pixels)
        width = math.ceil(self._height * picture.width / picture.height)
        levels = bilinear(picture, min(width, self.widest), self._height)
        scaled = (levels[:, :, ::-1].astype(np.float32) / 255 - 0.5) / 0.5
        return np.ascontiguousarray(scaled.transpose(2, 0, 1), dtype=np.float32)

    def collate(self, lines: Sequence[Pixels], profile: Profile | None = None) -> Feeds:
        """Lines as one batch, padded right with zeros; an engine with a smallest batch gets the last one again.

        The width is a multiple of `STEP`, and what the profile takes. Nothing tells the model where a line ends, and it
        looks at the whole width: lines of like width belong together.
        """
        if not lines:
            raise InputError("no lines to make a batch of; expected at least one")
        longest = max(line.shape[2] for line in lines)
        most = profile.axes["width"].max if profile else self.widest
        if longest > most:
            raise InputError(f"a line is {longest} pixels wide; expected at most {most}")
        columns, rows = min(most, -(-longest // STEP) * STEP), len(lines)
        if profile:
            if profile.most("batch", {"width": columns}) < rows:
                columns = longest  # one of several profiles may end between two steps
            sizes = profile.padded({"batch": rows, "width": columns})
            columns, rows = sizes["width"], sizes["batch"]
        again = [lines[-1]] * (rows - len(lines))
        batch = np.zeros((len(lines) + len(again), 3, self._height, columns), dtype=np.float32)
        for row, line in enumerate([*lines, *again]):
            batch[row, :, :, : line.shape[2]] = line
        return {self._input.name: batch}

    def text(self, probabilities: Array) -> str:
        """What [steps, classes] spell."""
        return self.read(probabilities).text

    def read(self, probabilities: Array) -> Line:
        """The best class of each step, repeats once, blanks left out."""
        labels = self.spec.labels
        if probabilities.ndim != 2 or probabilities.shape[1] != len(labels):
            raise InputError(
                f"probabilities are {probabilities.shape}, expected (steps, {len(labels)}), one class per label"
            )
        best = probabilities.argmax(axis=1)
        # A NaN is the best of its step to numpy, so that looking at these alone finds it; a page has a hundred million.
        top = finite(
            {"probabilities": np.take_along_axis(probabilities, best[:, None], axis=1)}, "probabilities"
        )
        kept = (np.diff(best, prepend=_BLANK) != 0) & (best != _BLANK)
        text = "".join(labels[at] for at in best[kept])
        return Line(text=text, score=float(top[kept].mean()) if kept.any() else 0.0)


def bilinear(picture: Image, width: int, height: int) -> NDArray[np.uint8]:
    """Bilinear between the four nearest pixels, as OpenCV does it; Pillow would smooth what it makes smaller.

    Seen on 100 drawn lines and on noise: no level of 255 is off by more than one.
    """
    from PIL import Image as pillow  # noqa: PLC0415, N813 - texts are served without Pillow

    across, down = picture.width / width, picture.height / height
    resized = picture.transform(
        (width, height),
        pillow.Transform.AFFINE,
        (across, 0, 0, 0, down, 0),
        pillow.Resampling.BILINEAR,
    )
    return np.asarray(resized, dtype=np.uint8)
