"""ViT, DeiT and DINOv2: an image in patches, each a token, through pre-norm transformer layers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from alula.families import positions
from alula.families.builder import Builder
from alula.families.image_settings import COLOURS, VisionSettings
from alula.families.layers import activation, first_token, linear, norm
from alula.families.weights import Floats

POOLER = "pooler.dense"
"""The layer that makes an embedding of the first state, where a checkpoint has it."""

_LAST = 2**31 - 1
"""An end that no size reaches, and that parsers with 32 bits for sizes hold."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Names:
    """Where a family keeps the parts of a layer, below the layer's own path."""

    before: str
    after: str
    expand: str
    contract: str


_VIT = _Names(
    before="layernorm_before", after="layernorm_after", expand="intermediate.dense", contract="output.dense"
)
_DINOV2 = _Names(before="norm1", after="norm2", expand="mlp.fc1", contract="mlp.fc2")


def features(b: Builder, pixels: ir.Value, s: VisionSettings, tokens: int = 1) -> ir.Value:
    """Pixels to what a classifier takes: the states of the first `tokens`, and for DINOv2 the mean of all patches."""
    grid = _grid(pixels, s)
    x = _encode(b, pixels, grid, s)
    if s.means:
        x = norm(b, x, "layernorm", s.hidden, s.epsilon)
        return b.op("Concat", first_token(b, x, "pooler"), _mean(b, x, grid, s), path="pooler", axis=1)
    if tokens == 1:
        return norm(b, first_token(b, x, "layernorm"), "layernorm", s.hidden, s.epsilon)
    x = b.op("Slice", x, b.ints(0), b.ints(tokens), b.ints(1), path="layernorm")
    x = norm(b, x, "layernorm", s.hidden, s.epsilon)
    return b.op("Reshape", x, b.ints(0, tokens * s.hidden), path="layernorm")


def pooled(b: Builder, pixels: ir.Value, s: VisionSettings, pooling: str) -> ir.Value:
    """Pixels to an embedding, or with pooling "none" to the states of all tokens."""
    grid = _grid(pixels, s)
    x = _encode(b, pixels, grid, s)
    if pooling in {"none", "mean"}:
        x = norm(b, x, "layernorm", s.hidden, s.epsilon)
        return x if pooling == "none" else _mean(b, x, grid, s)
    x = norm(b, first_token(b, x, "layernorm"), "layernorm", s.hidden, s.epsilon)
    if pooling == "cls":
        return x
    return activation(b, linear(b, x, POOLER, (s.pooled, s.hidden)), s.pooler, POOLER)


def _encode(b: Builder, pixels: ir.Value, grid: tuple[int, int] | None, s: VisionSettings) -> ir.Value:
    """Pixels to the states of all tokens, before the last norm."""
    x = _embed(b, pixels, grid, s)
    for index in b.numbered("encoder.layer", s.layers, "num_hidden_layers"):
        x = _layer(b, x, f"encoder.layer.{index}", s)
    return x


def _grid(pixels: ir.Value, s: VisionSettings) -> tuple[int, int] | None:
    """How many patches there are down and across; None where the graph has to count them.

    What is left over below and on the right is in none.
    """
    known = [side // s.patch for side in tuple(pixels.shape or ())[2:] if isinstance(side, int)]
    return (known[0], known[1]) if len(known) == 2 else None


def _mean(b: Builder, x: ir.Value, grid: tuple[int, int] | None, s: VisionSettings) -> ir.Value:
    """Of all patches."""
    path, count = "pooler", None if grid is None else grid[0] * grid[1]
    end = _LAST if count is None else s.firsts + count
    patches = b.op("Slice", x, b.ints(s.firsts), b.ints(end), b.ints(1), path=path)
    if count is None:
        return b.op("ReduceMean", patches, b.ints(1), path=path, keepdims=0)
    total = b.op("ReduceSum", patches, b.ints(1), path=path, keepdims=0)
    return b.op("Mul", total, b.floats(1 / count), path=path)


def _embed(b: Builder, pixels: ir.Value, grid: tuple[int, int] | None, s: VisionSettings) -> ir.Value:
    """Patches with their positions, behind the tokens before them with their own."""
    path = "embeddings.patch_embeddings.projection"
    weight = b.weight(f"{path}.weight", s.hidden, COLOURS, s.patch, s.patch)
    sides = (s.patch, s.patch)
    patches = b.op(
        "Conv",
        pixels,
        weight,
        b.weight(f"{path}.bias", s.hidden),
        path=path,
        kernel_shape=sides,
        strides=sides,
    )
    x = b.op("Reshape", patches, b.ints(0, s.hidden, grid[0] * grid[1] if grid else -1), path=path)
    if grid is None:
        x = b.op("Add", x, positions.computed(b, patches, s), path="embeddings")
    x = b.op("Transpose", x, path=path, perm=(0, 2, 1))
    if grid is not None:
        x = b.op("Add", x, positions.fixed(b, grid, s), path="embeddings")
    first = _firsts(b, s)
    rows = b.op("Slice", b.op("Shape", pixels, path="rows"), b.ints(0), b.ints(1), b.ints(0), path="rows")
    shape = b.op("Concat", rows, b.ints(s.firsts), b.ints(s.hidden), path="rows", axis=0)
    return b.op("Concat", b.op("Expand", first, shape, path="embeddings"), x, path="embeddings", axis=1)


def _firsts(b: Builder, s: VisionSettings) -> ir.Value:
    """The tokens before the patches with their positions: [1, firsts, hidden]."""
    names = ("embeddings.cls_token", "embeddings.distillation_token")[: s.firsts]
    b.require(positions.NAME, 1, s.firsts + s.positions, s.hidden)
    for name in names:
        b.require(name, 1, 1, s.hidden)

    def read() -> Floats:
        tokens = np.concatenate([b.read(name) for name in names], axis=1)
        return np.ascontiguousarray(tokens + b.read(positions.NAME)[:, : s.firsts])

    return b.lazy(names[0], (1, s.firsts, s.hidden), read)


def _layer(b: Builder, x: ir.Value, path: str, s: VisionSettings) -> ir.Value:
    names = _DINOV2 if s.scaled else _VIT
    y = norm(b, x, f"{path}.{names.before}", s.hidden, s.epsilon)
    parts = (_project(b, y, f"{path}.attention.attention.{name}", s) for name in ("query", "key", "value"))
    y = b.op("Attention", *parts, path=f"{path}.attention", q_num_heads=s.heads, kv_num_heads=s.heads)
    scales = (f"{path}.layer_scale1.lambda1", f"{path}.layer_scale2.lambda1") if s.scaled else ("", "")
    y = _scaled(b, y, f"{path}.attention.output.dense", s.square, scales[0])
    x = b.op("Add", y, x, path=f"{path}.attention")
    y = norm(b, x, f"{path}.{names.after}", s.hidden, s.epsilon)
    y = linear(b, y, f"{path}.{names.expand}", (s.intermediate, s.hidden))
    y = activation(b, y, s.activation, f"{path}.{names.expand}")
    y = _scaled(b, y, f"{path}.{names.contract}", (s.hidden, s.intermediate), scales[1])
    return b.op("Add", y, x, path=f"{path}.{names.contract}")


def _project(b: Builder, x: ir.Value, name: str, s: VisionSettings) -> ir.Value:
    """Queries, keys or values."""
    if s.biased:
        return linear(b, x, name, s.square)
    return b.op("MatMul", x, b.weight(f"{name}.weight", *s.square, transposed=True), path=name)


def _scaled(b: Builder, x: ir.Value, name: str, size: tuple[int, int], scale: str) -> ir.Value:
    """A linear layer, [out, in], each output times the `scale` of that name, which becomes part of its weights."""
    if not scale:
        return linear(b, x, name, size)
    b.require(f"{name}.weight", *size)
    for part in (f"{name}.bias", scale):
        b.require(part, size[0])

    def weight() -> Floats:
        return np.ascontiguousarray((b.read(f"{name}.weight") * b.read(scale)[:, None]).T)

    y = b.op("MatMul", x, b.lazy(f"{name}.weight", size[::-1], weight), path=name)
    bias = b.lazy(f"{name}.bias", size[:1], lambda: b.read(f"{name}.bias") * b.read(scale))
    return b.op("Add", y, bias, path=name)
