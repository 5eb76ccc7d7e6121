"""Boxes that are not where something is printed are told."""

from __future__ import annotations

import numpy as np
import pytest

from alula.codecs import captioned
from alula.documents import Block, Pixels, Scan, printed, rectangle
from alula.ocr import Ask
from alula.ocr.answers import Written, page_of
from alula.ocr.odds import Odds
from alula.ocr.places import misplaced, outside


def page(lines: int = 4, rules: bool = False) -> Pixels:
    """White, 400 x 300, with lines of black strokes 20 pixels high every 60."""
    pixels = np.full((300, 400, 3), 255, np.uint8)
    for at in range(lines):
        pixels[20 + 60 * at : 40 + 60 * at, 40:240:8] = 0
    if rules:
        pixels[50:290:60, 10:390] = 0
        pixels[10:290, 300:303] = 0
    return pixels


def boxes(lines: int = 4, down: float = 0) -> list[Block]:
    return [
        Block(kind="line", text="x", box=rectangle(38, 20 + 60 * at + down, 242, 40 + 60 * at + down))
        for at in range(lines)
    ]


@pytest.mark.parametrize("rules", [False, True])
def test_boxes_around_all_lines_leave_nothing_out(rules: bool) -> None:
    assert list(misplaced(page(rules=rules), boxes())) == []
    assert list(misplaced(page(rules=rules), boxes(down=2))) == []


def test_lines_without_a_box_and_boxes_beside_their_lines_are_told() -> None:
    [missing] = misplaced(page(), boxes(3))
    assert missing.code == "unplaced"
    assert missing.message.startswith("25% of what is printed stands outside")
    [lower] = misplaced(page(), boxes(down=15))
    assert lower.code == "unplaced"
    [none] = misplaced(page(), [Block(kind="line", text="x")])
    assert none.message.startswith("100%")
    assert list(misplaced(page(0), [])) == [], "nothing is printed there"
    assert outside(printed(page()), [rectangle(-50, -50, 900, 900)]) == 0


def test_a_box_where_nothing_is_printed_is_told() -> None:
    """The sample page's `Amount` was said to stand beside a line, on bare paper, and its last row nowhere."""
    nowhere = Block(kind="line", text="Amount", box=rectangle(300, 20, 380, 40))
    [said] = misplaced(page(), [*boxes(), nowhere])
    assert said.code == "unplaced"
    assert said.message == "nothing is printed where these are said to stand: 'Amount'"
    flat = Block(kind="line", text="flat", box=rectangle(38, 20, 38, 20))
    [said] = misplaced(page(), [*boxes(), *[nowhere] * 5, flat])
    assert said.message.endswith("'Amount' and 1 more")


def test_only_a_model_that_was_taught_a_part_is_held_to_its_boxes() -> None:
    """The others read photographs, too, where not all that is dark is print."""
    odds = Odds(logs=[-0.01])
    scan, ask = Scan(source="a", index=0, pixels=page()), Ask(task="spotting")
    text = "xxxx(95,60),(605,140)"
    for known, codes in ((odds, ["unplaced"]), (Odds(), [])):
        found = page_of(scan, Written(text=text, odds=known), ask)
        assert [notice.code for notice in found.notices] == codes
        assert [block.text for block in found.blocks] == ["xxxx"]


def test_what_is_said_of_a_page_stands_below_it() -> None:
    plain = page()
    assert captioned(plain, []) is plain
    for width in (400, 30):
        shown = captioned(
            plain[:, :width], ["unplaced: 25% of what is printed stands outside of the boxes", "dark"]
        )
        assert (shown[:300] == plain[:, :width]).all()
        assert shown.shape[0] > 340
        red = (shown[300:] == (220, 0, 0)).all(2)
        assert red.any()
