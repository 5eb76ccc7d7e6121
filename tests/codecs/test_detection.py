"""Boxes of a detector of text: regions, rectangles around them, and what RapidOCR makes of the same pages."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import packaged
import photos
import pytest
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from alula.codecs import Box, DetectionCodec, draw_boxes, images_codec
from alula.codecs.detection import Detector, Page
from alula.codecs.regions import regions, smallest_rectangle, widened
from alula.core.errors import InputError, ManifestError
from alula.core.model import ModelSpec, Part
from alula.core.profile import Profile, Range
from alula.core.tensor import TensorSpec
from alula.verify.pages import drawn_page

Floats = NDArray[np.float32]


def spec_of(height: int | str = "height", width: int | str = "width") -> ModelSpec:
    pixels = TensorSpec(name="x", dtype="float32", shape=("batch", 3, height, width))
    found = TensorSpec(name="probabilities", dtype="float32", shape=("batch", 1, height, width))
    parts = (Part(name="encoder", inputs=(pixels,), outputs=(found,)),)
    return replace(photos.spec(1, 1), task="text-detection", family="onnx", parts=parts, labels=())


def filled(size: tuple[int, int], *polygons: list[tuple[float, float]]) -> Floats:
    """A map of 0.9 within polygons and 0.01 elsewhere."""
    image = Image.new("L", size)
    for polygon in polygons:
        ImageDraw.Draw(image).polygon(polygon, fill=1)
    return np.where(np.asarray(image) > 0, 0.9, 0.01).astype(np.float32)


def as_bitmap(text: str) -> NDArray[np.bool_]:
    return np.array([[dot == "#" for dot in line.strip()] for line in text.strip().splitlines()])


def test_pixels_that_touch_at_sides_or_corners_are_one_region() -> None:
    bitmap = as_bitmap(
        """
        #..#....##
        .#.##...##
        ##........
        ..#...#.#.
        ......###.
        """
    )
    found = sorted((int(p[:, 1].min()), int(p[:, 0].min()), int(p[:, 0].max())) for p in regions(bitmap))
    assert found == [(0, 0, 2), (0, 3, 4), (0, 8, 9), (3, 6, 8)]
    assert list(regions(np.zeros((4, 4), np.bool_))) == []


def test_regions_are_those_that_a_flood_fills() -> None:
    bitmap = np.random.default_rng(1).random((40, 50)) < 0.4
    left, found = bitmap.copy(), 0
    for start in zip(*np.nonzero(bitmap), strict=True):
        waiting = [start] if left[start] else []
        found += bool(waiting)
        while waiting:
            row, column = waiting.pop()
            if left[row, column]:
                left[row, column] = False
                near = np.s_[max(row - 1, 0) : row + 2, max(column - 1, 0) : column + 2]
                rows, columns = np.nonzero(left[near])
                waiting += zip(rows + near[0].start, columns + near[1].start, strict=True)
    assert len(list(regions(bitmap))) == found > 5


def test_widened_bitmaps_reach_one_pixel_down_and_right() -> None:
    assert np.array_equal(widened(as_bitmap("#..\n...\n...")), as_bitmap("##.\n##.\n..."))


@pytest.mark.parametrize("degrees", [0, 1, 30, 45, 77, 90, 135])
def test_the_smallest_rectangle_is_found_at_any_angle(degrees: float) -> None:
    angle = np.radians(degrees)
    turn = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
    inside = np.random.default_rng(2).uniform(-1, 1, (200, 2)) * [40, 9]
    corners = np.array([[-40, -9], [40, -9], [40, 9], [-40, 9]])
    found = smallest_rectangle(np.concatenate([inside, corners]) @ turn + 100)
    assert sorted(found.sides) == pytest.approx([18, 80])
    expected = {tuple(np.round(corner, 6)) for corner in corners @ turn + 100}
    assert {tuple(np.round(corner, 6)) for corner in found.corners} == expected
    # 80 x 18 x 1.6 over 2 x 98 is 11.755 on each side.
    assert sorted(found.grown(1.6).sides) == pytest.approx([18 + 23.510204, 80 + 23.510204])


def test_boxes_are_grown_scaled_clipped_and_ordered() -> None:
    found = filled(
        (128, 64), [(70, 10), (110, 10), (110, 17), (70, 17)], [(10, 8), (40, 8), (40, 15), (10, 15)]
    )
    page = Page(pixels=np.zeros((3, 64, 128), np.float32), width=256, height=64)
    boxes = DetectionCodec(spec_of(), Detector(use_dilation=False)).read({"probabilities": found[None]}, page)
    # 30 x 7 grows by 30 * 7 * 1.6 / 74 = 4.54 on each side, 40 x 7 by 4.77; the page is twice as wide as the map.
    assert [box.points for box in boxes] == [
        ((11, 3), (89, 3), (89, 20), (11, 20)),
        ((130, 5), (230, 5), (230, 22), (130, 22)),
    ]
    assert [box.score for box in boxes] == pytest.approx([0.9, 0.9])


@pytest.mark.parametrize(
    ("settings", "count"),
    [
        ({}, 1),
        ({"box_thresh": 0.95}, 0),
        ({"thresh": 0.92}, 0),
        ({"max_candidates": 1}, 0),
    ],
)
def test_thresholds_decide_what_is_a_box(settings: dict[str, Any], count: int) -> None:
    # The lowest region is two pixels high, which is no text, and the first candidate.
    found = filled(
        (128, 64), [(10, 20), (60, 20), (60, 30), (10, 30)], [(90, 60), (99, 60), (99, 61), (90, 61)]
    )
    page = Page(pixels=np.zeros((3, 64, 128), np.float32), width=128, height=64)
    codec = DetectionCodec(spec_of(), Detector(**{"use_dilation": False, **settings}))
    assert len(codec.read({"probabilities": found[None]}, page)) == count


SIZES = Profile({"batch": Range(1, 1, 2), "height": Range(64, 736, 1024), "width": Range(64, 736, 1000)})


@pytest.mark.parametrize(
    ("size", "settings", "expected"),
    [
        ((760, 1000), {}, (992, 768)),
        ((300, 200), {}, (672, 992)),
        ((300, 200), {"limit_type": "max"}, (192, 288)),
        ((3000, 600), {}, (192, 992)),
        ((500, 5000), {}, (1024, 96)),
    ],
)
def test_pages_come_in_sizes_that_the_engine_takes(
    tmp_path: Path, size: tuple[int, int], settings: dict[str, Any], expected: tuple[int, int]
) -> None:
    photos.noise(*size).save(tmp_path / "page.png")
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(settings))
    codec = images_codec(tmp_path, spec_of(), profile=SIZES)
    assert isinstance(codec, DetectionCodec)
    page = codec.encode(tmp_path / "page.png")
    assert (page.pixels.shape, page.width, page.height) == ((3, *expected), *size)
    assert codec.collate([page], SIZES)["x"].shape == (1, 3, *expected)


def test_pixels_are_blue_first_and_normalised() -> None:
    picture = Image.new("RGB", (736, 736), (255, 128, 0))
    pixels = DetectionCodec(spec_of()).encode(photos.encoded(picture)).pixels
    assert [float(plane.mean()) for plane in pixels] == pytest.approx([-1, 128 / 127.5 - 1, 1], abs=1e-6)


def test_boxes_refer_to_the_upright_page(tmp_path: Path) -> None:
    """sgl-project/sglang#33464: a tag in the file turns the page, and boxes with it."""
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (800, 1200)).save(tmp_path / "turned.jpg", exif=exif)
    page = DetectionCodec(spec_of()).encode(tmp_path / "turned.jpg")
    assert (page.width, page.height, page.pixels.shape) == (1200, 800, (3, 800, 1216))


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"tresh": 0.3}, "preprocessor_config.json.tresh: is not one of: limit_side_len, limit_type"),
        ({"limit_type": "resize"}, "limit_type: is 'resize', expected one such as 'min'"),
        ({"thresh": 1.5}, "thresh: is 1.5, expected one such as 0.3"),
        ({"image_std": [0.5, 0, 0.5]}, r"image_std: is \[0.5, 0, 0.5\], expected one such as"),
        ({"max_candidates": 2.5}, "max_candidates: is 2.5"),
        ({"use_dilation": 1}, "use_dilation: is 1"),
    ],
)
def test_settings_that_nobody_honours_are_refused(
    tmp_path: Path, settings: dict[str, Any], text: str
) -> None:
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(settings))
    with pytest.raises(ManifestError, match=text):
        images_codec(tmp_path, spec_of())


def test_what_cannot_be_read_or_collated_is_refused() -> None:
    codec = DetectionCodec(spec_of())
    pages = [Page(pixels=np.zeros((3, 32, side), np.float32), width=side, height=32) for side in (32, 64)]
    with pytest.raises(InputError, match="2 pages of several sizes"):
        codec.collate(pages)
    with pytest.raises(InputError, match=r"probabilities are \(32, 32\), expected \(1, height, width\)"):
        codec.read({"probabilities": np.zeros((32, 32), np.float32)}, pages[0])
    with pytest.raises(InputError, match="built for a height of 40 to 60, and no multiple of 32"):
        DetectionCodec(
            spec_of(), profile=Profile({axis: Range(40, 50, 60) for axis in ("batch", "height", "width")})
        )


def test_boxes_are_drawn_around_what_was_found(tmp_path: Path) -> None:
    Image.new("RGB", (60, 40), "white").save(tmp_path / "page.png")
    box = Box(points=((10, 10), (50, 10), (50, 30), (10, 30)), score=0.9)
    draw_boxes(tmp_path / "page.png", [box], tmp_path / "drawn.png")
    with Image.open(tmp_path / "drawn.png") as drawn:
        assert drawn.getpixel((30, 10)) == (220, 0, 0)
        assert drawn.getpixel((30, 20)) == (255, 255, 255)
    with pytest.raises(InputError, match="cannot be written"):
        draw_boxes(tmp_path / "page.png", [box], tmp_path / "none" / "drawn.png")


# What RapidOCR 3.10.0 gives for these pages with opencv 5.0.0, pyclipper 1.4.0 and its defaults, in its order.
THEIRS: dict[tuple[int, int, int, int], list[tuple[int, ...]]] = {
    (3, 240, 320, 0): [
        *((11, 0, 301, 0, 301, 21, 11, 21), (9, 31, 61, 31, 61, 63, 9, 63)),
        *((92, 33, 186, 33, 186, 62, 92, 62), (190, 33, 309, 34, 309, 62, 190, 61)),
        *((6, 75, 276, 75, 276, 114, 6, 114), (1, 148, 313, 148, 313, 170, 1, 170)),
        *((6, 179, 70, 179, 70, 210, 6, 210), (100, 180, 248, 180, 248, 209, 100, 209)),
        (280, 180, 313, 180, 313, 209, 280, 209),
    ],
    (4, 320, 400, 6): [
        *((159, 4, 281, 0, 282, 28, 161, 35), (0, 21, 126, 9, 129, 40, 0, 52)),
        *((256, 52, 390, 38, 393, 70, 260, 84), (0, 79, 222, 56, 225, 88, 2, 111)),
        *((205, 114, 399, 94, 399, 128, 208, 148), (0, 136, 174, 118, 177, 152, 0, 170)),
        *((11, 191, 399, 151, 399, 178, 14, 218), (223, 207, 399, 189, 399, 215, 226, 233)),
        *((8, 230, 214, 208, 217, 233, 11, 255), (237, 230, 399, 213, 399, 244, 240, 261)),
        *((12, 253, 93, 243, 97, 275, 16, 286), (81, 247, 216, 233, 219, 262, 84, 276)),
        (20, 293, 399, 255, 399, 288, 23, 319),
    ],
}


@pytest.mark.parametrize("page", THEIRS)
def test_boxes_are_those_of_rapidocr(tmp_path: Path, page: tuple[int, int, int, int]) -> None:
    """Within three pixels, since there points are whole numbers on the way; in the same order."""
    seed, height, width, angle = page
    colours = drawn_page(np.random.default_rng(seed), height, width).transpose(1, 2, 0)
    levels = np.round((colours + 1) * 127.5).clip(0, 255).astype(np.uint8)
    turned = Image.fromarray(levels).rotate(angle, Image.Resampling.BILINEAR, fillcolor=(240, 240, 240))
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(packaged.detector(), options)
    codec = DetectionCodec(spec_of())
    read = codec.encode(photos.encoded(turned))
    (found,) = session.run(None, codec.collate([read]))
    boxes = codec.read({"probabilities": found[0]}, read)
    assert len(boxes) == len(THEIRS[page])
    given = np.array([box.points for box in boxes]).reshape(-1, 8)
    assert np.abs(given - np.array(THEIRS[page])).max() <= 3
