from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alula.batching import Costs
from alula.batching.costs import SHAPES

SHAPES_TRIED = ((1, 8), (1, 64), (4, 32), (8, 128), (16, 16), (2, 256))


def test_before_anything_was_measured_cells_are_what_is_told_apart() -> None:
    costs = Costs()
    assert not costs.known
    assert costs.seconds(2, 64) > costs.seconds(2, 32) > costs.seconds(1, 32)


def test_a_line_is_found_again_through_noise() -> None:
    costs, rng = Costs(), random.Random(0)
    for _ in range(100):
        rows, length = rng.choice(SHAPES_TRIED)
        costs.learn(rows, length, (0.001 + 3e-5 * rows * length) * rng.uniform(0.9, 1.1), warm=True)
    assert costs.fixed_s == pytest.approx(0.001, rel=0.2)
    assert costs.cell_s == pytest.approx(3e-5, rel=0.1)
    assert costs.seconds(3, 100) == pytest.approx(0.01, rel=0.1)


def test_a_shape_that_is_off_the_line_is_known_by_what_it_took() -> None:
    costs = Costs()
    for _ in range(300):
        for rows, length in SHAPES_TRIED:
            slow = 2.0 if (rows, length) == (4, 32) else 1.0
            costs.learn(rows, length, slow * (0.001 + 3e-5 * rows * length))
    assert costs.seconds(4, 32) == pytest.approx(2 * (0.001 + 3e-5 * 128), rel=0.25)
    assert costs.seconds(5, 32) < costs.seconds(4, 32), "another shape is not"


def test_the_first_batch_of_a_shape_is_no_measure_of_the_next() -> None:
    costs = Costs()
    for _ in range(10):
        for rows, length in SHAPES_TRIED:
            costs.learn(rows, length, 0.001 + 3e-5 * rows * length, warm=True)
    before = costs.seconds(3, 40)
    assert not costs.ran_before(3, 40)
    costs.learn(3, 40, 0.02)
    assert costs.ran_before(3, 40)
    assert costs.seconds(3, 40) == pytest.approx(before, rel=0.01)
    assert costs.seconds(5, 48) > costs.cell_s * 5 * 48 + costs.fixed_s, (
        "kernels for new shapes cost something"
    )


def test_a_machine_that_becomes_half_as_fast_is_found_out() -> None:
    costs = Costs()
    for slow in (1.0, 2.0):
        for _ in range(60):
            for rows, length in SHAPES_TRIED:
                costs.learn(rows, length, slow * (0.001 + 3e-5 * rows * length), warm=True)
    assert costs.seconds(4, 32) == pytest.approx(2 * (0.001 + 3e-5 * 128), rel=0.1)


def test_one_disturbed_measurement_changes_little() -> None:
    costs = Costs()
    for _ in range(20):
        for rows, length in SHAPES_TRIED:
            costs.learn(rows, length, 0.001 + 3e-5 * rows * length, warm=True)
    before = costs.seconds(8, 128)
    costs.learn(8, 128, 10.0)
    assert costs.seconds(8, 128) < 1.3 * before


@given(
    measured=st.lists(
        st.tuples(st.integers(1, 64), st.integers(1, 512), st.floats(1e-9, 1e3)), min_size=1, max_size=40
    )
)
def test_whatever_is_measured_a_batch_costs_something_and_more_rows_no_less(
    measured: list[tuple[int, int, float]],
) -> None:
    costs = Costs()
    for rows, length, seconds in measured:
        costs.learn(rows, length, seconds)
    assert 0 < costs.row_seconds(64, 32) < float("inf")
    assert 0 < costs.seconds(1, 8) < float("inf")
    assert costs.fixed_s >= 0 < costs.cell_s


def test_shapes_that_are_remembered_are_bounded() -> None:
    costs = Costs()
    for length in range(1, SHAPES + 10):
        costs.learn(1, length, 1e-3, warm=True)
    assert not costs.ran_before(1, 1)
    assert costs.ran_before(1, SHAPES)
    assert len(costs._seen) == SHAPES
