from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alula.batching import BatchPolicy, take
from alula.core.errors import InputError


@given(
    lengths=st.lists(st.integers(1, 64), min_size=1, max_size=50),
    rows=st.integers(1, 16),
    cells=st.integers(64, 512),
)
def test_a_batch_is_as_large_as_its_limits_allow_and_no_larger(
    lengths: list[int], rows: int, cells: int
) -> None:
    count = take(lengths, BatchPolicy(max_rows=rows, max_cells=cells))
    assert 1 <= count <= min(rows, len(lengths))
    assert count * max(lengths[:count]) <= cells
    if count < min(rows, len(lengths)):  # one more would not have fitted
        assert (count + 1) * max(lengths[: count + 1]) > cells


@pytest.mark.parametrize(
    ("lengths", "count"),
    [
        ([], 0),
        ([1, 1, 1, 1], 4),
        ([1, 1, 1, 1, 1], 4),
        ([3, 3, 3], 2),
        ([2, 5], 1),  # the second row would pad both to 5
        ([8, 1], 1),
    ],
)
def test_the_oldest_go_first(lengths: list[int], count: int) -> None:
    assert take(lengths, BatchPolicy(max_rows=4, max_cells=8)) == count


@pytest.mark.parametrize(
    ("lengths", "count"),
    [
        ([64] * 9, 8),
        ([65] * 9, 2),
        ([65, 1, 1], 2),  # all are padded to the longest
        ([1, 1, 1, 65], 3),  # a long row would leave room for two
        ([512, 512], 1),
        ([9_999, 1], 1),
    ],
)
def test_of_long_rows_fewer_go_together_where_the_engine_takes_fewer(lengths: list[int], count: int) -> None:
    steps = ((128, 2), (64, 8), (512, 1))
    assert take(lengths, BatchPolicy(max_rows=8, steps=steps)) == count


@pytest.mark.parametrize("name", ["max_rows", "max_cells", "max_waiting_rows", "max_waiting_tokens"])
def test_a_limit_of_nothing_is_refused(name: str) -> None:
    nothing: dict[str, Any] = {name: 0}
    with pytest.raises(InputError, match=f"{name} is 0; expected at least 1"):
        BatchPolicy(**nothing)
