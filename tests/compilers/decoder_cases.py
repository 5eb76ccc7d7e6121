"""Decoders and the parts of a T5 with calls that follow one another: a prompt, then a token behind what it left.

A decoder of twelve layers is there whole and in blocks of six, each a graph of its own: 8.6 takes seconds for a layer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx
import onnx_ir as ir
import tiny_t5
from numpy.typing import NDArray
from onnx_ir.passes.common import ShapeInferencePass
from tiny_decoders import checkpoint, dtype_of, opened, session_of

from alula.graphs import passes_for, rewrite

Feeds: TypeAlias = Mapping[str, NDArray[Any]]

LAYERS, BLOCK = 12, 6
# Heads of 32, three queries to a key as SmolLM2 has; narrow, so that the file is small.
SIZES: Mapping[str, Any] = {
    "hidden_size": 96,
    "intermediate_size": 192,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "vocab_size": 256,
    "tie_word_embeddings": True,
}
T5: Mapping[str, Any] = {
    "d_kv": 32,
    "num_heads": 2,
    "d_model": 64,
    "d_ff": 96,
    "feed_forward_proj": "gated-gelu",
}
# As wide as FLAN-T5-small, which is wrong on 8.6 in fp32 too while small ones are right: steps of one token.
WIDE: Mapping[str, Any] = {
    **{"d_kv": 64, "num_heads": 6, "d_model": 512, "d_ff": 1024, "feed_forward_proj": "gated-gelu"},
    **{"num_layers": 2, "num_decoder_layers": 2, "vocab_size": 512},
}
WIDTH, SOURCE = 64, 30
# Of the length of what fp32 gives: twelve layers of random weights take an error along.
LIMITS = {"fp32": 1e-5, "fp16": 1e-2}
ROWS, PROMPT = 2, 7


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """What a graph is given, and what it gives in fp32."""

    feeds: Feeds
    expected: Feeds


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """A graph in fp32, and calls of it."""

    name: str
    model: ir.Model
    calls: tuple[Call, ...]

    def graph(self, precision: str, opset: int | None) -> ir.Model:
        """What a build would write."""
        return rewrite(self.model, passes_for("tensorrt", precision, opset))


def cases(to: Path) -> Iterator[Case]:
    """All of them; weights are read from a folder when a graph is saved."""
    decoder = opened(to / "decoder", checkpoint(to / "decoder", "llama", noise=0.02, **SIZES)).graph
    yield case("decoder", decoder, list(steps(decoder)))
    for first in range(0, LAYERS, BLOCK):
        block = block_of(decoder, first)
        yield case(f"decoder-{first}", block, list(steps(block)))
    folder = tiny_t5.checkpoint(to / "t5", **T5)
    ids, mask = tiny_t5.sentences([9, 4])
    written = tiny_t5.Written(folder)
    source = written.source(ids, mask)
    yield case("t5-encoder", tiny_t5.part(folder, "encoder"), [{"input_ids": ids, "attention_mask": mask}])
    yield case("t5-cross", tiny_t5.part(folder, "cross"), [{"states": written.encode(ids, mask)}])
    last = tiny_t5.part(folder, "decoder")
    yield case("t5-decoder", last, [{**feeds, **source} for feeds in steps(last)])
    yield from wide(to / "wide")


def wide(folder: Path) -> Iterator[Case]:
    """The parts of a T5 of real widths, whose decoder is given one token of each row."""
    tiny_t5.checkpoint(folder, noise=0.02, **WIDE)
    rng = np.random.default_rng(0)
    ids = rng.integers(2, 500, (ROWS, SOURCE))
    mask = (np.arange(SOURCE) < np.array([[SOURCE], [SOURCE - 9]])).astype(np.int64)
    written = tiny_t5.Written(folder)
    source = written.source(ids, mask)
    yield case("wide-encoder", tiny_t5.part(folder, "encoder"), [{"input_ids": ids, "attention_mask": mask}])
    yield case("wide-cross", tiny_t5.part(folder, "cross"), [{"states": written.encode(ids, mask)}])
    decoder = tiny_t5.part(folder, "decoder")
    calls: list[Feeds] = []
    for held in ((0, 0), (40, 25)):
        lengths = np.array(held)[:, None] + 1
        given: dict[str, NDArray[Any]] = {
            "attention_mask": (np.arange(WIDTH + 1) >= WIDTH + 1 - lengths).astype(np.int64),
            "position_ids": lengths - 1,
            "answers": np.array([0]),
            "input_ids": rng.integers(2, 500, (ROWS, 1)),
        }
        for value in decoder.graph.inputs:
            if str(value.name).startswith("past."):
                shape = (ROWS, WIDE["num_heads"], WIDTH, WIDE["d_kv"])
                given[str(value.name)] = rng.standard_normal(shape).astype(np.float32)
        calls.append({**given, **source})
    yield case("wide-decoder", decoder, calls, width=WIDTH)


def steps(model: ir.Model) -> Iterator[Feeds]:
    """A prompt, one row padded, behind a past that nobody sees; then a token more behind a past that is drawn."""
    rng = np.random.default_rng(0)
    seen = (np.arange(PROMPT + 1) >= np.array([[0], [3]])).astype(np.int64)
    places = np.maximum(seen.cumsum(1) - 1, 0)
    for before, length in ((0, PROMPT), (PROMPT, 1)):
        sizes = {"batch": ROWS, "length": length, "past": PROMPT, "total": PROMPT + length}
        hidden = np.zeros((ROWS, PROMPT - before), np.int64)
        given: dict[str, NDArray[Any]] = {
            "attention_mask": np.concatenate([hidden, seen[:, : before + length]], axis=1),
            "position_ids": places[:, before : before + length],
            "answers": np.array([length - 1]),
            "input_ids": rng.integers(2, 40, (ROWS, length)),
        }
        for value in model.graph.inputs:
            name, shape = str(value.name), value.shape or ()
            if name.startswith("past.") or name == STATES:
                dims = [size if isinstance(size, int) else sizes[str(size)] for size in shape]
                given[name] = rng.standard_normal(dims).astype(np.float32) * np.float32(0.3)
        yield given


def case(name: str, model: ir.Model, calls: list[Feeds], *, width: int = PROMPT) -> Case:
    session = session_of(model)
    names = {str(value.name) for value in model.graph.inputs}
    outputs = [str(value.name) for value in model.graph.outputs]
    made = []
    for feeds in calls:
        own = {key: value for key, value in feeds.items() if key in names}
        expected = dict(zip(outputs, session.run(None, own), strict=True))
        # A graph for TensorRT gives the new places, or with a source a past that is as wide as it was.
        last = width if any(each.startswith("cross.") for each in own) else new_tokens(own)
        kept = {
            each: values[:, :, -last:] for each, values in expected.items() if each.startswith("present.")
        }
        made.append(Call(feeds=own, expected={**expected, **kept}))
    return Case(name=name, model=model, calls=tuple(made))


STATES = "states"


def new_tokens(feeds: Feeds) -> int:
    """How many tokens of a row are new; none where no tokens go in."""
    return feeds["input_ids"].shape[1] if "input_ids" in feeds else 0


def block_of(model: ir.Model, first: int) -> ir.Model:
    """Some layers of a decoder as a graph: what the layers before give goes in, unless they are the first."""
    copy = model.clone()
    ShapeInferencePass()(copy)
    proto = ir.to_proto(copy)
    end = first + BLOCK
    caches = [f"{index}.{kind}" for index in range(first, end) for kind in ("key", "value")]
    inputs = ["input_ids", "position_ids", "attention_mask", *(f"past.{each}" for each in caches)]
    outputs = [*(f"present.{each}" for each in caches)]
    if first:
        inputs.append(_after(first - 1))
    if end < LAYERS:
        outputs.insert(0, _after(end - 1))
    else:
        outputs.insert(0, "logits")
        inputs.append("answers")
    found: ir.Model = ir.from_proto(onnx.utils.Extractor(proto).extract_model(inputs, outputs))
    for value in (*found.graph.inputs, *found.graph.outputs):
        if value.name == _after(first - 1):
            value.name = STATES
        elif value.name == _after(end - 1):
            value.name = f"{STATES}_after"
    return found


def _after(layer: int) -> str:
    """What leaves a layer, by the name of its last sum."""
    return f"layers.{layer}/Add.1"


def as_declared(model: ir.Model, feeds: Feeds) -> Feeds:
    """Caches in the precision that a graph has them in."""
    types = {str(value.name): dtype_of(value) for value in model.graph.inputs}
    return {name: value.astype(types[name]) for name, value in feeds.items()}
