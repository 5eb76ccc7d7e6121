"""A model that reads images as an ONNX graph: network, then classifier or pooling."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from alula.core.model import ModelSpec, Part
from alula.families import efficientnet, images, resnet, vision
from alula.families.builder import Builder, graph_input
from alula.families.checkpoint import Checkpoint
from alula.families.image_settings import EfficientNetSettings, ImageSettings, ResNetSettings
from alula.families.layers import linear
from alula.families.weights import Floats, read_weights


def write_part(checkpoint: Checkpoint, spec: ModelSpec, part: Part, opset: int) -> ir.Model:
    """Write a classifier of images, or an encoder of them."""
    settings = images.read_settings(spec.family, checkpoint.config)
    b, pixels = Builder(read_weights(checkpoint.root), f"{spec.family}."), graph_input(part.inputs[0])
    output = (
        _embedding(b, pixels, settings, spec.pooling)
        if spec.task == images.ENCODER
        else _logits(b, pixels, settings, images.heads_of(checkpoint), len(spec.labels))
    )
    return b.model([pixels], [b.rename(output, part.outputs[0])], part.name, opset)


def _embedding(b: Builder, pixels: ir.Value, settings: ImageSettings, pooling: str) -> ir.Value:
    if isinstance(settings, (ResNetSettings, EfficientNetSettings)):
        return _convolved(b, pixels, settings)
    return vision.pooled(b, pixels, settings, pooling)


def _convolved(b: Builder, pixels: ir.Value, settings: ResNetSettings | EfficientNetSettings) -> ir.Value:
    if isinstance(settings, ResNetSettings):
        return resnet.encode(b, pixels, settings)
    return efficientnet.encode(b, pixels, settings)


def _logits(
    b: Builder, pixels: ir.Value, settings: ImageSettings, heads: tuple[str, ...], labels: int
) -> ir.Value:
    for head in heads:
        b.require_rows(f"{head}.weight", labels, "the number of labels", head=True)
    if isinstance(settings, (ResNetSettings, EfficientNetSettings)):
        features = _convolved(b, pixels, settings)
    else:
        features = vision.features(b, pixels, settings, len(heads))
    if len(heads) == 1:
        return linear(b, features, heads[0], (labels, settings.features), head=True)
    return _mean_of_heads(b, features, heads, (labels, settings.features))


def _mean_of_heads(b: Builder, x: ir.Value, heads: tuple[str, ...], size: tuple[int, int]) -> ir.Value:
    """The mean of what each head says of its own token, as one layer over all of these tokens."""
    for head in heads:
        b.require(f"{head}.weight", *size, head=True)
        b.require(f"{head}.bias", size[0], head=True)

    def weight() -> Floats:
        joined: Floats = np.concatenate([b.read(f"{head}.weight", head=True).T for head in heads])
        return joined / np.float32(len(heads))

    def bias() -> Floats:
        offsets: Floats = np.mean([b.read(f"{head}.bias", head=True) for head in heads], axis=0)
        return offsets

    name = heads[0]
    y = b.op("MatMul", x, b.lazy(f"{name}.weight", (len(heads) * size[1], size[0]), weight), path=name)
    return b.op("Add", y, b.lazy(f"{name}.bias", size[:1], bias), path=name)
