from __future__ import annotations

import numpy as np
import pytest

from alula.core.drawn import fill
from alula.core.tensor import Array, TensorSpec


def drawn(dtype: str, *, name: str = "x", ends: tuple[float, float] | None = None, rows: int = 400) -> Array:
    spec = TensorSpec(name=name, dtype=dtype, shape=("batch", 5), range=ends)
    return fill(np.random.default_rng(0), spec, {"batch": rows})


@pytest.mark.parametrize(
    ("dtype", "ends", "low", "high"),
    [
        ("int64", None, 0, 1),
        ("int32", None, 0, 1),
        ("uint16", None, 0, 1),
        ("uint8", None, 0, 255),
        ("int8", None, -128, 127),
        ("int64", (0.0, 30521.0), 0, 30521),
        ("int64", (7.0, 7.0), 7, 7),
        ("uint8", (1.0, 2.0), 1, 2),
        ("bool", None, 0, 1),
    ],
)
def test_whole_numbers_fill_their_range_and_nothing_else(
    dtype: str, ends: tuple[float, float] | None, low: int, high: int
) -> None:
    array = drawn(dtype, ends=ends, rows=100_000 if high > 1000 else 2000)
    assert array.dtype == dtype
    assert (int(array.min()), int(array.max())) == (low, high)


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
def test_floats_are_normal_or_even_over_their_range(dtype: str) -> None:
    free, bound = drawn(dtype).astype(np.float64), drawn(dtype, ends=(-2.0, 6.0)).astype(np.float64)
    assert abs(free.mean()) < 0.1
    assert abs(free.std() - 1) < 0.1
    assert -2 <= bound.min() < -1.8
    assert 5.8 < bound.max() <= 6
    assert abs(bound.mean() - 2) < 0.3


@pytest.mark.parametrize("dtype", ["int64", "bool", "uint8"])
def test_a_mask_has_ones_first_and_is_never_noughts_alone(dtype: str) -> None:
    mask = drawn(dtype, name="attention_mask").astype(np.int64)
    assert (np.diff(mask, axis=1) <= 0).all()
    assert set(mask.sum(axis=1).tolist()) == {1, 2, 3, 4}
    # A range that is stated is what counts, and one column is all that a row has.
    assert drawn("int64", name="mask", ends=(0.0, 9.0)).max() == 9
    spec = TensorSpec(name="mask", dtype="int64", shape=("batch", 1))
    assert fill(np.random.default_rng(0), spec, {"batch": 3}).tolist() == [[1], [1], [1]]


def test_a_scalar_is_an_array_of_no_axes() -> None:
    spec = TensorSpec(name="rate", dtype="int64", shape=(), range=(16000.0, 16000.0))
    array = fill(np.random.default_rng(0), spec, {})
    assert (array.shape, array.dtype, int(array)) == ((), np.dtype("int64"), 16000)
