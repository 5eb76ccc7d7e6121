"""Files to pages as pixels, by what the files hold: one image, the pages of a TIFF or of a PDF, pictures of a video."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from alula.codecs import MOST_PIXELS, count_sheets, decode_sheet, straightened
from alula.core.errors import InputError
from alula.documents import Notice, Scan, measured, notices_of, without_specks
from alula.documents.pdf import DPI, PAGE_PIXELS, Pdf
from alula.documents.quality import SPECKED
from alula.documents.video import EVERY_S, Video, is_video

MOST_PAGES = 10_000
"""Of one document."""

MOST_PICTURES = 200_000
"""Of one video: a day of them."""

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
    that need it. A video is looked at every `every_s` seconds.
    """

    password: str | None = None
    dpi: float = DPI
    every_s: float = EVERY_S
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
        if not 0.04 <= self.every_s <= 60:
            raise InputError(f"every is {self.every_s:g} s; expected 0.04 to 60")


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
    def parse(cls, said: str, name: str = "pages") -> Selection:
        """`1-3,7`, `5-`, `-2`; `name` is what errors call it."""
        spans = []
        for part in said.split(","):
            found = _SPAN.fullmatch(part.strip())
            if found is None or not (found[1] or found[3]):
                raise InputError(f"{name} is {said!r}; expected pages and spans of them, such as 1-3,7,10-")
            first = int(found[1] or 1)
            last = int(found[3]) if found[3] else None if found[2] else first
            if first < 1 or (last is not None and last < first):
                raise InputError(f"{name} is {said!r}; {part.strip()} is no span of pages, which begin at 1")
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

    def beyond(self, count: int) -> list[int]:
        """The first places of the spans of which a file of so many pages has none; one that it has a part of is cut."""
        return sorted({first - 1 for first, _ in self.spans if first > count})


class Files:
    """Opens files to look at their pages; the PDF or video asked for last stays open. Not thread-safe. Close it."""

    def __init__(self, taking: Taking) -> None:
        self._taking = taking
        self._open: tuple[str, Pdf | Video] | None = None

    def count(self, source: str) -> int:
        """How many pages a file has, or pictures a video."""
        if Path(source).is_dir():
            raise InputError(
                f"{source} is a folder; name the files in it, such as {source.rstrip('/')}/*.png"
            )
        if not Path(source).exists():
            raise InputError(f"{source}: there is no such file")
        if not Path(source).is_file():
            raise InputError(
                f"{source} is a pipe or a device; write what comes of it to a file, and name that"
            )
        if not Path(source).stat().st_size:
            raise InputError(f"{source} is empty; expected an image, a PDF or a video")
        opened = self._opened(source)
        if isinstance(opened, Video):
            count, most = opened.pictures, MOST_PICTURES
        else:
            count, most = (
                opened.pages if opened else count_sheets(Path(source), else_=("PDF",)),
                self._taking.most_pages,
            )
        if count > most:
            raise InputError(
                f"{source} has {count} pages or pictures; expected at most {most}: take it in parts"
            )
        return count

    def load(self, source: str, index: int) -> Scan:
        """One page of a file, looked at, or one picture of a video."""
        begun = time.perf_counter()
        opened = self._opened(source)
        if isinstance(opened, Video):
            scan = Scan(source=source, index=index, pixels=opened.picture(index), span=opened.span(index))
            timings = {"load_ms": (time.perf_counter() - begun) * 1e3}
            return replace(scan, notices=opened.oddities(index), timings=timings)
        scan = (
            self._rendered(opened, source, index)
            if opened
            else decoded(Path(source), source, index, self._taking)
        )
        loaded = time.perf_counter()
        scan = looked_at(scan, self._taking)
        timings = {"load_ms": (loaded - begun) * 1e3, "look_ms": (time.perf_counter() - loaded) * 1e3}
        return replace(scan, timings=timings)

    def close(self) -> None:
        """Let go of the file that is open. Safe to call twice."""
        if self._open is not None:
            self._open[1].close()
            self._open = None

    def _opened(self, source: str) -> Pdf | Video | None:
        """The PDF or the video; None of images, which are opened page by page."""
        if self._open is None or self._open[0] != source:
            kind = kind_of(source)
            self.close()
            if kind == "image":
                return None
            taking, file = self._taking, Path(source)
            opened = (
                Pdf(file, password=taking.password) if kind == "pdf" else Video(file, every_s=taking.every_s)
            )
            self._open = source, opened
        return self._open[1]

    def _rendered(self, pdf: Pdf, source: str, index: int) -> Scan:
        page = pdf.render(index, dpi=self._taking.dpi, most_pixels=self._taking.page_pixels)
        return Scan(source=source, index=index, pixels=page.pixels, dpi=page.dpi, notices=page.notices)


def decoded(image: Path | bytes, source: str, index: int, taking: Taking) -> Scan:
    """A page of an image, a file or what stands in one; `source` is what it is called."""
    sheet = decode_sheet(image, index, source, most_pixels=taking.most_pixels, shrink_to=taking.page_pixels)
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
    if taking.denoise and quality.specks >= SPECKED:
        pixels = without_specks(pixels)
        notices = [_said(notice, "the specks were taken off") for notice in notices]
    if taking.straighten and quality.skew is not None and abs(quality.skew) >= LEAST_SKEW:
        pixels = straightened(pixels, quality.skew)
        turned = f"turned level by {abs(quality.skew):.1f} degrees; boxes are on the page as it was turned"
        notices = [notice for notice in notices if notice.code != "skewed"]
        notices.append(Notice(code="skewed", message=turned))
    return replace(scan, pixels=pixels, notices=tuple(notices))


def _said(notice: Notice, what: str) -> Notice:
    return replace(notice, message=f"{notice.message}; {what}") if notice.code == "noisy" else notice


def kind_of(source: str) -> Literal["pdf", "video", "image"]:
    """By the file's first bytes."""
    with Path(source).open("rb") as opened:
        return kind_of_bytes(opened.read(_HEADER_BYTES))


def kind_of_bytes(content: bytes) -> Literal["pdf", "video", "image"]:
    """The same of what stands in a file."""
    head = content[:_HEADER_BYTES]
    # Other programs find the mark behind something else, too.
    return "pdf" if b"%PDF-" in head else "video" if is_video(head) else "image"
