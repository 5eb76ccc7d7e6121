"""The gate on models of which only the tensors are known, proved by faults planted in small functions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from alula.core.check import Check, verified
from alula.core.model import ModelSpec, Part
from alula.core.profile import Profile, Range
from alula.core.tensor import Feeds
from alula.families import parse_inputs
from alula.verify import Answer, compare, draw, held_to, invariance, judge
from alula.verify.samples import Sample

Array = NDArray[Any]
Outputs = dict[str, Array]

SPEC = ModelSpec(
    name="tiny",
    digest="0" * 64,
    revision="local",
    architecture="ONNX",
    family="onnx",
    task="tensors",
    parts=(
        Part(
            name="encoder",
            inputs=parse_inputs(["x=float32[batch,3,height,width]"]),
            outputs=parse_inputs(
                [
                    "map=float32[map_0,1,height,width]:0:1",
                    "best=int64[batch,height]",
                    "length=float32[]",
                ]
            ),
        ),
    ),
    max_length=0,
    vocab_size=0,
    pad_id=0,
)
PROFILE = Profile({"batch": Range(1, 2, 8), "height": Range(4, 8, 16), "width": Range(4, 8, 20)})


class Net:
    """A map of probabilities, the best column of each row, a number; `spoil` plants a fault."""

    def __init__(self, spoil: Callable[[Outputs], Outputs] = dict, bias: float = 0.0) -> None:
        self.inputs, self.outputs = SPEC.parts[0].inputs, SPEC.parts[0].outputs
        self.spoil, self.bias = spoil, bias

    def run(self, feeds: Feeds) -> Feeds:
        logits = feeds["x"].astype(np.float64).sum(axis=1, keepdims=True) + self.bias
        chances = (1 / (1 + np.exp(-logits))).astype(np.float32)
        best = logits[:, 0].argmax(axis=-1)
        return self.spoil({"map": chances, "best": best, "length": np.array(7.0, np.float32)})

    def close(self) -> None:
        pass


def of(name: str, change: Callable[[Array], Array]) -> Callable[[Outputs], Outputs]:
    return lambda outputs: {**outputs, name: change(outputs[name])}


def without(name: str) -> Callable[[Outputs], Outputs]:
    return lambda outputs: {other: array for other, array in outputs.items() if other != name}


def last_row_is_another(array: Array) -> Array:
    return np.concatenate([array[:-1], array[-1:, ..., ::-1]])


def one_is(number: float) -> Callable[[Array], Array]:
    def spoiled(array: Array) -> Array:
        made = np.array(array)
        made.flat[-1] = number
        return made

    return spoiled


def swapped(array: Array) -> Array:
    """Height for width: the same at equal sizes, and of the same shape at all."""
    rows, _, height, width = array.shape
    return array.transpose(0, 1, 3, 2).reshape(rows, 1, height, width)


FAULTS: dict[str, tuple[str, Callable[[Outputs], Outputs]]] = {
    "a missing output": ("map", without("map")),
    "a missing number": ("length", without("length")),
    "NaN": ("map", of("map", one_is(np.nan))),
    "infinity": ("map", of("map", one_is(np.inf))),
    "noughts": ("map", of("map", np.zeros_like)),
    "a row short": ("map", of("map", lambda array: array[:-1])),
    "the last row of many": ("map", of("map", last_row_is_another)),
    "axes swapped": ("map", of("map", swapped)),
    "twice as large": ("map", of("map", lambda array: array * 2)),
    "other choices": ("best", of("best", lambda array: array + 1)),
    "another number": ("length", of("length", lambda array: array + 1)),
    "a number that is a row": ("length", of("length", lambda array: array.reshape(1))),
}


def checks_of(spoil: Callable[[Outputs], Outputs], precision: str, bias: float = 0.0) -> tuple[Check, ...]:
    samples = draw(SPEC, PROFILE)
    return compare(Net(bias=bias), Net(spoil, bias), samples, SPEC, precision, "onnx-file")


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16", "int8"])
def test_an_engine_equal_to_its_file_passes(precision: str) -> None:
    checks = checks_of(dict, precision)
    assert verified(checks)
    floats = ["rms_error", "max_error"] if precision == "fp32" else ["rms_error"]
    assert [(check.output, check.metric) for check in checks] == [
        *(("map", metric) for metric in floats),
        ("best", "value_agreement"),
        *(("length", metric) for metric in floats),
    ]


@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8"])
@pytest.mark.parametrize("fault", FAULTS)
def test_every_planted_fault_fails_where_it_is(fault: str, precision: str) -> None:
    output, spoil = FAULTS[fault]
    checks = checks_of(spoil, precision)
    if (fault, precision) == ("another number", "int8"):
        # 1 of 7 is within what eight bits may be off by.
        assert verified(checks)
        return
    assert {check.output for check in checks if not check.passed} == {output}


def test_one_value_that_is_off_fails_fp32_alone() -> None:
    spoil = of("map", one_is(0.9))
    assert {check.metric for check in checks_of(spoil, "fp32") if not check.passed} == {
        "max_error",
        "rms_error",
    }
    assert verified(checks_of(of("map", lambda array: array + 3e-4), "bf16"))
    assert not verified(checks_of(of("map", lambda array: array + 3e-4), "fp32"))


def test_equal_infinities_are_equal_and_are_no_scale() -> None:
    masked = of("map", one_is(-np.inf))
    samples = draw(SPEC, PROFILE)
    same = compare(Net(masked), Net(masked), samples, SPEC, "fp32", "onnx-file")
    assert verified(same)
    off = compare(
        Net(masked), Net(lambda outputs: masked({**outputs, "map": outputs["map"] + 0.01})), samples, SPEC,
        "fp32", "onnx-file",
    )  # fmt: skip
    assert not verified(off)


def test_probabilities_that_are_all_tiny_are_held_to_how_they_are_rounded() -> None:
    # 1e-5 throughout: 2^-24 of 1 is a hundredth of that.
    rounded = of("map", lambda array: array + np.float32(6e-8))
    assert verified(checks_of(rounded, "fp32", bias=-12.0))
    assert not verified(checks_of(of("map", np.zeros_like), "fp32", bias=-12.0))


def test_what_proves_nothing_is_not_a_pass_and_says_so() -> None:
    checks = checks_of(dict, "bf16", bias=-16.0)
    failed = [check for check in checks if not check.passed]
    assert [(check.output, check.samples) for check in failed] == [("map", 0)]
    assert "noughts would be near enough" in failed[0].note
    assert "--data FOLDER" in failed[0].note


def test_no_rows_on_either_side_are_no_evidence_and_rows_on_one_are_a_fault() -> None:
    empty = of("map", lambda array: array[:0])
    samples = draw(SPEC, PROFILE)
    both = compare(Net(empty), Net(empty), samples, SPEC, "fp32", "onnx-file")
    assert {check.output for check in both if not check.passed} == {"map"}
    some = compare(Net(empty), Net(), samples, SPEC, "fp32", "onnx-file")
    assert all(np.isnan(check.worst) for check in some if check.output == "map")


def test_a_row_of_a_batch_is_held_to_the_row_alone_where_outputs_have_rows() -> None:
    samples = draw(SPEC, PROFILE)
    (right,) = invariance(Net(), samples, SPEC, PROFILE, "fp32")
    assert (right.output, right.metric, right.passed) == ("map", "batch_equals_single", True)
    assert right.note == ""
    turned = Net(of("map", lambda array: array[::-1].copy()))
    (wrong,) = invariance(turned, samples, SPEC, PROFILE, "fp32")
    assert not wrong.passed
    assert wrong.note == (
        "rows are not what they are alone; where a model mixes its rows, give them another name: "
        f"--inputs '{str(SPEC.parts[0].inputs[0]).replace('[batch', '[rows')}'"
    )
    # NVIDIA/TensorRT#3730: only the first row was right.
    (last,) = invariance(Net(of("map", last_row_is_another)), samples, SPEC, PROFILE, "bf16")
    assert not last.passed


class Thresholded(Net):
    """A number beside the rows decides what is kept of them."""

    def run(self, feeds: Feeds) -> Feeds:
        given = super().run({"x": feeds["x"]})
        return {**given, "map": np.maximum(given["map"], feeds["least"]).astype(np.float32)}


def test_a_single_number_goes_with_each_row() -> None:
    inputs = parse_inputs(["x=float32[batch,3,height,width]", "least=float32[]:0:1"])
    spec = replace(SPEC, parts=(replace(SPEC.parts[0], inputs=inputs),))
    samples = draw(spec, PROFILE)
    (right,) = invariance(Thresholded(), samples, spec, PROFILE, "fp32")
    assert (right.passed, right.samples) == (True, 20)
    (wrong,) = invariance(Thresholded(of("map", last_row_is_another)), samples, spec, PROFILE, "fp32")
    assert not wrong.passed


def test_rows_that_are_called_something_else_are_not_compared_alone() -> None:
    other = replace(
        SPEC, parts=(replace(SPEC.parts[0], inputs=parse_inputs(["x=float32[boxes,3,height,width]"])),)
    )
    profile = Profile({"boxes": Range(1, 2, 8), "height": Range(4, 8, 16), "width": Range(4, 8, 20)})
    assert invariance(Net(), draw(other, profile), other, profile, "fp32") == ()


@pytest.mark.parametrize(
    ("precision", "promised", "comes_in", "held"),
    [
        ("fp32", False, "fp32", "fp32"),
        ("fp32", True, "fp32", "fp32"),
        ("fp32", False, "int8", "int8"),
        ("bf16", True, "fp32", "int8"),
        ("bf16", False, "fp32", "bf16"),
    ],
)
def test_a_file_that_comes_in_eight_bits_is_held_to_these(
    precision: str, promised: bool, comes_in: str, held: str
) -> None:
    assert held_to(precision, promised=promised, comes_in=comes_in) == held


def judged(spoil: Callable[[Outputs], Outputs]) -> Check:
    calls = [Sample(name="call", feeds={"x": np.ones((1, 3, 4, 4 + at), np.float32)}) for at in range(6)]
    answers = [
        Answer(mask=call.mask, expected=Net().run(call.feeds), given=Net(spoil).run(call.feeds))
        for call in calls
    ]
    (verdict,) = judge(answers, SPEC, 0.004, "onnx-file")
    return verdict.check


def test_a_budget_is_the_energy_of_the_error_of_the_worst_output() -> None:
    assert (judged(dict).worst, judged(dict).samples, judged(dict).passed) == (0.0, 6, True)
    off = judged(of("map", lambda array: array * np.float32(1.05)))
    assert (off.output, off.metric) == ("map", "energy_of_error")
    assert off.worst == pytest.approx(0.05**2, rel=1e-3)
    assert off.passed
    assert not judged(of("map", lambda array: array * np.float32(1.1))).passed
    wrong = judged(of("best", lambda array: array + 1))
    assert (wrong.output, wrong.worst, wrong.passed) == ("best", 1.0, False)


@pytest.mark.parametrize("fault", ["a missing output", "NaN", "a row short", "a number that is a row"])
def test_what_cannot_be_compared_breaks_every_budget(fault: str) -> None:
    check = judged(FAULTS[fault][1])
    assert np.isnan(check.worst)
    assert not check.passed
