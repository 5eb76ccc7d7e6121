"""LLaMA and its kin: rotated queries and keys, several queries to a key, RMS norms before, a gated feed-forward.

One graph reads the prompt and takes the steps behind it: what it is told of the past is a cache of keys and values,
which may be empty, and what it gives is that cache with the new tokens behind it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import onnx_ir as ir

from alula.core.errors import InputError
from alula.core.model import Part
from alula.core.tensor import TensorSpec
from alula.families.builder import OPSETS, Builder, graph_input
from alula.families.decoder_settings import DecoderSettings
from alula.families.layers import MASKED, activation
from alula.families.rope import cosines, sines
from alula.families.weights import Weights

PART = "decoder"
_TABLE = "embed_tokens.weight"
_HEAD = "lm_head.weight"
_INNER = "model.language_model."
"""What transformers puts before a language model's weights where there is a vision part beside it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Tokens:
    """What every layer needs to know of the new tokens, and each layer's keys and values of those before."""

    mask: ir.Value
    cosines: ir.Value
    sines: ir.Value
    past: Sequence[tuple[ir.Value, ir.Value]]


def decoder_part(s: DecoderSettings) -> Part:
    """What the decoder takes and gives.

    `total` is `past` and `length` together; `attention_mask` is 1 where a token may be seen, so that rows are padded
    on the left, and `position_ids` number a row's own tokens from 0. `answers` are the places among the new tokens
    that logits are wanted of, the same in every row: of a prompt the last one alone, since the head is a fifth of all
    products of a SmolLM2-135M. Positions of several axes are [axes, batch, length]. `image` are rows that a vision part
    made, one at least, and `image_rows` says which of them takes a token's place, -1 where none does.
    """
    row, axes = ("batch", "length"), len(s.sections)
    ids = [
        TensorSpec(name="input_ids", dtype="int64", shape=row),
        TensorSpec(name="position_ids", dtype="int64", shape=(axes, *row) if axes else row),
    ]
    mask = TensorSpec(name="attention_mask", dtype="int64", shape=("batch", "total"))
    answers = TensorSpec(name="answers", dtype="int64", shape=("answers",))
    logits = TensorSpec(name="logits", dtype="float32", shape=("batch", "answers", s.vocab))
    image = []
    if s.image is not None:
        image = [
            TensorSpec(name="image_rows", dtype="int64", shape=row),
            TensorSpec(name="image", dtype="float32", shape=("image_tokens", s.hidden)),
        ]
    return Part(
        name=PART,
        inputs=(*ids, mask, answers, *image, *_cache(s, "past", "past")),
        outputs=(logits, *_cache(s, "present", "total")),
    )


def write_decoder(weights: Weights, s: DecoderSettings, opset: int = 23) -> ir.Model:
    """The decoder in memory; its weights are read when the model is saved."""
    if opset not in OPSETS:
        raise InputError(f"opset {opset} is not one that graphs are written in: {OPSETS}")
    part = decoder_part(s)
    b = Builder(weights, _INNER if any(name.startswith(_INNER) for name in weights) else "model.")
    values = {spec.name: graph_input(spec) for spec in part.inputs}
    ids, seen = values["input_ids"], values["attention_mask"]
    b.require_rows(_TABLE, s.vocab, "vocab_size")
    x = b.op("Gather", b.weight(_TABLE, s.vocab, s.hidden), ids, path="embed_tokens")
    if s.image is not None:
        x = _with_image(b, x, values["image_rows"], values["image"])
    cos, sin = _turns(b, values["position_ids"], s)
    past = [(values[f"past.{index}.key"], values[f"past.{index}.value"]) for index in range(s.layers)]
    tokens = _Tokens(mask=_mask(b, ids, seen), cosines=cos, sines=sin, past=past)
    present: list[ir.Value] = []
    for index in b.numbered("layers", s.layers, "num_hidden_layers"):
        x, *cache = _layer(b, x, index, tokens, s)
        present += cache
    x = b.op("Gather", x, values["answers"], path="answers", axis=1)
    logits = _head(b, weights, _norm(b, x, "norm", s.hidden, s), s)
    outputs = [b.rename(value, spec) for value, spec in zip((logits, *present), part.outputs, strict=True)]
    return b.model(list(values.values()), outputs, PART, opset)


def _cache(s: DecoderSettings, name: str, axis: str) -> list[TensorSpec]:
    shape = ("batch", s.kv_heads, axis, s.head_size)
    return [
        TensorSpec(name=f"{name}.{index}.{what}", dtype="float32", shape=shape)
        for index in range(s.layers)
        for what in ("key", "value")
    ]


def _mask(b: Builder, ids: ir.Value, seen: ir.Value) -> ir.Value:
    """0 where a token sees another and `MASKED` elsewhere, [batch, 1, length, total].

    The new tokens are the last ones of all, which the causal flag of Attention takes for the first in some engines.
    """
    op = partial(b.op, path="mask")
    length, total = (op("Gather", op("Shape", value), b.index(1)) for value in (ids, seen))
    columns = op("Range", b.index(0), total, b.index(1))
    rows = op("Range", op("Sub", total, length), total, b.index(1))
    before = op("LessOrEqual", columns, op("Unsqueeze", rows, b.ints(1)))
    known = op("Unsqueeze", op("Cast", seen, to=int(ir.DataType.BOOL)), b.ints(1, 2))
    return op("Where", op("And", before, known), b.floats(0), b.floats(MASKED))


def _turns(b: Builder, positions: ir.Value, s: DecoderSettings) -> tuple[ir.Value, ir.Value]:
    """Cosines and sines of the new tokens' positions, [batch, length, half a head]: one look-up for all layers.

    With sections apart they are as wide as a head, each section of it turned by the positions of one axis.
    """
    angles, shape = np.array(s.angles, np.float32), (s.positions, s.head_size // 2)
    tables = (
        b.lazy("rotary.cosines", shape, lambda: cosines(angles, s.positions)),
        b.lazy("rotary.sines", shape, lambda: sines(angles, s.positions)),
    )
    if not s.sections:
        cos, sin = (b.op("Gather", table, positions, path="rotary") for table in tables)
        return cos, sin
    if s.apart:
        tables = _twice(b, tables[0]), _twice(b, tables[1])
    cos, sin = (_of_axes(b, table, positions, s) for table in tables)
    return cos, sin


def _twice(b: Builder, table: ir.Value) -> ir.Value:
    return b.op("Concat", table, table, path="rotary", axis=1)


def _of_axes(b: Builder, table: ir.Value, positions: ir.Value, s: DecoderSettings) -> ir.Value:
    """What a table says of each section, by the positions of its own axis."""
    begin, found = 0, []
    for axis, section in enumerate(s.sections):
        end = begin + section * (2 if s.apart else 1)
        columns = b.op("Slice", table, b.ints(begin), b.ints(end), b.ints(1), path="rotary")
        of_axis = b.op("Gather", positions, b.index(axis), path="rotary", axis=0)
        found.append(b.op("Gather", columns, of_axis, path="rotary"))
        begin = end
    return b.op("Concat", *found, path="rotary", axis=2)


def _with_image(b: Builder, x: ir.Value, rows: ir.Value, image: ir.Value) -> ir.Value:
    """Rows of images in the places that are kept for them.

    Who runs the graph says which row goes where: a token that happens to be the one for images keeps its own meaning.
    """
    op = partial(b.op, path="image")
    placed = op("Gather", image, op("Max", rows, b.index(0)))
    return op("Where", op("Unsqueeze", op("GreaterOrEqual", rows, b.index(0)), b.ints(2)), placed, x)


def _turned(b: Builder, x: ir.Value, tokens: _Tokens, path: str, s: DecoderSettings) -> ir.Value:
    """Heads turned to their places."""
    if not s.apart:
        return b.op("RotaryEmbedding", x, tokens.cosines, tokens.sines, path=path)
    # Not a rotation where the two halves of a pair have other axes, so written out.
    cos, sin = (b.op("Unsqueeze", each, b.ints(1), path=path) for each in (tokens.cosines, tokens.sines))
    half = s.head_size // 2
    first, second = (
        b.op("Slice", x, b.ints(begin), b.ints(begin + half), b.ints(3), path=path) for begin in (0, half)
    )
    across = b.op("Concat", b.op("Neg", second, path=path), first, path=path, axis=3)
    return b.op("Add", b.op("Mul", x, cos, path=path), b.op("Mul", across, sin, path=path), path=path)


def _layer(
    b: Builder, x: ir.Value, index: int, tokens: _Tokens, s: DecoderSettings
) -> tuple[ir.Value, ir.Value, ir.Value]:
    """One layer, and its keys and values with the new ones behind them."""
    path, at = f"layers.{index}", f"layers.{index}.mlp"
    wide, narrow = (s.intermediate, s.hidden), (s.hidden, s.intermediate)
    normed = _norm(b, x, f"{path}.input_layernorm", s.hidden, s)
    attended, key, value = _attention(b, normed, index, tokens, s)
    x = b.op("Add", x, attended, path=path)
    normed = _norm(b, x, f"{path}.post_attention_layernorm", s.hidden, s)
    gate = activation(b, _linear(b, normed, f"{at}.gate_proj", wide, s), s.activation, at)
    up = b.op("Mul", gate, _linear(b, normed, f"{at}.up_proj", wide, s), path=at)
    return b.op("Add", x, _linear(b, up, f"{at}.down_proj", narrow, s), path=path), key, value


def _attention(
    b: Builder, x: ir.Value, index: int, tokens: _Tokens, s: DecoderSettings
) -> tuple[ir.Value, ir.Value, ir.Value]:
    path, size = f"layers.{index}.self_attn", s.heads * s.head_size
    # Three products: joined ones, and those of gate and up, took 0 to 5 % off a single token (docs/accuracy.md).
    query, key, value = (
        _heads(b, _linear(b, x, f"{path}.{name}", (count * s.head_size, s.hidden), s), path, s.head_size)
        for name, count in (("q_proj", s.heads), ("k_proj", s.kv_heads), ("v_proj", s.kv_heads))
    )
    query, key = _head_norms(b, (query, key), path, s, turned=False)
    query, key = (_turned(b, each, tokens, path, s) for each in (query, key))
    query, key = _head_norms(b, (query, key), path, s, turned=True)
    key, value = (
        b.op("Concat", old, new, path=path, axis=2)
        for old, new in zip(tokens.past[index], (key, value), strict=True)
    )
    context = b.op("Attention", query, key, value, tokens.mask, path=path)
    joined = b.op("Transpose", context, path=path, perm=[0, 2, 1, 3])
    flat = b.op("Reshape", joined, b.ints(0, 0, size), path=path)
    return _linear(b, flat, f"{path}.o_proj", (s.hidden, size), s), key, value


def _head_norms(
    b: Builder, pair: tuple[ir.Value, ir.Value], path: str, s: DecoderSettings, *, turned: bool
) -> tuple[ir.Value, ir.Value]:
    """Queries and keys with each head normalised, where the family does that at this point."""
    if s.norms is None or s.norms.turned != turned:
        return pair
    query = _norm(b, pair[0], f"{path}.{s.norms.query}", s.head_size, s)
    return query, _norm(b, pair[1], f"{path}.{s.norms.key}", s.head_size, s)


def _heads(b: Builder, x: ir.Value, path: str, size: int) -> ir.Value:
    """From [batch, length, heads x size] to [batch, heads, length, size]."""
    apart = b.op("Reshape", x, b.ints(0, 0, -1, size), path=path)
    return b.op("Transpose", apart, path=path, perm=[0, 2, 1, 3])


def _norm(b: Builder, x: ir.Value, name: str, size: int, s: DecoderSettings) -> ir.Value:
    return b.op(
        "RMSNormalization", x, b.weight(f"{name}.weight", size), path=name, axis=-1, epsilon=s.epsilon
    )


def _linear(b: Builder, x: ir.Value, name: str, size: tuple[int, int], s: DecoderSettings) -> ir.Value:
    y = b.op("MatMul", x, b.weight(f"{name}.weight", *size, transposed=True), path=name)
    if name.rpartition(".")[2] not in s.biased:
        return y
    return b.op("Add", y, b.weight(f"{name}.bias", size[0]), path=name)


def _head(b: Builder, weights: Weights, x: ir.Value, s: DecoderSettings) -> ir.Value:
    """Logits, from the table of embeddings where the two are one: it is stored once, and engines fold the transpose."""
    if not s.tied:
        b.require_rows(_HEAD, s.vocab, "vocab_size", head=True)
        return b.op(
            "MatMul", x, b.weight(_HEAD, s.vocab, s.hidden, head=True, transposed=True), path="lm_head"
        )
    if _HEAD in weights and not np.array_equal(weights[_HEAD].read(), b.read(_TABLE)):
        raise InputError(
            f"tie_word_embeddings is true, and the checkpoint has {_HEAD} with other numbers than {_TABLE}; "
            "say false if the head is its own, or drop it"
        )
    table = b.op("Transpose", b.weight(_TABLE, s.vocab, s.hidden), path="lm_head", perm=[1, 0])
    return b.op("MatMul", x, table, path="lm_head")
