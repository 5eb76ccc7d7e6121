"""What a model of which only the tensors are known is tried on."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alula.core.errors import InputError
from alula.core.model import ModelSpec, Part
from alula.core.profile import Profile, Range, admit, hull
from alula.families import parse_inputs
from alula.verify import draw
from alula.verify.arrays import count, shares_rows


def spec_of(*inputs: str, outputs: tuple[str, ...] = ("y=float32[batch,2]",)) -> ModelSpec:
    return ModelSpec(
        name="tiny",
        digest="0" * 64,
        revision="local",
        architecture="ONNX",
        family="onnx",
        task="tensors",
        parts=(Part(name="encoder", inputs=parse_inputs(inputs), outputs=parse_inputs(outputs)),),
        max_length=0,
        vocab_size=0,
        pad_id=0,
    )


PICTURES = spec_of("x=float32[batch,3,height,width]")
PROFILE = Profile({"batch": Range(1, 4, 8), "height": Range(32, 64, 96), "width": Range(32, 64, 128)})


def shapes(spec: ModelSpec, profile: Profile) -> dict[str, tuple[int, ...]]:
    return {sample.name: sample.feeds[spec.parts[0].inputs[0].name].shape for sample in draw(spec, profile)}


def test_every_axis_is_tried_at_its_ends_and_two_are_never_alike_throughout() -> None:
    assert shapes(PICTURES, PROFILE) == {
        "smallest, 1 rows": (1, 3, 32, 32),
        "smallest, 3 rows": (3, 3, 32, 32),
        "tuned, 3 rows": (3, 3, 64, 64),
        "largest, 1 rows": (1, 3, 96, 128),
        "long and short, 3 rows": (3, 3, 96, 32),
        "short and long, 3 rows": (3, 3, 32, 128),
        "widest, 8 rows": (8, 3, 32, 32),
    }


def test_no_size_is_drawn_that_nobody_named() -> None:
    named = {"height": {32, 64, 96}, "width": {32, 64, 128}}
    for _, _, height, width in shapes(PICTURES, PROFILE).values():
        assert height in named["height"]
        assert width in named["width"]


def test_a_model_without_rows_or_without_axes_is_tried_too() -> None:
    boxes = spec_of("boxes=float32[boxes,4]", "limit=float32[]", outputs=("y=float32[kept,4]",))
    profile = Profile({"boxes": Range(1, 10, 100)})
    assert shapes(boxes, profile) == {"smallest": (1, 4), "tuned": (10, 4), "largest": (100, 4)}
    fixed = spec_of("x=float32[2,3]", outputs=("y=float32[2]",))
    assert shapes(fixed, Profile({})) == {"smallest": (2, 3)}


def test_every_profile_that_an_engine_is_tuned_for_is_tried_within_itself() -> None:
    small = Profile({"batch": Range(1, 1, 1), "height": Range(32, 32, 32), "width": Range(32, 32, 64)})
    large = Profile({"batch": Range(2, 2, 4), "height": Range(64, 64, 96), "width": Range(64, 64, 96)})
    whole = Profile(hull((small, large)).axes, tuned=(small, large))
    samples = draw(PICTURES, whole)
    for sample in samples:
        whole.check(sample.sizes(PICTURES))
    assert {sample.name.partition(",")[0] for sample in samples} == {"profile 1", "profile 2"}


@st.composite
def ranges(drawing: st.DrawFn) -> Range:
    low, middle, high = sorted(drawing(st.integers(1, 40)) for _ in range(3))
    return Range(low, middle, high)


@settings(max_examples=40, deadline=None)
@given(batch=ranges(), height=ranges(), width=ranges())
def test_samples_fit_any_profile_and_are_drawn_the_same_again(
    batch: Range, height: Range, width: Range
) -> None:
    profile = Profile({"batch": batch, "height": height, "width": width})
    samples, again = draw(PICTURES, profile), draw(PICTURES, profile)
    assert samples
    for sample, other in zip(samples, again, strict=True):
        admit(PICTURES.parts[0].inputs, profile, sample.feeds)
        assert sample.drawn
        assert np.array_equal(sample.feeds["x"], other.feeds["x"])


def test_most_rows_are_as_many_as_can_be_held() -> None:
    profile = Profile({"batch": Range(1, 8, 4096), "height": Range(64, 64, 64), "width": Range(64, 64, 64)})
    assert max(shape[0] for shape in shapes(PICTURES, profile).values()) == 170


def test_a_profile_beyond_what_can_be_tried_is_refused_with_the_cure() -> None:
    profile = Profile(
        {"batch": Range(1, 1, 1), "height": Range(32, 32, 2**31 - 1), "width": Range(32, 32, 32)}
    )
    with pytest.raises(
        InputError, match=r"a call of batch 1, height 2147483647, width 32 has \d+ numbers, more"
    ):
        draw(PICTURES, profile)


def test_a_feed_that_is_called_a_mask_masks_nothing_of_what_is_compared() -> None:
    spec = spec_of("attention_mask=int64[batch,seq]", outputs=("y=float32[batch,seq]",))
    samples = draw(spec, Profile({"batch": Range(1, 2, 4), "seq": Range(4, 8, 8)}))
    assert any((sample.feeds["attention_mask"] == 0).any() for sample in samples)
    assert all(sample.mask.all() for sample in samples)


def test_rows_are_shared_where_all_inputs_begin_with_them() -> None:
    assert shares_rows(PICTURES)
    assert shares_rows(spec_of("x=float32[batch,3]", "rate=int64[]"))
    assert not shares_rows(spec_of("x=float32[batch,3]", "size=int64[2]"))
    assert not shares_rows(spec_of("rate=int64[]"))
    assert not shares_rows(spec_of("x=float32[seq,batch]"))
    assert count(PICTURES, {"batch": 2, "height": 4, "width": 5}) == 2 * 3 * 4 * 5
