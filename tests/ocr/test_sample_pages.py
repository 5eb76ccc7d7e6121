"""The pages that the demo reads say what the demo takes them to say."""

from __future__ import annotations

import numpy as np
import pypdfium2
from PIL import Image
from sample_pages import NOTE, NOTE_PAGES, RECEIPT, RECEIPT_LINES, SIDE, note, receipt


def test_the_note_holds_its_lines_and_is_as_its_script_draws_it() -> None:
    assert NOTE.read_bytes() == note()
    document = pypdfium2.PdfDocument(str(NOTE))
    found = [page.get_textpage().get_text_range().split() for page in document]
    assert found == [" ".join(line.text for line in lines).split() for lines in NOTE_PAGES]


def test_the_receipt_is_as_its_script_draws_it_and_every_line_is_on_it() -> None:
    shipped, drawn = np.asarray(Image.open(RECEIPT)), np.asarray(receipt())
    assert shipped.shape == drawn.shape == (SIDE, SIDE)
    # Another release of the library that draws letters moves their edges a little.
    assert np.abs(shipped.astype(int) - drawn).mean() < 3
    for line in RECEIPT_LINES:
        assert shipped[line.y : line.y + line.size, line.x : line.x + 30].min() < 64, line.text


def test_both_are_small_enough_to_ship() -> None:
    assert RECEIPT.stat().st_size + NOTE.stat().st_size < 300_000
