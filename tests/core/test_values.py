from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from alula.core.check import Check, Reference, reference_named, verified
from alula.core.engine import Plan
from alula.core.errors import InputError, ShapeError
from alula.core.profile import Profile, Range, admit, hull, pick
from alula.core.tensor import TensorSpec, axis_sizes
from alula.core.words import OFFERED, WRITING, precisions_of, refuse_unless_offered

IDS = TensorSpec(name="input_ids", dtype="int64", shape=("batch", "length"))
MASK = TensorSpec(name="attention_mask", dtype="int64", shape=("batch", "length"))


def zeros(*shape: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.zeros(shape, dtype=np.int64)


def test_axes_are_read_once_and_must_agree() -> None:
    assert axis_sizes((IDS, MASK), {"input_ids": zeros(2, 7), "attention_mask": zeros(2, 7)}) == {
        "batch": 2,
        "length": 7,
    }
    with pytest.raises(ShapeError, match="attention_mask: axis 'length' is 8, expected 7"):
        axis_sizes((IDS, MASK), {"input_ids": zeros(2, 7), "attention_mask": zeros(2, 8)})


@pytest.mark.parametrize(
    ("feeds", "message"),
    [
        ({"input_ids": zeros(2, 7)}, "missing inputs"),
        ({"input_ids": zeros(2, 7), "attention_mask": zeros(2, 7), "x": zeros(1)}, "unknown inputs"),
        ({"input_ids": zeros(2, 7), "attention_mask": zeros(2)}, "rank 1"),
        ({"input_ids": zeros(2, 7), "attention_mask": zeros(2, 7).astype(np.int32)}, "dtype int32"),
    ],
)
def test_bad_feeds_are_named(feeds: dict[str, Any], message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        axis_sizes((IDS, MASK), feeds)


def test_a_profile_gives_each_tensor_its_shapes() -> None:
    profile = Profile({"batch": Range(1, 8, 32), "length": Range(1, 128, 512)})
    assert profile.shapes(IDS) == ((1, 1), (8, 128), (32, 512)) == profile.shapes(MASK)
    with pytest.raises(ShapeError, match=r"axis 'length' is 513; built for 1\.\.512"):
        admit((IDS,), profile, {"input_ids": zeros(1, 513)})


def profile_of(batch: tuple[int, int, int], length: tuple[int, int, int]) -> Profile:
    return Profile({"batch": Range(*batch), "length": Range(*length)})


ALONE = profile_of((1, 1, 1), (1, 64, 128))
MANY = profile_of((1, 8, 64), (16, 64, 128))
LONG = profile_of((1, 2, 4), (16, 256, 512))
PROFILES = (MANY, ALONE, LONG)


@pytest.mark.parametrize(
    ("batch", "length", "picked"),
    [
        (1, 1, ALONE),
        (1, 128, ALONE),  # all three take it
        (2, 128, LONG),  # 4 x 512 cells at most, MANY has 64 x 128
        (5, 16, MANY),
        (64, 128, MANY),
        (4, 512, LONG),
    ],
)
def test_the_tightest_profile_that_takes_the_sizes_is_picked(
    batch: int, length: int, picked: Profile
) -> None:
    assert PROFILES[pick(PROFILES, {"batch": batch, "length": length})] is picked


def test_of_profiles_as_tight_the_one_tuned_nearest_is_picked_else_the_first() -> None:
    short, long = profile_of((1, 1, 4), (1, 16, 128)), profile_of((1, 1, 4), (1, 100, 128))
    assert pick((short, long), {"batch": 1, "length": 20}) == 0
    assert pick((short, long), {"batch": 1, "length": 90}) == 1
    assert pick((long, short), {"batch": 1, "length": 40}) == 0  # as far from 16 as from 100
    assert pick((short, long), {"batch": 1, "length": 40}) == 0


def test_sizes_within_the_hull_but_in_no_profile_are_refused_with_all_of_them() -> None:
    assert hull(PROFILES) == profile_of((1, 8, 64), (1, 64, 512))
    said = (
        r"^batch 8, length 512: in none of the profiles that the engine was built for: "
        r"batch 1:8:64, length 16:64:128; batch 1:1:1, length 1:64:128; batch 1:2:4, length 16:256:512$"
    )
    with pytest.raises(ShapeError, match=said):
        pick(PROFILES, {"batch": 8, "length": 512})
    plan = Plan(profile=hull(PROFILES), tuned=PROFILES)
    assert plan.profiles == PROFILES
    with pytest.raises(ShapeError, match=said):
        admit((IDS,), plan.profile, {"input_ids": zeros(8, 512)})
    admit((IDS,), plan.profile, {"input_ids": zeros(4, 512)})
    with pytest.raises(ShapeError, match=r"^axis 'batch' is 65; built for 1\.\.64$"):
        admit((IDS,), plan.profile, {"input_ids": zeros(65, 16)})


def test_a_plan_without_tuned_profiles_has_one() -> None:
    assert Plan(profile=MANY).profiles == (MANY,)


def test_of_a_single_profile_the_axis_that_is_outside_is_named() -> None:
    assert pick((LONG,), {"batch": 4, "length": 16}) == 0
    with pytest.raises(ShapeError, match=r"^axis 'length' is 513; built for 16\.\.512$"):
        pick((LONG,), {"batch": 4, "length": 513})


@pytest.mark.parametrize(
    ("batch", "length", "padded"),
    [
        (1, 5, (1, 5)),  # ALONE takes it as it is
        (2, 5, (2, 16)),
        (3, 200, (3, 200)),
        (9, 1, (9, 16)),
    ],
)
def test_sizes_are_padded_to_the_least_that_a_profile_takes(
    batch: int, length: int, padded: tuple[int, int]
) -> None:
    profile = Plan(profile=hull(PROFILES), tuned=PROFILES).profile
    assert profile.padded({"batch": batch, "length": length}) == {"batch": padded[0], "length": padded[1]}


def test_what_no_padding_makes_fit_is_refused() -> None:
    profile = Plan(profile=hull(PROFILES), tuned=PROFILES).profile
    with pytest.raises(ShapeError, match="batch 5, length 129: in none of the profiles"):
        profile.padded({"batch": 5, "length": 129})
    with pytest.raises(ShapeError, match="axis 'length' is 513"):
        profile.padded({"batch": 5, "length": 513})


def test_the_longer_the_rows_the_fewer_go_into_one_call() -> None:
    profile = Plan(profile=hull(PROFILES), tuned=PROFILES).profile
    assert [profile.most("batch", {"length": length}) for length in (1, 128, 129, 512, 513)] == [
        64,
        64,
        4,
        4,
        0,
    ]


@pytest.mark.parametrize("bad", [(0, 1, 1), (2, 1, 3), (1, 3, 2)])
def test_a_range_is_ordered(bad: tuple[int, int, int]) -> None:
    with pytest.raises(InputError, match="need 1 <= min <= opt <= max"):
        Range(*bad)


CHECK = Check(
    output="y",
    metric="max_abs",
    samples=8,
    worst=0.0,
    mean=0.0,
    limit=1e-3,
    higher_is_better=False,
    reference="pytorch",
)


@pytest.mark.parametrize(
    ("samples", "worst", "passed"),
    [
        (8, 0.0, True),
        (8, 1e-3, True),
        (8, 2e-3, False),
        (0, 0.0, False),
        (8, math.nan, False),
        (8, math.inf, False),
    ],
)
def test_a_check_needs_evidence(samples: int, worst: float, passed: bool) -> None:
    assert replace(CHECK, samples=samples, worst=worst).passed is passed


@pytest.mark.parametrize(
    ("worst", "passed"), [(0.9995, True), (0.999, True), (0.998, False), (math.nan, False)]
)
def test_a_check_knows_which_way_is_better(worst: float, passed: bool) -> None:
    check = replace(CHECK, metric="cosine", worst=worst, limit=0.999, higher_is_better=True)
    assert check.passed is passed


@pytest.mark.parametrize(
    ("references", "worst", "expected"),
    [
        (("pytorch", "own-graph"), 0.0, True),
        (("golden",), 0.0, True),
        (("own-graph",), 0.0, False),
        ((), 0.0, False),
        (("pytorch",), 1.0, False),
    ],
)
def test_verified_needs_a_reference_that_is_not_our_own_graph(
    references: tuple[Reference, ...], worst: float, expected: bool
) -> None:
    assert verified([replace(CHECK, reference=name, worst=worst) for name in references]) is expected


def test_an_unknown_reference_is_refused_by_name() -> None:
    with pytest.raises(InputError, match="reference 'onnx' is not one of: pytorch, onnx-file, golden"):
        reference_named("onnx")


def test_precisions_are_offered_by_engine_or_refused_by_name() -> None:
    assert (
        precisions_of("openvino", "auto")
        == ("fp32", "bf16", "int8", "int8-mixed")
        == OFFERED["openvino"][:-2]
    )
    assert precisions_of("onnxruntime", "auto") == ("fp32", "int8", "int8-mixed")
    assert precisions_of("onnxruntime", "fp16-mixed") == ("fp16-mixed",)
    assert precisions_of("openvino", "mixed") == ("int8-mixed",)
    assert precisions_of("openvino", "int8, fp32,int8") == ("fp32", "int8")
    with pytest.raises(InputError, match="engine 'fake' offers fp32, none of them mixed"):
        precisions_of("fake", "mixed")
    assert precisions_of("openvino", "bf16") == ("bf16",)
    with pytest.raises(InputError, match=r"engine 'onnxruntime' offers fp32, fp16, .* not 'bf16'"):
        precisions_of("onnxruntime", "bf16")
    with pytest.raises(InputError, match="precision 'int4' is not one of: auto, mixed, fp32, bf16"):
        precisions_of("openvino", "int4")
    with pytest.raises(InputError, match="no engine 'tpu'"):
        refuse_unless_offered("tpu", "fp32")


def test_models_that_write_text_have_precisions_of_their_own() -> None:
    assert precisions_of("openvino", "auto", writes=True) == WRITING["openvino"]
    assert precisions_of("onnxruntime", "auto", writes=True) == WRITING["onnxruntime"]
    assert precisions_of("onnxruntime", "int4-weights, fp32", writes=True) == ("fp32", "int4-weights")
    assert all(set(offered) <= set(OFFERED[engine]) for engine, offered in WRITING.items())
    with pytest.raises(InputError, match="precision 'int8': for models that write text openvino offers fp32"):
        precisions_of("openvino", "fp32,int8", writes=True)
    with pytest.raises(InputError, match="precision 'int4' is not one of: auto"):
        precisions_of("openvino", "int4", writes=True)
    assert precisions_of("tensorrt", "auto", writes=True) == ("fp32", "bf16", "fp16")
    with pytest.raises(InputError, match=r"built for openvino, .* so far, not for torch"):
        precisions_of("torch", "auto", writes=True)


def test_what_a_decoder_holds_is_what_fits_into_a_past_that_is_never_empty() -> None:
    total = Range(1, 512, 2048)
    grows = Profile({"past": Range(0, 511, 2047, least=0), "total": total})
    in_place = Profile({"past": Range(64, 512, 1024), "total": Range(65, 640, 1536)})
    assert (grows.holds, in_place.holds) == (2048, 1024)


def test_only_what_may_be_empty_begins_at_nought() -> None:
    assert str(Range(0, 4, 8, least=0)) == "0:4:8"
    with pytest.raises(InputError, match="need 0 <= min <= opt <= max, got 5:4:8"):
        Range(5, 4, 8, least=0)
    past = Profile({"past": Range(0, 4, 8, least=0)})
    assert hull([past, past]) == past
