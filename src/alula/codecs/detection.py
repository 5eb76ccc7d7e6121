"""Pages to pixels, and a detector's map of probabilities to the boxes that text stands in, both as PaddleOCR does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from alula.codecs.images import Pixels
from alula.codecs.pictures import MOST_PIXELS, decode
from alula.codecs.processor import FILE, read_object
from alula.codecs.recognition import bilinear
from alula.codecs.regions import Points, clockwise, mean_within, regions, smallest_rectangle, widened
from alula.codecs.scores import finite
from alula.core.errors import InputError, ManifestError
from alula.core.model import ModelSpec
from alula.core.profile import Profile
from alula.core.tensor import Feeds

STEP = 32
"""Heights and widths are multiples of this: detectors halve an image five times."""

_SMALLEST, _SMALLEST_GROWN, _SMALLEST_SIDE = 3, 5, 3
_RED = (220, 0, 0)
_LINE = 10
"""Pixels that the upper left corners of boxes on one line differ by at most."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Detector:
    """How pages are resized and maps are read: what `preprocessor_config.json` may say, and else RapidOCR's numbers.

    The shorter side is brought to `limit_side_len` where it is shorter (`limit_type` "min"), or the longer one where it
    is longer ("max").
    """

    limit_side_len: int = 736
    limit_type: str = "min"
    image_mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    image_std: tuple[float, ...] = (0.5, 0.5, 0.5)
    thresh: float = 0.3
    box_thresh: float = 0.5
    unclip_ratio: float = 1.6
    max_candidates: int = 1000
    use_dilation: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class Page:
    """A page as the model takes it, and the width and height it came with."""

    pixels: Pixels
    width: int
    height: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Box:
    """Where text stands: four points clockwise from the upper left one, in pixels of the upright page."""

    points: tuple[tuple[int, int], ...]
    score: float


class DetectionCodec:
    """Pages in, boxes out. Safe to use from several threads: nothing changes after it is made."""

    def __init__(
        self,
        spec: ModelSpec,
        settings: Detector | None = None,
        *,
        profile: Profile | None = None,
        most_pixels: int = MOST_PIXELS,
    ) -> None:
        (self._input,) = spec.part("encoder").inputs
        self.spec, self.settings = spec, settings or Detector()
        self._most_pixels = most_pixels
        self._sides = tuple(self._range(dim, profile) for dim in self._input.shape[2:])
        self._mean, self._std = (
            np.array(values, np.float32) for values in (self.settings.image_mean, self.settings.image_std)
        )

    @classmethod
    def open(
        cls, folder: Path, spec: ModelSpec, *, profile: Profile | None = None, most_pixels: int = MOST_PIXELS
    ) -> DetectionCodec:
        """Read `preprocessor_config.json` if there is one; with an engine's profile pages come out in its sizes."""
        file = folder / FILE
        settings = read_detector(read_object(file)) if file.is_file() else Detector()
        return cls(spec, settings, profile=profile, most_pixels=most_pixels)

    def encode(self, image: Path | bytes, name: str = "") -> Page:
        """One page, a file or its bytes, as blue, green and red; `name` is what errors call it."""
        picture = decode(image, name, most_pixels=self._most_pixels)
        height, width = self._resized(picture.height, picture.width)
        levels = bilinear(picture, width, height)[:, :, ::-1].astype(np.float32) / np.float32(255)
        pixels = ((levels - self._mean) / self._std).transpose(2, 0, 1)
        return Page(
            pixels=np.ascontiguousarray(pixels, dtype=np.float32), width=picture.width, height=picture.height
        )

    def collate(self, pages: Sequence[Page], profile: Profile | None = None) -> Feeds:
        """Pages of one size as one batch; an engine with a smallest batch gets the last one again."""
        return self.stacked([page.pixels for page in pages], profile)

    def stacked(self, pixels: Sequence[Pixels], profile: Profile | None = None) -> Feeds:
        """The same of their pixels."""
        if len({each.shape for each in pixels}) != 1:
            raise InputError(
                f"{len(pixels)} pages of several sizes; expected one page at least, all of one size"
            )
        sizes = {"batch": len(pixels)}
        for dim, size in zip(self._input.shape[2:], pixels[0].shape[1:], strict=True):
            sizes |= {dim: size} if isinstance(dim, str) else {}
        rows = profile.padded(sizes, keep=sizes.keys() - {"batch"})["batch"] if profile else len(pixels)
        return {self._input.name: np.stack([*pixels, *[pixels[-1]] * (rows - len(pixels))])}

    def read(self, outputs: Feeds, page: Page) -> list[Box]:
        """The boxes of one page, from top to bottom, and from left to right on a line."""
        found = finite(outputs, "probabilities").astype(np.float32)
        if found.ndim != 3 or found.shape[0] != 1:
            raise InputError(f"probabilities are {found.shape}, expected (1, height, width)")
        return _in_order(list(self._boxes(found[0], page)))

    def _boxes(self, found: NDArray[np.float32], page: Page) -> Iterator[Box]:
        s = self.settings
        bitmap = found > s.thresh
        scale = np.array([page.width / found.shape[1], page.height / found.shape[0]])
        for count, points in enumerate(regions(widened(bitmap) if s.use_dilation else bitmap)):
            if count == s.max_candidates:
                return
            rectangle = smallest_rectangle(points)
            if rectangle.least < _SMALLEST:
                continue
            score = mean_within(found, rectangle.corners)
            grown = rectangle.grown(s.unclip_ratio)
            if score < s.box_thresh or grown.least < _SMALLEST_GROWN:
                continue
            corners = self._on_page(clockwise(grown.corners * scale), page)
            sides = (int(np.linalg.norm(corners[0] - corners[at])) for at in (1, 3))
            if min(sides) > _SMALLEST_SIDE:
                yield Box(points=tuple((int(x), int(y)) for x, y in corners), score=score)

    @staticmethod
    def _on_page(corners: Points, page: Page) -> Points:
        return np.clip(np.round(corners), 0, [page.width - 1, page.height - 1])

    def _resized(self, height: int, width: int) -> tuple[int, int]:
        """Height and width that a page is brought to: in proportion, multiples of `STEP` that the engine takes."""
        limit, short, long = self.settings.limit_side_len, min(height, width), max(height, width)
        if self.settings.limit_type == "min":
            ratio = limit / short if short < limit else 1.0
        else:
            ratio = limit / long if long > limit else 1.0
        most = [high for _, high in self._sides]
        ratio = min(ratio, *(top / side for top, side in zip(most, (height, width), strict=True)))
        sides = (round(int(side * ratio) / STEP) * STEP for side in (height, width))
        fitted = [min(max(side, low), high) for side, (low, high) in zip(sides, self._sides, strict=True)]
        return fitted[0], fitted[1]

    def _range(self, dim: int | str, profile: Profile | None) -> tuple[int, int]:
        """The smallest and the largest multiple of `STEP` that a side may have."""
        if isinstance(dim, int):
            return dim, dim
        if profile is None:
            return STEP, 1 << 16
        built = profile.axes[dim]
        low, high = -(-built.min // STEP) * STEP, built.max // STEP * STEP
        if low > high:
            raise InputError(
                f"{self.spec.name} is built for a {dim} of {built.min} to {built.max}, and no multiple of {STEP} is "
                f"among them: build with --{dim} MIN:OPT:MAX of such"
            )
        return low, high


def draw_boxes(image: Path | bytes, boxes: Sequence[Box], to: Path) -> None:
    """Write an image, upright, with boxes around what was found."""
    from PIL import ImageDraw  # noqa: PLC0415 - texts are served without Pillow

    picture = decode(image)
    drawing = ImageDraw.Draw(picture)
    for box in boxes:
        drawing.polygon(list(box.points), outline=_RED, width=2)
    try:
        picture.save(to)
    except OSError as error:
        raise InputError(f"{to} cannot be written: {error}") from error


def read_detector(raw: Mapping[str, Any]) -> Detector:
    """The settings of a file, refusing by name what is no number of the kind, or what nothing here honours."""
    known = {field.name: field.default for field in fields(Detector)}
    given: dict[str, Any] = {}
    for name, value in raw.items():
        if name not in known:
            raise ManifestError(f"is not one of: {', '.join(known)}", f"{FILE}.{name}")
        given[name] = _checked(name, value, known[name])
    return Detector(**given)


def _checked(name: str, value: Any, usual: Any) -> Any:
    number = type(value) in {int, float}
    if name == "limit_type":
        right = value in {"min", "max"}
    elif isinstance(usual, bool):
        right = type(value) is bool
    elif isinstance(usual, tuple):
        right = (
            isinstance(value, list)
            and len(value) == len(usual)
            and all(type(v) in {int, float} for v in value)
        )
        right = right and (name != "image_std" or all(value))
    elif isinstance(usual, int):
        right = type(value) is int and value > 0
    else:
        right = number and (0 < value < 1 if name.endswith("thresh") else value >= 0)
    if not right:
        raise ManifestError(f"is {value!r}, expected one such as {usual!r}", f"{FILE}.{name}")
    return tuple(value) if isinstance(usual, tuple) else value


def _in_order(boxes: list[Box]) -> list[Box]:
    """By line, then from left to right; a line ends where the next box begins `_LINE` pixels lower."""
    boxes = sorted(boxes, key=lambda box: box.points[0][1])
    line, lines = 0, []
    for at, box in enumerate(boxes):
        if at and box.points[0][1] - boxes[at - 1].points[0][1] >= _LINE:
            line += 1
        lines.append((line, box.points[0][0]))
    return [boxes[at] for at in sorted(range(len(boxes)), key=lines.__getitem__)]
