"""Pages cut into patches: bit for bit what transformers gives, sizes as it rounds them."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageDraw

from alula.codecs.patches import Patcher
from alula.core.errors import InputError

CONFIG: dict[str, Any] = {
    "min_pixels": 512 * 512,
    "max_pixels": 2048 * 2048,
    "patch_size": 16,
    "merge_size": 2,
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
    "rescale_factor": 1 / 255,
    "resample": 1,
}


def patcher(to: Path, config: dict[str, Any] = CONFIG, name: str = "preprocessor_config.json") -> Patcher:
    (to / name).write_text(json.dumps(config))
    return Patcher.open(to)


@pytest.mark.parametrize("size", [(640, 640), (300, 200), (1000, 90), (33, 701), (2600, 2100)])
def test_a_page_is_what_transformers_makes_of_it(size: tuple[int, int], tmp_path: Path) -> None:
    module = pytest.importorskip("transformers.models.hunyuan_vl.image_processing_pil_hunyuan_vl")
    levels = np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    page = Image.fromarray(levels)
    wanted = module.HunYuanVLImageProcessorPil()(page, return_tensors="np")
    found = patcher(tmp_path).encode(page)
    assert [[1, *found.shape[:2]]] == wanted["image_grid_thw"].tolist()
    assert np.array_equal(found.reshape(-1, found.shape[2]), wanted["pixel_values"])


@pytest.mark.parametrize(
    ("page", "made", "patches"),
    [
        ((200, 1), (7264, 64), 1816),  # PaddlePaddle/PaddleX#5087
        ((28, 26), (544, 512), 1088),
        ((690, 15420), (416, 9664), 15_704),
        ((2550, 3301), (1792, 2304), 16_128),  # Tencent-Hunyuan/HunyuanOCR#114
    ],
)
def test_odd_pages_have_the_sizes_that_the_published_rule_gives(
    page: tuple[int, int], made: tuple[int, int], patches: int, tmp_path: Path
) -> None:
    """Slivers ended in errors; Tencent-Hunyuan/HunyuanOCR#114: a page as it was scanned had 33 thousand patches."""
    assert patcher(tmp_path).size(*page) == made
    assert made[0] * made[1] // 16**2 == patches


@pytest.mark.parametrize("page", [(201, 1), (313, 1), (1000, 1)])
def test_a_sliver_is_refused_before_it_is_made_larger(page: tuple[int, int], tmp_path: Path) -> None:
    """PaddlePaddle/PaddleX#5087: an image hardly higher than a pixel ended in an error of channels or factors."""
    with pytest.raises(InputError, match=rf"{page[0]} x 1 is more than 200 times as long as wide; cut it"):
        patcher(tmp_path).encode(Image.new("RGB", page))


def test_fine_print_is_made_smaller_bicubically(tmp_path: Path) -> None:
    """huggingface/transformers#47233: a default fell to bilinear, and small letters were no longer read."""
    page = Image.new("RGB", (3200, 2400), "white")
    drawing = ImageDraw.Draw(page)
    for row in range(0, 2400, 16):
        drawing.text((4, row), "the small print of clause 17.4 (b) " * 16, fill="black")
    found = patcher(tmp_path).encode(page)
    size = (found.shape[1] * 16, found.shape[0] * 16)
    assert size[0] < 3200
    once = patcher(tmp_path)  # given a page of its size, it resizes nothing
    assert np.array_equal(found, once.encode(page.resize(size, Image.Resampling.BICUBIC)))
    assert np.abs(found - once.encode(page.resize(size, Image.Resampling.BILINEAR))).max() > 0.1


@given(width=st.integers(1, 6000), height=st.integers(1, 6000))
def test_every_side_is_whole_squares_and_the_pixels_are_within_bounds(width: int, height: int) -> None:
    made = Patcher(
        least_pixels=512 * 512,
        most_pixels=2048 * 2048,
        patch=16,
        merge=2,
        mean=(0.5,) * 3,
        deviation=(0.5,) * 3,
        rescale=1 / 255,
    )
    if max(width, height) > 200 * min(width, height):
        with pytest.raises(InputError, match="more than 200 times as long as wide"):
            made.size(width, height)
        return
    wide, tall = made.size(width, height)
    assert wide % 32 == tall % 32 == 0
    assert min(wide, tall) >= 32
    assert wide * tall >= 512 * 512
    # A side is never less than one square, however long the other one is.
    assert wide * tall <= 2048 * 2048 or min(wide, tall) == 32
    if wide > 64 and tall > 64:
        assert abs(math.log((wide / tall) / (width / height))) < 0.7


def test_halves_are_rounded_to_the_even_square(tmp_path: Path) -> None:
    made = patcher(tmp_path)
    assert made.size(32 * 20 + 16, 32 * 21 + 16) == (640, 704)
    assert made.tokens(40, 40) == 20 * 21 + 2


def test_both_files_and_spellings_say_the_same(tmp_path: Path) -> None:
    newer = {key: value for key, value in CONFIG.items() if not key.endswith("_pixels")}
    newer["size"] = {"shortest_edge": 512 * 512, "longest_edge": 2048 * 2048}
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    assert patcher(tmp_path / "a") == patcher(
        tmp_path / "b", {"image_processor": newer}, "processor_config.json"
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"min_pixels": None}, "shortest_edge"),
        ({"image_std": [1, 1]}, r"image_std: is \[1, 1\], expected 3 numbers"),
        ({"do_normalize": False}, "do_normalize: is False, expected true"),
    ],
)
def test_what_is_not_done_is_refused(change: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=said):
        patcher(tmp_path, {**CONFIG, **change})
    with pytest.raises(InputError, match=r"has neither preprocessor_config\.json nor"):
        Patcher.open(tmp_path / "nowhere")


def test_what_an_engine_does_not_take_is_made_smaller_both_sides_by_as_much(tmp_path: Path) -> None:
    made = patcher(tmp_path).within(176, 128)
    assert made.size(4096, 2160) == patcher(tmp_path).size(4096, 2160) == (2816, 1472)
    assert made.size(2160, 4096) == (1056, 2048)
    assert made.size(640, 20000) == (32, 2048)
    assert made.size(32, 6400) == (32, 2048)
    assert made.encode(Image.new("RGB", (400, 2400))).shape[:2] == (128, 20)
