"""Files of images as upright RGB pictures, decoded by Pillow once their headers say that they may be."""

from __future__ import annotations

import io
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from alula.core.errors import InputError, MissingExtraError

if TYPE_CHECKING:
    from PIL.Image import Image

FORMATS = ("BMP", "GIF", "JPEG", "PNG", "TIFF", "WEBP")
"""What is decoded. Pillow reads many more, some of them through other programs."""

MOST_PIXELS = 178_956_970
"""Half a gigabyte of RGB; Pillow's own limit, beyond which it opens nothing. A sheet scanned at 600 dpi has a fifth."""

MOST_PAGES = 10_000
"""Of one TIFF: more are counted no further, since each costs a look at its header."""

_SCREEN_DPI = 96
"""What programs write into files whose size on paper they do not know, or less."""

_LEAST_CAPTION, _MOST_CAPTION = 14, 40
_JPEG_QUALITY = 85
_WHITE = (255, 255, 255, 255)
_SIXTEEN_BITS = ("I;16", "I;16B", "I;16L", "I;16N")


def decode(image: Path | bytes, name: str = "", *, most_pixels: int = MOST_PIXELS) -> Image:
    """An image as RGB, turned as its EXIF says, white where it is transparent; of an animation the first frame.

    `name` is what errors call it. The number of pixels is checked before any is decoded.
    """
    called = _called(image, name)
    with _translated(called), _opened(image, called) as opened:
        _check_size(opened, called, most_pixels)
        # The first page alone would be an answer about something else than was given.
        if opened.format == "TIFF" and (pages := _frames(opened)) > 1:
            raise InputError(f"{called} has {pages} pages; expected one image: give each page by itself")
        opened.load()
        return _rgb(_upright(opened), opened.format or "", called)


def pixels_in(image: Path | bytes, name: str = "", *, most_pixels: int = MOST_PIXELS) -> int:
    """How many pixels an image has, by its head; nothing is decoded. One that has too many is refused."""
    called = _called(image, name)
    with _translated(called), _opened(image, called) as opened:
        _check_size(opened, called, most_pixels)
        width, height = opened.size
    return width * height


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Sheet:
    """One page of a file of images: its pixels (height, width, colour), upright, and what the file says of it.

    `size` is the height and width in the file, `dpi` is missing where the file says nothing, or what a screen has;
    `frames` counts the pictures of an animation.
    """

    pixels: NDArray[np.uint8]
    size: tuple[int, int]
    dpi: float | None
    frames: int


def count_sheets(image: Path | bytes, name: str = "", *, else_: Sequence[str] = ()) -> int:
    """How many pages there are: those of a TIFF; anything else is one, an animation too. Nothing is decoded.

    `else_` is what the caller takes besides images, for the error of a file that is nothing of all that.
    """
    called = _called(image, name)
    with _translated(called, else_), _opened(image, called) as opened:
        pages = _frames(opened) if opened.format == "TIFF" else 1
    if pages > MOST_PAGES:
        raise InputError(f"{called} has {pages} pages; expected at most {MOST_PAGES}: split it")
    return pages


def decode_sheet(
    image: Path | bytes,
    index: int = 0,
    name: str = "",
    *,
    most_pixels: int = MOST_PIXELS,
    shrink_to: int | None = None,
) -> Sheet:
    """Page `index` of a file, as `decode` has it; of more than `shrink_to` pixels it is made smaller."""
    called = _called(image, name)
    with _translated(called), _opened(image, called) as opened:
        # To count the pages of a TIFF is to look at all of them, which each page of many would pay for.
        frames = 1 if opened.format == "TIFF" else _frames(opened)
        if index:
            opened.seek(index)
        _check_size(opened, called, most_pixels)
        dpi = _dpi(opened)
        opened.load()
        upright = _rgb(_upright(opened), opened.format or "", called)
    width, height = upright.size
    if shrink_to is not None and width * height > shrink_to:
        share = (shrink_to / (width * height)) ** 0.5
        upright = upright.resize((max(1, int(width * share)), max(1, int(height * share))), reducing_gap=2.0)
        dpi = None if dpi is None else dpi * share
    return Sheet(pixels=np.array(upright), size=(height, width), dpi=dpi, frames=frames)


def to_jpeg(pixels: NDArray[np.uint8], *, within: int | None = None) -> bytes:
    """Pixels (height, width, colour) as a JPEG file, no side of which is longer than `within`."""
    from PIL import Image as pillow  # noqa: PLC0415, N813

    file, picture = io.BytesIO(), pillow.fromarray(pixels)
    if within is not None:
        picture.thumbnail((within, within), reducing_gap=2.0)
    picture.save(file, "JPEG", quality=_JPEG_QUALITY)
    return file.getvalue()


def outlined(
    pixels: NDArray[np.uint8], outlines: Sequence[Sequence[tuple[float, float]]]
) -> NDArray[np.uint8]:
    """A page with lines in red around what was found on it."""
    from PIL import Image as pillow  # noqa: PLC0415, N813
    from PIL import ImageDraw  # noqa: PLC0415

    picture = pillow.fromarray(pixels)
    drawing = ImageDraw.Draw(picture)
    for outline in outlines:
        drawing.polygon(list(outline), outline=(220, 0, 0), width=2)
    return np.array(picture)


def captioned(pixels: NDArray[np.uint8], said: Sequence[str]) -> NDArray[np.uint8]:
    """A page with lines of words on white below it; as it is where there are none."""
    from PIL import Image as pillow  # noqa: PLC0415, N813
    from PIL import ImageDraw, ImageFont  # noqa: PLC0415

    if not said:
        return pixels
    width = pixels.shape[1]
    size = max(_LEAST_CAPTION, min(width // 45, _MOST_CAPTION))
    # A letter is half as wide as high.
    lines = [part for line in said for part in textwrap.wrap(line, max(8, int(2 * width / size) - 2))]
    below = pillow.new("RGB", (width, round(1.3 * size) * len(lines) + size), "white")
    drawing = ImageDraw.Draw(below)
    for at, line in enumerate(lines):
        place = (size // 2, size // 2 + at * round(1.3 * size))
        drawing.text(place, line, font=ImageFont.load_default(size), fill=(220, 0, 0))
    return np.concatenate([pixels, np.asarray(below)])


def straightened(pixels: NDArray[np.uint8], degrees: float) -> NDArray[np.uint8]:
    """A page whose lines run down to the right by so many degrees, turned level, as large as before."""
    from PIL import Image as pillow  # noqa: PLC0415, N813

    paper = tuple(int(level) for level in np.median(pixels[::4, ::4].reshape(-1, 3), axis=0))
    turned = pillow.fromarray(pixels).rotate(degrees, resample=pillow.Resampling.BICUBIC, fillcolor=paper)
    return np.array(turned)


def _called(image: Path | bytes, name: str) -> str:
    return name or (str(image) if isinstance(image, Path) else "the image")


@contextmanager
def _translated(called: str, else_: Sequence[str] = ()) -> Iterator[None]:
    """Decoders of broken files raise whatever their parsing stumbles over."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"{called} cannot be decoded: {_said(error, else_)}") from error


def _frames(image: Image) -> int:
    return int(getattr(image, "n_frames", 1))


def _dpi(image: Image) -> float | None:
    said: Any = image.info.get("dpi")
    try:
        dpi = float(said[0])
    except (TypeError, IndexError, ValueError, ZeroDivisionError, OverflowError):
        return None
    return dpi if _SCREEN_DPI < dpi < 10_000 else None


def as_rgb(image: Image, name: str = "the image") -> Image:
    """An image that is open already, turned and coloured as `decode` does it."""
    return (
        image
        if image.mode == "RGB" and not image.getexif()
        else _rgb(_upright(image), image.format or "", name)
    )


@contextmanager
def _opened(image: Path | bytes, called: str) -> Iterator[Image]:
    """The header, read. What Pillow warns of, large and damaged files, is said here in errors or not at all."""
    try:
        from PIL import Image as pillow  # noqa: PLC0415, N813 - texts are served without Pillow
    except ImportError as error:
        raise MissingExtraError("decoding images", "images") from error
    # Filters belong to the whole process, whose threads decode at once: what is set stays.
    warnings.filterwarnings("ignore", module=r"PIL\.")
    file = io.BytesIO(image) if isinstance(image, bytes) else image
    try:
        opened = pillow.open(file, formats=FORMATS)
    except pillow.DecompressionBombError as error:
        raise InputError(f"{called} has more than {MOST_PIXELS} pixels; make it smaller") from error
    with opened:
        yield opened


def _check_size(image: Image, called: str, most_pixels: int) -> None:
    width, height = image.size
    if width * height > most_pixels:
        raise InputError(
            f"{called} has {width} x {height} pixels; expected at most {most_pixels} in all: make it smaller"
        )


def _upright(image: Image) -> Image:
    from PIL import ImageOps  # noqa: PLC0415 - texts are served without Pillow

    return ImageOps.exif_transpose(image)


def _rgb(image: Image, kind: str, called: str) -> Image:
    if image.mode in _SIXTEEN_BITS or (image.mode == "I" and kind == "PNG"):
        return _eight_bits(image)
    if image.mode in {"I", "F"}:
        raise InputError(
            f"{called} has 32 bits a pixel, and nothing says which number is white; expected 8 or 16 bits"
        )
    if {"A", "a"} & set(image.getbands()) or image.info.get("transparency") is not None:
        return _on_white(image)
    return image.convert("RGB")


def _eight_bits(image: Image) -> Image:
    """Sixteen bits of grey, scaled: Pillow's own conversion makes white of everything above 255."""
    from PIL import Image as pillow  # noqa: PLC0415, N813

    values = np.asarray(image).astype(np.uint32)
    grey = ((values + 128) // 257).astype(np.uint8)
    if isinstance(clear := image.info.get("transparency"), int):
        grey[values == clear] = 255
    return pillow.fromarray(grey).convert("RGB")


def _on_white(image: Image) -> Image:
    from PIL import Image as pillow  # noqa: PLC0415, N813

    return pillow.alpha_composite(pillow.new("RGBA", image.size, _WHITE), image.convert("RGBA")).convert(
        "RGB"
    )


def _said(error: Exception, else_: Sequence[str]) -> str:
    from PIL import UnidentifiedImageError  # noqa: PLC0415

    if isinstance(error, UnidentifiedImageError):
        return f"it is none of {', '.join((*FORMATS, *else_))}"
    return str(error) or type(error).__name__
