"""Pages as HunyuanOCR's vision part reads them: resized to whole squares of patches, normalised, cut up."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from alula.core.errors import InputError, ManifestError
from alula.core.parse import get

if TYPE_CHECKING:
    from PIL.Image import Image

Patches: TypeAlias = NDArray[np.float32]
"""[down, across, colours x patch x patch]: a patch's numbers go colour by colour, row by row."""

FILES = ("preprocessor_config.json", "processor_config.json")
LONGEST = 200
"""How many times its shorter side a page may be long."""

_LEVELS = 256
_COLOURS = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Patcher:
    """What the checkpoint says of its pages; a side has a whole number of squares of `merge` by `merge` patches.

    `most_across` and `most_down` are what an engine takes at most, in patches.
    """

    least_pixels: int
    most_pixels: int
    patch: int
    merge: int
    mean: tuple[float, ...]
    deviation: tuple[float, ...]
    rescale: float
    most_across: int = sys.maxsize
    most_down: int = sys.maxsize

    @classmethod
    def open(cls, folder: Path) -> Patcher:
        """Read the image processor's settings, in either of the two files and spellings."""
        for name in FILES:
            path = folder / name
            if path.is_file():
                try:
                    return _parsed(json.loads(path.read_text("utf-8")))
                except (ValueError, ManifestError) as error:
                    raise InputError(f"{path}: {error}") from error
        raise InputError(f"{folder} has neither {FILES[0]} nor {FILES[1]}")

    @property
    def features(self) -> int:
        """Numbers of a patch."""
        return _COLOURS * self.patch * self.patch

    def within(self, most_across: int, most_down: int) -> Patcher:
        """The same for an engine that takes so many patches across and down."""
        return replace(self, most_across=most_across, most_down=most_down)

    def size(self, width: int, height: int) -> tuple[int, int]:
        """The width and height that a page of this size is brought to, as the published code rounds.

        To the nearest multiple of `patch` x `merge`, halves to the even one; down where that is too many pixels, up
        where it is too few. What an engine does not take is made smaller yet, both sides by as much. Pure.
        """
        refuse_sliver(width, height)
        step = self.patch * self.merge
        sides = [round(side / step) * step for side in (width, height)]
        if sides[0] * sides[1] > self.most_pixels:
            beta = math.sqrt(height * width / self.most_pixels)
            sides = [max(step, math.floor(side / beta / step) * step) for side in (width, height)]
        elif sides[0] * sides[1] < self.least_pixels:
            beta = math.sqrt(self.least_pixels / (height * width))
            sides = [math.ceil(side * beta / step) * step for side in (width, height)]
        most = (self.most_across * self.patch, self.most_down * self.patch)
        ratio = min(limit / side for limit, side in zip(most, sides, strict=True))
        if ratio < 1:
            sides = [max(step, math.floor(side * ratio / step) * step) for side in sides]
        return sides[0], sides[1]

    def encode(self, page: Image) -> Patches:
        """An upright RGB page, cut up; resized bicubically whatever the file says, as the published code does."""
        from PIL.Image import Resampling  # noqa: PLC0415 - texts are served without Pillow

        size = self.size(*page.size)
        levels = np.asarray(page if page.size == size else page.resize(size, Resampling.BICUBIC))
        pixels = np.stack([self._table(at)[levels[..., at]] for at in range(_COLOURS)])
        down, across = size[1] // self.patch, size[0] // self.patch
        cut = pixels.reshape(_COLOURS, down, self.patch, across, self.patch).transpose(1, 3, 0, 2, 4)
        return np.ascontiguousarray(cut).reshape(down, across, -1)

    def _table(self, colour: int) -> NDArray[np.float32]:
        """What becomes of each level of a colour, rounded where transformers rounds."""
        scaled = (np.arange(_LEVELS, dtype=np.float64) * self.rescale).astype(np.float32)
        table: NDArray[np.float32] = (scaled - np.float32(self.mean[colour])) / np.float32(
            self.deviation[colour]
        )
        return table

    def tokens(self, down: int, across: int) -> int:
        """How many tokens of the language model so many patches are: with one for each row's end, and for both ends."""
        return (down // self.merge) * (across // self.merge + 1) + 2


def refuse_sliver(width: int, height: int) -> None:
    """Refuse a page on which nothing could be read."""
    if max(width, height) > LONGEST * min(width, height):
        raise InputError(
            f"a page of {width} x {height} is more than {LONGEST} times as long as wide; cut it into parts"
        )


def _parsed(given: Mapping[str, Any]) -> Patcher:
    inner = given.get("image_processor")
    raw = inner if isinstance(inner, dict) else given
    size = raw.get("size") if isinstance(raw.get("size"), dict) else {}
    found = {
        "shortest_edge": raw.get("min_pixels") or (size or {}).get("shortest_edge"),
        "longest_edge": raw.get("max_pixels") or (size or {}).get("longest_edge"),
    }
    for switch in ("do_resize", "do_rescale", "do_normalize"):
        if raw.get(switch, True) is not True:
            raise ManifestError(f"is {raw[switch]!r}, expected true", switch)
    return Patcher(
        least_pixels=get(found, int, "shortest_edge"),
        most_pixels=get(found, int, "longest_edge"),
        patch=get(raw, int, "patch_size"),
        merge=get(raw, int, "merge_size"),
        mean=_three(raw, "image_mean"),
        deviation=_three(raw, "image_std"),
        rescale=float(raw.get("rescale_factor", 1 / 255)),
    )


def _three(raw: Mapping[str, Any], key: str) -> tuple[float, ...]:
    values = get(raw, list, key)
    if len(values) != _COLOURS or not all(isinstance(each, (int, float)) for each in values):
        raise ManifestError(f"is {values!r}, expected {_COLOURS} numbers", key)
    return tuple(float(each) for each in values)
