"""The parts of HunyuanOCR as GPUs get them: compiled by TensorRT-RTX, and in the words of TensorRT 8.6."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from numpy.typing import NDArray
from oldest import refusals
from tiny_decoders import dtype_of, session_of

from alula.families import Checkpoint, describe, open_checkpoint, with_compat, write
from alula.graphs import passes_for, rewrite, save

pytest.importorskip("transformers.models.hunyuan_vl")
import tiny_hunyuan

Feeds = Mapping[str, NDArray[Any]]
PARTS, COMPATS = ("vision", "decoder"), ("tencent", "transformers")
SHAPES = {
    "down": (2, 8, 16),
    "across": (2, 8, 16),
    "batch": (1, 1, 2),
    "length": (1, 4, 16),
    "past": (0, 8, 16),
    "total": (1, 12, 32),
    "answers": (1, 1, 16),
    "image_tokens": (1, 4, 64),
}
LIMITS = {"fp32": 1e-5, "fp16": 2e-2}
"""Of the largest number: its weights are as large as its inputs, so that eleven bits of each are seen."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    folder = tmp_path_factory.mktemp("tiny") / "hunyuan"
    tiny_hunyuan.checkpoint(folder)
    return open_checkpoint(str(folder))


def graph(model: Checkpoint, part: str, compat: str) -> ir.Model:
    return write(model, with_compat(describe(model), compat), part)


def feeds(part: str) -> Feeds:
    """A page; or a prompt with an image behind a past, and a token for images that is one of a text."""
    rng = np.random.default_rng(0)
    if part == "vision":
        return {"patches": rng.standard_normal((6, 10, 48)).astype(np.float32)}
    ids = np.array([[5, 93, 93, 93, 93, 93, 7]])
    places = np.tile(np.arange(4, 11), (4, 1, 1))
    places[1:, 0, 2:5] = [[0, 1, 2], [3, 3, 4], [0, 0, 0]]
    past = {
        f"past.{layer}.{kind}": rng.standard_normal((1, 2, 4, 16)).astype(np.float32)
        for layer in range(2)
        for kind in ("key", "value")
    }
    return {
        "input_ids": ids,
        "position_ids": places,
        "attention_mask": np.ones((1, 11), np.int64),
        "answers": np.array([6]),
        "image_rows": np.array([[-1, 2, 0, 1, 3, -1, -1]]),
        "image": rng.standard_normal((4, 40)).astype(np.float32),
        **past,
    }


def declared(made: ir.Model, given: Feeds) -> Feeds:
    """What the inputs are declared as."""
    return {str(value.name): given[str(value.name)].astype(dtype_of(value)) for value in made.graph.inputs}


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("compat", COMPATS)
@pytest.mark.parametrize("part", PARTS)
def test_a_part_in_the_words_of_tensorrt_8_6(
    part: str, compat: str, precision: str, model: Checkpoint
) -> None:
    plain = graph(model, part, compat)
    made = rewrite(plain, passes_for("tensorrt", precision, 17))
    assert refusals(made) == []
    onnx.checker.check_model(ir.to_proto(made), full_check=True)
    expected = session_of(plain).run(None, feeds(part))[0]
    given = session_of(made).run(None, declared(made, feeds(part)))[0]
    off = np.abs(given.astype(np.float32) - expected).max() / np.abs(expected).max()
    assert off < LIMITS[precision]


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("part", PARTS)
def test_a_part_is_compiled_with_its_attention_whole(
    part: str, precision: str, model: Checkpoint, tmp_path: Path
) -> None:
    rtx = pytest.importorskip("rtx")
    made = rewrite(graph(model, part, "tencent"), passes_for("tensorrt-rtx", precision))
    saved = save(made, tmp_path / "graph.onnx", precision)
    shapes = {
        str(value.name): [
            [
                SHAPES[str(size)][at] if isinstance(size, ir.SymbolicDim) else int(size)
                for size in value.shape or ()
            ]
            for at in range(3)
        ]
        for value in made.graph.inputs
    }
    # Heads of 12 have no kernel in fp16; the published ones of 72 have.
    whole = 0 if (part, precision) == ("vision", "fp16") else 2
    assert rtx.compiled(saved.path, shapes, decomposable=True).attentions == whole
