from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from math import inf
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alula.batching import BatchPolicy, Costs, Unit, arranged, at_once, choose, next_turn, packs
from alula.batching.policy import FREE_S, PATIENCE, SHARE
from alula.core.errors import InputError

LENGTHS = (8, 16, 32, 64, 128, 256)
POLICY = BatchPolicy(max_rows=16, max_cells=2_048, lengths=LENGTHS)


def linear(fixed_s: float = 0.001, cell_s: float = 3e-5) -> Costs:
    """An engine as OpenVINO is on two cores: a millisecond for a call, and the rest by the cell."""
    costs = Costs()
    for _ in range(20):
        for rows, length in ((1, 8), (1, 64), (4, 32), (8, 128)):
            costs.learn(rows, length, fixed_s + cell_s * rows * length, warm=True)
    return costs


COSTS = linear()


def unit(
    length: int,
    place: float = 0.0,
    deadline: float = inf,
    policy: BatchPolicy = POLICY,
    costs: Costs = COSTS,
) -> Unit:
    padded = policy.padded(length)
    return Unit(
        rows=1, longest=padded, worth=arranged(policy, costs).row_s(padded), place=place, deadline=deadline
    )


units = st.builds(unit, st.integers(1, 256), st.floats(-5, 0), st.one_of(st.just(inf), st.floats(0.001, 0.2)))


@given(
    waiting=st.lists(units, min_size=1, max_size=40),
    rows=st.integers(1, 16),
    cells=st.integers(256, 2_048),
    mixed=st.booleans(),
)
def test_a_batch_holds_somebody_and_keeps_its_limits(
    waiting: list[Unit], rows: int, cells: int, mixed: bool
) -> None:
    policy = BatchPolicy(max_rows=rows, max_cells=cells, lengths=LENGTHS, mixed=mixed)
    waiting = sorted(waiting, key=lambda each: each.place)
    batch = choose(waiting, 0.0, policy, COSTS)
    assert batch
    assert len(set(batch)) == len(batch) <= rows
    longest = max(waiting[at].longest for at in batch)
    assert len(batch) * longest <= cells
    assert mixed or {waiting[at].longest for at in batch} == {longest}


def test_nobody_waiting_is_no_batch() -> None:
    assert choose([], 0.0, POLICY, COSTS) == []


def test_rows_of_like_lengths_go_together() -> None:
    waiting = [unit(length) for length in (250, 8, 249, 7, 251, 6)]
    batch = set(choose(waiting, 0.0, POLICY, COSTS))
    assert len(batch) > 1
    assert batch <= {0, 2, 4} or batch <= {1, 3, 5}


def test_where_a_call_costs_the_same_whatever_is_in_it_all_go_together() -> None:
    flat = linear(0.01, 1e-9)
    waiting = [unit(length, costs=flat) for length in (250, 8, 249, 7, 251, 6)]
    assert sorted(choose(waiting, 0.0, POLICY, flat)) == [0, 1, 2, 3, 4, 5]


def test_where_cells_are_all_that_costs_a_few_rows_are_as_good_as_many_and_done_sooner() -> None:
    for costs, rows in ((linear(1e-6, 1e-4), 1), (linear(0.01, 1e-6), 16)):
        waiting = [unit(128, costs=costs) for _ in range(16)]
        assert len(choose(waiting, 0.0, POLICY, costs)) == rows


def test_the_oldest_is_not_passed_for_ever() -> None:
    short = [unit(8) for _ in range(20)]
    backlog = sum(each.worth for each in short) + unit(250).worth
    assert 0 not in choose([unit(250, place=-0.1 * backlog), *short], 0.0, POLICY, COSTS)
    assert 0 in choose([unit(250, place=-(PATIENCE + 0.1) * backlog), *short], 0.0, POLICY, COSTS)
    # ... and where its time runs, sooner.
    in_time = unit(250, place=-0.01, deadline=-0.01 + 0.01 / SHARE)
    assert 0 in choose([in_time, *(unit(8, deadline=1.0) for _ in range(2))], 0.0, POLICY, COSTS)


@settings(max_examples=25)
@given(lengths=st.lists(st.integers(1, 256), min_size=1, max_size=12), arrivals=st.lists(st.integers(1, 16)))
def test_all_are_served_in_the_end_and_none_after_all_who_came_much_later(
    lengths: list[int], arrivals: list[int]
) -> None:
    """A stream of short rows never lets a long one wait for longer than a few times all the work there is."""
    now, waiting, coming = 0.0, [unit(length) for length in lengths], list(arrivals)
    most = 0.0
    while waiting:
        batch = choose(waiting, now, POLICY, COSTS)
        work = sum(each.worth for each in waiting)
        longest = max(waiting[at].longest for at in batch)
        took = COSTS.seconds(len(batch), longest)
        most = max(most, PATIENCE * work + 2 * took + COSTS.seconds(16, 128))
        now += took
        assert all(now - waiting[at].place <= most * (1 + len(lengths)) for at in batch)
        waiting = [each for at, each in enumerate(waiting) if at not in batch]
        if coming:
            waiting.append(unit(coming.pop(), place=now))


@given(works=st.lists(st.floats(0.001, 1.0), min_size=1, max_size=40))
def test_only_so_much_of_a_list_waits_as_one(works: list[float]) -> None:
    count = at_once(works)
    assert count == 1 or sum(works[:count]) <= FREE_S + 1e-9
    assert count == len(works) or sum(works[: count + 1]) > FREE_S


def test_the_next_of_a_list_has_its_turn_after_twice_the_work_of_the_last() -> None:
    assert next_turn(5.0, 0.5, 1) == 6.0
    assert next_turn(5.0, 0.5, 2) == 5.5


def test_who_has_no_turn_yet_is_looked_at_where_nobody_has() -> None:
    later = [replace(unit(250), turn=inf) for _ in range(3)]
    assert choose(later, 0.0, POLICY, COSTS)
    assert choose([*later, unit(8, place=-0.001)], 0.0, POLICY, COSTS) == [3]
    assert choose([*later, replace(unit(8, place=9.0), turn=9.0)], 0.0, POLICY, COSTS) != [3]


@given(jobs=st.lists(st.tuples(st.sampled_from(LENGTHS), st.integers(1, 60)), min_size=1, max_size=5))
def test_as_many_are_in_time_as_can_be(jobs: list[tuple[int, int]]) -> None:
    """Row by row, where every order was tried."""
    policy = BatchPolicy(max_rows=1, lengths=LENGTHS)
    waiting = [unit(length, deadline=ms / 1e3, policy=policy) for length, ms in jobs]

    def in_time(order: tuple[Unit, ...]) -> int:
        done = count = 0.0
        for each in order:
            done += COSTS.seconds(1, each.longest)
            count += done <= each.deadline
        return int(count)

    best = max(in_time(order) for order in permutations(waiting))
    now, count, left = 0.0, 0, list(waiting)
    while left:
        (at,) = choose(left, now, policy, COSTS)
        now += COSTS.seconds(1, left[at].longest)
        count += now <= left[at].deadline
        left.pop(at)
        left = [each for each in left if each.deadline >= now]  # those whose time is over leave
    assert count == best


@pytest.mark.parametrize(
    ("lengths", "rows"),
    [
        ([5], [[0]]),
        ([60, 61, 62], [[0, 1, 2]]),
        ([8] * 20, [16, 4]),  # more than the engine takes
        (
            [250, 8, 8, 8, 8, 8, 8, 8],
            [[0], [1, 2, 3, 4, 5, 6, 7]],
        ),  # padding would cost more than a second call
    ],
)
def test_a_packed_request_runs_as_packed_where_it_fits(lengths: list[int], rows: list[Any]) -> None:
    found = packs(lengths, POLICY, COSTS)
    assert sorted(at for pack in found for at in pack) == list(range(len(lengths)))
    assert all(len(pack) <= POLICY.rows(max(POLICY.padded(lengths[at]) for at in pack)) for pack in found)
    if all(isinstance(each, list) for each in rows):
        assert sorted(found) == rows
    else:
        assert len(found) >= len(rows)


@given(lengths=st.lists(st.integers(1, 256), min_size=1, max_size=60))
def test_packs_lose_no_row_and_keep_the_limits(lengths: list[int]) -> None:
    found = packs(lengths, POLICY, COSTS)
    assert sorted(at for pack in found for at in pack) == list(range(len(lengths)))
    for pack in found:
        assert len(pack) <= POLICY.rows(max(POLICY.padded(lengths[at]) for at in pack))


@pytest.mark.parametrize(("length", "rows"), [(64, 8), (65, 2), (128, 2), (512, 1), (9_999, 1)])
def test_of_long_rows_fewer_go_together_where_the_engine_takes_fewer(length: int, rows: int) -> None:
    steps = ((128, 2), (64, 8), (512, 1))
    assert BatchPolicy(max_rows=8, steps=steps).rows(length) == rows


@pytest.mark.parametrize(("length", "rows"), [(1, 8), (100, 8), (101, 7), (400, 2), (9_999, 1)])
def test_a_batch_has_no_more_bytes_than_it_may_have(length: int, rows: int) -> None:
    policy = BatchPolicy(max_rows=8, max_bytes=8_800, row_bytes=100, cell_bytes=10)
    assert policy.rows(length) == rows
    waiting = [unit(length, policy=policy) for _ in range(10)]
    assert len(choose(waiting, 0.0, policy, linear(0.01, 1e-9))) <= rows


def test_lengths_are_padded_to_the_next_one_that_is_there() -> None:
    assert [POLICY.padded(length) for length in (1, 8, 9, 256, 300)] == [8, 8, 16, 256, 300]


@pytest.mark.parametrize(
    "name", ["max_rows", "max_cells", "max_bytes", "max_waiting_rows", "max_waiting_tokens"]
)
def test_a_limit_of_nothing_is_refused(name: str) -> None:
    nothing: dict[str, Any] = {name: 0}
    with pytest.raises(InputError, match=f"{name} is 0; expected at least 1"):
        BatchPolicy(**nothing)


PACKED = BatchPolicy(max_rows=16, max_cells=4_096, packed=True)


def packed(length: int, place: float = 0.0, deadline: float = inf) -> Unit:
    return Unit(
        rows=1,
        longest=length,
        worth=arranged(PACKED, COSTS).row_s(length),
        place=place,
        deadline=deadline,
        tokens=length,
    )


@given(lengths=st.lists(st.integers(1, 256), min_size=1, max_size=40))
def test_packed_rows_keep_the_limits_too(lengths: list[int]) -> None:
    waiting = [packed(length, place=-1 / (at + 1)) for at, length in enumerate(lengths)]
    batch = choose(waiting, 0.0, PACKED, COSTS)
    assert 0 < len(set(batch)) == len(batch) <= 16
    assert len(batch) * max(waiting[at].longest for at in batch) <= 4_096


def test_packed_into_rows_those_go_together_that_came_together() -> None:
    waiting = [packed(length) for length in (60, 8, 55, 12, 9, 50, 33, 61, 10, 20)] * 3
    assert choose(waiting, 0.0, PACKED, COSTS) == list(range(len(choose(waiting, 0.0, PACKED, COSTS))))


def test_a_long_text_does_not_make_the_rows_of_short_ones_wide() -> None:
    short = [packed(20, place=-1.0) for _ in range(5)]
    batch = choose([*short, packed(250, place=-0.5), *(packed(20) for _ in range(20))], 0.0, PACKED, COSTS)
    assert set(range(5)) < set(batch)
    assert 5 not in batch


def test_packed_nobody_is_passed() -> None:
    assert 0 in choose([packed(250), *(packed(20) for _ in range(20))], 0.0, PACKED, COSTS)


def test_who_fits_into_what_a_batch_leaves_empty_goes_with_it() -> None:
    flat = BatchPolicy(max_rows=5, packed=True)
    lengths = (64, 60, 64, 64)
    waiting = [packed(length, place=-1.0) for length in lengths] + [
        packed(90),
        packed(5),
        packed(4),
        packed(4),
    ]
    batch = arranged(flat, COSTS).filled([0, 1, 2, 3], waiting)
    assert batch == [0, 1, 2, 3, 6]
    assert arranged(PACKED, COSTS).formed([waiting[at].tokens for at in batch]).cells == sum(lengths) + 4


def test_what_a_packed_batch_costs_is_known_by_its_cells_and_their_width() -> None:
    formed = arranged(PACKED, COSTS).formed([20, 40, 30, 34])
    assert formed.cells == 2 * formed.longest == 128
    assert formed.shape == (1, round(128 * (1 + 64 / 1_200)))
    assert arranged(POLICY, COSTS).formed([16, 64, 32]).shape == (3, 64)


def test_a_packed_list_stays_together_where_it_fits() -> None:
    assert packs([60, 8, 55, 12], PACKED, COSTS) == [[0, 1, 2, 3]]
    cut = packs([30, 8] * 20, PACKED, COSTS)
    assert sorted(at for each in cut for at in each) == list(range(40))
    assert all(len(each) <= 16 for each in cut)
