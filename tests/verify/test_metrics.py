from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alula.verify import metrics

ROWS = np.random.default_rng(0).normal(size=(5, 7))
NAN = np.where(np.arange(7) == 3, np.nan, ROWS)


def test_equal_rows_have_cosine_one_and_no_difference() -> None:
    assert metrics.cosines(ROWS, ROWS) == pytest.approx(np.ones(5))
    assert metrics.differences(ROWS, ROWS).tolist() == [0.0] * 5


def test_the_error_of_a_line_is_the_mean_over_its_steps() -> None:
    lines = np.zeros((2, 4, 3))
    other = lines.copy()
    other[1, 2] = (0.2, -0.6, 0.1)
    assert metrics.step_differences(lines, other) == pytest.approx([0, 0.15])
    assert metrics.step_differences(lines, other, scale=3.0) == pytest.approx([0, 0.05])
    other[0, 3, 1] = np.nan
    assert np.isnan(metrics.step_differences(lines, other)).tolist() == [True, False]


def test_the_one_component_that_differs_is_found() -> None:
    other = ROWS.copy()
    other[2, 4] += 0.5
    assert metrics.differences(ROWS, other) == pytest.approx([0, 0, 0.5, 0, 0])


@pytest.mark.parametrize(
    ("reference", "candidate"), [(ROWS, NAN), (NAN, ROWS), (NAN, NAN), (ROWS, ROWS * np.inf)]
)
def test_nan_and_infinity_on_either_side_never_count_as_near(
    reference: metrics.Floats, candidate: metrics.Floats
) -> None:
    assert not np.isfinite(metrics.cosines(reference, candidate)).any()
    assert not np.isfinite(metrics.differences(reference, candidate)).any()
    assert np.isnan(metrics.label_agreements(reference, candidate, tie=0.0)).all()
    assert np.isnan(metrics.decision_agreements(reference, candidate, tie=0.0)).any()
    assert np.isnan(metrics.order_agreements(reference, candidate, tie=0.0)).any()
    assert np.isnan(
        metrics.span_agreement((reference[0], reference[1]), (candidate[0], candidate[1]), tie=0.0)
    )


def test_a_row_of_zeros_has_no_direction_and_so_no_cosine() -> None:
    assert np.isnan(metrics.cosines(ROWS, np.zeros_like(ROWS))).all()


@pytest.mark.parametrize("candidate", [None, ROWS[:4], ROWS[:, :6], ROWS[None]])
def test_a_missing_output_or_another_shape_is_nan_throughout(candidate: metrics.Floats | None) -> None:
    aligned = metrics.aligned(ROWS, candidate)
    assert aligned.shape == ROWS.shape
    assert np.isnan(aligned).all()


def test_labels_agree_by_the_references_own_margin() -> None:
    reference = np.array([[3.0, 1.0], [3.0, 2.9], [1.0, 3.0]])
    flipped = reference[:, ::-1]
    assert metrics.label_agreements(reference, flipped, tie=0.2).tolist() == [0.0, 1.0, 0.0]
    assert metrics.label_agreements(reference, flipped, tie=0.0).tolist() == [0.0, 0.0, 0.0]
    assert metrics.label_agreements(reference, reference, tie=0.0).tolist() == [1.0, 1.0, 1.0]


def test_decisions_agree_on_the_side_of_zero() -> None:
    reference = np.array([[2.0, -0.05], [-2.0, 0.05]])
    given_logits = np.array([[1.0, 0.05], [1.0, 0.06]])
    assert metrics.decision_agreements(reference, given_logits, tie=0.1).tolist() == [1.0, 1.0, 0.0, 1.0]
    assert metrics.decision_agreements(reference, given_logits, tie=0.0).tolist() == [1.0, 0.0, 0.0, 1.0]


def test_order_is_judged_per_pair_and_ties_are_free() -> None:
    reference = np.array([[3.0], [1.0], [1.01]])
    assert metrics.order_agreements(reference, np.array([[9.0], [2.0], [1.0]]), tie=0.1).tolist() == [1, 1, 1]
    assert metrics.order_agreements(reference, np.array([[0.0], [2.0], [1.0]]), tie=0.1).tolist() == [0, 0, 1]
    assert metrics.order_agreements(reference, np.array([[9.0], [2.0], [1.0]]), tie=0.0).tolist() == [1, 1, 0]


def test_a_constant_output_keeps_no_order() -> None:
    reference = np.arange(4.0).reshape(-1, 1)
    assert metrics.order_agreements(reference, np.ones((4, 1)), tie=0.0).tolist() == [0.0] * 6


def test_the_best_span_does_not_end_before_it_starts() -> None:
    start, end = np.array([0.0, 1.0, 9.0]), np.array([0.0, 9.0, 1.0])
    assert metrics.best_span(start, end) == (1, 1)


def test_the_best_span_is_no_longer_than_allowed() -> None:
    start, end = np.zeros(50), np.zeros(50)
    start[0], end[40], end[10] = 5.0, 5.0, 1.0
    assert metrics.best_span(start, end) == (0, 10)


def test_spans_agree_when_the_reference_scores_them_alike() -> None:
    start, end = np.array([5.0, 4.95, 0.0]), np.array([0.0, 0.0, 5.0])
    other = np.array([4.9, 5.0, 0.0])
    assert metrics.span_agreement((start, end), (other, end), tie=0.1) == 1.0
    assert metrics.span_agreement((start, end), (other, end), tie=0.01) == 0.0


@settings(max_examples=60, deadline=None)
@given(noise=st.floats(0, 0.5), seed=st.integers(0, 1000), rows=st.integers(1, 6), labels=st.integers(1, 6))
def test_an_error_under_half_the_tie_never_breaks_agreement(
    noise: float, seed: int, rows: int, labels: int
) -> None:
    rng = np.random.default_rng(seed)
    reference = rng.normal(size=(rows, labels))
    candidate = reference + rng.uniform(-noise, noise, size=reference.shape)
    tie = 2 * noise + 1e-9
    assert metrics.label_agreements(reference, candidate, tie).all()
    assert metrics.decision_agreements(reference, candidate, tie).all()
    assert metrics.order_agreements(reference, candidate, tie).all()
    span = metrics.span_agreement((reference[0], reference[-1]), (candidate[0], candidate[-1]), 2 * tie)
    assert span == 1.0
