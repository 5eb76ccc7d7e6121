from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alula.core.errors import InputError
from alula.core.model import ModelSpec, Part
from alula.core.profile import Profile, Range, admit
from alula.core.tensor import TensorSpec
from alula.verify.samples import Sample, alone, draw, is_right_padded

NAMES = ("input_ids", "attention_mask", "token_type_ids")
USUAL = Profile({"batch": Range(1, 8, 64), "length": Range(2, 128, 512)})


def spec_of(names: tuple[str, ...] = NAMES, vocab_size: int = 50, pad_id: int = 1) -> ModelSpec:
    inputs = tuple(TensorSpec(name=name, dtype="int64", shape=("batch", "length")) for name in names)
    output = TensorSpec(name="embedding", dtype="float32", shape=("batch", 4))
    return ModelSpec(
        name="tiny",
        digest="0" * 64,
        revision="local",
        architecture="BertModel",
        family="bert",
        task="embeddings",
        parts=(Part(name="encoder", inputs=inputs, outputs=(output,)),),
        max_length=512,
        vocab_size=vocab_size,
        pad_id=pad_id,
    )


SPEC = spec_of()


@st.composite
def ranges(draw_: st.DrawFn, largest: int) -> Range:
    low, middle, high = sorted(draw_(st.integers(1, largest)) for _ in range(3))
    return Range(low, middle, high)


@settings(max_examples=60, deadline=None)
@given(batch=ranges(40), length=ranges(300), seed=st.integers(0, 9))
def test_samples_fit_any_profile_and_the_vocabulary(batch: Range, length: Range, seed: int) -> None:
    profile = Profile({"batch": batch, "length": length})
    samples = draw(SPEC, profile, seed)
    assert samples
    for sample in samples:
        admit(SPEC.parts[0].inputs, profile, sample.feeds)
        ids, mask = sample.feeds["input_ids"], sample.mask
        assert mask.any(axis=1).all()
        assert ids.min() >= 0
        assert ids.max() < SPEC.vocab_size
        assert (ids[~mask] == SPEC.pad_id).all()
        assert (ids[mask] != SPEC.pad_id).all()
        segments = sample.feeds["token_type_ids"]
        assert ((segments == 0) | (segments == 1)).all()


def test_the_smallest_the_longest_and_the_widest_call_are_among_them() -> None:
    shapes = {sample.mask.shape for sample in draw(SPEC, USUAL)}
    assert (1, 2) in shapes
    assert (1, 512) in shapes
    assert max(rows for rows, _ in shapes) == 64


def test_rows_are_ragged_and_padded_on_either_side() -> None:
    samples = draw(SPEC, USUAL)
    ragged = [s for s in samples if not s.mask.all()]
    assert any(is_right_padded(s) for s in ragged)
    assert any(not is_right_padded(s) for s in ragged)
    for sample in ragged:
        sizes = sample.mask.sum(axis=1)
        assert sizes.max() == sample.mask.shape[1]
        assert len(set(sizes.tolist())) > 2


def test_one_seed_gives_one_set_of_samples() -> None:
    first, again, other = draw(SPEC, USUAL), draw(SPEC, USUAL), draw(SPEC, USUAL, seed=1)
    assert all(
        (a.feeds["input_ids"] == b.feeds["input_ids"]).all() for a, b in zip(first, again, strict=True)
    )
    assert any(
        a.feeds["input_ids"].shape != b.feeds["input_ids"].shape
        or (a.feeds["input_ids"] != b.feeds["input_ids"]).any()
        for a, b in zip(first, other, strict=True)
    )


def test_only_what_the_model_takes_is_fed() -> None:
    assert set(draw(spec_of(NAMES[:2]), USUAL)[0].feeds) == set(NAMES[:2])


def test_an_input_nobody_knows_is_refused_by_name() -> None:
    with pytest.raises(InputError, match="no samples for input 'pixel_values'"):
        draw(spec_of((*NAMES, "pixel_values")), USUAL)


def test_a_row_alone_is_its_own_tokens_without_padding() -> None:
    sample = next(s for s in draw(SPEC, USUAL) if not s.mask.all() and is_right_padded(s))
    single = alone(sample, len(sample.mask) - 1, SPEC, USUAL)
    assert single.mask.shape == (1, 2)
    assert single.mask.all()
    assert (single.feeds["input_ids"][0] == sample.feeds["input_ids"][-1, :2]).all()


def test_a_row_alone_is_repeated_and_padded_as_far_as_the_profile_asks() -> None:
    profile = Profile({"batch": Range(3, 3, 4), "length": Range(10, 10, 20)})
    ids = np.arange(2, 6).reshape(1, 4)
    ones = np.ones_like(ids)
    sample = Sample(name="four", feeds={"input_ids": ids, "attention_mask": ones, "token_type_ids": ones})
    single = alone(sample, 0, SPEC, profile)
    admit(SPEC.parts[0].inputs, profile, single.feeds)
    assert single.feeds["input_ids"].tolist() == [[2, 3, 4, 5, 1, 1, 1, 1, 1, 1]] * 3
    assert single.feeds["attention_mask"].sum(axis=1).tolist() == [4, 4, 4]


def test_a_profile_wider_than_any_memory_is_sampled_all_the_same() -> None:
    profile = Profile({"batch": Range(1, 1, 2**31 - 1), "length": Range(2, 8, 8)})
    assert max(len(sample.mask) for sample in draw(SPEC, profile)) == 512


def test_a_profile_that_begins_wider_than_any_memory_is_refused() -> None:
    rows = Range(1_000_000, 1_000_000, 1_000_000)
    said = "a call of batch 1000000, length 2 has 2000000 tokens, more than the 1048576 that can be tried; let the"
    with pytest.raises(InputError, match=said):
        draw(SPEC, Profile({"batch": rows, "length": Range(2, 8, 8)}))
    said = "a call of batch 1, height 100000, width 100000 has 30000000000 numbers, more than the 268435456 that can be"
    side = Range(1, 100_000, 100_000)
    with pytest.raises(InputError, match=said):
        draw(images_of("height", "width"), Profile({"batch": Range(1, 1, 1), "height": side, "width": side}))


def images_of(*sides: int | str) -> ModelSpec:
    pixels = TensorSpec(name="pixel_values", dtype="float32", shape=("batch", 3, *sides))
    part = Part(name="encoder", inputs=(pixels,), outputs=SPEC.parts[0].outputs)
    return replace(SPEC, task="image-classification", parts=(part,), max_length=0, vocab_size=0)


def shapes_of(spec: ModelSpec, **axes: Range) -> list[tuple[int, ...]]:
    profile = Profile(axes)
    samples = draw(spec, profile)
    for sample in samples:
        admit(spec.parts[0].inputs, profile, sample.feeds)
    shapes = [sample.feeds["pixel_values"].shape for sample in samples]
    return [(rows, *sides) for rows, _, *sides in shapes]


def test_images_of_any_size_are_drawn_small_large_tall_and_wide() -> None:
    sides = {"height": Range(16, 32, 48), "width": Range(24, 32, 64)}
    drawn = shapes_of(images_of("height", "width"), batch=Range(1, 2, 4), **sides)
    assert drawn == [
        (rows, *size) for size in ((16, 24), (32, 32), (48, 64), (48, 24), (16, 64)) for rows in (1, 3)
    ]
    assert shapes_of(images_of("height", 24), batch=Range(2, 2, 2), height=sides["height"]) == [
        (2, 16, 24),
        (2, 32, 24),
        (2, 48, 24),
    ]
    assert shapes_of(images_of(16, 24), batch=Range(1, 2, 4)) == [(1, 16, 24), (3, 16, 24)]


def test_large_images_are_drawn_by_ones() -> None:
    side = Range(320, 640, 1280)
    drawn = shapes_of(images_of("height", "width"), batch=Range(1, 8, 8), height=side, width=side)
    assert [rows for rows, *size in drawn if size == [1280, 1280]] == [1]
    assert [rows for rows, *size in drawn if size == [640, 640]] == [1, 2]
    assert [rows for rows, *size in drawn if size == [320, 320]] == [1, 3]
