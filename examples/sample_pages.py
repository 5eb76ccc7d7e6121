"""The pages that `make demo` reads: a receipt as a picture and a note of two pages as a PDF, drawn from what they say.

python examples/sample_pages.py            # writes examples/pages/
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

FOLDER = Path(__file__).resolve().parent / "pages"
RECEIPT, NOTE = FOLDER / "receipt.png", FOLDER / "note.pdf"

SIDE = 640
"""Of the receipt, in pixels."""

PAGE = (230, 230)
"""Of the note, in points: 639 pixels at 200 dpi."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """Some words, where they begin (from the left and from the top) and how large they are, in units of the page."""

    text: str
    x: int
    y: int
    size: int


RECEIPT_LINES = (
    Line(text="Corner Books", x=200, y=40, size=38),
    Line(text="12 Mill Road, Harwick", x=202, y=96, size=22),
    Line(text="Receipt 2026-0417", x=50, y=170, size=24),
    Line(text="Date 2026-03-14", x=380, y=170, size=24),
    Line(text="Atlas of the Sea", x=50, y=240, size=24),
    Line(text="38.50", x=510, y=240, size=24),
    Line(text="Pencils, box of 12", x=50, y=290, size=24),
    Line(text="6.75", x=523, y=290, size=24),
    Line(text="Notebook", x=50, y=340, size=24),
    Line(text="4.20", x=523, y=340, size=24),
    Line(text="Total", x=50, y=420, size=30),
    Line(text="49.45", x=497, y=420, size=30),
    Line(text="Paid by card 1234", x=50, y=490, size=24),
    Line(text="Thank you!", x=250, y=560, size=26),
)
NOTE_PAGES = (
    (
        Line(text="Delivery note 7306", x=20, y=24, size=14),
        Line(text="To: Anna Berg, 5 Hill Street", x=20, y=54, size=9),
        Line(text="Two boxes were left at the door", x=20, y=84, size=9),
        Line(text="on Monday at 10:45. The third one", x=20, y=99, size=9),
        Line(text="follows with the next van.", x=20, y=114, size=9),
        Line(text="Weight: 18.6 kg", x=20, y=144, size=9),
        Line(text="Page 1 of 2", x=90, y=206, size=8),
    ),
    (
        Line(text="Contents", x=20, y=24, size=14),
        Line(text="Item", x=26, y=53, size=9),
        Line(text="Count", x=146, y=53, size=9),
        Line(text="Lamp, brass", x=26, y=71, size=9),
        Line(text="2", x=146, y=71, size=9),
        Line(text="Shelf, 80 cm", x=26, y=89, size=9),
        Line(text="1", x=146, y=89, size=9),
        Line(text="Screws", x=26, y=107, size=9),
        Line(text="48", x=146, y=107, size=9),
        Line(text="Page 2 of 2", x=90, y=206, size=8),
    ),
)
RULES = ((20, 51, 210, 51), (20, 69, 210, 69), (20, 87, 210, 87), (20, 105, 210, 105), (20, 123, 210, 123),
         (20, 51, 20, 123), (140, 51, 140, 123), (210, 51, 210, 123))  # fmt: skip
"""Of the table on the note's second page."""


def main() -> None:
    """Draw both files anew."""
    FOLDER.mkdir(exist_ok=True)
    receipt().save(RECEIPT, optimize=True)
    NOTE.write_bytes(note())
    print(f"{RECEIPT}: {RECEIPT.stat().st_size} bytes\n{NOTE}: {NOTE.stat().st_size} bytes")


def receipt() -> Image.Image:
    """The receipt, in the font that comes with Pillow."""
    picture = Image.new("L", (SIDE, SIDE), 255)
    drawing = ImageDraw.Draw(picture)
    for line in RECEIPT_LINES:
        drawing.text((line.x, line.y), line.text, font=ImageFont.load_default(line.size), fill=0)
    for y in (150, 216, 396, 470):
        drawing.line((50, y, SIDE - 50, y), fill=0, width=2)
    return picture


def note() -> bytes:
    """The note, in a font that every reader of PDFs has."""
    shown = [_words(lines) for lines in NOTE_PAGES]
    shown[1] += "".join(f"{a} {PAGE[1] - b} m {c} {PAGE[1] - d} l S\n" for a, b, c, d in RULES)
    kids = " ".join(f"{4 + 2 * at} 0 R" for at in range(len(shown)))
    objects = [
        "<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Kids [{kids}] /Count {len(shown)} /MediaBox [0 0 {PAGE[0]} {PAGE[1]}] >>",
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    for at, content in enumerate(shown):
        objects += [
            f"<< /Type /Page /Parent 2 0 R /Contents {5 + 2 * at} 0 R /Resources << /Font << /F 3 0 R >> >> >>",
            f"<< /Length {len(content)} >>\nstream\n{content}endstream",
        ]
    return _file(objects)


def _words(lines: Sequence[Line]) -> str:
    """What shows some lines; `y` is where their letters' feet stand, less their size."""
    return "".join(
        f"BT /F {line.size} Tf {line.x} {PAGE[1] - line.y - line.size} Td ({line.text}) Tj ET\n"
        for line in lines
    )


def _file(objects: Sequence[str]) -> bytes:
    out, places = b"%PDF-1.4\n", []
    for number, body in enumerate(objects, start=1):
        places.append(len(out))
        out += f"{number} 0 obj\n{body}\nendobj\n".encode("ascii")
    rows = "".join(f"{place:010} 00000 n \n" for place in places)
    count = len(objects) + 1
    trailer = f"trailer\n<< /Size {count} /Root 1 0 R >>\nstartxref\n{len(out)}\n%%EOF\n"
    return out + f"xref\n0 {count}\n0000000000 65535 f \n{rows}{trailer}".encode("ascii")


if __name__ == "__main__":
    main()
