"""Layers of convolutional networks; batch normalisation becomes part of the convolution before it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from alula.families.builder import Builder
from alula.families.weights import Floats

Pads = tuple[int, int, int, int]
"""Top, left, bottom, right."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Convolution:
    """Sizes of a convolution with a square kernel; without `pads`, a stride of one keeps the size.

    Each of `groups` has its own share of inputs and outputs.
    """

    outputs: int
    inputs: int
    kernel: int
    stride: int = 1
    groups: int = 1
    pads: Pads | None = None

    @property
    def weight(self) -> tuple[int, int, int, int]:
        """The shape of its weight."""
        return self.outputs, self.inputs // self.groups, self.kernel, self.kernel


def convolve(b: Builder, x: ir.Value, names: tuple[str, str], size: Convolution, epsilon: float) -> ir.Value:
    """A convolution without bias and the batch normalisation behind it, by their `names`, as one."""
    name, norm = names
    b.require(f"{name}.weight", *size.weight)
    for part in ("weight", "bias", "running_mean", "running_var"):
        b.require(f"{norm}.{part}", size.outputs)

    def weight() -> Floats:
        scale = _scale(b, norm, epsilon).reshape(-1, 1, 1, 1)
        return (b.read(f"{name}.weight") * scale).astype(np.float32)

    def bias() -> Floats:
        shift = b.read(f"{norm}.running_mean") * _scale(b, norm, epsilon)
        return (b.read(f"{norm}.bias") - shift).astype(np.float32)

    kernel = b.lazy(f"{name}.weight", size.weight, weight)
    offset = b.lazy(f"{name}.bias", (size.outputs,), bias)
    return b.op(
        "Conv",
        *(x, kernel, offset),
        path=name,
        kernel_shape=(size.kernel, size.kernel),
        strides=(size.stride, size.stride),
        pads=size.pads or (size.kernel // 2,) * 4,
        group=size.groups,
    )


def _scale(b: Builder, norm: str, epsilon: float) -> NDArray[np.float64]:
    """What the normalisation multiplies each channel by, in double precision."""
    variance = b.read(f"{norm}.running_var").astype(np.float64)
    scale: NDArray[np.float64] = b.read(f"{norm}.weight") / np.sqrt(variance + epsilon)
    return scale


def pointwise(b: Builder, x: ir.Value, name: str, size: tuple[int, int]) -> ir.Value:
    """A convolution of 1 x 1 with a bias, [out, in]."""
    weight, bias = b.weight(f"{name}.weight", *size, 1, 1), b.weight(f"{name}.bias", size[0])
    return b.op("Conv", x, weight, bias, path=name, kernel_shape=(1, 1))


def pool(b: Builder, maps: ir.Value, pooling: str = "mean") -> ir.Value:
    """Features: the mean or the maximum of feature maps over all their places."""
    # transformers pools EfficientNet with a window as wide as its features, 1280: exported so, OpenVINO refuses it.
    kind = "GlobalMaxPool" if pooling == "max" else "GlobalAveragePool"
    return b.op("Flatten", b.op(kind, maps, path="pooler"), path="pooler", axis=1)
