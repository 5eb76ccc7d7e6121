"""T5, mT5 and FLAN-T5 as three parts of one set of weights: what a request needs once, and one step of its answer.

The encoder runs once for a source, and so does "cross", which makes of its states the keys and values that every
layer of the decoder attends to. The decoder takes any number of tokens behind any number of earlier ones, whose keys
and values it is given back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from alula.core.errors import InputError
from alula.core.model import Part
from alula.core.tensor import TensorSpec
from alula.families.builder import Builder, graph_input, ir_version_of
from alula.families.checkpoint import Checkpoint
from alula.families.distances import bucket
from alula.families.layers import MASKED, activation, additive_row, length_of
from alula.families.t5_settings import T5Settings, read_settings
from alula.families.weights import Floats, read_weights

EMBEDDING = "shared.weight"
HEAD = "lm_head.weight"
# Old files hold the embedding once for each that uses it.
_COPIES = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")

Values = Mapping[str, ir.Value]


def parts(s: T5Settings) -> tuple[Part, ...]:
    """What each part takes and gives, in the order of a request: "encoder", "cross", "decoder".

    `answers` are the places among the decoder's new tokens that logits are wanted of, the same in every row.
    """
    states = _float("states", "batch", "source", s.hidden)
    cross = tuple(_caches("cross", "source", s))
    return (
        Part(
            name="encoder",
            inputs=(_ids("input_ids", "batch", "source"), _ids("attention_mask", "batch", "source")),
            outputs=(states,),
        ),
        Part(name="cross", inputs=(states,), outputs=cross),
        Part(
            name="decoder",
            inputs=(
                _ids("input_ids", "batch", "length"),
                _ids("position_ids", "batch", "length"),
                _ids("attention_mask", "batch", "total"),
                _ids("encoder_attention_mask", "batch", "source"),
                _ids("answers", "answers"),
                *cross,
                *_caches("past", "past", s),
            ),
            outputs=(_float("logits", "batch", "answers", s.vocab), *_caches("present", "total", s)),
        ),
    )


def write(checkpoint: Checkpoint, part_name: str, opset: int = 23) -> ir.Model:
    """Write one part in memory; its weights are read from the checkpoint when the model is saved."""
    ir_version_of(opset)
    s = read_settings(checkpoint.config)
    part = next((each for each in parts(s) if each.name == part_name), None)
    if part is None:
        raise InputError(f"no part {part_name!r}; T5 has {list(_WRITERS)}")
    b = Builder(read_weights(checkpoint.root), "")
    _refuse_other_embeddings(b)
    inputs = {spec.name: graph_input(spec) for spec in part.inputs}
    outputs = _WRITERS[part_name](b, inputs, s)
    named = [b.rename(outputs[spec.name], spec) for spec in part.outputs]
    return b.model(list(inputs.values()), named, part_name, opset)


def _encoder(b: Builder, inputs: Values, s: T5Settings) -> dict[str, ir.Value]:
    x = _embed(b, inputs["input_ids"], s)
    row = additive_row(b, inputs["attention_mask"])
    mask = b.op("Add", row, _bias_of_places(b, inputs["input_ids"], s), path="mask")
    for index in b.numbered("encoder.block", s.encoder_layers, "num_layers"):
        path = f"encoder.block.{index}.layer"
        y, at = _norm(b, x, f"{path}.0.layer_norm", s), f"{path}.0.SelfAttention"
        q, k, v = (_linear(b, y, f"{at}.{name}", (s.inner, s.hidden)) for name in "qkv")
        heads = {"q_num_heads": s.heads, "kv_num_heads": s.heads}
        y = b.op("Attention", q, k, v, mask, path=at, scale=1.0, **heads)
        x = b.op("Add", _linear(b, y, f"{at}.o", (s.hidden, s.inner)), x, path=at)
        x = _feed_forward(b, x, f"{path}.1", s)
    return {"states": _norm(b, x, "encoder.final_layer_norm", s)}


def _cross(b: Builder, inputs: Values, s: T5Settings) -> dict[str, ir.Value]:
    made = {}
    for index in b.numbered("decoder.block", s.decoder_layers, "num_decoder_layers"):
        at = f"decoder.block.{index}.layer.1.EncDecAttention"
        for name, which in (("key", "k"), ("value", "v")):
            made[f"cross.{index}.{name}"] = _heads(b, inputs["states"], f"{at}.{which}", s)
    return made


def _decoder(b: Builder, inputs: Values, s: T5Settings) -> dict[str, ir.Value]:
    x, presents = _embed(b, inputs["input_ids"], s), {}
    masks = _Masks(own=_own_mask(b, inputs, s), cross=_cross_mask(b, inputs))
    for index in b.numbered("decoder.block", s.decoder_layers, "num_decoder_layers"):
        path = f"decoder.block.{index}.layer"
        y, at = _norm(b, x, f"{path}.0.layer_norm", s), f"{path}.0.SelfAttention"
        past = (inputs[f"past.{index}.{name}"] for name in ("key", "value"))
        new = (_heads(b, y, f"{at}.{which}", s) for which in "kv")
        k, v = (b.op("Concat", *both, path=at, axis=2) for both in zip(past, new, strict=True))
        presents.update({f"present.{index}.key": k, f"present.{index}.value": v})
        x = b.op("Add", _attend(b, y, (k, v, masks.own), at, s), x, path=at)
        y, at = _norm(b, x, f"{path}.1.layer_norm", s), f"{path}.1.EncDecAttention"
        k, v = (inputs[f"cross.{index}.{name}"] for name in ("key", "value"))
        x = b.op("Add", _attend(b, y, (k, v, masks.cross), at, s), x, path=at)
        x = _feed_forward(b, x, f"{path}.2", s)
    x = b.op("Gather", x, inputs["answers"], path="answers", axis=1)
    return {"logits": _logits(b, _norm(b, x, "decoder.final_layer_norm", s), s), **presents}


_WRITERS: Mapping[str, Callable[[Builder, Values, T5Settings], dict[str, ir.Value]]] = {
    "encoder": _encoder,
    "cross": _cross,
    "decoder": _decoder,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class _Masks:
    """What the decoder's layers share: what is added to the scores of its own tokens and of the source's."""

    own: ir.Value
    cross: ir.Value


def _embed(b: Builder, ids: ir.Value, s: T5Settings) -> ir.Value:
    b.require_rows(EMBEDDING, s.vocab, "vocab_size")
    return b.op("Gather", b.weight(EMBEDDING, s.vocab, s.hidden), ids, path="shared")


def _bias_of_places(b: Builder, ids: ir.Value, s: T5Settings) -> ir.Value:
    """The encoder's bias of every pair of places, padding counted, [heads, source, source]."""
    path = "encoder.relative_attention_bias"
    length = b.op("Squeeze", length_of(b, ids), b.ints(0), path=path)
    places = b.op("Range", b.index(0), length, b.index(1), path=path)
    queries, keys = (b.op("Unsqueeze", places, b.ints(axis), path=path) for axis in (1, 0))
    away = _bounded(b, b.op("Sub", keys, queries, path=path), (-s.farthest, s.farthest), path)

    def columns(table: Floats) -> Floats:
        distances = np.arange(-s.farthest, s.farthest + 1)
        return table[bucket(distances, buckets=s.buckets, farthest=s.farthest)].T

    table = _by_distance(b, "encoder", 2 * s.farthest + 1, columns, s)
    return b.op("Gather", table, b.op("Add", away, b.index(s.farthest), path=path), path=path, axis=1)


def _own_mask(b: Builder, inputs: Values, s: T5Settings) -> ir.Value:
    """The decoder's bias of every pair of tokens, `MASKED` where the key comes later or is none.

    The tokens of a row are numbered by the running sum of its mask: wherever padding lies, what counts is the
    distance of two tokens, and rows of different lengths may stand side by side. Caches may hold anything finite in
    padding, as long as its scores stay above `MASKED`, as those of any keys of the model do.
    """
    path, mask = "decoder.relative_attention_bias", inputs["attention_mask"]
    # Seen to be zeros and ones, they can be counted without a loop where an engine would make one of CumSum.
    ones = b.op(
        "Cast", b.op("Cast", mask, path=path, to=int(ir.DataType.BOOL)), path=path, to=int(ir.DataType.INT64)
    )
    numbers = b.op("Sub", b.op("CumSum", ones, b.index(1), path=path), b.index(1), path=path)
    keys = b.op("Unsqueeze", numbers, b.ints(1), path=path)
    queries = b.op("Unsqueeze", inputs["position_ids"], b.ints(2), path=path)
    # A column of its own hides what comes later, so that no mask of causes is built beside it.
    back = _bounded(b, b.op("Sub", queries, keys, path=path), (-1, s.farthest), path)

    def columns(table: Floats) -> Floats:
        distances = -np.arange(s.farthest + 1)
        found = bucket(distances, buckets=s.buckets, farthest=s.farthest, both_sides=False)
        return np.concatenate([np.full((s.heads, 1), MASKED, np.float32), table[found].T], axis=1)

    table = _by_distance(b, "decoder", s.farthest + 2, columns, s)
    bias = b.op("Gather", table, b.op("Add", back, b.index(1), path=path), path=path, axis=1)
    bias = b.op("Transpose", bias, path=path, perm=(1, 0, 2, 3))
    return b.op("Add", bias, additive_row(b, mask), path="mask")


def _cross_mask(b: Builder, inputs: Values) -> ir.Value:
    """0 for tokens of the source and `MASKED` for padding, [batch, 1, length, source]."""
    row = additive_row(b, inputs["encoder_attention_mask"], "cross_mask")
    ends = b.op("Shape", inputs["encoder_attention_mask"], path="cross_mask")
    source = b.op("Slice", ends, b.ints(1), b.ints(2), b.ints(0), path="cross_mask")
    length = length_of(b, inputs["input_ids"])
    full = b.op("Concat", b.ints(1, 1), length, source, path="cross_mask", axis=0)
    return b.op("Expand", row, full, path="cross_mask")


def _bounded(b: Builder, x: ir.Value, ends: tuple[int, int], path: str) -> ir.Value:
    return b.op("Min", b.op("Max", x, b.index(ends[0]), path=path), b.index(ends[1]), path=path)


def _by_distance(
    b: Builder, side: str, count: int, columns: Callable[[Floats], Floats], s: T5Settings
) -> ir.Value:
    """One column per distance, [heads, count], made when the graph is saved: a graph need not know buckets.

    All layers of a side share what its first one learned. Farther than the farthest is as far as that, and so texts
    may be of any length.
    """
    name = f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
    b.require(name, s.buckets, s.heads)
    return b.lazy(
        f"{side}.relative_attention_bias.by_distance",
        (s.heads, count),
        lambda: np.ascontiguousarray(columns(b.read(name))),
    )


def _attend(
    b: Builder, x: ir.Value, seen: tuple[ir.Value, ir.Value, ir.Value], at: str, s: T5Settings
) -> ir.Value:
    """Attention of new tokens to the keys and values seen, under their mask; scores are not scaled."""
    y = b.op("Attention", _heads(b, x, f"{at}.q", s), *seen, path=at, scale=1.0)
    y = b.op("Transpose", y, path=at, perm=(0, 2, 1, 3))
    y = b.op("Reshape", y, b.ints(0, 0, s.inner), path=at)
    return _linear(b, y, f"{at}.o", (s.hidden, s.inner))


def _heads(b: Builder, x: ir.Value, name: str, s: T5Settings) -> ir.Value:
    """A linear layer, its features as [batch, heads, length, head size]."""
    y = _linear(b, x, name, (s.inner, s.hidden))
    y = b.op("Reshape", y, b.ints(0, 0, s.heads, s.head_size), path=name)
    return b.op("Transpose", y, path=name, perm=(0, 2, 1, 3))


def _feed_forward(b: Builder, x: ir.Value, path: str, s: T5Settings) -> ir.Value:
    at, wide = f"{path}.DenseReluDense", (s.intermediate, s.hidden)
    y = _norm(b, x, f"{path}.layer_norm", s)
    first = f"{at}.wi_0" if s.gated else f"{at}.wi"
    hidden = activation(b, _linear(b, y, first, wide), s.activation, first)
    if s.gated:
        hidden = b.op("Mul", hidden, _linear(b, y, f"{at}.wi_1", wide), path=at)
    return b.op("Add", _linear(b, hidden, f"{at}.wo", (s.hidden, s.intermediate)), x, path=at)


def _logits(b: Builder, states: ir.Value, s: T5Settings) -> ir.Value:
    if s.scaled:
        states = b.op("Mul", states, b.floats(s.hidden**-0.5), path="lm_head")
    if not _is_tied(b):
        b.require_rows(HEAD, s.vocab, "vocab_size")
        return b.op("MatMul", states, b.weight(HEAD, s.vocab, s.hidden, transposed=True), path="lm_head")
    # The table as the lookup has it, and so it is stored once: engines fold the transpose.
    table = b.op("Transpose", b.weight(EMBEDDING, s.vocab, s.hidden), path="lm_head", perm=[1, 0])
    return b.op("MatMul", states, table, path="lm_head")


def _is_tied(b: Builder) -> bool:
    """Whether the head is the embedding; as transformers has it, the weights say so and not config.json."""
    return not b.has(HEAD) or _equal(b, HEAD)


def _refuse_other_embeddings(b: Builder) -> None:
    for name in _COPIES:
        if b.has(name) and not _equal(b, name):
            raise InputError(f"{name} differs from {EMBEDDING}; the graphs have one embedding for both sides")


def _equal(b: Builder, name: str) -> bool:
    return b.shape(name) == b.shape(EMBEDDING) and bool(np.array_equal(b.read(name), b.read(EMBEDDING)))


def _linear(b: Builder, x: ir.Value, name: str, size: tuple[int, int]) -> ir.Value:
    return b.op("MatMul", x, b.weight(f"{name}.weight", *size, transposed=True), path=name)


def _norm(b: Builder, x: ir.Value, name: str, s: T5Settings) -> ir.Value:
    scale = b.weight(f"{name}.weight", s.hidden)
    return b.op("RMSNormalization", x, scale, path=name, axis=-1, epsilon=s.epsilon)


def _caches(kind: str, axis: str, s: T5Settings) -> Iterator[TensorSpec]:
    """A key and a value for every layer of the decoder."""
    for index in range(s.decoder_layers):
        for name in ("key", "value"):
            yield _float(f"{kind}.{index}.{name}", "batch", s.heads, axis, s.head_size)


def _ids(name: str, *shape: int | str) -> TensorSpec:
    return TensorSpec(name=name, dtype="int64", shape=shape)


def _float(name: str, *shape: int | str) -> TensorSpec:
    return TensorSpec(name=name, dtype="float32", shape=shape)
