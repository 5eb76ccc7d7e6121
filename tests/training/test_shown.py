"""The pages that the small model is shown with say what is written beside them, in characters that it knows."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pypdfium2
import pytest
from PIL import Image
from training.characters import ALPHABET
from training.fonts import Fonts
from training.shown import BILL, DOCUMENT, LETTER, NOTICE, PICTURE, WRITTEN, drawn
from training.tokenizer import build

SHIPPED = Path(__file__).parents[2] / "examples" / "pages"
SHEETS = (BILL, LETTER, NOTICE)
MOST_TOKENS = 300
"""Hardly a document of the training has more."""


def test_what_is_written_beside_the_pages_is_what_their_script_writes() -> None:
    assert json.loads((SHIPPED / WRITTEN).read_text("utf-8")) == [sheet.markdown for sheet in SHEETS]
    tokenizer = build()
    for sheet in SHEETS:
        assert not set(sheet.markdown + sheet.note) - set(ALPHABET) - {"\n"}
        assert len(tokenizer.encode(sheet.markdown, add_special_tokens=False).ids) <= MOST_TOKENS


def test_the_pages_that_ship_have_ink_where_their_script_writes(fonts: Path) -> None:
    """In other fonts: those that drew them cannot be installed with the package."""
    page = Image.open(SHIPPED / PICTURE)
    document = pypdfium2.PdfDocument(str(SHIPPED / DOCUMENT))
    pages = [page, *(each.render(scale=200 / 72).to_pil() for each in document)]
    font = Fonts.open(fonts, held=True).latin[0]
    assert [each.size for each in pages] == [(640, 640)] * len(SHEETS)
    for each, sheet in zip(pages, SHEETS, strict=True):
        rows = [np.asarray(image.convert("L")).min(axis=1) < 128 for image in (each, drawn(sheet, font))]
        assert (rows[0] & rows[1]).sum() > 0.8 * rows[0].sum()


def test_a_line_or_a_page_that_does_not_fit_is_refused(fonts: Path) -> None:
    font = Fonts.open(fonts, held=True).latin[0]
    with pytest.raises(ValueError, match=r"'wwww.* pixels wide, and has 584"):
        drawn(replace(BILL, paragraphs=(("w" * 60,),)), font)
    with pytest.raises(ValueError, match="pixels long, and 640 high"):
        drawn(replace(BILL, paragraphs=(("w",) * 12,)), font)
