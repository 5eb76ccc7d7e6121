"""A searchable PDF: each page is its picture with the text that was read under it, in its place and invisible.

Written page by page, so that a document of any length takes no more memory than a page of it.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import IO

from alula.documents.formats import plain
from alula.documents.glyphs import ASCENT, DESCENT, EM, WIDE, font_file, glyph_of, width_of
from alula.documents.values import Page, Quad, Task, rectangle

USUAL_DPI = 150.0
"""Of pages that do not say how large they are on paper."""

_POINTS = 72.0
_LONGEST_SIDE = 14_400.0
"""In points: viewers take no larger pages."""

_EMPTY = (612.0, 792.0)
"""What a page without a picture measures, in points."""

_MOST_CODES = 0xFFFF
_CATALOGUE, _PAGES, _FONT, _INFORMATION = 1, 2, 3, 4
_FIRST = 5
_LEVEL = 6


@dataclass(frozen=True, kw_only=True, slots=True)
class _Line:
    """A line of text and the box it fills."""

    text: str
    box: Quad


class SearchablePdf:
    """Writes pages to a binary file as they come; `close` ends the document, without which it is none."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._places: dict[int, int] = {}
        self._next = _FIRST
        self._pages: list[int] = []
        self._codes: dict[str, int] = {}
        self._written = 0
        # The second line says that the file is not of letters only.
        self._put(b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n")

    def add(self, page: Page, task: Task, picture: bytes | None, dpi: float | None = None) -> None:
        """One page; `picture` is it as JPEG in red, green and blue, `dpi` how many of its pixels are an inch.

        Without a picture the page is empty, and keeps the others' numbers right.
        """
        if picture is None:
            self._page("", _EMPTY)
            return
        scale = _scale(page, dpi)
        width, height = page.width * scale, page.height * scale
        image = self._number()
        self._stream(
            image,
            f"/Type /XObject /Subtype /Image /Width {page.width} /Height {page.height} /ColorSpace /DeviceRGB"
            " /BitsPerComponent 8 /Filter /DCTDecode",
            picture,
        )
        text = "\n".join(self._shown(line, scale, height) for line in _lines(page, task))
        shown = f"q {width:.3f} 0 0 {height:.3f} 0 0 cm /Page Do Q\nBT 3 Tr\n{text}\nET\n"
        self._page(shown, (width, height), f"/XObject << /Page {image} 0 R >>")

    def _page(self, shown: str, size: tuple[float, float], more: str = "") -> None:
        content, number = self._number(), self._number()
        self._deflated(content, "", shown.encode("ascii"))
        self._object(
            number,
            f"<< /Type /Page /Parent {_PAGES} 0 R /MediaBox [0 0 {size[0]:.3f} {size[1]:.3f}]"
            f" /Contents {content} 0 R /Resources << {more} /Font << /Text {_FONT} 0 R >> >> >>",
        )
        self._pages.append(number)

    def close(self) -> None:
        """Write the font, the list of pages and the table of places; the file stays its owner's to close."""
        self._font()
        kids = " ".join(f"{number} 0 R" for number in self._pages)
        self._object(_PAGES, f"<< /Type /Pages /Count {len(self._pages)} /Kids [{kids}] >>")
        self._object(_CATALOGUE, f"<< /Type /Catalog /Pages {_PAGES} 0 R >>")
        self._object(_INFORMATION, "<< /Producer (alula) >>")
        start, count = self._written, self._next
        rows = "".join(f"{self._places[number]:010} 00000 n \n" for number in range(1, count))
        self._put(f"xref\n0 {count}\n0000000000 65535 f \n{rows}".encode("ascii"))
        trailer = f"<< /Size {count} /Root {_CATALOGUE} 0 R /Info {_INFORMATION} 0 R >>"
        self._put(f"trailer\n{trailer}\nstartxref\n{start}\n%%EOF\n".encode("ascii"))

    def _shown(self, line: _Line, scale: float, height: float) -> str:
        """The line along its box's upper side, as long as that and as high as the box."""
        (left, top), (right, right_top), _, (foot, foot_top) = line.box
        length, size = math.hypot(right - left, right_top - top), math.hypot(foot - left, foot_top - top)
        natural = sum(map(width_of, line.text)) / EM * size
        if not (length > 0 and size > 0 and natural > 0):
            return ""
        across, down = (right - left) / length, (right_top - top) / length
        baseline = ASCENT / EM
        x, y = left + (foot - left) * baseline, top + (foot_top - top) * baseline
        codes = "".join(f"{self._code(character):04x}" for character in line.text)
        return (
            f"/Text {size * scale:.3f} Tf {100 * length / natural:.3f} Tz "
            f"{across:.5f} {-down:.5f} {down:.5f} {across:.5f} {x * scale:.3f} {height - y * scale:.3f} Tm <{codes}> Tj"
        )

    def _code(self, character: str) -> int:
        """Characters are numbered as they first appear; the font, written last, says which is which."""
        if character not in self._codes and len(self._codes) >= _MOST_CODES - 1:
            character = "\ufffd"
        return self._codes.setdefault(character, len(self._codes) + 1)

    def _font(self) -> None:
        descendant, descriptor, file, glyphs, names = (self._number() for _ in range(5))
        self._object(
            _FONT,
            f"<< /Type /Font /Subtype /Type0 /BaseFont /Alula-Invisible /Encoding /Identity-H"
            f" /DescendantFonts [{descendant} 0 R] /ToUnicode {names} 0 R >>",
        )
        widths = " ".join(str(width_of(character)) for character in self._codes)
        self._object(
            descendant,
            "<< /Type /Font /Subtype /CIDFontType2 /BaseFont /Alula-Invisible /CIDSystemInfo << /Registry (Adobe)"
            f" /Ordering (Identity) /Supplement 0 >> /FontDescriptor {descriptor} 0 R /DW {WIDE} /W [1 [{widths}]]"
            f" /CIDToGIDMap {glyphs} 0 R >>",
        )
        self._object(
            descriptor,
            f"<< /Type /FontDescriptor /FontName /Alula-Invisible /Flags 4 /FontBBox [0 {DESCENT} {WIDE} {ASCENT}]"
            f" /ItalicAngle 0 /Ascent {ASCENT} /Descent {DESCENT} /CapHeight {ASCENT} /StemV 80"
            f" /FontFile2 {file} 0 R >>",
        )
        font = font_file()
        self._deflated(file, f"/Length1 {len(font)}", font)
        chosen = b"".join(glyph_of(width_of(character)).to_bytes(2, "big") for character in self._codes)
        self._deflated(glyphs, "", b"\0\0" + chosen)
        self._deflated(names, "", _names(list(self._codes)))

    def _number(self) -> int:
        self._next += 1
        return self._next - 1

    def _put(self, data: bytes) -> None:
        self._file.write(data)
        self._written += len(data)

    def _object(self, number: int, body: str) -> None:
        self._places[number] = self._written
        self._put(f"{number} 0 obj\n{body}\nendobj\n".encode("ascii"))

    def _deflated(self, number: int, entries: str, data: bytes) -> None:
        self._stream(number, f"{entries} /Filter /FlateDecode", zlib.compress(data, _LEVEL))

    def _stream(self, number: int, entries: str, data: bytes) -> None:
        self._places[number] = self._written
        self._put(f"{number} 0 obj\n<< {entries} /Length {len(data)} >>\nstream\n".encode("ascii"))
        self._put(data)
        self._put(b"\nendstream\nendobj\n")


def _scale(page: Page, dpi: float | None) -> float:
    """Points to a pixel."""
    scale = _POINTS / (dpi if dpi and dpi > 0 else USUAL_DPI)
    return min(scale, _LONGEST_SIDE / max(page.width, page.height))


def _lines(page: Page, task: Task) -> Iterator[_Line]:
    """What stands where: blocks in their boxes; where no block has one, the text from top to bottom of the page."""
    placed = [(block.text, block.box) for block in page.blocks if block.box is not None]
    if not placed:
        whole = rectangle(0, 0, page.width, page.height)
        # Blocks have no marks of Markdown, which nobody searches for.
        pieces = [block.text for block in page.blocks] or [page.text]
        placed = [("\n".join(plain(piece, task) for piece in pieces), whole)] if page.text.strip() else []
    for text, box in placed:
        lines = [" ".join(line.split()) for line in text.splitlines() if line.strip()]
        yield from (_Line(text=line, box=_slice(box, at, len(lines))) for at, line in enumerate(lines))


def _slice(box: Quad, at: int, count: int) -> Quad:
    """The box's `at`th part of `count`, cut across from left to right."""
    upper_left, upper_right, lower_right, lower_left = box
    begin, end = at / count, (at + 1) / count
    return (
        _between(upper_left, lower_left, begin),
        _between(upper_right, lower_right, begin),
        _between(upper_right, lower_right, end),
        _between(upper_left, lower_left, end),
    )


def _between(one: tuple[float, float], other: tuple[float, float], share: float) -> tuple[float, float]:
    return one[0] + (other[0] - one[0]) * share, one[1] + (other[1] - one[1]) * share


def _names(characters: Sequence[str]) -> bytes:
    """Which character each code is, in the words that readers of PDF ask for; a hundred at a time, as they allow."""
    rows = [
        f"<{code:04x}> <{character.encode('utf-16-be', 'surrogatepass').hex()}>"
        for code, character in enumerate(characters, start=1)
    ]
    groups = (rows[at : at + 100] for at in range(0, len(rows), 100))
    mapped = "\n".join(f"{len(group)} beginbfchar\n{chr(10).join(group)}\nendbfchar" for group in groups)
    return (
        "/CIDInit /ProcSet findresource begin\n12 dict begin\nbegincmap\n/CIDSystemInfo << /Registry (Adobe)"
        " /Ordering (UCS) /Supplement 0 >> def\n/CMapName /Adobe-Identity-UCS def\n/CMapType 2 def\n"
        f"1 begincodespacerange\n<0000> <ffff>\nendcodespacerange\n{mapped}\nendcmap\n"
        "CMapName currentdict /CMap defineresource pop\nend\nend\n"
    ).encode("ascii")
