"""EfficientNet: blocks that widen, convolve each channel by itself, weigh the channels and narrow again."""

from __future__ import annotations

import onnx_ir as ir

from alula.families.builder import Builder
from alula.families.convolution import Convolution, Pads, convolve, pointwise, pool
from alula.families.image_settings import COLOURS, Block, EfficientNetSettings
from alula.families.layers import activation


def encode(b: Builder, pixels: ir.Value, s: EfficientNetSettings) -> ir.Value:
    """Pixels to features."""
    stem = Convolution(outputs=s.stem, inputs=COLOURS, kernel=3, stride=2, pads=_below_first(3))
    x = convolve(b, pixels, ("embeddings.convolution", "embeddings.batchnorm"), stem, s.epsilon)
    x = activation(b, x, s.activation, "embeddings")
    for index in b.numbered("encoder.blocks", len(s.blocks), "num_block_repeats times depth_coefficient"):
        x = _block(b, x, f"encoder.blocks.{index}", s.blocks[index], s)
    top = Convolution(outputs=s.features, inputs=s.blocks[-1].outputs, kernel=1)
    x = convolve(b, x, ("encoder.top_conv", "encoder.top_bn"), top, s.epsilon)
    return pool(b, activation(b, x, s.activation, "encoder.top"), s.pooling)


def _block(b: Builder, x: ir.Value, path: str, block: Block, s: EfficientNetSettings) -> ir.Value:
    y, wide = x, block.wide
    if wide != block.inputs:
        at, size = f"{path}.expansion", Convolution(outputs=wide, inputs=block.inputs, kernel=1)
        y = convolve(b, y, (f"{at}.expand_conv", f"{at}.expand_bn"), size, s.epsilon)
        y = activation(b, y, s.activation, at)
    at = f"{path}.depthwise_conv"
    y = convolve(b, y, (f"{at}.depthwise_conv", f"{at}.depthwise_norm"), _depthwise(block), s.epsilon)
    y = activation(b, y, s.activation, at)
    y = _weighed(b, y, f"{path}.squeeze_excite", block, s)
    at, size = f"{path}.projection", Convolution(outputs=block.outputs, inputs=wide, kernel=1)
    y = convolve(b, y, (f"{at}.project_conv", f"{at}.project_bn"), size, s.epsilon)
    return b.op("Add", y, x, path=path) if block.residual else y


def _depthwise(block: Block) -> Convolution:
    return Convolution(
        outputs=block.wide,
        inputs=block.wide,
        groups=block.wide,
        kernel=block.kernel,
        stride=block.stride,
        pads=None if block.stride == 1 or block.evenly else _below_first(block.kernel),
    )


def _below_first(kernel: int) -> Pads:
    """As TensorFlow pads an even size at a stride of two: below and on the right by one more."""
    after = kernel // 2
    return after - 1, after - 1, after, after


def _weighed(b: Builder, x: ir.Value, path: str, block: Block, s: EfficientNetSettings) -> ir.Value:
    """Each channel times a weight between 0 and 1 that the means of all channels give."""
    y = b.op("GlobalAveragePool", x, path=path)
    y = activation(b, pointwise(b, y, f"{path}.reduce", (block.squeezed, block.wide)), s.activation, path)
    y = pointwise(b, y, f"{path}.expand", (block.wide, block.squeezed))
    return b.op("Mul", x, b.op("Sigmoid", y, path=path), path=path)
