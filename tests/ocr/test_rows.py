"""Rows that were made up or left out are told by those that are printed."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
from sample_pages import FOLDER
from training.keep import kept
from training.render import coloured

from alula.documents import Pixels, Scan, Task, printed
from alula.documents.formats import plain
from alula.ocr import Ask
from alula.ocr.answers import Written, page_of
from alula.ocr.odds import Odds
from alula.ocr.rows import are_joined, lengths_in, miscounted, printed_rows


def page(rows: int = 12, degrees: float = 0.0, rules: bool = False) -> Pixels:
    """White, 640 x 640, with two cells of strokes 20 pixels high in every row, each 44 below the last."""
    pixels = np.full((640, 640, 3), 255, np.uint8)
    for row in range(rows):
        for x in [*range(40, 200, 8), *range(400, 500, 8)]:
            top = round(30 + 44 * row + x * math.tan(math.radians(degrees)))
            pixels[top : top + 20, x : x + 3] = 0
    if rules:
        pixels[18 : 20 + 44 * rows : 44, 20:620] = 0
        pixels[18 : 18 + 44 * rows, 20:620:300] = 0
    return pixels


def table(rows: int) -> str:
    return f"<table>{'<tr><td>Lamp</td><td>12.50</td></tr>' * rows}</table>"


@pytest.mark.parametrize("rules", [False, True])
@pytest.mark.parametrize("degrees", [0.0, 1.5, -2.0])
def test_rows_are_counted_with_rules_and_skewed(rules: bool, degrees: float) -> None:
    pixels = page(degrees=degrees, rules=rules and not degrees)
    there = printed_rows(printed(pixels), degrees=degrees)
    assert there is not None
    assert len(there.rows) == 12
    [said] = miscounted(pixels, table(13), "table")
    assert said.message.startswith("12 rows are printed")
    assert not list(miscounted(pixels, table(12), "table"))


def test_a_line_above_a_table_is_no_row_of_it() -> None:
    pixels = page()
    pixels[30:50, 200:400] = np.tile(pixels[30:50, 40:48], (1, 25, 1))
    assert not list(miscounted(pixels, table(11), "table"))
    assert list(miscounted(pixels, table(10), "table"))


def test_nothing_and_rows_that_run_into_one_another_are_not_counted() -> None:
    assert printed_rows(printed(page(0))) is None
    pixels = page()
    pixels[30:600, 300:304] = 0
    assert printed_rows(np.logical_not(pixels[..., 0])) is None


@pytest.mark.parametrize(
    ("task", "text", "said"),
    [
        ("table", table(12), ""),
        ("table", table(11), "12 rows are printed and 11 were written: some are missing, or written as one"),
        ("table", table(10), "12 rows are printed and 10 were written: some are missing, or written as one"),
        ("table", table(18), "12 rows are printed and 18 were written: some are made up"),
        ("text", "Lamp 12.50\n" * 12, ""),
        ("text", "Lamp 12.50\n" * 13, "12 rows are printed and 13 were written: some are made up"),
        (
            "text",
            "Lamp 12.50\n" * 6,
            "12 rows are printed and 6 were written: some are missing, or written as one",
        ),
        (
            "text",
            "Lamp\n" * 11,
            "12 rows are printed and 11 were written: some are missing, or written as one",
        ),
        ("document", "# Lamps\n\n" + table(3), ""),
        ("document", "# Lamps\n\n" + table(12), "12 rows are printed and 13 were written: some are made up"),
        ("chart", "a", ""),
        ("text", "", ""),
    ],
)
def test_other_rows_than_are_printed_are_told(task: Task, text: str, said: str) -> None:
    """xberg-io/xberg#1704: of twelve equal rows of a table as many came as the model liked, in silence."""
    assert [notice.message for notice in miscounted(page(), text, task)] == [said] * bool(said)


def test_lengths_are_of_lines_and_rows_of_tables() -> None:
    assert lengths_in(f"a\n\nb b\n{table(2)}\n字 c") == [1, 2, 9, 9, 2.8]
    assert lengths_in(" \n") == []


@pytest.mark.parametrize(
    ("said", "joined"),
    [
        ([30, 30, 15, 28], True),
        ([75, 28], True),
        ([30, 73], True),
        ([33, 70], True),
        ([60, 15, 28], True),
        ([30, 15, 28], False),
        ([30, 30, 28], False),
        ([30, 45], False),
        ([30, 30, 15, 28, 28], False),
    ],
)
def test_lines_may_be_written_as_one_and_not_left_out(said: list[float], joined: bool) -> None:
    assert are_joined([300, 300, 150, 280], said, 20) is joined


def test_a_title_is_in_larger_type() -> None:
    assert are_joined([300, 300, 300, 300], [15, 75], 20)
    assert not are_joined([300, 300, 300, 300], [75, 15], 20)


def test_only_a_model_that_was_taught_a_part_is_held_to_the_rows() -> None:
    """The others read photographs, too, where not all that is dark is print."""
    scan, ask = Scan(source="a", index=0, pixels=page()), Ask(task="text")
    text = "Lamp\n" * 13
    for known, codes in ((Odds(logs=[-0.01]), ["miscounted"]), (Odds(), [])):
        assert [notice.code for notice in page_of(scan, Written(text=text, odds=known), ask).notices] == codes
    cut = page_of(scan, Written(text=text, odds=Odds(logs=[-0.01]), cut=True), ask)
    assert [notice.code for notice in cut.notices] == ["cut"], "its rest is known to be missing"


def test_right_answers_of_held_pages_have_no_notice() -> None:
    """84 pages in six fonts, worn, turned by up to three degrees."""
    counted = 0
    tasks: tuple[Task, ...] = ("text", "table", "document")
    for drawn in kept(FOLDER / "held"):
        for task in tasks:
            if drawn.task == task:
                pixels = coloured(drawn.levels, drawn.paper, drawn.ink)
                assert not list(miscounted(pixels, drawn.answer, task)), drawn.number
                counted += bool(list(miscounted(pixels, drawn.answer + "\nx" * 20, task)))
    assert counted >= 50


def test_documents_that_were_read_as_text_have_few_notices_and_lines_left_out_most() -> None:
    """The small model writes the lines of a paragraph as one, as it was taught for documents."""
    noticed = 0
    left_out: dict[str, list[bool]] = {"document": [], "text": []}
    for drawn in kept(FOLDER / "held"):
        if drawn.task in left_out:
            pixels = coloured(drawn.levels, drawn.paper, drawn.ink)
            lines = re.sub("^# ", "", plain(drawn.answer, "document")).splitlines()
            lines = [line for line in lines if line.strip()]
            noticed += bool(list(miscounted(pixels, "\n".join(lines), "text")))
            for at in range(len(lines) if len(lines) > 2 else 0):
                left = "\n".join(lines[:at] + lines[at + 1 :])
                left_out[drawn.task].append(bool(list(miscounted(pixels, left, "text"))))
    assert noticed <= 1
    assert np.mean(left_out["text"]) > 0.95
    assert np.mean(left_out["document"]) > 0.5, "whole paragraphs"
