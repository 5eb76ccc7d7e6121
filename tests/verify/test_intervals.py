from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from alula.verify.intervals import Interval, bootstrap, of_mean, paired_difference, wilson


def test_wilson_is_what_textbooks_say() -> None:
    interval = wilson(0.1, 100)
    assert (interval.low, interval.high) == pytest.approx((0.0552, 0.1744), abs=1e-4)


def test_nought_of_957_rules_out_four_in_a_thousand_and_nought_of_956_does_not() -> None:
    assert wilson(0.0, 957).high < 0.004
    assert wilson(0.0, 956).high > 0.004


@given(samples=st.integers(1, 5000), data=st.data())
def test_wilson_holds_the_share_and_stays_within_nought_and_one(samples: int, data: st.DataObject) -> None:
    share = data.draw(st.integers(0, samples)) / samples
    interval = wilson(share, samples)
    assert 0 <= interval.low <= share <= interval.high <= 1
    assert interval.low < interval.high


@given(samples=st.integers(1, 5000), data=st.data())
def test_a_paired_difference_holds_its_point_and_never_claims_to_be_sure(
    samples: int, data: st.DataObject
) -> None:
    lost = data.draw(st.integers(0, samples))
    won = data.draw(st.integers(0, samples - lost))
    interval = paired_difference(lost, won, samples)
    assert -1 <= interval.low <= (lost - won) / samples <= interval.high <= 1
    assert interval.low < interval.high


def test_rows_without_any_change_say_the_more_the_more_there_are() -> None:
    few, many = paired_difference(0, 0, 20), paired_difference(0, 0, 2000)
    assert few.high == pytest.approx(0.0885, abs=1e-3)
    assert many.high == pytest.approx(0.00098, abs=1e-4)
    assert few.low == -few.high


def test_a_bootstrap_of_a_mean_is_near_the_normal_one_and_the_same_each_time() -> None:
    values = np.random.default_rng(3).normal(2.0, 1.0, size=400)
    interval = of_mean(values)
    assert interval is not None
    half = 1.96 * values.std() / 20
    assert (interval.low, interval.high) == pytest.approx(
        (values.mean() - half, values.mean() + half), abs=0.02
    )
    assert of_mean(values) == interval


def test_one_row_has_no_interval_and_neither_has_what_is_never_defined() -> None:
    assert of_mean(np.array([0.5])) is None
    assert bootstrap(lambda rows: float("nan"), 10) is None


def test_draws_without_a_value_do_not_count() -> None:
    interval = bootstrap(lambda rows: float("nan") if rows[0] == 0 else 1.0, 5)
    assert interval == Interval(1.0, 1.0)


def test_the_hull_of_two_intervals_holds_both() -> None:
    assert Interval(0.1, 0.2).hull(Interval(0.0, 0.15)) == Interval(0.0, 0.2)
