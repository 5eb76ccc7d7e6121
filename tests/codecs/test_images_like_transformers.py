"""Pixels are those of transformers' own image processors, to the last bit."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers
from photos import BIT, DEVIATION, HALVES, MEAN, SQUARE, noise, spec
from PIL import Image

from alula.codecs import ImageCodec

NSFW = {
    **SQUARE,
    **{"do_center_crop": True, "crop_size": 20, "do_rescale": False},
    **{"image_mean": [123, 117, 104], "image_std": [1, 1, 1]},
}
CONVNEXT = {
    "feature_extractor_type": "ConvNextFeatureExtractor",
    **{"size": 28, "crop_pct": 0.875, "image_mean": MEAN, "image_std": DEVIATION, "resample": 3},
}
EFFICIENTNET = {
    "image_processor_type": "EfficientNetImageProcessor",
    **{"size": {"height": 30, "width": 26}, "resample": 0, "image_mean": MEAN, "image_std": DEVIATION},
}
PROCESSORS: dict[str, tuple[dict[str, Any], tuple[int, int]]] = {
    "bit": (BIT, (32, 28)),
    "bit that pads": ({**BIT, "crop_size": {"height": 51, "width": 64}}, (51, 64)),
    "bit that does not resize": ({**BIT, "do_resize": False}, (32, 28)),
    "vit": ({**SQUARE, **HALVES}, (31, 24)),
    "vit of one number": ({**SQUARE, **HALVES, "size": 24, "resample": 1}, (24, 24)),
    "open_nsfw": (NSFW, (20, 20)),
    "vit left as it is": ({**SQUARE, "do_rescale": False, "do_normalize": False}, (31, 24)),
    "vit not normalised": ({**SQUARE, "do_normalize": False, "rescale_factor": 0.01}, (31, 24)),
    "convnext": (CONVNEXT, (28, 28)),
    "convnext of another share": ({**CONVNEXT, "crop_pct": 0.9}, (28, 28)),
    "convnext squeezed": ({**CONVNEXT, "size": {"shortest_edge": 384}}, (384, 384)),
    "efficientnet": (EFFICIENTNET, (30, 26)),
    "efficientnet once": ({**EFFICIENTNET, "include_top": False, "do_center_crop": False}, (30, 26)),
    "efficientnet around nought": (
        {**EFFICIENTNET, "rescale_offset": True, "rescale_factor": 1 / 127.5, "resample": 5},
        (30, 26),
    ),
}
SIZES = [(40, 40), (57, 33), (33, 57), (20, 300), (3, 2), (91, 40), (1, 1)]


def both(folder: Path, processor: dict[str, Any], size: tuple[int, int]) -> tuple[ImageCodec, Any]:
    """Our codec and transformers' processor of one file."""
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    (folder / "config.json").write_text(json.dumps({"model_type": "resnet"}))
    theirs = transformers.AutoImageProcessor.from_pretrained(folder, backend="pil")
    return ImageCodec.open(folder, spec(*size)), theirs


@pytest.mark.parametrize("name", PROCESSORS)
def test_every_processor_gives_the_same_pixels(tmp_path: Path, name: str) -> None:
    processor, size = PROCESSORS[name]
    codec, theirs = both(tmp_path, processor, size)
    for number, (width, height) in enumerate(SIZES):
        picture = noise(width, height, seed=number)
        picture.save(tmp_path / "picture.png")
        found = codec.encode(tmp_path / "picture.png")
        expected = np.asarray(theirs(picture)["pixel_values"][0], dtype=np.float32)
        assert found.dtype == np.float32
        assert found.shape == expected.shape == (3, *size)
        assert np.array_equal(found, expected), (width, height, np.abs(found - expected).max())


@pytest.mark.parametrize("mode", ["L", "1", "P", "RGB", "RGBA", "LA", "CMYK"])
def test_every_mode_becomes_the_same_colours(tmp_path: Path, mode: str) -> None:
    codec, theirs = both(tmp_path, {**BIT, "do_convert_rgb": True}, (32, 28))
    picture = noise(50, 44, 4).convert(mode) if mode != "CMYK" else noise(50, 44).convert(mode)
    file = tmp_path / ("picture.tiff" if mode == "CMYK" else "picture.png")
    picture.save(file)
    with warnings.catch_warnings(), Image.open(file) as opened:
        expected = np.asarray(theirs(opened)["pixel_values"][0], dtype=np.float32)
    assert np.array_equal(codec.encode(file), expected)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF"])
def test_every_format_is_read_as_pillow_reads_it(tmp_path: Path, kind: str) -> None:
    codec, theirs = both(tmp_path, {**BIT, "do_convert_rgb": True}, (32, 28))
    file = tmp_path / "picture"
    noise(50, 44).save(file, kind)
    with Image.open(file) as opened:
        expected = np.asarray(theirs(opened)["pixel_values"][0], dtype=np.float32)
    assert np.array_equal(codec.encode(file), expected)
    assert np.array_equal(codec.encode(file.read_bytes()), expected)


@pytest.mark.parametrize(
    ("file", "size"),
    [({"size": 28, **HALVES}, (28, 28)), ({"size": {"shortest_edge": 384}, **HALVES}, (384, 384))],
)
def test_a_file_that_names_no_class_is_read_for_the_model_type(
    tmp_path: Path, file: dict[str, Any], size: tuple[int, int]
) -> None:
    codec, theirs = both(tmp_path, file, size)
    noise(60, 50).save(tmp_path / "picture.png")
    found = codec.encode(tmp_path / "picture.png")
    assert np.array_equal(found, np.asarray(theirs(noise(60, 50))["pixel_values"][0], dtype=np.float32))
