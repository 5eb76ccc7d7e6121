"""The gate is proved by faults planted in a small encoder written in numpy: each must fail it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from alula.core.check import Check, verified
from alula.core.model import ModelSpec, Part
from alula.core.profile import Profile, Range
from alula.core.tensor import Feeds, TensorSpec
from alula.core.words import TEXT_TASKS
from alula.verify import Sample, compare, draw, invariance

HIDDEN, LABELS, VOCABULARY = 16, 5, 40
PROFILE = Profile({"batch": Range(1, 4, 8), "length": Range(2, 16, 48)})
NAMES = ("input_ids", "attention_mask", "token_type_ids")
SHAPES: dict[str, tuple[int | str, ...]] = {
    "embedding": ("batch", HIDDEN),
    "start_logits": ("batch", "length"),
    "end_logits": ("batch", "length"),
}
OUTPUTS = {
    "embeddings": ("embedding",),
    "question-answering": ("start_logits", "end_logits"),
    "sequence-classification": ("logits",),
    "reranking": ("logits",),
    "token-classification": ("logits",),
}

Numbers = NDArray[np.float64]
Outputs = dict[str, NDArray[np.float32]]


def spec_of(task: str) -> ModelSpec:
    labels = 1 if task == "reranking" else LABELS
    logits: tuple[int | str, ...] = ("batch", labels)
    if task == "token-classification":
        logits = ("batch", "length", labels)
    outputs = tuple(
        TensorSpec(name=name, dtype="float32", shape=SHAPES.get(name, logits)) for name in OUTPUTS[task]
    )
    inputs = tuple(TensorSpec(name=name, dtype="int64", shape=("batch", "length")) for name in NAMES)
    return ModelSpec(
        name="tiny",
        digest="0" * 64,
        revision="local",
        architecture="BertModel",
        family="bert",
        task=task,
        parts=(Part(name="encoder", inputs=inputs, outputs=outputs),),
        max_length=48,
        vocab_size=VOCABULARY,
        pad_id=0,
        normalize=task == "embeddings",
        labels=tuple(f"L{index}" for index in range(labels)),
    )


class Encoder:
    """A session on a few layers of masked attention over a table of random vectors."""

    def __init__(self, spec: ModelSpec, *, masked: bool = True, layers: int = 3, noise: float = 0.0) -> None:
        rng = np.random.default_rng(7)
        self.inputs, self.outputs = spec.parts[0].inputs, spec.parts[0].outputs
        self._task, self._masked, self._layers, self._noise = spec.task, masked, layers, noise
        self.table = rng.normal(size=(VOCABULARY, HIDDEN))
        self.weights = [rng.normal(size=(3, HIDDEN, HIDDEN)) / HIDDEN**0.5 for _ in range(3)]
        self.heads = rng.normal(size=(HIDDEN, LABELS))

    def run(self, feeds: Feeds) -> Feeds:
        mask = feeds["attention_mask"].astype(np.float64)
        if not self._masked:
            mask = np.ones_like(mask)
        states = self.table[feeds["input_ids"]] + 0.5 * feeds["token_type_ids"].astype(np.float64)[..., None]
        for query, key, value in self.weights[: self._layers]:
            scores = (states @ query) @ (states @ key).transpose(0, 2, 1) / HIDDEN
            scores = np.exp(scores - scores.max()) * mask[:, None, :]
            states = states + np.tanh(scores / scores.sum(axis=2, keepdims=True) @ states @ value)
        states = states + self._noise * np.random.default_rng(1).normal(size=states.shape)
        return {name: array.astype(np.float32) for name, array in self._heads(states, mask).items()}

    def close(self) -> None:
        pass

    def _heads(self, states: Numbers, mask: Numbers) -> dict[str, Numbers]:
        pooled = (states * mask[..., None]).sum(axis=1) / mask.sum(axis=1, keepdims=True)
        if self._task == "embeddings":
            return {"embedding": pooled / np.linalg.norm(pooled, axis=1, keepdims=True)}
        if self._task == "question-answering":
            logits = states @ self.heads
            return {"start_logits": logits[..., 0], "end_logits": logits[..., 1]}
        if self._task == "token-classification":
            return {"logits": states @ self.heads}
        return {"logits": pooled @ self.heads[:, : 1 if self._task == "reranking" else LABELS]}


class Spoiled(Encoder):
    """The same encoder with something done to what it gives."""

    def __init__(self, spec: ModelSpec, spoil: Callable[[Outputs], Feeds]) -> None:
        super().__init__(spec)
        self._spoil = spoil

    def run(self, feeds: Feeds) -> Feeds:
        return self._spoil({name: array.astype(np.float32) for name, array in super().run(feeds).items()})


def one_nan(outputs: Outputs) -> Feeds:
    name = next(iter(outputs))
    spoiled = outputs[name].copy()
    spoiled.reshape(-1)[0] = np.nan
    return {**outputs, name: spoiled}


def shorter(outputs: Outputs) -> Feeds:
    return {name: array[:-1] for name, array in outputs.items()}


def rows_swapped(outputs: Outputs) -> Feeds:
    return {name: array[::-1] for name, array in outputs.items()}


def first_row_for_all(outputs: Outputs) -> Feeds:
    return {name: np.broadcast_to(array[:1], array.shape) for name, array in outputs.items()}


def constant(outputs: Outputs) -> Feeds:
    return {name: np.full_like(array, 0.25) for name, array in outputs.items()}


def missing(outputs: Outputs) -> Feeds:
    return {}


def first_right_only(outputs: Outputs) -> Feeds:
    """As reported in NVIDIA/TensorRT#3730: only the first row of a batch is right."""
    return {name: np.concatenate([array[:1], -array[1:]]) for name, array in outputs.items()}


def transposed(spec: ModelSpec) -> Encoder:
    encoder = Encoder(spec)
    encoder.weights[1][2] = encoder.weights[1][2].T.copy()
    return encoder


def start_and_end_swapped(outputs: Outputs) -> Feeds:
    return {"start_logits": outputs["end_logits"], "end_logits": outputs["start_logits"]}


def bf16_like(array: NDArray[np.floating]) -> NDArray[np.float32]:
    """Rounded to eight significant bits, as bf16 would."""
    mantissa, exponent = np.frexp(array.astype(np.float64))
    rounded: NDArray[np.float32] = np.ldexp(np.round(mantissa * 256) / 256, exponent).astype(np.float32)
    return rounded


FAULTS: dict[str, Callable[[ModelSpec], Encoder]] = {
    "ignored mask": lambda spec: Encoder(spec, masked=False),
    "cut at one layer": lambda spec: Encoder(spec, layers=1),
    "transposed weight": transposed,
    "one NaN": lambda spec: Spoiled(spec, one_nan),
    "shorter output": lambda spec: Spoiled(spec, shorter),
    "missing output": lambda spec: Spoiled(spec, missing),
    "constant output": lambda spec: Spoiled(spec, constant),
    "rows swapped": lambda spec: Spoiled(spec, rows_swapped),
    "first row for all": lambda spec: Spoiled(spec, first_row_for_all),
    "first row right only": lambda spec: Spoiled(spec, first_right_only),
}


def checks_of(task: str, candidate: Encoder, precision: str = "fp32") -> tuple[Check, ...]:
    spec = spec_of(task)
    return compare(Encoder(spec), candidate, draw(spec, PROFILE), spec, precision, "pytorch")


def name_of(check: Check) -> str:
    return check.metric.removesuffix("_cosine")


def failed(checks: tuple[Check, ...]) -> list[str]:
    return [check.metric for check in checks if not check.passed]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("task", TEXT_TASKS)
def test_an_engine_equal_to_its_reference_passes(task: str, precision: str) -> None:
    checks = checks_of(task, Encoder(spec_of(task)), precision)
    assert len(checks) >= 2
    assert failed(checks) == []
    assert verified(checks)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("task", TEXT_TASKS)
def test_every_planted_fault_fails_at_either_precision(task: str, fault: str, precision: str) -> None:
    checks = checks_of(task, FAULTS[fault](spec_of(task)), precision)
    assert failed(checks) != []
    assert not verified(checks)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_swapped_outputs_fail(precision: str) -> None:
    spec = spec_of("question-answering")
    checks = checks_of("question-answering", Spoiled(spec, start_and_end_swapped), precision)
    assert failed(checks) == ["max_error", "max_error", "span_agreement"]


@pytest.mark.parametrize("task", TEXT_TASKS)
def test_rounding_as_bf16_does_passes_as_bf16_and_fails_as_fp32(task: str) -> None:
    spec = spec_of(task)
    rounded = Spoiled(spec, lambda outputs: {name: bf16_like(a) for name, a in outputs.items()})
    for weight in rounded.weights:
        weight[:] = bf16_like(weight)
    assert failed(checks_of(task, rounded, "bf16")) == []
    assert failed(checks_of(task, rounded, "fp32")) != []


def test_ones_with_nothing_masked_would_not_notice_an_ignored_mask() -> None:
    spec = spec_of("embeddings")
    ones = np.ones((4, 16), dtype=np.int64)
    blind = [Sample(name="ones", feeds=dict.fromkeys(NAMES, ones))]
    deaf = Encoder(spec, masked=False)
    assert failed(compare(Encoder(spec), deaf, blind, spec, "fp32", "pytorch")) == []
    assert failed(compare(Encoder(spec), deaf, draw(spec, PROFILE), spec, "fp32", "pytorch")) != []


@pytest.mark.parametrize("task", TEXT_TASKS)
def test_no_samples_is_a_failure_of_every_metric(task: str) -> None:
    spec = spec_of(task)
    checks = compare(Encoder(spec), Encoder(spec), [], spec, "fp32", "pytorch")
    assert len(checks) >= 2
    assert all(check.samples == 0 and not check.passed for check in checks)


def test_stored_outputs_stand_for_the_session_that_gave_them() -> None:
    spec = spec_of("embeddings")
    samples = draw(spec, PROFILE)
    stored = [Encoder(spec).run(sample.feeds) for sample in samples]
    assert failed(compare(stored, Encoder(spec), samples, spec, "fp32", "golden")) == []
    assert failed(compare(stored, transposed(spec), samples, spec, "fp32", "golden")) != []


def test_fewer_stored_outputs_than_samples_is_a_failure_not_a_shorter_run() -> None:
    spec = spec_of("embeddings")
    samples = draw(spec, PROFILE)
    stored = [Encoder(spec).run(sample.feeds) for sample in samples[:-1]]
    checks = compare(stored, Encoder(spec), samples, spec, "fp32", "golden")
    assert [check.samples for check in checks] == [0, 0]
    assert not verified(checks)


@pytest.mark.parametrize("task", TEXT_TASKS)
def test_a_reference_that_gives_nothing_is_a_failure(task: str) -> None:
    spec = spec_of(task)
    checks = compare(Spoiled(spec, missing), Encoder(spec), draw(spec, PROFILE), spec, "fp32", "pytorch")
    assert all(np.isnan(check.worst) and not check.passed for check in checks)


@pytest.mark.parametrize("task", TEXT_TASKS)
def test_a_row_alone_equals_the_row_in_a_batch_and_padding_changes_nothing(task: str) -> None:
    spec = spec_of(task)
    checks = invariance(Encoder(spec), draw(spec, PROFILE), spec, PROFILE, "fp32")
    assert {name_of(check) for check in checks} == {"batch_equals_single", "padding_changes_nothing"}
    assert all(check.samples >= 6 for check in checks)
    assert failed(checks) == []


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("task", TEXT_TASKS)
def test_padding_that_leaks_fails_both(task: str, precision: str) -> None:
    spec = spec_of(task)
    leaky = Encoder(spec, masked=False)
    checks = invariance(leaky, draw(spec, PROFILE), spec, PROFILE, precision)
    assert {"batch_equals_single", "padding_changes_nothing"} <= set(failed(checks))


@pytest.mark.parametrize("task", TEXT_TASKS)
@pytest.mark.parametrize("spoil", [first_row_for_all, first_right_only, rows_swapped, one_nan, shorter])
def test_a_batch_whose_rows_are_not_their_own_fails(task: str, spoil: Callable[[Outputs], Feeds]) -> None:
    spec = spec_of(task)
    checks = invariance(Spoiled(spec, spoil), draw(spec, PROFILE), spec, PROFILE, "fp32")
    assert "batch_equals_single" in failed(checks)


def test_invariance_alone_never_makes_an_engine_verified() -> None:
    spec = spec_of("embeddings")
    assert not verified(invariance(Encoder(spec), draw(spec, PROFILE), spec, PROFILE, "fp32"))


@pytest.mark.parametrize(
    ("batch", "length", "asked"),
    [
        (Range(1, 1, 1), Range(2, 8, 16), {"padding_changes_nothing"}),
        (Range(1, 2, 4), Range(16, 16, 16), {"batch_equals_single"}),
        (Range(4, 4, 4), Range(16, 16, 16), {"batch_equals_single"}),
        (Range(3, 4, 8), Range(10, 12, 20), {"batch_equals_single", "padding_changes_nothing"}),
        (Range(1, 1, 1), Range(16, 16, 16), set()),
    ],
)
def test_what_a_profile_rules_out_is_not_asked(batch: Range, length: Range, asked: set[str]) -> None:
    spec = spec_of("token-classification")
    profile = Profile({"batch": batch, "length": length})
    checks = invariance(Encoder(spec), draw(spec, profile), spec, profile, "fp32")
    assert {name_of(check) for check in checks} == asked
    assert failed(checks) == []


def test_several_labels_at_once_are_judged_one_by_one() -> None:
    spec = replace(spec_of("sequence-classification"), activation="sigmoid")
    checks = compare(Encoder(spec), Encoder(spec), draw(spec, PROFILE), spec, "fp32", "pytorch")
    assert [check.metric for check in checks] == ["max_error", "decision_agreement"]
    rows = checks[0].samples
    assert checks[1].samples == rows * LABELS


def test_only_tokens_are_judged_not_padding() -> None:
    spec = spec_of("token-classification")
    noisy = Spoiled(spec, lambda outputs: outputs)
    reference = Encoder(spec)
    samples = draw(spec, PROFILE)
    stored = []
    for sample in samples:
        logits = reference.run(sample.feeds)["logits"].copy()
        logits[~sample.mask] = np.nan
        stored.append({"logits": logits})
    checks = compare(stored, noisy, samples, spec, "fp32", "pytorch")
    assert failed(checks) == []
    assert checks[1].samples == sum(int(sample.mask.sum()) for sample in samples)
