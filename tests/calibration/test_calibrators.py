"""Ranges from statistics: what counts, what does not, and what is refused."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Mapping

import numpy as np
import pytest
from numpy.typing import NDArray

from alula.calibration import METHODS, Amplitudes, Calibrator, MinMax, Percentile, calibrator
from alula.calibration.histogram import HALF, Histogram
from alula.core.errors import InputError

Floats = NDArray[np.float32]

each_method = pytest.mark.parametrize("method", METHODS)


@pytest.fixture
def values() -> Floats:
    """A bell with one value far out, [batch, length, features]."""
    values = np.random.default_rng(0).standard_normal((12, 10, 64)).astype(np.float32)
    values[3, 2, 1] = 40.0
    return values


def ranges(method: str, *batches: Floats, masks: tuple[NDArray[np.bool_], ...] = ()) -> tuple[float, float]:
    made = calibrator(method)
    for at, batch in enumerate(batches):
        made.add("x", batch, masks[at] if masks else None)
    return made.ranges()["x"]


@each_method
def test_how_values_were_cut_into_batches_and_their_order_do_not_matter(method: str, values: Floats) -> None:
    """huggingface/optimum#409: entropy failed where a batch had more than one example."""
    whole = ranges(method, values)
    assert ranges(method, *values) == whole
    assert ranges(method, *values[::-1]) == whole
    assert ranges(method, np.zeros_like(values[0]), *values) == ranges(
        method, *values, np.zeros_like(values[0])
    )


@each_method
def test_padding_changes_no_range_whatever_it_holds(method: str, values: Floats) -> None:
    kept = np.zeros((12, 30), np.bool_)
    kept[:, :10] = True
    padded = np.full((12, 30, 64), np.nan, np.float32)
    padded[:, :10] = values
    assert ranges(method, padded, masks=(kept,)) == ranges(method, values)


def test_padding_that_is_counted_changes_ranges(values: Floats) -> None:
    padded = np.concatenate([values, np.full_like(values, 500.0)], axis=1)
    assert ranges("min-max", padded) != ranges("min-max", values)


def test_min_max_is_exact(values: Floats) -> None:
    assert ranges("min-max", *values) == (float(values.min()), 40.0)


@pytest.mark.parametrize("share", [90.0, 99.0, 99.9])
def test_a_percentile_leaves_half_of_the_rest_on_either_side(share: float, values: Floats) -> None:
    made = Percentile(share)
    made.add("x", values, None)
    low, high = made.ranges()["x"]
    width = 2.0**6 / HALF
    cut = (100 - share) / 2
    assert low == pytest.approx(np.percentile(values, cut), abs=3 * width)
    assert high == pytest.approx(np.percentile(values, 100 - cut), abs=3 * width)


def test_entropy_gives_up_a_lone_value_to_resolve_the_others(values: Floats) -> None:
    low, high = ranges("entropy", values)
    assert 2.0 < high < 20.0
    assert low == pytest.approx(float(values.min()), abs=1.5)


def test_entropy_keeps_all_of_what_has_no_tail() -> None:
    even = np.linspace(-1, 3, 40_001, dtype=np.float32)
    assert ranges("entropy", even) == pytest.approx((-1.0, 3.0), abs=0.01)


@each_method
@pytest.mark.parametrize(
    "spoil",
    [lambda x: x * np.nan, lambda x: x / 0, lambda x: np.append(x, -np.inf)],
    ids=["not a number", "infinite", "one infinite"],
)
def test_what_is_not_finite_is_refused_by_name(method: str, spoil: Callable[[Floats], Floats]) -> None:
    with np.errstate(divide="ignore"):
        spoilt = spoil(np.ones(4, np.float32)).astype(np.float32)
    with pytest.raises(InputError, match=r"^layer.3/input is not finite in \d of \d values"):
        calibrator(method).add("layer.3/input", spoilt, None)


@each_method
def test_nothing_seen_is_refused(method: str) -> None:
    with pytest.raises(InputError, match="no activation was seen"):
        calibrator(method).ranges()
    made = calibrator(method)
    made.add("x", np.ones((2, 3, 4), np.float32), np.zeros((2, 3), np.bool_))
    with pytest.raises(InputError, match=r"^x: no value was seen that is not padding"):
        made.ranges()


@each_method
def test_constants_zeros_and_tiny_values_have_ranges(method: str) -> None:
    for constant in (0.0, 3.5, -2.0, 1e-42):
        low, high = ranges(method, np.full((2, 3), constant, np.float32))
        assert low <= np.float32(constant) <= high


def test_a_mask_of_another_shape_is_refused() -> None:
    with pytest.raises(
        InputError, match=r"^x: shape \(2, 3, 4\) does not begin with that of its mask, \(2, 4\)"
    ):
        MinMax().add("x", np.ones((2, 3, 4), np.float32), np.ones((2, 4), np.bool_))


def test_an_unknown_method_is_refused_with_those_there_are() -> None:
    with pytest.raises(
        InputError, match="calibration method 'mse' is not one of: min-max, percentile, entropy"
    ):
        calibrator("mse")


def test_a_thousand_images_take_no_more_memory_than_a_hundred() -> None:
    """microsoft/onnxruntime#21979: every activation of every image was kept until the last had been seen."""
    drawn = np.random.default_rng(0)
    images = [drawn.standard_normal((1, 3, 64, 64)).astype(np.float32) for _ in range(4)]
    for method in METHODS:
        made = calibrator(method)
        tracemalloc.start()
        try:
            for at in range(1000):
                made.add("x", images[at % 4] * (1 + at % 7), None)
                if at == 100:
                    level = tracemalloc.get_traced_memory()[0]
            assert tracemalloc.get_traced_memory()[0] - level < images[0].nbytes, method
        finally:
            tracemalloc.stop()
        assert made.ranges()["x"][1] > 1


def test_a_histogram_stays_as_large_as_it_is() -> None:
    seen = Histogram("x")
    for power in range(-60, 60):
        seen.add(np.array([2.0**power, -(2.0**power)], np.float32))
    assert seen.counts.shape == (2 * HALF,)
    assert seen.total == 240
    assert (seen.low, seen.high) == (-(2.0**59), 2.0**59)
    assert seen.width == 2.0**60 / HALF


def test_activations_do_not_mix() -> None:
    made: Calibrator = calibrator("min-max")
    made.add("a", np.array([1.0, 2.0], np.float32), None)
    made.add("b", np.array([-5.0], np.float32), None)
    found: Mapping[str, tuple[float, float]] = made.ranges()
    assert found == {"a": (1.0, 2.0), "b": (-5.0, -5.0)}


def test_amplitudes_are_the_largest_magnitude_per_channel_without_padding() -> None:
    values = np.array([[[1.0, -2.0], [3.0, np.nan]], [[-4.0, 0.5], [9.0, 9.0]]], np.float32)
    kept = np.array([[True, False], [True, False]])
    made = Amplitudes()
    made.add("x", values[:1], kept[:1])
    made.add("x", values[1:], kept[1:])
    assert made.sizes()["x"].tolist() == [4.0, 2.0]
    with pytest.raises(InputError, match=r"^x is not finite in 1 of 8 values"):
        made.add("x", values, None)


def test_amplitudes_of_images_have_their_channels_second_whatever_the_width() -> None:
    rng = np.random.default_rng(0)
    wide, narrow = (rng.standard_normal((2, 5, 4, width)).astype(np.float32) for width in (9, 3))
    made = Amplitudes({"x": 1})
    made.add("x", wide, None)
    made.add("x", narrow, None)
    both = np.concatenate([wide, narrow], axis=3)
    assert made.sizes()["x"].tolist() == np.abs(both).max(axis=(0, 2, 3)).tolist()
