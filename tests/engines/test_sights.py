"""What a decoder is told of images: which rows stand for which tokens, whoever they are beside."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from alula.core.decoding import IMAGE, IMAGE_AT, IMAGE_ROWS, PLACES, Work
from alula.core.errors import InputError
from alula.core.tensor import Feeds, TensorSpec
from alula.engines.sights import POSITIONS, Sights

INPUTS = (
    TensorSpec(name=POSITIONS, dtype="int64", shape=(2, "batch", "length")),
    TensorSpec(name=IMAGE, dtype="float32", shape=("image_tokens", 3)),
)


def given(*at: int, length: int, first: float) -> Feeds:
    """Rows that count from `first`, and places that are a hundred further on the second axis."""
    rows = np.full((len(at), 3), first, np.float32) + np.arange(len(at), dtype=np.float32)[:, None]
    return {
        IMAGE: rows,
        IMAGE_AT: np.array(at),
        PLACES: np.stack([np.arange(length), np.arange(length) + 100]),
    }


@pytest.fixture
def sights() -> Sights:
    made = Sights.of(INPUTS)
    assert made is not None
    made.start(7, given(1, 2, 4, length=6, first=10))
    made.start(8, {})
    made.start(9, given(0, 1, length=2, first=20))
    return made


def stands(feeds: Feeds) -> NDArray[np.float32]:
    """The first number of the row that stands for each token, -1 where none does."""
    rows = np.asarray(feeds[IMAGE_ROWS], np.int64)
    found: NDArray[np.float32] = np.where(
        rows < 0, -1, np.asarray(feeds[IMAGE], np.float32)[np.maximum(rows, 0), 0]
    )
    return found


def test_ragged_chunks_have_the_rows_of_their_own_tokens(sights: Sights) -> None:
    work = [
        Work(sequence=9, tokens=(5, 5), answers=False),
        Work(sequence=8, tokens=(5,), answers=True),
        Work(sequence=7, tokens=(5, 5, 5, 5), answers=True),
    ]
    told = sights.flat(work, [0, 3, 2])
    assert stands(told).ravel().tolist() == [20, 21, -1, 11, -1, 12, -1]
    places = np.asarray(told[POSITIONS])
    assert places.shape == (2, 7, 1)
    assert places[1, :, 0].tolist() == [100, 101, 3, 102, 103, 104, 105]


def test_behind_a_prompt_a_token_is_where_it_stands(sights: Sights) -> None:
    assert sights.positions(7, 5, 8).tolist() == [[5, 6, 7], [105, 6, 7]]
    assert sights.positions(8, 5, 7).tolist() == [[5, 6], [5, 6]]


def test_rows_side_by_side_and_those_that_fill_a_call(sights: Sights) -> None:
    told = sights.squared([9, 7], [0, 0], 2, 4)
    assert stands(told).tolist() == [[20, 21], [-1, 10], [20, 21], [20, 21]]
    assert np.asarray(told[POSITIONS]).shape == (2, 4, 2)


def test_where_nothing_is_seen_there_is_a_row_all_the_same(sights: Sights) -> None:
    """Products and look-ups of no rows are not every kernel's."""
    told = sights.flat([Work(sequence=8, tokens=(5,), answers=True)], [0])
    assert np.asarray(told[IMAGE]).tolist() == [[0, 0, 0]]
    assert stands(told).tolist() == [[-1]]
    sights.release(7)
    assert stands(sights.squared([7], [0], 3, 1)).tolist() == [[-1, -1, -1]]


def test_what_does_not_fit_together_is_refused(sights: Sights) -> None:
    whole = given(0, 1, length=2, first=0)
    with pytest.raises(
        InputError, match="the images are 2 tokens of the vision part, and the prompt has 1 places"
    ):
        sights.start(1, {**whole, IMAGE_AT: np.array([0])})
    with pytest.raises(InputError, match=r"places is \(2, 2\), expected \[2, tokens of the prompt\]"):
        sights.start(1, {**whole, IMAGE_AT: np.array([0, 2])})
    with pytest.raises(InputError, match=r"a sequence is given \['image'\]"):
        sights.start(1, {IMAGE: whole[IMAGE]})
    assert Sights.of(INPUTS[:1]) is None
