"""Which shapes an engine is warmed up for."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from alula.core.profile import Profile, Range
from alula.serve.warming import CELLS, MOST, shapes_to_warm

RANGES = st.lists(st.integers(1, 512), min_size=3, max_size=3).map(lambda sizes: Range(*sorted(sizes)))


def test_texts_are_warmed_at_powers_of_two_as_far_as_launching_costs_anything() -> None:
    found = shapes_to_warm(Profile({"batch": Range(1, 2, 4), "length": Range(2, 24, 32)}), padded=True)
    assert [(s["batch"], s["length"]) for s in found][:4] == [(1, 2), (1, 4), (2, 2), (1, 8)]
    assert {s["batch"] for s in found} == {1, 2, 4}
    assert {s["length"] for s in found} == {2, 4, 8, 16, 24, 32}


def test_images_are_warmed_at_the_tuned_size_in_batches() -> None:
    profile = Profile(
        {"batch": Range(1, 8, 8), "height": Range(320, 640, 1280), "width": Range(320, 480, 1280)}
    )
    found = shapes_to_warm(profile, padded=False)
    assert [s["batch"] for s in found] == [1, 2, 4, 8]
    assert {(s["height"], s["width"]) for s in found} == {(640, 480)}


@given(RANGES, RANGES)
def test_every_shape_is_one_the_engine_takes_and_they_are_few(batch: Range, length: Range) -> None:
    profile = Profile({"batch": batch, "length": length})
    found = shapes_to_warm(profile, padded=True)
    assert len(found) <= MOST
    assert all(profile.takes(sizes) and sizes["batch"] * sizes["length"] <= CELLS for sizes in found)
