"""Layers that several families share."""

from __future__ import annotations

from dataclasses import dataclass, replace

import onnx_ir as ir

from alula.core.errors import InputError
from alula.families.builder import Builder
from alula.families.packing import Packing
from alula.families.settings import Settings

# Far below any attention score, so that softmax gives it exactly 0, and yet finite, in fp16 too:
# a row without any token keeps finite numbers where -inf would make NaN.
MASKED = -10000.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Inputs:
    """The inputs of an encoder, padded, and how their tokens lie in its rows where that is otherwise."""

    ids: ir.Value
    mask: ir.Value
    types: ir.Value | None
    packing: Packing | None = None

    def in_rows(self, b: Builder, padded: ir.Value) -> ir.Value:
        """What tokens have, [batch, length], as the encoder's rows have it."""
        return self.packing.take(b, padded) if self.packing else padded


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerNames:
    """Where one family keeps its layers, and the parts of one below the layer's own path."""

    path: str
    query: str
    key: str
    value: str
    attention: str
    output: str
    attention_norm: str
    expand: str
    contract: str
    norm: str
    counted: str = "num_hidden_layers"
    """What config.json calls the number of them."""

    def at(self, index: int) -> LayerNames:
        """The full names of one layer."""
        path = f"{self.path}.{index}"
        parts = {
            name: f"{path}.{getattr(self, name)}"
            for name in self.__slots__
            if name not in {"path", "counted"}
        }
        return replace(self, path=path, **parts)


def linear(b: Builder, x: ir.Value, name: str, size: tuple[int, int], *, head: bool = False) -> ir.Value:
    """Compute x W^T + b, with the checkpoint's weight of `size`, [out, in], stored the other way round."""
    y = b.op("MatMul", x, b.weight(f"{name}.weight", *size, head=head, transposed=True), path=name)
    return b.op("Add", y, b.weight(f"{name}.bias", size[0], head=head), path=name)


def norm(b: Builder, x: ir.Value, name: str, size: int, epsilon: float) -> ir.Value:
    """Layer normalisation over the last axis."""
    scale, bias = b.weight(f"{name}.weight", size), b.weight(f"{name}.bias", size)
    return b.op("LayerNormalization", x, scale, bias, path=name, axis=-1, epsilon=epsilon)


def length_of(b: Builder, ids: ir.Value) -> ir.Value:
    """The number of tokens, as a vector of one."""
    shape = b.op("Shape", ids, path="length")
    return b.op("Slice", shape, b.ints(1), b.ints(2), b.ints(0), path="length")


def additive_mask(b: Builder, mask: ir.Value, length: ir.Value) -> ir.Value:
    """0 where a token may be attended to and `MASKED` elsewhere, [batch, 1, length, length].

    ONNX Runtime's Attention takes a mask with its query axis in full; all layers share this one.
    """
    row = additive_row(b, mask)
    full = b.op("Concat", b.ints(1, 1), length, b.ints(1), path="mask", axis=0)
    return b.op("Expand", row, full, path="mask")


def visible(b: Builder, inputs: Inputs, length: ir.Value) -> ir.Value:
    """As `additive_mask`, of the encoder's rows: a token sees those of its own text that the mask keeps."""
    if not inputs.packing:
        return additive_mask(b, inputs.mask, length)
    hidden = b.op("Sub", b.floats(1), inputs.packing.same_text(b, inputs.mask), path="mask")
    return b.op("Mul", hidden, b.floats(MASKED), path="mask")


def additive_row(b: Builder, mask: ir.Value, path: str = "mask") -> ir.Value:
    """The same for every query at once, [batch, 1, 1, length]."""
    kept = b.op("Cast", mask, path=path, to=int(ir.DataType.FLOAT))
    hidden = b.op("Mul", b.op("Sub", b.floats(1), kept, path=path), b.floats(MASKED), path=path)
    return b.op("Unsqueeze", hidden, b.ints(1, 2), path=path)


def rows(b: Builder, table: ir.Value, length: ir.Value, path: str) -> ir.Value:
    """The first `length` rows of a table."""
    return b.op("Slice", table, b.ints(0), length, b.ints(0), path=path)


def by_place(b: Builder, inputs: Inputs, table: ir.Value, length: ir.Value, path: str) -> ir.Value:
    """The row of a table that belongs to the place of each token in its text."""
    if not inputs.packing:
        return rows(b, table, length, path)
    return b.op("Gather", table, inputs.packing.places(b), path=path)


def padded_positions(b: Builder, ids: ir.Value, pad_id: int, path: str) -> ir.Value:
    """Number the tokens that are not padding from pad_id + 1; padding stays at pad_id."""
    kept = b.op("Not", b.op("Equal", ids, b.index(pad_id), path=path), path=path)
    kept = b.op("Cast", kept, path=path, to=int(ir.DataType.INT64))
    number = b.op("Mul", b.op("CumSum", kept, b.index(1), path=path), kept, path=path)
    return b.op("Add", number, b.index(pad_id), path=path)


WORDS = "embeddings.word_embeddings.weight"
TYPES = "embeddings.token_type_embeddings.weight"


def embed(b: Builder, inputs: Inputs, positions: ir.Value, s: Settings, size: int | None = None) -> ir.Value:
    """Word, position and (where there are several) token type embeddings, of the hidden size or another, normalised."""
    size = size or s.hidden
    b.require_rows(WORDS, s.vocab, "vocab_size")
    words = b.weight(WORDS, s.vocab, size)
    total = b.op("Gather", words, inputs.in_rows(b, inputs.ids), path="embeddings.word_embeddings")
    total = b.op("Add", total, positions, path="embeddings")
    if inputs.types is not None:
        table = b.weight(TYPES, s.types, size)
        numbers = inputs.in_rows(b, inputs.types)
        types = b.op("Gather", table, numbers, path="embeddings.token_type_embeddings")
        total = b.op("Add", total, types, path="embeddings")
    return norm(b, total, "embeddings.LayerNorm", size, s.epsilon)


def position_table(b: Builder, s: Settings, size: int | None = None) -> ir.Value:
    """The position embeddings; a token type that is the only one is added to every position here, once."""
    name = "embeddings.position_embeddings.weight"
    shape = (s.positions, size or s.hidden)
    b.require_rows(name, s.positions, "max_position_embeddings")
    if s.types != 1:
        return b.weight(name, *shape)
    b.require(name, *shape)
    b.require(TYPES, 1, shape[1])
    return b.lazy(name, shape, lambda: b.read(name) + b.read(TYPES))


def layers(b: Builder, x: ir.Value, mask: ir.Value, names: LayerNames, s: Settings) -> ir.Value:
    """The stack of post-norm transformer layers."""
    for index in b.numbered(names.path, s.layers, names.counted):
        x = _layer(b, x, mask, names.at(index), s)
    return x


def _layer(b: Builder, x: ir.Value, mask: ir.Value, at: LayerNames, s: Settings) -> ir.Value:
    # Three products, no slower than one over joined weights and a Split, which would save 36 of BERT-base's 240 nodes:
    # MiniLM, 2 threads, interleaved medians in ms, three / one: ONNX Runtime fp32 1x128 34 / 34, 8x128 209 / 209;
    # OpenVINO fp32 54 / 55, 259 / 283; OpenVINO bf16 with AMX 1x128 5.10 / 5.25.
    q, k, v = (linear(b, x, name, s.square) for name in (at.query, at.key, at.value))
    heads = {"q_num_heads": s.heads, "kv_num_heads": s.heads}
    context = linear(b, b.op("Attention", q, k, v, mask, path=at.attention, **heads), at.output, s.square)
    total = b.op("Add", context, x, path=at.attention_norm)
    x = norm(b, total, at.attention_norm, s.hidden, s.epsilon)
    size = s.intermediate or next(iter(b.shape(f"{at.expand}.weight")), 0)
    wide = activation(b, linear(b, x, at.expand, (size, s.hidden)), s.activation, at.expand)
    total = b.op("Add", linear(b, wide, at.contract, (s.hidden, size)), x, path=at.norm)
    return norm(b, total, at.norm, s.hidden, s.epsilon)


def first_token(b: Builder, x: ir.Value, path: str) -> ir.Value:
    """The state at position 0, padded or not, as the classification heads of transformers take it."""
    return b.op("Gather", x, b.index(0), path=path, axis=1)


_ERF_GELU = ("gelu", "gelu_python")
_TANH_GELU = ("gelu_new", "gelu_fast", "gelu_accurate", "gelu_pytorch_tanh", "gelu_python_tanh")
_ONE_NODE = {"relu": "Relu", "tanh": "Tanh", "sigmoid": "Sigmoid", "mish": "Mish"}
_GATED = {"silu": 1.0, "swish": 1.0, "quick_gelu": 1.702}
ACTIVATIONS = (*_ERF_GELU, *_TANH_GELU, *_ONE_NODE, *_GATED, "relu6", "linear", "none")


def activation(b: Builder, x: ir.Value, name: str, path: str) -> ir.Value:
    """An activation by the name transformers gives it."""
    if name not in ACTIVATIONS:
        raise InputError(f"activation {name!r} is not one of: {', '.join(ACTIVATIONS)}")
    if name in _ERF_GELU:
        return b.op("Gelu", x, path=path)
    if name in _TANH_GELU:
        return b.op("Gelu", x, path=path, approximate="tanh")
    if name in _ONE_NODE:
        return b.op(_ONE_NODE[name], x, path=path)
    if name in _GATED:
        scaled = x if _GATED[name] == 1.0 else b.op("Mul", x, b.floats(_GATED[name]), path=path)
        return b.op("Mul", x, b.op("Sigmoid", scaled, path=path), path=path)
    if name == "relu6":
        return b.op("Clip", x, b.floats(0), b.floats(6), path=path)
    return x
