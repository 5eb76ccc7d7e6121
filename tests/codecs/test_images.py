"""What is made of unusual images, which ones are refused, and how pixels become a batch."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
import time
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from photos import BIT, HALVES, SQUARE, encoded, noise, spec
from PIL import Image

from alula.codecs import ImageCodec, classes, count_sheets, decode, decode_sheet, each_image
from alula.core.errors import InputError, ManifestError
from alula.core.model import Part
from alula.core.profile import Profile, Range
from alula.core.tensor import TensorSpec

RED, CORNERS = (255, 0, 0), ("TL", "TR", "BR", "BL")


def levels(given: bytes | Path) -> NDArray[np.uint8]:
    return np.asarray(decode(given))


def codec(
    folder: Path, processor: dict[str, Any] | None = None, size: tuple[int, int] = (32, 28)
) -> ImageCodec:
    (folder / "preprocessor_config.json").write_text(json.dumps(processor or BIT))
    return ImageCodec.open(folder, spec(*size))


@pytest.mark.parametrize(("tag", "corner"), list(enumerate(("TL", "TR", "BR", "BL") * 2, start=1)))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_images_are_turned_upright(tag: int, corner: str, kind: str) -> None:
    """sgl-project/sglang#33464: a photograph tagged as lying on its side was read lying."""
    picture = Image.new("RGB", (24, 16), "white")
    picture.paste(RED, (0, 0, 8, 8))
    exif = Image.Exif()
    exif[0x0112] = tag
    found = levels(encoded(picture, kind, exif=exif, **({"quality": 95} if kind == "JPEG" else {})))
    assert found.shape == ((24, 16, 3) if tag >= 5 else (16, 24, 3))
    places = dict(zip(CORNERS, (found[2, 2], found[2, -3], found[-3, -3], found[-3, 2]), strict=True))
    assert [name for name, place in places.items() if place[1] < 128] == [corner]


def test_sixteen_bits_of_grey_keep_their_shades() -> None:
    """unslothai/unsloth#10094: everything above 255 of 65535 became white."""
    ramp = (np.arange(256, dtype=np.uint16) * 257).reshape(1, -1)
    for given in (
        encoded(Image.fromarray(ramp)),
        encoded(Image.fromarray(ramp), "TIFF"),
        encoded(Image.frombytes("I;16B", (256, 1), ramp.astype(">u2").tobytes()), "TIFF"),
    ):
        assert np.array_equal(levels(given), np.repeat(np.arange(256, dtype=np.uint8)[None, :, None], 3, 2))


def test_inks_become_colours() -> None:
    """python-pillow/Pillow#2564: four channels, or white and black swapped."""
    picture = Image.new("CMYK", (32, 16), (0, 0, 0, 0))
    picture.paste((0, 0, 0, 255), (0, 0, 16, 16))
    found = levels(encoded(picture, "JPEG", quality=95))
    assert found.shape == (16, 32, 3)
    assert found[:, :12].max() < 8
    assert found[:, 20:].min() > 247


def test_inks_that_are_stored_as_brightness_become_colours() -> None:
    """python-pillow/Pillow#2564: YCCK, which is cyan, magenta and yellow turned as a camera turns its colours."""
    stored = Image.new("CMYK", (48, 16))
    for at, (brightness, blue, red, black) in enumerate(
        ((0, 128, 128, 255), (0, 128, 128, 0), (76, 85, 255, 0))
    ):
        # Pillow writes inks upside down.
        stored.paste((255 - brightness, 255 - blue, 255 - red, black), (16 * at, 0, 16 * at + 16, 16))
    file = bytearray(encoded(stored, "JPEG", quality=95))
    place = file.index(b"Adobe") + 11
    assert file[place] == 0
    file[place] = 2
    found = levels(bytes(file))
    assert found[:, 2:14].max() < 8, "all black ink"
    assert found[:, 18:30].min() > 247, "no ink"
    assert found[:, 34:46, 0].max() < 8, "cyan takes the red"
    assert found[:, 34:46, 1:].min() > 247


def test_what_is_transparent_is_white() -> None:
    """tesseract-ocr/tesseract#369: black text on a transparent page became a black page."""
    picture = Image.new("RGBA", (20, 10), (0, 0, 0, 0))
    picture.paste((0, 0, 0, 255), (5, 3, 9, 6))
    expected = np.full((10, 20, 3), 255, np.uint8)
    expected[3:6, 5:9] = 0
    palette = Image.new("P", (20, 10), 7)
    palette.putpalette([0, 0, 0] * 256)
    palette.paste(1, (5, 3, 9, 6))
    grey = Image.fromarray(np.full((10, 20), 9, np.uint16))
    grey.paste(0, (5, 3, 9, 6))
    for given in (
        encoded(picture),
        encoded(picture, "WEBP", lossless=True),
        encoded(picture.convert("LA")),
        encoded(palette, transparency=7),
        encoded(palette, "GIF", transparency=7),
        encoded(grey, transparency=9),
    ):
        assert np.array_equal(levels(given), expected)


def test_an_animation_is_its_first_frame_and_pages_are_refused(tmp_path: Path) -> None:
    """tesseract-ocr/tesseract#3369: 125 frames never ended, and of three pages the first was read in silence."""
    frames = [Image.new("RGB", (8, 8), (shade, 0, 0)) for shade in range(0, 250, 2)]
    started = time.perf_counter()
    found = levels(encoded(frames[0], "GIF", save_all=True, append_images=frames[1:]))
    assert time.perf_counter() - started < 2
    assert not found.any()
    file = tmp_path / "pages.tiff"
    frames[0].save(file, save_all=True, append_images=frames[1:3])
    with pytest.raises(
        InputError, match=r"pages.tiff has 3 pages; expected one image: give each page by its"
    ):
        decode(file)


def blank(width: int, height: int) -> bytes:
    """A white PNG whose rows are not written: enough for a header."""
    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(b"")), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in chunks
    )


@pytest.mark.parametrize("side", [13_400, 20_000, 2**31 - 1])
def test_images_of_too_many_pixels_are_refused_by_their_header(side: int) -> None:
    """vllm-project/vllm#47010: a small file with an enormous picture ate all memory."""
    with pytest.raises(InputError, match=r"^page.png has more than 178956970 pixels; make it smaller$"):
        decode(blank(side, side), "page.png")


def test_a_lower_limit_of_pixels_is_kept_too(tmp_path: Path) -> None:
    reader = codec(tmp_path)
    reader = ImageCodec.open(tmp_path, reader.spec, most_pixels=1200)
    assert reader.encode(encoded(noise(40, 30))).any()
    for file in (encoded(noise(40, 31)), blank(40, 31)):  # nothing of the second one can be decoded
        with pytest.raises(
            InputError, match=r"^the image has 40 x 31 pixels; expected at most 1200 in all: make it"
        ):
            reader.encode(file)
        with pytest.raises(InputError, match=r"^the image has 40 x 31 pixels; expected at most 1200"):
            decode_sheet(file, most_pixels=1200)


def test_a_large_scan_is_read_without_a_warning(tmp_path: Path) -> None:
    """vllm-project/vllm#47010: Pillow warns of 89 million pixels, which fails tests; one bit a pixel is quick."""
    page = Image.new("1", (9_600, 9_600), 1)
    page.save(tmp_path / "page.png")
    found = codec(tmp_path, {**SQUARE, **HALVES}, (31, 24)).encode(tmp_path / "page.png")
    assert np.all(found == 1)


def test_of_a_damaged_file_there_is_an_error_and_no_warning() -> None:
    """Pillow warns of a header that ends early, and names a file of its own, before it fails."""
    page = noise(40, 30)
    whole = encoded(page, "TIFF", save_all=True, append_images=[page, page])
    with pytest.raises(InputError, match=r"^cut.tif cannot be decoded: (?!Corrupt EXIF)"):
        count_sheets(whole[: len(whole) // 2], "cut.tif")


@pytest.mark.parametrize(("width", "height"), [(200, 1), (1, 200), (28, 26), (690, 15420)])
def test_thin_images_are_read(tmp_path: Path, width: int, height: int) -> None:
    """PaddlePaddle/PaddleX#5087: an image of one row was taken for one of a single channel."""
    found = codec(tmp_path).encode(encoded(Image.new("RGB", (width, height))))
    assert found.shape == (3, 32, 28)


@pytest.mark.parametrize(("width", "height"), [(201, 1), (313, 1), (1, 1000)])
def test_images_that_are_hardly_more_than_a_line_are_refused(tmp_path: Path, width: int, height: int) -> None:
    """PaddlePaddle/PaddleX#5087: brought to a height of 224, an image of 100000 x 1 pixels would have 15 gigabytes."""
    with pytest.raises(
        InputError, match=rf"^strip is {width} x {height} pixels; expected a side at most 200 ti"
    ):
        codec(tmp_path).encode(encoded(noise(width, height)), "strip")
    assert codec(tmp_path, {**SQUARE, **HALVES}, (31, 24)).encode(encoded(noise(width, height))).any()


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF"])
def test_an_image_cut_short_is_refused_and_the_next_one_read(tmp_path: Path, kind: str) -> None:
    """rom1504/clip-retrieval#257: it opened, failed while it was resized, and stalled the whole run."""
    whole = encoded(noise(64, 64), kind)
    reader = codec(tmp_path)
    (tmp_path / "cut").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match=rf"^{tmp_path}/cut cannot be decoded: \w"):
        reader.encode(tmp_path / "cut")
    with pytest.raises(InputError, match=r"^images\[3\] cannot be decoded: \w"):
        reader.encode(whole[: len(whole) // 2], "images[3]")
    assert reader.encode(whole).any()


@pytest.mark.parametrize("at", range(0, 1200, 37))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "TIFF", "GIF", "WEBP", "BMP"])
def test_a_broken_image_is_read_or_refused(kind: str, at: int) -> None:
    broken = bytearray(encoded(noise(16, 16), kind))
    broken[at % len(broken)] ^= 0xFF
    try:
        assert decode(bytes(broken)).mode == "RGB"
    except InputError as error:
        assert str(error).startswith("the image ")  # noqa: PT017 - either is right


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (b"", "the image cannot be decoded: it is none of BMP, GIF, JPEG, PNG, TIFF, WEBP"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "it is none of BMP"),
        (Path("nowhere.png"), r"nowhere.png cannot be decoded: \[Errno 2\] No such file"),
        (Path("/"), "/ cannot be decoded: .*Is a directory"),
        (
            encoded(Image.new("F", (4, 4)), "TIFF"),
            "has 32 bits a pixel, and nothing says which number is white",
        ),
        (encoded(Image.new("I", (4, 4)), "TIFF"), "has 32 bits a pixel"),
    ],
)
def test_what_is_no_image_is_refused(given: bytes | Path, text: str) -> None:
    with pytest.raises(InputError, match=text):
        decode(given)


@pytest.mark.parametrize(
    ("processor", "text"),
    [
        ({**BIT, "size": {"longest_edge": 40}}, "preprocessor_config.json.size.height: is missing"),
        (
            {**BIT, "size": {"shortest_edge": 40, "longest_edge": 60}},
            "size: is .*, expected height and width, or",
        ),
        (
            {**BIT, "size": {"shortest_edge": 0}},
            "size: is .'shortest_edge': 0., expected height and width, or",
        ),
        ({**BIT, "crop_size": 0}, "crop_size: is 0, expected at least one pixel"),
        ({**BIT, "resample": 9}, "resample: is 9, expected a number of Pillow's from 0 to 5"),
        ({**BIT, "image_mean": [0.5]}, r"image_mean: is \[0.5\], expected 3 numbers"),
        ({**BIT, "image_std": None}, "image_std: is None, expected 3 numbers"),
        ({**BIT, "image_std": [1, 0, 1]}, "image_std: has 0, by which nothing can be divided"),
        ({**BIT, "rescale_factor": "1"}, "rescale_factor: is '1', expected a number"),
        ({**BIT, "do_pad": True}, "do_pad: is True, which is not done here"),
        (
            {**BIT, "image_processor_type": "SamImageProcessor"},
            "is 'SamImageProcessor', expected one of: Bit",
        ),
        ({"size": 28, "crop_pct": 2, **HALVES}, "crop_pct: is 2, expected a number above 0 and at most 1"),
        ({**BIT, "crop_size": 40}, "preprocessor_config.json gives images of 40 x 40; tiny takes 32 x 28"),
        ({**BIT, "do_center_crop": False}, "gives images of no fixed size; tiny takes 32 x 28"),
    ],
)
def test_a_processor_that_cannot_be_followed_is_refused(
    tmp_path: Path, processor: dict[str, Any], text: str
) -> None:
    with pytest.raises(InputError, match=text):
        codec(tmp_path, processor)


def test_a_folder_without_a_readable_processor_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"no preprocessor_config.json in .*; expected the one that the model"
    ):
        ImageCodec.open(tmp_path, spec(32, 28))
    for content, text in (("[]", "holds list, expected an object"), ("{", "is not JSON")):
        (tmp_path / "preprocessor_config.json").write_text(content)
        with pytest.raises(InputError, match=text):
            ImageCodec.open(tmp_path, spec(32, 28))


def test_pixels_become_a_batch_of_the_size_that_the_engine_takes(tmp_path: Path) -> None:
    reader = codec(tmp_path)
    rows = [reader.encode(encoded(noise(40, 40, seed=seed))) for seed in range(3)]
    batch = reader.collate(rows)["pixel_values"]
    assert batch.shape == (3, 3, 32, 28)
    assert batch.dtype == np.float32
    assert all(np.array_equal(batch[at], row) for at, row in enumerate(rows))
    padded = reader.collate(rows, Profile({"batch": Range(5, 6, 8)}))["pixel_values"]
    assert padded.shape[0] == 5
    assert np.array_equal(padded[4], rows[2])
    outputs = {"logits": np.arange(10, dtype=np.float32).reshape(5, 2)}
    found = each_image(outputs, len(rows))
    assert [list(row["logits"]) for row in found] == [[0, 1], [2, 3], [4, 5]]
    best = classes(found[0], reader.spec)[0]
    assert (best.label, round(best.score, 4)) == ("b", 0.7311)
    with pytest.raises(InputError, match="no images to make a batch of"):
        reader.collate([])


def test_a_model_of_any_size_is_given_that_of_the_processor(tmp_path: Path) -> None:
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(BIT))
    of_any = spec("height", "width")
    reader = ImageCodec.open(tmp_path, of_any)
    assert reader.encode(encoded(noise(90, 50))).shape == (3, 32, 28)
    rows, sides = Range(1, 1, 4), {"height": Range(16, 32, 48), "width": Range(28, 28, 28)}
    within = Profile({"batch": rows, **sides})
    assert ImageCodec.open(tmp_path, of_any, profile=within).spec is of_any
    for axis, built in (("height", Range(33, 64, 64)), ("width", Range(8, 16, 27))):
        size = {"height": 32, "width": 28}[axis]
        with pytest.raises(
            InputError,
            match=rf"gives images with a {axis} of {size}; tiny is built for {built.min} to {built.max}: build "
            rf"with --{axis} MIN:OPT:MAX around {size}, or change the size in that file",
        ):
            ImageCodec.open(tmp_path, of_any, profile=Profile({"batch": rows, **sides, axis: built}))
    with pytest.raises(InputError, match="gives images of 32 x 28; tiny takes height x 30"):
        ImageCodec.open(tmp_path, spec("height", 30))


def test_texts_are_read_without_pillow_and_images_say_what_to_install() -> None:
    program = (
        "import sys; sys.modules['PIL'] = None\n"
        "from alula.codecs import TextCodec, decode\n"
        "from alula.core.errors import MissingExtraError\n"
        "try: decode(b'')\n"
        "except MissingExtraError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "decoding images needs: pip install 'alula[images]'\n"


def test_what_came_as_an_onnx_file_may_have_blue_first_and_colours_last(tmp_path: Path) -> None:
    told = {**SQUARE, **HALVES, "size": 24, "do_flip_channel_order": True}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(told))
    taken = TensorSpec(name="x", dtype="float32", shape=("batch", 24, 24, 3))
    given = spec(24, 24, "onnx").parts[0].outputs
    last = replace(spec(24, 24, "onnx"), parts=(Part(name="encoder", inputs=(taken,), outputs=given),))
    codec = ImageCodec.open(tmp_path, last)
    red = encoded(Image.new("RGB", (30, 30), (255, 0, 0)))
    batch = codec.collate([codec.encode(red)])["x"]
    assert batch.shape == (1, 24, 24, 3)
    assert np.array_equal(batch[0, 5, 7], [-1, -1, 1])
    with pytest.raises(ManifestError, match="do_flip_channel_order: is True, which is not done here"):
        ImageCodec.open(tmp_path, spec(24, 24))
