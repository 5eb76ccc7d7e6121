"""Searchable PDFs, read again by PDFium."""

from __future__ import annotations

import io
import math

import numpy as np
import pypdfium2
import pytest
from PIL import Image

from alula.documents import Block, Page, Quad, SearchablePdf, Task, rectangle
from alula.documents.glyphs import width_of

WIDTH, HEIGHT = 800, 600


def _picture(colour: str = "white") -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (WIDTH, HEIGHT), colour).save(file, "JPEG")
    return file.getvalue()


def _page(*blocks: Block, text: str = "", index: int = 0) -> Page:
    return Page(index=index, width=WIDTH, height=HEIGHT, blocks=blocks, text=text)


def _pdf(*pages: Page, task: Task = "spotting", dpi: float | None = 100) -> pypdfium2.PdfDocument:
    file = io.BytesIO()
    writer = SearchablePdf(file)
    for page in pages:
        writer.add(page, task, _picture(), dpi)
    writer.close()
    return pypdfium2.PdfDocument(file.getvalue())


def _text(document: pypdfium2.PdfDocument, at: int = 0) -> str:
    return str(document[at].get_textpage().get_text_range()).replace("\r\n", "\n")


def _units(text: str) -> bytes:
    """PDFium counts characters in these."""
    return text.encode("utf-16-le")


def _line(text: str, box: Quad) -> Block:
    return Block(kind="line", text=text, box=box)


def test_text_comes_out_again_where_it_was_read() -> None:
    lines = {
        "Invoice No. 12-345 é": rectangle(100, 50, 420, 80),
        "总计人民币 𠀀 😀": rectangle(60.5, 120, 360, 155),
        "|": rectangle(10, 10, 14, 40),
    }
    document = _pdf(_page(*(_line(text, box) for text, box in lines.items())))
    whole = document[0].get_textpage()
    assert _text(document).splitlines() == list(lines)
    found = _units(whole.get_text_range())
    for text, box in lines.items():
        at = found.index(_units(text)) // 2
        first = whole.get_charbox(at, loose=True)
        last = whole.get_charbox(at + len(_units(text)) // 2 - 1, loose=True)
        (left, top), _, (right, bottom), _ = box
        seen = np.array([first[0], HEIGHT * 0.72 - first[3], last[2], HEIGHT * 0.72 - last[1]]) / 0.72
        np.testing.assert_allclose(seen, [left, top, right, bottom], atol=2)


def test_a_slanted_line_stays_in_its_slanted_box() -> None:
    turn, size = math.radians(20), (200, 30)
    corners = [(0, 0), (size[0], 0), size, (0, size[1])]
    cos, sin = math.cos(turn), math.sin(turn)
    a, b, c, d = ((300 + x * cos - y * sin, 200 + x * sin + y * cos) for x, y in corners)
    document = _pdf(_page(_line("slanted", (a, b, c, d))))
    whole = document[0].get_textpage()
    assert whole.get_text_range() == "slanted"
    assert whole.count_rects() == 1
    left, bottom, right, top = np.array(whole.get_rect(0)) / 0.72
    xs, ys = zip(a, b, c, d, strict=True)
    np.testing.assert_allclose([left, right], [min(xs), max(xs)], atol=3)
    np.testing.assert_allclose([HEIGHT - top, HEIGHT - bottom], [min(ys), max(ys)], atol=3)


def test_the_text_is_not_seen_and_the_picture_is() -> None:
    file = io.BytesIO()
    writer = SearchablePdf(file)
    writer.add(_page(_line("XXXXXXXX", rectangle(100, 100, 500, 200))), "text", _picture("red"), 72)
    writer.close()
    shown = pypdfium2.PdfDocument(file.getvalue())[0].render(scale=1).to_numpy()
    assert shown.shape[:2] == (HEIGHT, WIDTH)
    assert np.abs(shown[..., :3].astype(int) - [0, 0, 254]).max() <= 2


def test_pages_follow_one_another_with_text_that_has_no_place_too() -> None:
    document = _pdf(
        _page(text="# one\n\nfirst <table><tr><td>a</td><td>b</td></tr></table>"),
        _page(index=1),
        _page(_line("three", rectangle(0, 0, 90, 20)), index=2, text="not this"),
        task="document",
    )
    assert len(document) == 3
    assert [_text(document, at) for at in range(3)] == ["# one\nfirst a b", "", "three"]


def test_marks_of_markdown_are_not_searched_for() -> None:
    table = "<table><tr><td>a</td><td>b</td></tr></table>"
    blocks = [
        Block(kind="title", text="one"),
        Block(kind="text", text="first\n- second"),
        Block(kind="table", text=table),
    ]
    document = _pdf(_page(*blocks, text=f"# one\n\nfirst\n- second\n{table}"), task="document")
    assert _text(document) == "one\nfirst\n- second\na b"


@pytest.mark.parametrize(
    ("dpi", "points"), [(100, (576, 432)), (None, (384, 288)), (0, (384, 288)), (0.5, (14400, 10800))]
)
def test_a_page_is_as_large_as_it_was_on_paper(dpi: float | None, points: tuple[float, float]) -> None:
    assert _pdf(_page(), dpi=dpi)[0].get_size() == pytest.approx(points, abs=0.01)


def test_more_characters_than_a_hundred_are_all_named() -> None:
    text = "".join(map(chr, range(0x4E00, 0x4E00 + 1000)))
    lines = [
        _line(text[at : at + 50], rectangle(0, at * 0.5, 790, at * 0.5 + 20)) for at in range(0, 1000, 50)
    ]
    assert "".join(_text(_pdf(_page(*lines))).split()) == text


def test_blocks_without_room_or_letters_are_left_out() -> None:
    nowhere: Quad = ((5, 5), (5, 5), (5, 5), (5, 5))
    document = _pdf(
        _page(
            _line("gone", nowhere),
            _line(" \n", rectangle(0, 0, 9, 9)),
            _line("here", rectangle(9, 9, 90, 30)),
        )
    )
    assert _text(document) == "here"


def test_marks_take_no_room_and_characters_of_east_asia_twice_as_much() -> None:
    assert [width_of(character) for character in "a\u0301中"] == [500, 0, 1000]
