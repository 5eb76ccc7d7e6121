"""The pages that the small model is shown with: a bill as a picture, a letter and a Chinese notice as a PDF.

    python -m training.shown --fonts training/build/fonts -o examples/pages

They are written by hand, in characters that the model knows and fonts that its training never saw.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from training.canvas import Canvas, length
from training.fonts import Fonts
from training.render import Colour, coloured

PICTURE, DOCUMENT, WRITTEN = "small-page.png", "small-pages.pdf", "small.json"
_SIDE, _MARGIN, _TOP, _DPI = 640, 28, 66, 200
_LEADING, _ROW = 38.0, 42.0
"""Pixels from line to line, and from row to row of a table."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sheet:
    """What stands on a page: a heading, paragraphs of lines, a table perhaps, and a note below that no answer has."""

    font: str
    size: int
    heading: str
    paragraphs: tuple[tuple[str, ...], ...]
    table: tuple[tuple[str, ...], ...] = ()
    note: str = ""
    between: str = " "
    """What stands between two lines of a paragraph when it is said as one."""
    ink: Colour = (30, 30, 40)
    paper: Colour = (252, 251, 247)

    @property
    def markdown(self) -> str:
        """What a reader is to say of it."""
        rows = ("".join(f"<td>{cell}</td>" for cell in row) for row in self.table)
        table = "".join(f"<tr>{row}</tr>" for row in rows)
        paragraphs = map(self.between.join, self.paragraphs)
        return "\n\n".join(
            (f"# {self.heading}", *paragraphs, *([f"<table>{table}</table>"] if table else []))
        )


BILL = Sheet(
    font="CharisSIL-Regular",
    size=26,
    heading="Orange Street Coffee House",
    paragraphs=(("Invoice 20417 of 17/04/2026 for Green Hotel.", "Please pay before 30 April."),),
    table=(
        ("Item", "Quantity", "Amount"),
        ("Coffee", "24", "$84.00"),
        ("Milk", "12", "$15.75"),
        ("Total", "36", "$99.75"),
    ),
)
LETTER = Sheet(
    font="OpenSans-Regular",
    size=26,
    heading="Your Order 88213",
    paragraphs=(
        (
            "Dear Ms Young, the order left our house",
            "on 9 March 2026 by flight KR472: 3 boxes",
            "of 18.5 kg each.",
        ),
        (
            "The station office will call you at 09:45",
            "on Thursday. The amount of £1,284.30",
            "was paid on 02/03/2026.",
        ),
        ("Questions? Write to help@fjord.net!",),
    ),
    ink=(20, 40, 90),
)
NOTICE = Sheet(
    font="LXGWWenKai-Regular",
    size=28,
    heading="订单付款通知",
    paragraphs=(("客户名称：北京市南方文化有限公司。请在", "2026/4/30前付款，电话010-5567-1283。"),),
    table=(
        ("商品", "数量", "金额"),
        ("目录", "120", "¥4380.00"),
        ("包装箱", "9", "¥225.50"),
        ("合计", "129", "¥4605.50"),
    ),
    note="第2页",
    between="",
)


def show(fonts: Path, folder: Path) -> None:
    """Draw the pages, and write what they say, as Markdown."""
    folder.mkdir(parents=True, exist_ok=True)
    opened = Fonts.open(fonts, held=True)
    files = {Path(file).stem: file for file in (*opened.latin, *opened.chinese)}
    bill, letter, notice = (drawn(sheet, files[sheet.font]) for sheet in (BILL, LETTER, NOTICE))
    bill.save(folder / PICTURE, optimize=True)
    letter.save(folder / DOCUMENT, save_all=True, append_images=[notice], resolution=_DPI, quality=90)
    answers = [sheet.markdown for sheet in (BILL, LETTER, NOTICE)]
    (folder / WRITTEN).write_text(json.dumps(answers, indent=1, ensure_ascii=False) + "\n", "utf-8")


def drawn(sheet: Sheet, font: str) -> Image.Image:
    """A page as a picture, in colours; refuses what does not fit."""
    canvas, y = Canvas(_SIDE, _SIDE), float(_TOP)
    _put(canvas, sheet.heading, _MARGIN, y, font, round(sheet.size * 1.5))
    y += _LEADING * 1.4
    for paragraph in sheet.paragraphs:
        for line in paragraph:
            _put(canvas, line, _MARGIN, y, font, sheet.size)
            y += _LEADING
        y += _LEADING * 0.5
    if sheet.table:
        y = _ruled(canvas, sheet.table, y, font, sheet.size)
    if y > _SIDE - _MARGIN - _LEADING * bool(sheet.note):
        raise ValueError(
            f"the page {sheet.heading!r} is {y:.0f} pixels long, and {_SIDE} high with its margin"
        )
    middle = (_SIDE - length(font, sheet.size, sheet.note)) / 2
    _put(canvas, sheet.note, middle, _SIDE - _MARGIN, font, sheet.size)
    return Image.fromarray(coloured(np.asarray(canvas.image), sheet.paper, sheet.ink))


def _put(  # noqa: PLR0913, PLR0917 - what, where and how
    canvas: Canvas, text: str, x: float, y: float, font: str, size: int, wide: float = _SIDE - 2 * _MARGIN
) -> None:
    used = length(font, size, text)
    if used > wide:
        raise ValueError(f"{text!r} is {used:.0f} pixels wide, and has {wide:.0f}")
    if text:
        canvas.write(text, x, y, font, size)


def _ruled(canvas: Canvas, table: Sequence[Sequence[str]], y: float, font: str, size: int) -> float:
    """Write a table with all its rules; where it ends."""
    wide, top = (_SIDE - 2 * _MARGIN) / len(table[0]), y - _LEADING * 0.7
    left, right, bottom = _MARGIN, _SIDE - _MARGIN, top + _ROW * len(table)
    for number, row in enumerate(table):
        baseline = top + _ROW * number + (_ROW + size * 0.7) / 2
        for column, cell in enumerate(row):
            _put(canvas, cell, left + column * wide + size * 0.4, baseline, font, size, wide - size * 0.5)
    for number in range(len(table) + 1):
        canvas.rule((left, top + number * _ROW), (right, top + number * _ROW), 1)
    for column in range(len(table[0]) + 1):
        canvas.rule((left + column * wide, top), (left + column * wide, bottom), 1)
    return bottom


def main() -> None:
    """Write them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fonts", type=Path, required=True)
    parser.add_argument("-o", "--output", type=Path, required=True)
    given = parser.parse_args()
    show(given.fonts, given.output)


if __name__ == "__main__":
    main()
