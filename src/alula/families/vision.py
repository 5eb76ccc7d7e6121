"""ViT and DINOv2: an image in patches, each a token, through pre-norm transformer layers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from alula.families.builder import Builder
from alula.families.image_settings import COLOURS, VisionSettings
from alula.families.layers import activation, first_token, linear, norm
from alula.families.weights import Floats

_POSITIONS = "embeddings.position_embeddings"
_CUBIC = -0.75


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
    _, height, width = (side // s.patch for side in pixels.shape or () if isinstance(side, int))
    x = _embed(b, pixels, (height, width), s)
    for index in range(s.layers):
        x = _layer(b, x, f"encoder.layer.{index}", s)
    if not s.means:
        return norm(b, first_token(b, x, "layernorm"), "layernorm", s.hidden, s.epsilon)
    x, count = norm(b, x, "layernorm", s.hidden, s.epsilon), height * width
    patches = b.op("Slice", x, b.ints(1), b.ints(count + 1), b.ints(1), path="pooler")
    total = b.op("ReduceSum", patches, b.ints(1), path="pooler", keepdims=0)
    mean = b.op("Mul", total, b.floats(1 / count), path="pooler")
    return b.op("Concat", first_token(b, x, "pooler"), mean, path="pooler", axis=1)


def _embed(b: Builder, pixels: ir.Value, grid: tuple[int, int], s: VisionSettings) -> ir.Value:
    """Patches with their positions, behind the class token with its own."""
    path, count = "embeddings.patch_embeddings.projection", grid[0] * grid[1]
    weight = b.weight(f"{path}.weight", s.hidden, COLOURS, s.patch, s.patch)
    sides = (s.patch, s.patch)
    x = b.op(
        "Conv",
        pixels,
        weight,
        b.weight(f"{path}.bias", s.hidden),
        path=path,
        kernel_shape=sides,
        strides=sides,
    )
    x = b.op("Reshape", x, b.ints(0, s.hidden, count), path=path)
    x = b.op("Transpose", x, path=path, perm=(0, 2, 1))
    b.require(_POSITIONS, 1, s.positions + 1, s.hidden)
    b.require("embeddings.cls_token", 1, 1, s.hidden)
    positions = b.lazy(
        _POSITIONS, (1, count, s.hidden), lambda: _positions(b.read(_POSITIONS)[0, 1:], grid, s)
    )
    first = b.lazy(
        "embeddings.cls_token",
        (1, 1, s.hidden),
        lambda: b.read("embeddings.cls_token") + b.read(_POSITIONS)[:, :1],
    )
    rows = b.op("Slice", b.op("Shape", pixels, path="rows"), b.ints(0), b.ints(1), b.ints(0), path="rows")
    shape = b.op("Concat", rows, b.ints(1), b.ints(s.hidden), path="rows", axis=0)
    tokens = b.op("Expand", first, shape, path="embeddings"), b.op("Add", x, positions, path="embeddings")
    return b.op("Concat", *tokens, path="embeddings", axis=1)


def _positions(table: Floats, grid: tuple[int, int], s: VisionSettings) -> Floats:
    """The positions of the patches, interpolated where the image is not of the size of training."""
    if grid == s.grid:
        return table[None]
    side = s.grid[0]
    down, across = cubic(side, grid[0]), cubic(side, grid[1])
    square = table.reshape(side, side, -1).astype(np.float64)
    spread = np.einsum("oh,pw,hwd->opd", down, across, square, optimize=True)
    positions: Floats = spread.reshape(1, grid[0] * grid[1], -1).astype(np.float32)
    return positions


def cubic(given: int, wanted: int) -> NDArray[np.float64]:
    """What each of `wanted` places takes from each of `given`, as PyTorch interpolates with corners not aligned."""
    places = (np.arange(wanted) + 0.5) * given / wanted - 0.5
    start = np.floor(places).astype(int)
    matrix = np.zeros((wanted, given))
    for step in range(-1, 3):
        distance = np.abs(places - (start + step))
        near = ((_CUBIC + 2) * distance - (_CUBIC + 3)) * distance**2 + 1
        far = _CUBIC * (((distance - 5) * distance + 8) * distance - 4)
        np.add.at(
            matrix,
            (np.arange(wanted), np.clip(start + step, 0, given - 1)),
            np.where(distance <= 1, near, far),
        )
    return matrix


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
