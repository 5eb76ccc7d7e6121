"""ResNet: stages of residual layers, basic ones of two convolutions or bottlenecks of three."""

from __future__ import annotations

import onnx_ir as ir

from alula.families.builder import Builder
from alula.families.convolution import Convolution, convolve, pool
from alula.families.image_settings import COLOURS, ResNetSettings
from alula.families.layers import activation


def encode(b: Builder, pixels: ir.Value, s: ResNetSettings) -> ir.Value:
    """Pixels to features."""
    stem = "embedder.embedder"
    x = _convolve(b, pixels, stem, Convolution(outputs=s.stem, inputs=COLOURS, kernel=7, stride=2), s)
    x = activation(b, x, s.activation, stem)
    x = b.op("MaxPool", x, path="embedder", kernel_shape=(3, 3), strides=(2, 2), pads=(1, 1, 1, 1))
    inputs = s.stem
    for stage in b.numbered("encoder.stages", len(s.depths), "depths"):
        size, stride = s.sizes[stage], 2 if stage else s.first_stride
        for layer in b.numbered(f"encoder.stages.{stage}.layers", s.depths[stage], f"depths[{stage}]"):
            across = Convolution(outputs=size, inputs=inputs, kernel=1, stride=stride)
            x = _layer(b, x, f"encoder.stages.{stage}.layers.{layer}", across, s)
            inputs, stride = size, 1
    return pool(b, x)


def _layer(b: Builder, x: ir.Value, path: str, across: Convolution, s: ResNetSettings) -> ir.Value:
    """A residual layer; `across` is the shortcut, where it is needed."""
    y, (first, *others) = x, _steps(across, s)
    y = _convolve(b, y, f"{path}.layer.0", first, s)
    for index, size in enumerate(others, 1):
        # Inside a layer transformers takes this activation, whatever hidden_act is.
        y = b.op("Relu", y, path=f"{path}.layer.{index - 1}")
        y = _convolve(b, y, f"{path}.layer.{index}", size, s)
    if across.inputs != across.outputs or across.stride != 1:
        x = _convolve(b, x, f"{path}.shortcut", across, s)
    return activation(b, b.op("Add", y, x, path=path), s.activation, path)


def _steps(across: Convolution, s: ResNetSettings) -> tuple[Convolution, ...]:
    """The convolutions of one layer, in order."""
    inputs, outputs, stride = across.inputs, across.outputs, across.stride
    if not s.bottleneck:
        return (
            Convolution(outputs=outputs, inputs=inputs, kernel=3, stride=stride),
            Convolution(outputs=outputs, inputs=outputs, kernel=3),
        )
    inner = s.inner(outputs)
    first, second = (stride, 1) if s.stride_in_bottleneck else (1, stride)
    return (
        Convolution(outputs=inner, inputs=inputs, kernel=1, stride=first),
        Convolution(outputs=inner, inputs=inner, kernel=3, stride=second),
        Convolution(outputs=outputs, inputs=inner, kernel=1),
    )


def _convolve(b: Builder, x: ir.Value, path: str, size: Convolution, s: ResNetSettings) -> ir.Value:
    return convolve(b, x, (f"{path}.convolution", f"{path}.normalization"), size, s.epsilon)
