"""The vision part of HunyuanOCR: patches of one image through a transformer, and four of them each to a token.

What the language model reads of an image is a token that begins it, rows of tokens with one behind each that ends the
row, and a token that ends it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import onnx_ir as ir

from alula.core.errors import InputError, ManifestError
from alula.core.model import Part
from alula.core.parse import get
from alula.core.tensor import TensorSpec
from alula.families.builder import OPSETS, Builder, graph_input
from alula.families.layers import activation, linear, norm
from alula.families.weights import Floats, Weights

PART = "vision"
COLOURS = 3
Grid = Literal["tencent", "transformers"]

STRETCH: Mapping[Grid, float] = {"tencent": 0.1, "transformers": 0.0}
"""What is added to a grid's sides where positions are spread over it: Tencent's code scales by (side + 0.1) / edge."""

_ACTIVATIONS = ("gelu",)
_MERGE = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class HunyuanVision:
    """Sizes of the vision part; `edge` is the side of the square of positions that were learned, in patches."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    patch: int
    edge: int
    epsilon: float
    activation: str
    text_hidden: int

    @property
    def features(self) -> int:
        """Numbers of a patch: channel by channel, row by row."""
        return COLOURS * self.patch * self.patch


@dataclass(frozen=True, kw_only=True, slots=True)
class _Names:
    """How one spelling of the checkpoints names what lies below its prefix."""

    prefix: str
    before: str
    after: str
    expand: str
    contract: str
    merger: str
    gather: str
    widen: str


_TENCENT = _Names(
    prefix="vit.",
    before="input_layernorm",
    after="post_attention_layernorm",
    expand="mlp.dense_h_to_4h",
    contract="mlp.dense_4h_to_h",
    merger="perceive",
    gather="proj.0",
    widen="proj.2",
)
_TRANSFORMERS = _Names(
    prefix="model.vision_tower.",
    before="layer_norm1",
    after="layer_norm2",
    expand="mlp.fc1",
    contract="mlp.fc2",
    merger="patch_merger",
    gather="proj_conv",
    widen="proj_out",
)


def read_vision(config: Mapping[str, Any], text_hidden: int) -> HunyuanVision:
    """Parse `vision_config` of config.json; the language model says how wide its tokens are."""
    raw = get(config, dict, "vision_config")
    try:
        settings = HunyuanVision(
            hidden=get(raw, int, "hidden_size"),
            intermediate=get(raw, int, "intermediate_size"),
            layers=get(raw, int, "num_hidden_layers"),
            heads=get(raw, int, "num_attention_heads"),
            patch=get(raw, int, "patch_size"),
            edge=get(raw, int, "max_image_size") // get(raw, int, "patch_size"),
            epsilon=float(raw.get("rms_norm_eps", 1e-5)),
            activation=str(raw.get("hidden_act", "gelu")),
            text_hidden=text_hidden,
        )
    except ManifestError as error:
        raise InputError(f"config.json: vision_config.{error}") from error
    expected = {
        "hidden_act": (settings.activation, _ACTIVATIONS),
        "spatial_merge_size": (raw.get("spatial_merge_size", _MERGE), (_MERGE,)),
        "temporal_patch_size": (raw.get("temporal_patch_size", 1), (1,)),
        "num_channels": (raw.get("num_channels", COLOURS), (COLOURS,)),
        "interpolate_mode": (raw.get("interpolate_mode", "bilinear"), ("bilinear",)),
    }
    for key, (given, taken) in expected.items():
        if given not in taken:
            raise InputError(
                f"config.json: vision_config.{key} is {given!r}, expected {' or '.join(map(repr, taken))}"
            )
    return settings


def vision_part(s: HunyuanVision) -> Part:
    """What the part takes and gives: one image.

    `patches` [down, across, features] are in the order of the image, both sides even; `embeddings` are
    (down / 2) * (across / 2 + 1) + 2 tokens of the language model.
    """
    patches = TensorSpec(name="patches", dtype="float32", shape=("down", "across", s.features))
    given = TensorSpec(name="embeddings", dtype="float32", shape=("tokens", s.text_hidden))
    return Part(name=PART, inputs=(patches,), outputs=(given,))


def write_vision(weights: Weights, s: HunyuanVision, *, grid: Grid = "tencent", opset: int = 23) -> ir.Model:
    """The vision part in memory; its weights, in either spelling, are read when the model is saved."""
    if opset not in OPSETS:
        raise InputError(f"opset {opset} is not one that graphs are written in: {OPSETS}")
    names = _spelling(weights)
    part, b = vision_part(s), Builder(weights, names.prefix)
    patches = graph_input(part.inputs[0])
    shape = b.op("Shape", patches, path="grid")
    down, across = (b.op("Gather", shape, b.index(axis), path="grid") for axis in (0, 1))
    x = b.op("Add", _embed(b, patches, s), _positions(b, (down, across), s, STRETCH[grid]), path="embeddings")
    x = b.op("Reshape", x, b.ints(1, -1, s.hidden), path="embeddings")
    for index in b.numbered("layers", s.layers, "num_hidden_layers of vision_config"):
        x = _layer(b, x, f"layers.{index}", names, s)
    x = _merge(b, x, (down, across), names, s)
    return b.model([patches], [b.rename(x, part.outputs[0])], PART, opset)


def _spelling(weights: Weights) -> _Names:
    for names in (_TENCENT, _TRANSFORMERS):
        if any(name.startswith(names.prefix) for name in weights):
            return names
    raise InputError(
        f"the checkpoint has no weights of a vision part, expected {_TENCENT.prefix}* or {_TRANSFORMERS.prefix}*"
    )


def _embed(b: Builder, patches: ir.Value, s: HunyuanVision) -> ir.Value:
    """Patches to states: the convolution of a patch's size is a linear layer over its numbers."""
    path = "embeddings.patch_embedding"
    b.require(f"{path}.weight", s.hidden, COLOURS, s.patch, s.patch)

    def read() -> Floats:
        return np.ascontiguousarray(b.read(f"{path}.weight").reshape(s.hidden, s.features).T)

    x = b.op("MatMul", patches, b.lazy(f"{path}.weight", (s.features, s.hidden), read), path=path)
    return b.op("Add", x, b.weight(f"{path}.bias", s.hidden), path=path)


def _positions(b: Builder, grid: tuple[ir.Value, ir.Value], s: HunyuanVision, stretch: float) -> ir.Value:
    """The learned square spread over a grid, bilinearly, corners not aligned: [down, across, hidden].

    A product with one matrix for each side. The first row of the table is of a token that nobody reads.
    """
    path, name = "embeddings.position_embedding", "embeddings.position_embedding.weight"
    b.require(name, s.edge * s.edge + 1, s.hidden)

    def read() -> Floats:
        return np.ascontiguousarray(b.read(name)[1:].reshape(s.edge, s.edge * s.hidden))

    table = b.lazy(name, (s.edge, s.edge * s.hidden), read)
    more = b.floats(stretch)
    if stretch:
        # PyTorch copies a table of the very size that is wanted, whatever scale it was told; on CPUs each side that is.
        same = [b.op("Equal", count, b.index(s.edge), path=path) for count in grid]
        more = b.op("Where", b.op("And", *same, path=path), b.floats(0), more, path=path)
    down, across = (_spread(b, count, s.edge, more, path) for count in grid)
    rows = b.op("Reshape", b.op("MatMul", down, table, path=path), b.ints(-1, s.edge, s.hidden), path=path)
    return b.op("MatMul", across, rows, path=path)


def _spread(b: Builder, count: ir.Value, edge: int, more: ir.Value, path: str) -> ir.Value:
    """What each of `count` places takes of each of the `edge` learned ones, [count, edge]."""

    def op(kind: str, *inputs: ir.Value) -> ir.Value:
        return b.op(kind, *inputs, path=path)

    places = b.op("Cast", op("Range", b.index(0), count, b.index(1)), path=path, to=int(ir.DataType.FLOAT))
    size = op("Add", b.op("Cast", count, path=path, to=int(ir.DataType.FLOAT)), more)
    scaled = op("Mul", op("Add", places, b.floats(0.5)), op("Div", b.floats(edge), size))
    at = op("Clip", op("Sub", scaled, b.floats(0.5)), b.floats(0), b.floats(edge - 1))
    learned = b.lazy("grid.places", (1, edge), lambda: np.arange(edge, dtype=np.float32)[None])
    away = op("Abs", op("Sub", op("Unsqueeze", at, b.ints(1)), learned))
    return op("Relu", op("Sub", b.floats(1), away))


def _layer(b: Builder, x: ir.Value, path: str, names: _Names, s: HunyuanVision) -> ir.Value:
    square = (s.hidden, s.hidden)
    y = norm(b, x, f"{path}.{names.before}", s.hidden, s.epsilon)
    heads = (linear(b, y, f"{path}.self_attn.{each}_proj", square) for each in "qkv")
    y = b.op("Attention", *heads, path=f"{path}.self_attn", q_num_heads=s.heads, kv_num_heads=s.heads)
    x = b.op("Add", x, linear(b, y, f"{path}.self_attn.o_proj", square), path=f"{path}.self_attn")
    y = norm(b, x, f"{path}.{names.after}", s.hidden, s.epsilon)
    y = linear(b, y, f"{path}.{names.expand}", (s.intermediate, s.hidden))
    y = activation(b, y, s.activation, f"{path}.{names.expand}")
    y = linear(b, y, f"{path}.{names.contract}", (s.hidden, s.intermediate))
    return b.op("Add", x, y, path=f"{path}.{names.contract}")


def _merge(
    b: Builder, x: ir.Value, grid: tuple[ir.Value, ir.Value], names: _Names, s: HunyuanVision
) -> ir.Value:
    """Squares of four states to a token each, a token behind every row, one before and one behind them all."""
    path, four = names.merger, _MERGE * _MERGE * s.hidden
    down, across = (b.op("Div", side, b.index(_MERGE), path=path) for side in grid)
    down, across = (b.op("Unsqueeze", side, b.ints(0), path=path) for side in (down, across))
    two, rest = b.ints(_MERGE), b.ints(s.hidden)

    def shaped(value: ir.Value, *sizes: ir.Value) -> ir.Value:
        return b.op("Reshape", value, b.op("Concat", *sizes, path=path, axis=0), path=path)

    x = _rms(b, x, f"{path}.before_rms", s.hidden, s)
    x = b.op("Transpose", shaped(x, down, two, across, two, rest), path=path, perm=(0, 2, 1, 3, 4))
    half, wide = _MERGE * s.hidden, 2 * _MERGE * s.hidden
    x = shaped(x, down, across, b.ints(four))
    x = _convolved(b, x, f"{path}.{names.gather}", _MERGE, (half, s.hidden))
    x = _convolved(b, activation(b, x, s.activation, path), f"{path}.{names.widen}", 1, (wide, half))
    ends = b.op("Reshape", b.weight(f"{path}.image_newline", wide), b.ints(1, 1, wide), path=path)
    column = b.op("Concat", down, b.ints(1), b.ints(wide), path=path, axis=0)
    x = b.op("Concat", x, b.op("Expand", ends, column, path=path), path=path, axis=1)
    x = linear(b, b.op("Reshape", x, b.ints(-1, wide), path=path), f"{path}.mlp", (s.text_hidden, wide))
    first, last = (
        b.op("Reshape", b.weight(f"{path}.{name}", s.text_hidden), b.ints(1, s.text_hidden), path=path)
        for name in ("image_begin", "image_end")
    )
    return _rms(b, b.op("Concat", first, x, last, path=path, axis=0), f"{path}.after_rms", s.text_hidden, s)


def _rms(b: Builder, x: ir.Value, name: str, size: int, s: HunyuanVision) -> ir.Value:
    return b.op(
        "RMSNormalization", x, b.weight(f"{name}.weight", size), path=name, axis=-1, epsilon=s.epsilon
    )


def _convolved(b: Builder, x: ir.Value, name: str, kernel: int, size: tuple[int, int]) -> ir.Value:
    """A convolution whose steps are as wide as its kernel, as a linear layer over the places it sees, [out, in]."""
    wide, given = size
    b.require(f"{name}.weight", wide, given, kernel, kernel)
    seen = kernel * kernel * given

    def read() -> Floats:
        return np.ascontiguousarray(b.read(f"{name}.weight").transpose(2, 3, 1, 0).reshape(seen, wide))

    x = b.op("MatMul", x, b.lazy(f"{name}.weight", (seen, wide), read), path=name)
    return b.op("Add", x, b.weight(f"{name}.bias", wide), path=name)
