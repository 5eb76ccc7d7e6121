from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from alula.verify.characters import edit_distance, edits, error_rate, spelled

LABELS = ("", "a", "b", " ")


def steps(*best: int) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    made = np.full((len(best), len(LABELS)), 0.1)
    made[np.arange(len(best)), best] = 0.7
    return made


@pytest.mark.parametrize(
    ("best", "line"),
    [
        ((), ""),
        ((0, 0, 0), ""),
        ((1, 1, 2, 2, 2), "ab"),
        ((1, 0, 1, 1, 0), "aa"),
        ((0, 2, 3, 1), "b a"),
        ((3, 3, 0, 3), "  "),
    ],
)
def test_repeats_count_once_unless_a_blank_stands_between(best: tuple[int, ...], line: str) -> None:
    assert spelled(steps(*best), LABELS) == line


def test_what_cannot_be_read_spells_nothing_at_all() -> None:
    wrong = steps(1, 2)
    wrong[1, 3] = np.nan
    assert spelled(wrong, LABELS) is None
    assert spelled(steps(1), LABELS[:-1]) is None
    assert spelled(steps(1)[0], LABELS) is None


@pytest.mark.parametrize(
    ("first", "second", "apart"),
    [
        ("", "", 0),
        ("", "ab", 2),
        ("kitten", "sitting", 3),
        ("1234", "1342", 2),
        ("ab", "ba", 2),
        ("x", "x", 0),
    ],
)
def test_the_distance_counts_insertions_deletions_and_replacements(
    first: str, second: str, apart: int
) -> None:
    assert edit_distance(first, second) == edit_distance(second, first) == apart


@given(*[st.text("ab", max_size=7)] * 3)
def test_the_distance_is_a_metric(a: str, b: str, c: str) -> None:
    assert (edit_distance(a, b) == 0) == (a == b)
    assert abs(len(a) - len(b)) <= edit_distance(a, b) <= max(len(a), len(b))
    assert edit_distance(a, c) <= edit_distance(a, b) + edit_distance(b, c)


def test_the_rate_is_over_all_lines_together() -> None:
    assert error_rate(edits(["123456789", "1"], ["123456789", "2"])) == 0.1
    assert np.isnan(error_rate(edits([""], ["1"])))
    assert np.isnan(error_rate(edits([], [])))
