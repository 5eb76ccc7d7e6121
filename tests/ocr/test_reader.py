"""What may be asked of a reader."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from readers import InkReader

from alula.core.errors import InputError
from alula.documents import Notice, Page, Scan
from alula.ocr import Ask, ReaderKind, check, open_reader


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"task": "read"}, "task is 'read'; expected one of: document, text"),
        ({"task": "fields"}, "fields is missing for task 'fields'"),
        ({"task": "text", "fields": ("a",)}, "fields is not for task 'text'"),
        ({"task": "translate"}, "to is missing for task 'translate'"),
        ({"task": "ask"}, "question is missing for task 'ask'"),
        ({"task": "fields", "fields": ("a", "a")}, "expected different names"),
        ({"task": "fields", "fields": ("a", " ")}, "none of them empty"),
        ({"task": "text", "max_tokens": 0}, "max_tokens is 0"),
    ],
)
def test_what_cannot_be_asked_is_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said.replace("(", "\\(")):
        Ask(**given)


def test_a_page_keeps_the_size_place_and_notices_of_its_scan() -> None:
    dark = Notice(code="dark", message="dark")
    scan = Scan(
        source="a.pdf",
        index=3,
        pixels=np.zeros((20, 30, 3), np.uint8),
        notices=(dark,),
        timings={"open_ms": 2.0},
    )
    cut = Notice(code="cut", message="cut")
    page = Page.of(scan, text="x", notices=(cut,), timings={"read_ms": 3.0})
    assert (page.index, page.width, page.height, page.text) == (3, 30, 20, "x")
    assert page.notices == (dark, cut)
    assert page.timings == {"open_ms": 2.0, "read_ms": 3.0}
    assert page.noticed("dark")
    assert not page.noticed("failed")


def test_pixels_of_another_form_are_refused() -> None:
    with pytest.raises(InputError, match=r"a.png, page 1: pixels are float64 of \(4, 4\)"):
        Scan(source="a.png", index=0, pixels=np.zeros((4, 4)))  # type: ignore[arg-type] # the claim


def test_the_reader_of_a_folder_is_found_by_what_is_in_it(tmp_path: Path) -> None:
    kinds = {
        "ink": ReaderKind(
            called="an ink folder",
            holds=lambda folder: (folder / "ink").is_file(),
            open=lambda folder, threads: InkReader(),
        )
    }
    with pytest.raises(InputError, match="reads no pages; expected an ink folder"):
        open_reader(tmp_path, readers=kinds)
    with pytest.raises(InputError, match="there is none"):
        open_reader(tmp_path / "no", readers=kinds)
    (tmp_path / "ink").touch()
    with closing(open_reader(tmp_path, readers=kinds)) as reader:
        check(reader, Ask(task="text"))
        with pytest.raises(InputError, match="task is 'table'; ink does: document, text, spotting, subtitle"):
            check(reader, Ask(task="table"))
