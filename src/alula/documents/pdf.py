"""Pages of PDFs as pixels, rendered by PDFium one at a time, never larger than a budget of pixels."""

from __future__ import annotations

import math
import os
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from alula.core.errors import InputError, MissingExtraError
from alula.documents.values import Notice, Pixels

if TYPE_CHECKING:
    import pypdfium2

DPI = 200.0
"""Pages are rendered so finely where nothing else is said: letters of 8 points are 22 pixels high."""

PAGE_PIXELS = 40_000_000
"""The most of a page that is rendered or kept: a sheet of A4 at 600 dpi has 35 million."""

_LONGEST_SIDE = 32_000
_POINTS = 72.0
_PASSWORD = 4
"""PDFium's number for a password that is missing or wrong."""

_LETTER = (612.0, 792.0)
_LETTER_BOX = re.compile(rb"/MediaBox\s*\[\s*0(?:\.0*)?\s+0(?:\.0*)?\s+612(?:\.0*)?\s+792(?:\.0*)?\s*\]")


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Rendered:
    """A page as pixels, as finely as its budget allowed, and what was odd about it."""

    pixels: Pixels
    dpi: float
    notices: tuple[Notice, ...]


class Pdf:
    """An open PDF. Not thread-safe: PDFium runs once in a process at a time. Close it."""

    def __init__(self, file: Path | bytes, name: str = "", *, password: str | None = None) -> None:
        self.name = name or (str(file) if isinstance(file, Path) else "the PDF")
        self._file = file
        self._document = _opened(file, self.name, password)
        self.pages = len(self._document)

    def render(self, index: int, *, dpi: float = DPI, most_pixels: int = PAGE_PIXELS) -> Rendered:
        """Page `index`, from 0, turned as it says, on white, with what is filled into its forms."""
        if not 0 <= index < self.pages:
            raise InputError(f"{self.name} has {self.pages} pages; there is no page {index + 1}")
        with _translated(f"{self.name}, page {index + 1} cannot be rendered"):
            page = self._document[index]
            try:
                return self._rendered(page, dpi, most_pixels)
            finally:
                page.close()

    def close(self) -> None:
        """Let go of the file. Safe to call twice."""
        self._document.close()

    def _rendered(self, page: Any, dpi: float, most_pixels: int) -> Rendered:
        width, height = page.get_size()
        notices = list(self._oddities(page, (width, height)))
        scale = scale_within(width, height, dpi / _POINTS, most_pixels)
        if scale < dpi / _POINTS:
            said = f"{width:.0f} x {height:.0f} points are too many for {dpi:.0f} dpi; read at {scale * _POINTS:.3g}"
            notices.append(Notice(code="downscaled", message=said))
        bitmap = page.render(scale=scale, rev_byteorder=True)
        try:
            pixels = np.array(bitmap.to_numpy()[:, :, :3])
        finally:
            bitmap.close()
        return Rendered(pixels=pixels, dpi=scale * _POINTS, notices=tuple(notices))

    def _oddities(self, page: Any, size: tuple[float, float]) -> Iterator[Notice]:
        """A size that the page does not state: PDFium then takes Letter, and the page may be cut."""
        if size not in {_LETTER, _LETTER[::-1]}:
            return
        boxes = [page.get_mediabox(fallback_ok=False), page.get_cropbox(fallback_ok=False)]
        sizes = {(box[2] - box[0], box[3] - box[1]) for box in boxes if box is not None}
        if not (sizes & {_LETTER, _LETTER[::-1]} if sizes else self._letter_pages()):
            said = "the file states no size of this page that can be used; taken as 612 x 792 points, and may be cut"
            yield Notice(code="repaired", message=said)

    def _letter_pages(self) -> bool:
        """Whether all pages may share this size: PDFium does not show what a page inherits."""
        raw = self._file if isinstance(self._file, bytes) else self._file.read_bytes()
        # Within compressed objects it would not be seen.
        return b"/ObjStm" in raw or _LETTER_BOX.search(raw) is not None


def scale_within(width: float, height: float, wanted: float, most_pixels: int) -> float:
    """Pixels to a point: as many as wanted, or as the budget of pixels and the longest side allow. Pure."""
    sides = max(width, 1e-3), max(height, 1e-3)
    # A side has one pixel at least, so a thin page is bounded by its long side.
    return min(
        wanted, math.sqrt(most_pixels / (sides[0] * sides[1])), min(_LONGEST_SIDE, most_pixels) / max(sides)
    )


def _opened(file: Path | bytes, called: str, password: str | None) -> pypdfium2.PdfDocument:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import pypdfium2 as pdfium  # noqa: PLC0415 - images are read without it
    except ImportError as error:
        raise MissingExtraError("reading PDFs", "ocr") from error
    if isinstance(file, Path) and not file.is_file():
        raise InputError(f"{called}: there is no such file")
    try:
        document = pdfium.PdfDocument(file, password=password)
        document.init_forms()
    except pdfium.PdfiumError as error:
        if _is_whole(file, password):
            raise InputError(f"{called} has no pages; expected at least one") from error
        if error.err_code == _PASSWORD:
            wrong = "the password is not its password" if password else "a password is needed"
            raise InputError(f"{called} is locked: {wrong}; give it as the option password") from error
        raise InputError(f"{called} is no PDF that can be read: {error}") from error
    return document


def _is_whole(file: Path | bytes, password: str | None) -> bool:
    """Whether PDFium opens a file, in which pypdfium2 then found no pages.

    PDFium sets no error for that: its last one is of whatever failed before in this process, such as a password.
    """
    import pypdfium2.raw as pdfium  # noqa: PLC0415

    key = None if password is None else password.encode() + b"\0"
    opened = (
        pdfium.FPDF_LoadMemDocument64(file, len(file), key)
        if isinstance(file, bytes)
        else pdfium.FPDF_LoadDocument(os.fsencode(file) + b"\0", key)
    )
    if not opened:
        return False
    pdfium.FPDF_CloseDocument(opened)
    return True


@contextmanager
def _translated(said: str) -> Iterator[None]:
    import pypdfium2 as pdfium  # noqa: PLC0415

    try:
        yield
    except pdfium.PdfiumError as error:
        raise InputError(f"{said}: {error}") from error
