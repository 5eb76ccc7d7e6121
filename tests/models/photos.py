"""Images for tests: noise, and crops of photographs that come inside a package."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
from packaged import package
from PIL import Image

from alula.core.model import ModelSpec, Part
from alula.core.tensor import Dim, TensorSpec

MEAN, DEVIATION = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
HALVES: dict[str, Any] = {"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}
SQUARE: dict[str, Any] = {
    "image_processor_type": "ViTImageProcessor",
    "size": {"height": 31, "width": 24},
}
BIT: dict[str, Any] = {
    "image_processor_type": "BitImageProcessor",
    "size": {"shortest_edge": 40},
    "crop_size": {"height": 32, "width": 28},
    "image_mean": MEAN,
    "image_std": DEVIATION,
}
PHOTOGRAPHS = (
    *("astronaut.png", "chelsea.png", "coffee.png", "rocket.jpg", "motorcycle_left.png"),
    *("camera.png", "coins.png", "retina.jpg", "hubble_deep_field.jpg", "ihc.png"),
)
"""Of scikit-image: people, a cat, things, two in grey, one through each of three instruments."""

SEED = 20_240
_SMALLEST = 0.45


def photographs(to: Path, count: int, seed: int = SEED) -> Path:
    """A folder of `count` crops, from each photograph in turn, square or not, some mirrored; as JPEG.

    The same seed gives the same crops.
    """
    source = package("skimage") / "data"
    numbers = np.random.default_rng(seed)
    to.mkdir(parents=True)
    for number in range(count):
        name = PHOTOGRAPHS[number % len(PHOTOGRAPHS)]
        with Image.open(source / name) as opened:
            crop = _crop(opened.convert("RGB"), numbers)
        crop.save(to / f"{number:03d}-{Path(name).stem}.jpg", quality=92)
    return to


def _crop(photograph: Image.Image, numbers: np.random.Generator) -> Image.Image:
    """Between 45 % of each side and all of it, anywhere."""
    width, height = (int(side * numbers.uniform(_SMALLEST, 1)) for side in photograph.size)
    left, top = (
        int(numbers.integers(0, whole - part + 1))
        for whole, part in zip(photograph.size, (width, height), strict=True)
    )
    crop = photograph.crop((left, top, left + width, top + height))
    return crop.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if numbers.random() < 0.5 else crop


def noise(width: int, height: int, bands: int = 3, seed: int = 0) -> Image.Image:
    """Every pixel at random."""
    shape = (height, width, bands) if bands > 1 else (height, width)
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8))


def encoded(picture: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    """A picture as a file."""
    buffer = io.BytesIO()
    picture.save(buffer, kind, **options)
    return buffer.getvalue()


def spec(height: Dim, width: Dim, family: str = "resnet") -> ModelSpec:
    """A classifier of two labels."""
    pixels = TensorSpec(name="pixel_values", dtype="float32", shape=("batch", 3, height, width))
    logits = TensorSpec(name="logits", dtype="float32", shape=("batch", 2))
    return ModelSpec(
        name="tiny",
        digest="d" * 64,
        revision="main",
        architecture="ResNetForImageClassification",
        family=family,
        task="image-classification",
        parts=(Part(name="encoder", inputs=(pixels,), outputs=(logits,)),),
        max_length=0,
        vocab_size=0,
        pad_id=0,
        labels=("a", "b"),
        activation="softmax",
    )
