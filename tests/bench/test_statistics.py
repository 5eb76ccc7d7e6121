from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from alula.bench.statistics import latency, median_interval, percentile, ratio
from alula.core.errors import InputError

TIMES = st.lists(st.floats(0.01, 1e4), min_size=1, max_size=150)


def test_percentiles_are_values_that_were_measured() -> None:
    values = list(range(1, 101))
    assert [percentile(values, share) for share in (0.5, 0.9, 0.99)] == [50, 90, 99]


@pytest.mark.parametrize(("share", "enough"), [(0.5, 2), (0.9, 10), (0.99, 100)])
def test_a_percentile_is_not_given_from_too_few_values(share: float, enough: int) -> None:
    assert percentile([1.0] * (enough - 1), share) is None
    assert percentile([1.0] * enough, share) == 1.0


def test_nan_is_not_sorted_away() -> None:
    assert math.isnan(percentile([1.0, math.nan, 2.0], 0.5) or 0.0)


def test_a_share_outside_zero_and_one_is_refused() -> None:
    with pytest.raises(InputError, match="a share between 0 and 1, got 99"):
        percentile([1.0], 99)


@given(TIMES)
def test_percentiles_rise_and_lie_within_the_values(times: list[float]) -> None:
    found = latency(times)
    assert found.runs == len(times)
    known = [value for value in (found.p90_ms, found.p99_ms) if value is not None]
    assert known == sorted(known)
    assert all(min(times) <= value <= max(times) for value in [found.p50_ms, *known])


def test_no_timings_are_refused() -> None:
    with pytest.raises(InputError, match="at least one run is needed"):
        latency([])


def test_a_drifting_machine_does_not_hide_who_is_faster() -> None:
    drift = np.linspace(1, 5, 12)
    found = ratio((20 * drift).tolist(), (10 * drift).tolist())
    assert found.median == pytest.approx(2)
    assert found.low == pytest.approx(2)
    assert found.high == pytest.approx(2)
    assert found.verdict == "faster"
    assert ratio((10 * drift).tolist(), (20 * drift).tolist()).verdict == "slower"


def test_a_difference_that_comes_and_goes_is_unclear() -> None:
    assert ratio([10, 12] * 5, [12, 10] * 5).verdict == "unclear"


def test_under_six_rounds_there_is_no_interval() -> None:
    five, six = ratio([2.0] * 5, [1.0] * 5), ratio([2.0] * 6, [1.0] * 6)
    assert (five.low, five.high, five.verdict) == (None, None, "unclear")
    assert (six.low, six.high, six.verdict) == (2.0, 2.0, "faster")


def test_rounds_that_one_side_lacks_are_refused_not_dropped() -> None:
    with pytest.raises(InputError, match="as many rounds on both sides, got 2 and 1"):
        ratio([1.0, 2.0], [1.0])


def test_the_interval_holds_the_true_median_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    held = 0
    for _ in range(400):
        low, high = median_interval(rng.exponential(size=15).tolist()) or (math.nan, math.nan)
        held += low <= math.log(2) <= high
    assert held >= 0.93 * 400


@given(st.lists(st.floats(0.1, 10), min_size=1, max_size=60))
def test_an_interval_is_ordered_and_within_the_values(values: list[float]) -> None:
    found = median_interval(values)
    assert (found is None) == (len(values) < 6)
    if found:
        assert min(values) <= found[0] <= found[1] <= max(values)
