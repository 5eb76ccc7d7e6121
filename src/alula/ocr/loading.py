"""Files to pages as pixels, by what the files hold: one image, the pages of a TIFF or of a PDF."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, replace
from pathlib import Path

from alula.codecs import MOST_PIXELS, count_sheets, decode_sheet, denoised, straightened
from alula.core.errors import InputError
from alula.documents import Notice, Scan, measured, notices_of
from alula.documents.pdf import DPI, PAGE_PIXELS, Pdf

MOST_PAGES = 10_000
"""Of one document."""

PAGE_S = 60.0
"""For one page, from its file to its pixels."""

MEMORY_BYTES = 4 << 30
"""What a process that opens files may take beside what it starts with: a page of the most pixels takes an eighth."""

LEAST_SKEW = 0.3
"""Degrees: what is less is left as it is."""

_HEADER_BYTES = 1024
_SPAN = re.compile(r"(\d+)?(-)?(\d+)?")


@dataclass(frozen=True, kw_only=True, slots=True)
class Taking:
    """How pages are taken from files, and what one may cost at most.

    PDFs are rendered at `dpi`, in fewer pixels where that would be more than `page_pixels`; images beyond that are made
    smaller, and those beyond `most_pixels` are refused by their header. Each page is looked at, which its notices tell;
    what is too blurred to be read is marked as skipped where `skip` says so. `straighten` and `denoise` change pages
    that need it.
    """

    password: str | None = None
    dpi: float = DPI
    skip: bool = False
    straighten: bool = False
    denoise: bool = False
    page_pixels: int = PAGE_PIXELS
    most_pixels: int = MOST_PIXELS
    most_pages: int = MOST_PAGES
    page_s: float = PAGE_S
    memory_bytes: int = MEMORY_BYTES

    def __post_init__(self) -> None:
        if not 10 <= self.dpi <= 2400:
            raise InputError(f"dpi is {self.dpi:g}; expected 10 to 2400")


@dataclass(frozen=True, kw_only=True, slots=True)
class Lost:
    """A page, or where `index` is None a whole file, that could not be taken, and why."""

    source: str
    index: int | None
    message: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Selection:
    """Which pages of every file are read: spans of them from 1, both ends in; none means all."""

    spans: tuple[tuple[int, int | None], ...] = ()

    @classmethod
    def parse(cls, said: str) -> Selection:
        """`1-3,7`, `5-`, `-2`."""
        spans = []
        for part in said.split(","):
            found = _SPAN.fullmatch(part.strip())
            if found is None or not (found[1] or found[3]):
                raise InputError(f"--pages is {said!r}; expected pages and spans of them, such as 1-3,7,10-")
            first = int(found[1] or 1)
            last = int(found[3]) if found[3] else None if found[2] else first
            if first < 1 or (last is not None and last < first):
                raise InputError(f"--pages is {said!r}; {part.strip()} is no span of pages, which begin at 1")
            spans.append((first, last))
        return cls(spans=tuple(spans))

    def of(self, count: int) -> list[int]:
        """The places, from 0 and in order, of the pages that a file of so many has; each once."""
        if not self.spans:
            return list(range(count))
        chosen: set[int] = set()
        for first, last in self.spans:
            chosen.update(range(first - 1, min(count, last if last is not None else count)))
        return sorted(chosen)


class Files:
    """Opens files to look at their pages; the PDF that was asked for last stays open. Not thread-safe. Close it."""

    def __init__(self, taking: Taking) -> None:
        self._taking = taking
        self._open: tuple[str, Pdf] | None = None

    def count(self, source: str) -> int:
        """How many pages a file has."""
        if not Path(source).is_file():
            raise InputError(f"{source}: there is no such file")
        pages = self._pdf(source).pages if is_pdf(Path(source)) else count_sheets(Path(source))
        if pages > self._taking.most_pages:
            raise InputError(
                f"{source} has {pages} pages; expected at most {self._taking.most_pages}: choose some of them"
            )
        return pages

    def load(self, source: str, index: int) -> Scan:
        """One page of a file."""
        begun = time.perf_counter()
        scan = self._rendered(source, index) if is_pdf(Path(source)) else self._decoded(source, index)
        loaded = time.perf_counter()
        scan = looked_at(scan, self._taking)
        timings = {"load_ms": (loaded - begun) * 1e3, "look_ms": (time.perf_counter() - loaded) * 1e3}
        return replace(scan, timings=timings)

    def close(self) -> None:
        """Let go of the file that is open. Safe to call twice."""
        if self._open is not None:
            self._open[1].close()
            self._open = None

    def _pdf(self, source: str) -> Pdf:
        if self._open is None or self._open[0] != source:
            self.close()
            self._open = source, Pdf(Path(source), password=self._taking.password)
        return self._open[1]

    def _rendered(self, source: str, index: int) -> Scan:
        page = self._pdf(source).render(index, dpi=self._taking.dpi, most_pixels=self._taking.page_pixels)
        return Scan(source=source, index=index, pixels=page.pixels, dpi=page.dpi, notices=page.notices)

    def _decoded(self, source: str, index: int) -> Scan:
        taking = self._taking
        sheet = decode_sheet(
            Path(source), index, most_pixels=taking.most_pixels, shrink_to=taking.page_pixels
        )
        notices = []
        if sheet.frames > 1:
            said = f"the first of {sheet.frames} pictures of an animation; the others are not read"
            notices.append(Notice(code="first-frame", message=said))
        height, width = sheet.pixels.shape[:2]
        if (height, width) != sheet.size:
            said = f"{sheet.size[1]} x {sheet.size[0]} pixels are more than are read; made {width} x {height}"
            notices.append(Notice(code="downscaled", message=said))
        return Scan(source=source, index=index, pixels=sheet.pixels, dpi=sheet.dpi, notices=tuple(notices))


def looked_at(scan: Scan, taking: Taking) -> Scan:
    """The page with what is to be known of it; cleaned and straightened where that was asked for and is needed."""
    pixels, quality = scan.pixels, measured(scan.pixels)
    notices = [*scan.notices, *notices_of(quality)]
    if taking.skip and quality.unreadable:
        notices.append(
            Notice(code="skipped", message="too blurred for anything to be read; not given to the model")
        )
    if taking.denoise and any(notice.code == "noisy" for notice in notices):
        pixels = denoised(pixels)
        notices = [_said(notice, "the specks were taken off") for notice in notices]
    if taking.straighten and quality.skew is not None and abs(quality.skew) >= LEAST_SKEW:
        pixels = straightened(pixels, quality.skew)
        turned = f"turned level by {abs(quality.skew):.1f} degrees; boxes are on the page as it was turned"
        notices = [notice for notice in notices if notice.code != "skewed"]
        notices.append(Notice(code="skewed", message=turned))
    return replace(scan, pixels=pixels, notices=tuple(notices))


def _said(notice: Notice, what: str) -> Notice:
    return replace(notice, message=f"{notice.message}; {what}") if notice.code == "noisy" else notice


def is_pdf(file: Path) -> bool:
    """By its first bytes, among which other programs find the mark too."""
    with file.open("rb") as opened:
        return b"%PDF-" in opened.read(_HEADER_BYTES)
