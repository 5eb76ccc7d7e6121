"""From preprocessor_config.json to what is done with a picture, as the image processors of transformers do it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from alula.core.errors import InputError, ManifestError
from alula.core.parse import get

FILE = "preprocessor_config.json"
Size: TypeAlias = tuple[int, int]
"""Height, width."""

LEVELS = 256
_COLOURS = 3
_FILTERS = range(6)
# From this edge on, ConvNext's images are squeezed into a square and not cropped.
_SQUEEZED_FROM = 384
_FLIPS = "do_flip_channel_order"
_REFUSED = ("do_pad", _FLIPS)


@dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    """What a class of processors does where its file does not say."""

    resample: int
    square: bool
    crops: bool = False
    crops_to_edge: bool = False
    twice: bool = False


KINDS: Mapping[str, Kind] = {
    "BitImageProcessor": Kind(resample=3, square=False, crops=True),
    "ConvNextImageProcessor": Kind(resample=3, square=False, crops_to_edge=True),
    "DeiTImageProcessor": Kind(resample=3, square=True, crops=True),
    "EfficientNetImageProcessor": Kind(resample=3, square=True, twice=True),
    "ViTImageProcessor": Kind(resample=2, square=True),
}
_ONNX = "onnx"
_OF_FAMILY = {
    "deit": "DeiTImageProcessor",
    "dinov2": "BitImageProcessor",
    "efficientnet": "EfficientNetImageProcessor",
    "resnet": "ConvNextImageProcessor",
    "vit": "ViTImageProcessor",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Processor:
    """Resizing to `size` or so that the shorter side is `edge`, cropping around the middle, and colours.

    `table` holds, for each of red, green and blue, the number that each of the 256 levels becomes; one that `flips`
    gives blue first.
    """

    size: Size | None
    edge: int | None
    crops: tuple[Size, ...]
    resample: int
    table: NDArray[np.float32]
    flips: bool = False

    @property
    def gives(self) -> Size | None:
        """The size of what comes out, where that is the same for all images."""
        return self.crops[-1] if self.crops else self.size


def read_processor(folder: Path, family: str) -> Processor:
    """Read the processor of a model; `family` names it where the file does not.

    The classes of transformers that are known here never flip colours; what came as an ONNX file may.
    """
    file = folder / FILE
    if not file.is_file():
        raise InputError(f"no {FILE} in {folder}; expected the one that the model was trained with")
    raw = read_object(file)
    try:
        return _parse(raw, _kind(raw, family), may_flip=family == _ONNX)
    except ManifestError as error:
        raise error.under(FILE) from error


def read_object(file: Path) -> dict[str, Any]:
    """The object that a file of JSON holds."""
    try:
        raw = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{file} is not JSON: {error}") from error
    if not isinstance(raw, dict):
        raise InputError(f"{file} holds {type(raw).__name__}, expected an object")
    return raw


def _kind(raw: Mapping[str, Any], family: str) -> Kind:
    named = str(
        raw.get("image_processor_type") or raw.get("feature_extractor_type") or _OF_FAMILY.get(family)
    )
    plain = named.replace("FeatureExtractor", "ImageProcessor").removesuffix("Fast").removesuffix("Pil")
    if plain not in KINDS:
        raise ManifestError(f"is {named!r}, expected one of: {', '.join(KINDS)}", "image_processor_type")
    return KINDS[plain]


def _parse(raw: Mapping[str, Any], kind: Kind, *, may_flip: bool) -> Processor:
    for key in _REFUSED:
        if raw.get(key) and not (key == _FLIPS and may_flip):
            raise ManifestError(f"is {raw[key]!r}, which is not done here", key)
    size, edge, crops = _resizing(raw, kind) if raw.get("do_resize", True) else (None, None, ())
    if raw.get("do_center_crop", kind.crops):
        crops = (*crops, _sides(raw, "crop_size"))
    resample = raw.get("resample", kind.resample)
    if type(resample) is not int or resample not in _FILTERS:
        raise ManifestError(f"is {resample!r}, expected a number of Pillow's from 0 to 5", "resample")
    return Processor(
        size=size,
        edge=edge,
        crops=crops,
        resample=resample,
        table=_table(raw, kind),
        flips=bool(raw.get(_FLIPS)),
    )


def _resizing(raw: Mapping[str, Any], kind: Kind) -> tuple[Size | None, int | None, tuple[Size, ...]]:
    """The size of both sides or of the shorter one, and the crop that belongs to resizing."""
    size = raw.get("size")
    edge = size.get("shortest_edge") if isinstance(size, dict) else None
    if type(size) is int and not kind.square:
        edge = size
    if edge is None:
        return _sides(raw, "size"), None, ()
    if type(edge) is not int or edge < 1 or (isinstance(size, dict) and size.get("longest_edge")):
        raise ManifestError(f"is {size!r}, expected height and width, or shortest_edge alone", "size")
    if not kind.crops_to_edge:
        return None, edge, ()
    if edge >= _SQUEEZED_FROM:
        return (edge, edge), None, ()
    share = raw.get("crop_pct") or 224 / 256
    if type(share) not in {int, float} or not 0 < share <= 1:
        raise ManifestError(f"is {share!r}, expected a number above 0 and at most 1", "crop_pct")
    return None, int(edge / share), ((edge, edge),)


def _sides(raw: Mapping[str, Any], key: str) -> Size:
    given = raw.get(key)
    height, width = (given, given) if type(given) is int else _height_and_width(get(raw, dict, key), key)
    if height < 1 or width < 1:
        raise ManifestError(f"is {given!r}, expected at least one pixel", key)
    return height, width


def _height_and_width(given: Mapping[str, Any], key: str) -> Size:
    try:
        return get(given, int, "height"), get(given, int, "width")
    except ManifestError as error:
        raise error.under(key) from error


def _table(raw: Mapping[str, Any], kind: Kind) -> NDArray[np.float32]:
    """What each level of each colour becomes, in the order and the precision of transformers."""
    values = np.arange(LEVELS, dtype=np.float32)
    if raw.get("do_rescale", True):
        factor = raw.get("rescale_factor", 1 / 255)
        if type(factor) not in {int, float}:
            raise ManifestError(f"is {factor!r}, expected a number", "rescale_factor")
        values = (np.arange(LEVELS, dtype=np.float64) * factor).astype(np.float32)
        if raw.get("rescale_offset"):
            values = values - np.float32(1)
    table = np.tile(values, (_COLOURS, 1))
    normalizes, again = raw.get("do_normalize", True), raw.get("include_top", True) and kind.twice
    if normalizes:
        table = (table - _colours(raw, "image_mean")) / _deviation(raw)
    if again:
        table = table / _deviation(raw)
    return table


def _deviation(raw: Mapping[str, Any]) -> NDArray[np.float32]:
    deviation = _colours(raw, "image_std")
    if not deviation.all():
        raise ManifestError("has 0, by which nothing can be divided", "image_std")
    return deviation


def _colours(raw: Mapping[str, Any], key: str) -> NDArray[np.float32]:
    given = raw.get(key)
    numbers = given if isinstance(given, list) else [given] * _COLOURS
    if len(numbers) != _COLOURS or any(type(number) not in {int, float} for number in numbers):
        raise ManifestError(f"is {given!r}, expected {_COLOURS} numbers", key)
    return np.array(numbers, dtype=np.float32).reshape(-1, 1)
