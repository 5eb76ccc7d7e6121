"""The size of image that a checkpoint takes, from its preprocessor_config.json."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from alula.core.errors import InputError, ManifestError
from alula.core.parse import get
from alula.families.checkpoint import PREPROCESSOR, read_json

# What an image processor does with its `size`, by the class that is named or that transformers takes for a model type.
SQUARED = {"ViTImageProcessor", "DeiTImageProcessor", "EfficientNetImageProcessor"}
SHORTEST = {"ConvNextImageProcessor", "BitImageProcessor"}
_OF_MODEL = {
    "deit": "DeiTImageProcessor",
    "dinov2": "BitImageProcessor",
    "efficientnet": "EfficientNetImageProcessor",
    "resnet": "ConvNextImageProcessor",
    "vit": "ViTImageProcessor",
}
_CROPS_ITSELF = "ConvNextImageProcessor"
_CROPS_UNLESS_TOLD = {"BitImageProcessor", "DeiTImageProcessor"}


def image_size(root: Path, model_type: str) -> tuple[int, int]:
    """Height and width of what comes out of the image processor."""
    if not (root / PREPROCESSOR).is_file():
        raise InputError(
            f"{root} has no {PREPROCESSOR}, without which nobody knows what size of image its model takes; "
            "copy it from where the model was trained, or save it with the image processor of transformers"
        )
    raw = read_json(root / PREPROCESSOR)
    try:
        height, width = _size(raw, _kind(raw, model_type))
    except ManifestError as error:
        raise error.under(PREPROCESSOR) from error
    if min(height, width) < 1:
        raise InputError(f"{PREPROCESSOR}: images of {width} x {height} pixels; expected at least 1 x 1")
    return height, width


def _kind(raw: Mapping[str, Any], model_type: str) -> str:
    named = raw.get("image_processor_type") or raw.get("feature_extractor_type") or _OF_MODEL.get(model_type)
    kind = str(named).replace("FeatureExtractor", "ImageProcessor").removesuffix("Fast").removesuffix("Pil")
    if kind not in SQUARED | SHORTEST:
        raise ManifestError(
            f"is {named!r}, expected one of: {', '.join(sorted(SQUARED | SHORTEST))}", "image_processor_type"
        )
    return kind


def _size(raw: Mapping[str, Any], kind: str) -> tuple[int, int]:
    if raw.get("do_center_crop", kind in _CROPS_UNLESS_TOLD):
        return _sides(raw, "crop_size")
    if not raw.get("do_resize", True):
        raise ManifestError("is false, and nothing is cropped; images would have no fixed size", "do_resize")
    size = raw.get("size")
    edge = size if type(size) is int else size.get("shortest_edge") if isinstance(size, dict) else None
    if edge is None or (type(size) is int and kind in SQUARED):
        return _sides(raw, "size")
    if kind != _CROPS_ITSELF:
        raise ManifestError(
            "is that of one edge, and nothing is cropped; images would have no fixed size", "size"
        )
    if type(edge) is not int:
        raise ManifestError(f"is {edge!r}, expected a whole number", "size.shortest_edge")
    return edge, edge


def _sides(raw: Mapping[str, Any], key: str) -> tuple[int, int]:
    if type(raw.get(key)) is int:
        return raw[key], raw[key]
    sides: dict[str, Any] = get(raw, dict, key)
    try:
        return get(sides, int, "height"), get(sides, int, "width")
    except ManifestError as error:
        raise error.under(key) from error
