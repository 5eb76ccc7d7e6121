"""Pooling follows the mask: every row gives what its own tokens give without any padding."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from alula.core.tensor import TensorSpec
from alula.core.words import POOLINGS
from alula.families import pooling
from alula.families.builder import Builder, graph_input
from alula.graphs import passes_for, rewrite

Floats = NDArray[np.float32]

ALONE: Mapping[str, Callable[[Floats], Floats]] = {
    "mean": lambda rows: rows.mean(0),
    "cls": lambda rows: rows[0],
    "lasttoken": lambda rows: rows[-1],
    "max": lambda rows: rows.max(0),
    "mean_sqrt_len_tokens": lambda rows: rows.sum(0) / np.sqrt(np.float32(len(rows))),
    "weightedmean": lambda rows: np.average(rows, axis=0, weights=np.arange(1, len(rows) + 1)),
}
"""What each kind is, for one row without padding."""

_SESSIONS: dict[str, onnxruntime.InferenceSession] = {}


def pooled(kind: str, states: Floats, mask: NDArray[np.int64]) -> Floats:
    if kind not in _SESSIONS:
        _SESSIONS[kind] = session(kind)
    (found,) = _SESSIONS[kind].run(None, {"states": states, "mask": mask})
    return np.asarray(found, np.float32)


def session(kind: str) -> onnxruntime.InferenceSession:
    b = Builder({}, "")
    states = graph_input(TensorSpec(name="states", dtype="float32", shape=("batch", "length", "hidden")))
    mask = graph_input(TensorSpec(name="mask", dtype="int64", shape=("batch", "length")))
    if kind == "normalize":
        first = b.op("Squeeze", states, b.ints(1), path="first")
        result = pooling.normalize(
            b, b.op("Add", first, b.op("Cast", mask, path="first", to=1), path="first")
        )
    else:
        result = pooling.pool(b, states, mask, kind)
    output = b.rename(result, TensorSpec(name="out", dtype="float32", shape=("batch", "hidden")))
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    proto = ir.to_proto(b.model([states, mask], [output], "pooling", 23))
    return onnxruntime.InferenceSession(proto.SerializeToString(), options)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("cls", [1, 0]), ("lasttoken", [3, 0]), ("mean", [2, 0]), ("max", [3, 0])],
)
def test_left_padding_is_left_out(kind: str, expected: list[float]) -> None:
    """The report huggingface/sentence-transformers#3208: mask 0,0,1,1,1."""
    states = np.array([[[0, 2], [0, 2], [1, 0], [2, 0], [3, 0]]], np.float32)
    mask = np.array([[0, 0, 1, 1, 1]])
    np.testing.assert_allclose(pooled(kind, states, mask), [expected], rtol=1e-6)


def test_the_mean_is_of_the_tokens_and_not_of_the_padding() -> None:
    """huggingface/sentence-transformers#3208: two tokens (1, 0) beside two paddings (0, 2) had the mean (0.5, 1)."""
    states = np.array([[[1, 0], [1, 0], [0, 2], [0, 2]], [[0, 2], [0, 2], [1, 0], [1, 0]]], np.float32)
    mask = np.array([[1, 1, 0, 0], [0, 0, 1, 1]])
    np.testing.assert_allclose(pooled("mean", states, mask), [[1, 0], [1, 0]], rtol=1e-6)


@settings(max_examples=60, deadline=None)
@given(
    kind=st.sampled_from(POOLINGS),
    mask=st.integers(1, 9).flatmap(
        lambda length: st.lists(
            st.lists(st.integers(0, 1), min_size=length, max_size=length), min_size=1, max_size=4
        )
    ),
    seed=st.integers(0, 1000),
)
def test_whatever_the_mask_a_row_equals_its_own_tokens(kind: str, mask: list[list[int]], seed: int) -> None:
    kept = np.array(mask, np.int64)
    states = np.random.default_rng(seed).normal(size=(*kept.shape, 3)).astype(np.float32)
    found = pooled(kind, states, kept)
    for row, tokens, result in zip(kept, states, found, strict=True):
        expected = ALONE[kind](tokens[row == 1]) if row.any() else np.zeros(3)
        np.testing.assert_allclose(result, expected, atol=1e-6)


def test_normalised_rows_have_length_one_and_zeros_stay() -> None:
    states = np.array([[[3, 4]], [[0, 0]], [[1e-3, 0]]], np.float32)
    found = pooled("normalize", states, np.zeros((3, 1), np.int64))
    np.testing.assert_allclose(found, np.array([[0.6, 0.8], [0, 0], [1, 0]]), rtol=1e-6)


@pytest.mark.parametrize("target", ["onnxruntime", "tensorrt", "tensorrt-rtx"])
def test_a_text_without_a_vector_is_no_nan_in_fp16(target: str) -> None:
    """MinishLab/model2vec#368: the least length, 1e-32, is nought in fp16, and the vector of nothing was 0 / 0."""
    b = Builder({}, "")
    x, y = (TensorSpec(name=name, dtype="float32", shape=("batch", "hidden")) for name in "xy")
    given = graph_input(x)
    model = b.model([given], [b.rename(pooling.normalize(b, given), y)], "normalize", 23)
    proto = ir.to_proto(rewrite(model, passes_for(target, "fp16")))
    rows = np.array([[0, 0], [3, 4], [1e-6, 0], [40_000, 30_000]], np.float32)
    run = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    found = np.asarray(run.run(None, {"x": rows})[0])
    np.testing.assert_allclose(found, np.array([[0, 0], [0.6, 0.8], [1, 0], [0.8, 0.6]]), atol=1e-3)
