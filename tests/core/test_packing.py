from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from alula.core.packing import CELL_TEXTS, CELLS, NARROW, TOKEN_CELLS, beside, lay_out, widest

sizes = st.lists(st.integers(1, 300), min_size=1, max_size=64)


@given(sizes)
def test_every_text_has_its_place_in_one_row_that_is_wide_enough(lengths: list[int]) -> None:
    layout = lay_out(lengths)
    assert sorted(at for row in layout.rows for at in row) == list(range(len(lengths)))
    assert all(0 < sum(lengths[at] for at in row) <= layout.width for row in layout.rows)
    assert layout.width <= widest(max(lengths))


@given(st.lists(st.integers(8, NARROW), min_size=6, max_size=40))
def test_little_is_left_empty_where_there_are_several(lengths: list[int]) -> None:
    layout = lay_out(lengths)
    assert sum(lengths) >= 0.75 * len(layout.rows) * layout.width


@given(sizes, st.integers(0, 5))
def test_cells_and_tokens_lead_to_one_another(lengths: list[int], more: int) -> None:
    length = max(lengths) + more
    mask = (np.arange(length) < np.array(lengths)[:, None]).astype(np.int64)
    told = beside(mask)
    cells, texts, back = told[CELLS].reshape(-1), told[CELL_TEXTS].reshape(-1), told[TOKEN_CELLS]
    assert np.array_equal(np.sort(cells[texts >= 0]), np.flatnonzero(mask))
    assert np.array_equal(cells[texts >= 0] // length, texts[texts >= 0])
    assert np.array_equal(cells[back[mask == 1]], np.flatnonzero(mask))
    # What is asked for where there is no token is of the same text, so that no row sees another's.
    assert np.array_equal(texts[back], np.repeat(np.arange(len(lengths))[:, None], length, axis=1))


def test_a_token_that_is_hidden_before_others_keeps_its_cell() -> None:
    told = beside(np.array([[0, 1, 0, 1, 0], [0, 0, 0, 0, 0]]))
    assert np.bincount(told[CELL_TEXTS][told[CELL_TEXTS] >= 0]).tolist() == [4, 1]
