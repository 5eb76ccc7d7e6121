"""Tables between HTML and rows."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alula.documents import tables_in, to_html, to_rows
from alula.documents.tables import MOST_CELLS, clean, parts


@pytest.mark.parametrize(
    ("source", "rows"),
    [
        ("<table><tr><td>a</td><td>b</td></tr><tr><td>c</td></tr></table>", (("a", "b"), ("c", ""))),
        (
            '<table><tr><td colspan="2">a</td><td rowspan=2>b</td></tr><tr><td>c<td>d</table>',
            (("a", "", "b"), ("c", "d", "")),
        ),
        ('<table><tr><td rowspan="3">a</td><td>b</td></tr><tr><td>c', (("a", "b"), ("", "c"), ("", ""))),
        (
            "<TABLE><thead><tr><th> x  y<br>z </th></tr></thead><tbody><tr><td>1 &lt; 2 &amp;c</td></tr></TABLE>",
            (("x y\nz",), ("1 < 2 &c",)),
        ),
        (
            "<table><tr><td>a<table><tr><td>in</td></tr></table>z</td><td>b</td></tr></table>",
            (("ainz", "b"),),
        ),
        ("<table><td>no row</td></table>", (("no row",),)),
        ("<table></table>", ()),
        ("no table", ()),
        (
            '<table><tr><td colspan="0">a</td><td colspan="x">b</td><td colspan="-1">c</td></table>',
            (("a", "b", "c"),),
        ),
    ],
)
def test_html_as_rows(source: str, rows: tuple[tuple[str, ...], ...]) -> None:
    assert to_rows(source) == rows


def test_spans_that_would_fill_the_memory_are_cut() -> None:
    begin = time.monotonic()
    cell = '<td colspan="1000" rowspan="1000">x</td>'
    rows = to_rows(f"<table>{f'<tr>{cell * 50}</tr>' * 50}</table>")
    assert 0 < sum(map(len, rows)) <= MOST_CELLS
    assert rows[0][0] == "x"
    assert time.monotonic() - begin < 10


_CELLS = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Z"]), max_size=6)


@given(
    st.integers(1, 4).flatmap(
        lambda n: st.lists(st.lists(_CELLS, min_size=n, max_size=n), min_size=1, max_size=4)
    )
)
def test_rows_survive_being_written(rows: list[list[str]]) -> None:
    assert to_rows(to_html(rows)) == tuple(map(tuple, rows))


def test_a_table_is_found_within_text_and_one_that_is_cut_off_too() -> None:
    text = "before <table><tr><td>1</td></tr></table> between\n<table><tr><td>2</td><td>3"
    assert [table.rows for table in tables_in(text)] == [(("1",),), (("2", "3"),)]
    assert "".join(part for part, _ in parts(text)) == text
    assert [table for _, table in parts(text)] == [False, True, False, True]
    assert tables_in("tablets") == ()


def test_nothing_but_cells_and_spans_survives_cleaning() -> None:
    bad = '<table onclick="x()"><tr><td colspan=2 style="y"><script>alert(1)</script>&lt;b&gt;</td></tr></table>'
    assert clean(bad) == '<table><tr><td colspan="2">alert(1)&lt;b&gt;</td></tr></table>'
