"""The pages that the benchmark of readers draws."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from ocr_pages import CHINESE, KINDS, LATIN, Fonts, characters, draw

ROOTS = [Path("/usr/share/fonts")]


def test_fonts_that_are_missing_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"DejaVuSans\.ttf") as raised:
        Fonts([tmp_path])
    assert all(name in str(raised.value) for name in (*LATIN, *CHINESE))


def test_what_is_compared_has_letters_of_one_width_and_no_spaces() -> None:
    assert characters("\uff211 合同\uff0c\n b") == "A1合同,b"


@pytest.mark.parametrize("kind", KINDS)
def test_a_page_is_the_same_each_time_and_its_text_is_where_it_says(kind: str) -> None:
    try:
        fonts = Fonts(ROOTS)
    except FileNotFoundError as error:
        pytest.skip(str(error))
    page, again = draw(kind, 3, fonts), draw(kind, 3, fonts)
    assert np.array_equal(np.asarray(page.image), np.asarray(again.image))
    assert page.lines == again.lines
    levels = np.asarray(page.image.convert("L"))
    if kind != "tilted":
        for line in page.lines:
            left, top, right, bottom = line.box
            assert levels[top:bottom, left:right].min() < levels[top:bottom, : left // 2].mean() - 60
