"""The gate on models that read images, proved by faults planted in small functions of pixels."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from alula.core.check import Check, verified
from alula.core.model import ModelSpec, Part
from alula.core.profile import Profile, Range
from alula.core.tensor import Feeds, TensorSpec
from alula.core.words import IMAGE_TASKS
from alula.verify import compare, draw, invariance

CLASSES = 7
WEIGHTS = np.random.default_rng(3).normal(size=(3 * 8, CLASSES))
PROFILE = Profile({"batch": Range(1, 2, 4), "width": Range(16, 32, 64)})
SHAPES: dict[str, tuple[str, tuple[int | str, ...], tuple[int | str, ...]]] = {
    "image-classification": ("logits", ("batch", 3, 8, "width"), ("batch", CLASSES)),
    "image-embeddings": ("embedding", ("batch", 3, 8, "width"), ("batch", CLASSES)),
    "text-detection": ("probabilities", ("batch", 3, 64, "width"), ("batch", 1, 64, "width")),
    "text-recognition": ("probabilities", ("batch", 3, 8, "width"), ("batch", "steps", CLASSES)),
}

Outputs = dict[str, NDArray[np.float32]]


def spec_of(task: str) -> ModelSpec:
    output, taken, given = SHAPES[task]
    inputs = (TensorSpec(name="x", dtype="float32", shape=taken),)
    outputs = (TensorSpec(name=output, dtype="float32", shape=given),)
    return ModelSpec(
        name="tiny",
        digest="0" * 64,
        revision="local",
        architecture="ONNX",
        family="onnx",
        task=task,
        parts=(Part(name="encoder", inputs=inputs, outputs=outputs),),
        max_length=0,
        vocab_size=0,
        pad_id=0,
        labels=("", *(f"L{index}" for index in range(1, CLASSES))),
        activation="softmax" if task == "image-classification" else "none",
    )


class Reader:
    """Scores of each column of pixels, or of their mean; `spoil` plants a fault."""

    def __init__(self, spec: ModelSpec, spoil: Callable[[Outputs], Feeds] = dict) -> None:
        self.inputs, self.outputs = spec.parts[0].inputs, spec.parts[0].outputs
        self.task, self.spoil = spec.task, spoil

    def run(self, feeds: Feeds) -> Feeds:
        pixels = feeds["x"].astype(np.float64)
        if self.task == "text-detection":
            return self.spoil({"probabilities": (1 / (1 + np.exp(4 * pixels[:, :1]))).astype(np.float32)})
        columns = pixels.transpose(0, 3, 1, 2).reshape(len(pixels), -1, 3 * 8) @ WEIGHTS
        if self.task == "image-classification":
            return self.spoil({"logits": columns.mean(axis=1).astype(np.float32)})
        if self.task == "image-embeddings":
            return self.spoil({"embedding": columns.mean(axis=1).astype(np.float32)})
        raised = np.exp(columns[:, ::4])
        scores = raised / raised.sum(axis=-1, keepdims=True)
        return self.spoil({"probabilities": scores.astype(np.float32)})

    def close(self) -> None:
        pass


def each(change: Callable[[NDArray[np.float32]], NDArray[np.float32]]) -> Callable[[Outputs], Feeds]:
    return lambda outputs: {name: change(array) for name, array in outputs.items()}


def last_is_nan(array: NDArray[np.float32]) -> NDArray[np.float32]:
    spoiled = array.copy()
    spoiled.flat[-1] = np.nan
    return spoiled


FAULTS: dict[str, Callable[[Outputs], Feeds]] = {
    "missing": lambda outputs: {},
    "NaN": each(last_is_nan),
    "rows short": each(lambda array: array[:-1]),
    "classes in another order": each(lambda array: array[..., ::-1].copy()),
    "another scale": each(lambda array: 2 * array),
    "constant": each(np.zeros_like),
    "first row for all": each(lambda array: np.broadcast_to(array[:1] * 1.001, array.shape).copy()),
}


def checks_of(task: str, spoil: Callable[[Outputs], Feeds], precision: str) -> tuple[Check, ...]:
    spec = spec_of(task)
    samples = draw(spec, PROFILE)
    return compare(Reader(spec), Reader(spec, spoil), samples, spec, precision, "golden")


@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8"])
@pytest.mark.parametrize("task", IMAGE_TASKS)
def test_an_engine_equal_to_its_reference_passes(task: str, precision: str) -> None:
    checks = checks_of(task, dict, precision)
    # Single pixels of a map move by far at its edges: it is judged on the whole alone.
    assert len(checks) == (1 if task == "text-detection" else 2)
    assert verified(checks)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("task", IMAGE_TASKS)
def test_every_planted_fault_fails(task: str, fault: str, precision: str) -> None:
    assert not verified(checks_of(task, FAULTS[fault], precision))


def test_every_step_of_a_recogniser_counts() -> None:
    def one_step(array: NDArray[np.float32]) -> NDArray[np.float32]:
        spoiled = array.copy()
        spoiled[:, -1] = spoiled[:, -1, ::-1]
        return spoiled

    numeric, agreement = checks_of("text-recognition", each(one_step), "bf16")
    assert agreement.metric == "step_label_agreement"
    # Rows of 1 and 3, at 16, 32 and 64 pixels, a step for each four of them.
    assert agreement.samples == 4 * (4 + 8 + 16)
    assert 0.7 < agreement.worst < 0.99
    assert not agreement.passed
    assert not numeric.passed


@pytest.mark.parametrize("task", IMAGE_TASKS)
def test_a_row_of_a_batch_is_held_to_the_row_alone(task: str) -> None:
    spec = spec_of(task)
    *_, right = invariance(Reader(spec), draw(spec, PROFILE), spec, PROFILE, "fp32")
    assert (right.metric, right.passed) == ("batch_equals_single", True)
    mixed = Reader(spec, each(lambda array: array[::-1].copy()))
    *_, wrong = invariance(mixed, draw(spec, PROFILE), spec, PROFILE, "fp32")
    assert not wrong.passed
