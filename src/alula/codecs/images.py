"""Images in, pixels out: each picture resized, cropped and normalised as the model was trained."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from alula.codecs.pictures import MOST_PIXELS, decode
from alula.codecs.processor import FILE, Processor, Size, read_processor
from alula.core.errors import InputError
from alula.core.model import ModelSpec
from alula.core.profile import Profile
from alula.core.tensor import Array, Feeds

if TYPE_CHECKING:
    from PIL.Image import Image

Pixels: TypeAlias = NDArray[np.float32]
"""One image as a model takes it: colour, height, width."""

COLOURS = 3

LONGEST = 200
"""How many times its shorter side an image may be long where the shorter one is brought to a size."""


class ImageCodec:
    """The image processor of one model."""

    def __init__(self, processor: Processor, spec: ModelSpec, *, most_pixels: int = MOST_PIXELS) -> None:
        self.spec = spec
        self._processor = processor
        self._most_pixels = most_pixels
        (self._input,) = spec.part("encoder").inputs
        # What came as an ONNX file may have its colours last.
        self._last = self._input.shape[1] != COLOURS and self._input.shape[-1] == COLOURS
        wanted, given = self._input.shape[1:3] if self._last else self._input.shape[2:], processor.gives
        if given is None or any(
            isinstance(dim, int) and dim != size for dim, size in zip(wanted, given, strict=True)
        ):
            raise InputError(f"{FILE} gives images of {_shown(given)}; {spec.name} takes {_shown(wanted)}")
        self._gives = given
        self._sizes = {dim: size for dim, size in zip(wanted, given, strict=True) if isinstance(dim, str)}

    @classmethod
    def open(
        cls,
        folder: Path,
        spec: ModelSpec,
        *,
        profile: Profile | None = None,
        most_pixels: int = MOST_PIXELS,
    ) -> ImageCodec:
        """Read `preprocessor_config.json`; images of more than `most_pixels` are refused.

        With the profile of an engine, so is a processor that gives another size than that takes.
        """
        codec = cls(read_processor(folder, spec.family), spec, most_pixels=most_pixels)
        if profile is not None:
            codec.check(profile)
        return codec

    def check(self, profile: Profile) -> None:
        """Refuse an engine that is not built for the size that all images come out of the processor with."""
        for axis, size in self._sizes.items():
            built = profile.axes[axis]
            if not built.min <= size <= built.max:
                raise InputError(
                    f"{FILE} gives images with a {axis} of {size}; {self.spec.name} is built for {built.min} to "
                    f"{built.max}: build with --{axis} MIN:OPT:MAX around {size}, or change the size in that file"
                )

    def encode(self, image: Path | bytes, name: str = "") -> Pixels:
        """One image, a file or its bytes, as pixels; `name` is what errors call it.

        It is turned upright first, as its EXIF says, which transformers leaves to its caller.
        """
        picture = self._resized(decode(image, name, most_pixels=self._most_pixels), name or _called(image))
        levels = np.asarray(picture)
        for size in self._processor.crops:
            levels = _middle(levels, size)
        planes = [table[levels[..., at]] for at, table in enumerate(self._processor.table)]
        return np.stack(planes[::-1] if self._processor.flips else planes)

    def collate(self, images: Sequence[Pixels], profile: Profile | None = None) -> Feeds:
        """Images as one batch; an engine with a smallest batch gets the last one again."""
        if not images:
            raise InputError("no images to make a batch of; expected at least one")
        sizes = {**self._sizes, "batch": len(images)}
        rows = profile.padded(sizes, keep=self._sizes)["batch"] if profile else len(images)
        again = [images[-1]] * (rows - len(images))
        batch = np.stack([*images, *again])
        return {self._input.name: np.ascontiguousarray(np.moveaxis(batch, 1, -1)) if self._last else batch}

    def rows(self, batch: Pixels) -> list[Pixels]:
        """Images that were made into pixels elsewhere, in the layout and the size that the model's processor gives."""
        rows = np.moveaxis(batch, -1, 1) if self._last else batch
        if rows.shape[2:] != tuple(self._gives):
            raise InputError(
                f"images are {_shown(rows.shape[2:])} pixels; expected {_shown(self._gives)}, as {FILE} says"
            )
        return list(rows)

    def _resized(self, picture: Image, called: str) -> Image:
        size = self._processor.size
        if self._processor.edge is not None:
            size = _by_shorter_side(picture.size, self._processor.edge, called)
        if size is None:
            return picture
        height, width = size
        return picture.resize((width, height), self._processor.resample)


def each_image(outputs: Feeds, count: int) -> list[dict[str, Array]]:
    """The outputs of a batch, one mapping for each of its first `count` images."""
    return [{name: array[at] for name, array in outputs.items()} for at in range(count)]


def _by_shorter_side(size: tuple[int, int], edge: int, called: str) -> Size:
    """Height and width with the shorter one at `edge`; of the longer one the fraction is dropped."""
    width, height = size
    short, long = min(size), max(size)
    if long > LONGEST * short:
        raise InputError(
            f"{called} is {width} x {height} pixels; expected a side at most {LONGEST} times as long as the other"
        )
    longer = int(edge * long / short)
    return (longer, edge) if width <= height else (edge, longer)


def _middle(levels: NDArray[np.uint8], size: Size) -> NDArray[np.uint8]:
    """The middle of an image, with black around it where it is smaller."""
    for axis, wanted in enumerate(size):
        found = levels.shape[axis]
        if found < wanted:
            before = -((found - wanted) // 2)
            around = [(0, 0)] * levels.ndim
            around[axis] = (before, wanted - found - before)
            levels = np.pad(levels, around)
        else:
            first = (found - wanted) // 2
            levels = levels.take(range(first, first + wanted), axis)
    return levels


def _called(image: Path | bytes) -> str:
    return str(image) if isinstance(image, Path) else "the image"


def _shown(size: object) -> str:
    return " x ".join(map(str, size)) if isinstance(size, tuple) else "no fixed size"
