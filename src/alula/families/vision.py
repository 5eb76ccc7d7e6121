"""ViT and DINOv2: an image in patches, each a token, through pre-norm transformer layers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from alula.families import positions
from alula.families.builder import Builder
from alula.families.image_settings import COLOURS, VisionSettings
from alula.families.layers import activation, first_token, linear, norm
from alula.families.weights import Floats

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


def encode(b: Builder, pixels: ir.Value, s: VisionSettings) -> ir.Value:
    """Pixels to features: the state of the first token, and for DINOv2 the mean of all patches behind it."""
    grid = _grid(pixels, s)
    x = _embed(b, pixels, grid, s)
    for index in range(s.layers):
        x = _layer(b, x, f"encoder.layer.{index}", s)
    if not s.means:
        return norm(b, first_token(b, x, "layernorm"), "layernorm", s.hidden, s.epsilon)
    x = norm(b, x, "layernorm", s.hidden, s.epsilon)
    return b.op("Concat", first_token(b, x, "pooler"), _mean(b, x, grid), path="pooler", axis=1)


def _grid(pixels: ir.Value, s: VisionSettings) -> tuple[int, int] | None:
    """How many patches there are down and across; None where the graph has to count them.

    What is left over below and on the right is in none.
    """
    known = [side // s.patch for side in tuple(pixels.shape or ())[2:] if isinstance(side, int)]
    return (known[0], known[1]) if len(known) == 2 else None


def _mean(b: Builder, x: ir.Value, grid: tuple[int, int] | None) -> ir.Value:
    """Of all tokens but the first."""
    path, end = "pooler", _LAST if grid is None else grid[0] * grid[1] + 1
    patches = b.op("Slice", x, b.ints(1), b.ints(end), b.ints(1), path=path)
    if grid is None:
        return b.op("ReduceMean", patches, b.ints(1), path=path, keepdims=0)
    total = b.op("ReduceSum", patches, b.ints(1), path=path, keepdims=0)
    return b.op("Mul", total, b.floats(1 / (end - 1)), path=path)


def _embed(b: Builder, pixels: ir.Value, grid: tuple[int, int] | None, s: VisionSettings) -> ir.Value:
    """Patches with their positions, behind the class token with its own."""
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
    b.require(positions.NAME, 1, s.positions + 1, s.hidden)
    b.require("embeddings.cls_token", 1, 1, s.hidden)
    x = b.op("Reshape", patches, b.ints(0, s.hidden, grid[0] * grid[1] if grid else -1), path=path)
    if grid is None:
        x = b.op("Add", x, positions.computed(b, patches, s), path="embeddings")
    x = b.op("Transpose", x, path=path, perm=(0, 2, 1))
    if grid is not None:
        x = b.op("Add", x, positions.fixed(b, grid, s), path="embeddings")
    first = b.lazy(
        "embeddings.cls_token",
        (1, 1, s.hidden),
        lambda: b.read("embeddings.cls_token") + b.read(positions.NAME)[:, :1],
    )
    rows = b.op("Slice", b.op("Shape", pixels, path="rows"), b.ints(0), b.ints(1), b.ints(0), path="rows")
    shape = b.op("Concat", rows, b.ints(1), b.ints(s.hidden), path="rows", axis=0)
    return b.op("Concat", b.op("Expand", first, shape, path="embeddings"), x, path="embeddings", axis=1)


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
