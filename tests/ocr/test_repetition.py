"""Loops are told from what a page repeats itself."""

from __future__ import annotations

import time
import uuid

import pytest

from alula.ocr.repetition import (
    CHECKED_EVERY,
    LEAST_CHARACTERS,
    LEAST_TIMES_OF_FORMS,
    LONGEST_UNIT,
    Guard,
    loop_at_end,
    without_loop,
)

ROW = "<tr><td>0.00</td><td>0.00</td><td>n/a</td></tr>"
LONG = "".join(chr(ord("a") + at % 26) for at in range(249)) + "1234567"


@pytest.mark.parametrize(
    ("begin", "unit", "end"),
    [
        ("A page. ", "and then ", ""),
        ("", "the same line again\n", "the same"),
        ("x", LONG, LONG[:100]),
        ("<table>", "<td></td>", "<td>"),
        ("<table>", ROW, ""),
        ("Chapter 1 ", ".", ""),
        ("end", "\n", ""),
        ("数", "重复的文字、", "重复"),
    ],
)  # fmt: skip
def test_a_loop_is_ended_soon_after_it_has_begun(begin: str, unit: str, end: str) -> None:
    guard, written = Guard(), begin
    stream = begin + unit * 4000 + end
    loop = None
    for at in range(0, len(stream), 7):
        written = stream[: at + 7]
        if (loop := guard.push(stream[at : at + 7])) is not None:
            break
    assert loop is not None
    assert (
        len(written)
        <= len(begin) + max(LEAST_CHARACTERS, LEAST_TIMES_OF_FORMS * len(unit)) + 2 * CHECKED_EVERY
    )
    kept = without_loop(written, loop)
    assert stream.startswith(kept)
    assert len(begin) <= len(kept) <= len(begin) + len(unit)
    assert len(LONG) == LONGEST_UNIT


@pytest.mark.parametrize(
    "honest",
    [
        f"<table>{ROW * 12}</table>",
        f"<table>{ROW * 12}",
        f"<table>{'<tr>' + '<td></td>' * 12 + '</tr>'}" * 30,
        "card **** **** **** 1234 and ************1234",
        f"id {uuid.UUID(int=0)}, {uuid.UUID(int=0x12345678123456781234567812345678)}",
        "".join(f"{at} Chapter {'.' * 90} {at}\n" for at in range(40)),
        f"name: {'_' * 80}\n" * 12,
        "N/A\n" * 100,
        "0" * 400,
        "Mr. Bo Ng, 12 Long Street, 1234 Town\n" * 24,
        "".join(f"row {at} of the same table\n" for at in range(400)),
        "",
        "ab",
    ],
)
def test_honest_repetition_is_left_alone(honest: str) -> None:
    """xberg-io/xberg#1704: what guards against loops spoilt identifiers and tables of equal cells."""
    guard = Guard()
    assert [loop for at in range(0, len(honest), 5) if (loop := guard.push(honest[at : at + 5]))] == []
    assert loop_at_end(honest) is None


def test_a_loop_that_the_page_breaks_out_of_is_none() -> None:
    assert loop_at_end("again " * 500 + "and then the page ends with a line of its own") is None


def test_following_a_long_answer_is_cheap() -> None:
    guard = Guard()
    text = "".join(f"{at:05} some line of a page, which is like others. " for at in range(1500))
    begin = time.process_time()
    for at in range(0, len(text), 4):
        assert guard.push(text[at : at + 4]) is None
    assert time.process_time() - begin < 2.0, "for 70 thousand characters"
