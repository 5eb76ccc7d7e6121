"""Every family as a small graph: fp32, a call, what it gives, and the same graph in each precision of TensorRT."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir
import onnxruntime
import packaged
import tiny
import tiny_images
from numpy.typing import NDArray

from alula.families import describe, open_checkpoint, write
from alula.graphs import observe, passes_for, quantize, rewrite, scheme_for
from alula.verify.pages import drawn_page

Feeds: TypeAlias = Mapping[str, NDArray[Any]]
Floats: TypeAlias = NDArray[np.float32]

# Heads of 32, which TensorRT has a kernel for.
SIZES: Mapping[str, Any] = {"hidden_size": 64, "num_attention_heads": 2, "num_hidden_layers": 1}
TEXTS = ("bert", "distilbert", "electra", "mpnet", "roberta", "sdpa")
WHOLE = (*TEXTS, "vit", "deit", "dinov2", "image encoder")
FAMILIES = (*WHOLE, "deberta-v2", "resnet", "efficientnet", "recogniser", "detector")
PROFILE = {"batch": (1, 2, 4), "length": (1, 8, 16), "height": (32, 96, 160), "width": (32, 320, 640)}
# Of the norm of what fp32 gives. The recogniser is trained, and in int8 this far off in every engine.
LIMITS = {"fp32": 1e-5, "fp16": 3e-3, "int8": 8e-2}
FAR = {("recogniser", "int8"): 0.4, ("detector", "fp16"): 1e-2, ("detector", "int8"): 0.3}
# They have 240 and 400 nodes, which takes seconds each time.
LARGE = ("recogniser", "detector")


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """A graph in fp32, a call, what it gives, and the ranges of its activations."""

    model: ir.Model
    feeds: Feeds
    expected: Floats
    ranges: Mapping[str, tuple[float, float]]

    def graph(self, precision: str, opset: int | None) -> ir.Model:
        """What a build would write."""
        model = self.model
        if precision.startswith("int8"):
            model = quantize(model, self.ranges, scheme=scheme_for("tensorrt"))
        return rewrite(model, passes_for("tensorrt", precision, opset))

    def error(self, model: ir.Model) -> float:
        """How far what a graph gives is from fp32, as a share of its length."""
        given = run(model, self.feeds)[0]
        return float(np.linalg.norm(given - self.expected) / np.linalg.norm(self.expected))


def pairs(*precisions: str, large: tuple[str, ...]) -> list[tuple[str, str]]:
    return [
        (family, each) for family in FAMILIES for each in precisions if family not in LARGE or each in large
    ]


def limit(family: str, precision: str) -> float:
    return FAR.get((family, precision), LIMITS[precision])


def case_of(family: str, to: Path) -> Case:
    """The case of a family, its checkpoint written into a folder."""
    model = MAKE.get(family, texts)(to, family)
    feeds = {str(value.name): numbers(value, PADDING.get(family, 0)) for value in model.graph.inputs}
    observed, names = observe(model)
    outputs = run(observed, feeds)
    count = len(model.graph.outputs)
    seen = dict(zip(names, outputs[count:], strict=True))
    return Case(
        model=model,
        feeds=feeds,
        expected=outputs[0],
        ranges={name: (float(array.min()), float(array.max())) for name, array in seen.items()},
    )


def texts(to: Path, family: str) -> ir.Model:
    checkpoint = open_checkpoint(str(tiny.checkpoint(to, family, **SIZES)))
    return write(checkpoint, describe(checkpoint, "embeddings"), "encoder")


def traced(to: Path, family: str) -> ir.Model:
    """PyTorch's own attention, which is exported as one operator."""
    checkpoint = open_checkpoint(str(tiny.checkpoint(to, "bert", **SIZES)))
    return write(checkpoint, replace(describe(checkpoint, "embeddings"), family="traced"), "encoder")


def pictures(to: Path, family: str) -> ir.Model:
    checkpoint = open_checkpoint(str(tiny_images.image_checkpoint(to, family)))
    return write(checkpoint, describe(checkpoint), "encoder")


def encoder(to: Path, family: str) -> ir.Model:
    """States of patches, their mean for an embedding."""
    checkpoint = open_checkpoint(str(tiny_images.image_checkpoint(to, "deit")))
    return write(checkpoint, describe(checkpoint, "image-embeddings", "mean"), "encoder")


def imported(to: Path, family: str) -> ir.Model:
    file, task = {
        "recogniser": (packaged.recogniser, "recognition"),
        "detector": (packaged.detector, "detection"),
    }[family]
    checkpoint = open_checkpoint(str(file()))
    return write(checkpoint, describe(checkpoint, task), "encoder")


MAKE: Mapping[str, Callable[[Path, str], ir.Model]] = {
    "sdpa": traced,
    **dict.fromkeys(tiny_images.SIZES, pictures),
    "image encoder": encoder,
    **dict.fromkeys(("recogniser", "detector"), imported),
}


PADDING = {"roberta": 1}


def numbers(value: ir.Value, padding: int) -> NDArray[Any]:
    """Ragged rows of ids, or pixels."""
    assert value.shape is not None
    usual = {"batch": 3, "length": 11, "height": 64, "width": 96}
    shape = [size if isinstance(size, int) else usual[str(size)] for size in value.shape]
    rng = np.random.default_rng(0)
    if "height" in map(str, value.shape):
        # A detector of text says nothing of noise.
        return np.stack([drawn_page(rng, *shape[2:]) for _ in range(shape[0])])
    if value.dtype == ir.DataType.FLOAT:
        return np.cumsum(rng.standard_normal(shape), axis=-1).astype(np.float32) / 4
    kept = np.arange(shape[1]) < np.array([[11], [7], [3]])
    if value.name == "input_ids":
        return np.where(kept, rng.integers(4, 20, shape), padding)
    return kept.astype(np.int64) if value.name == "attention_mask" else np.zeros(shape, np.int64)


def run(model: ir.Model, feeds: Feeds) -> list[Floats]:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(ir.to_proto(model).SerializeToString(), options)
    outputs: list[Floats] = session.run(None, dict(feeds))
    return outputs


def shapes(model: ir.Model) -> dict[str, tuple[tuple[int, ...], ...]]:
    dims = {str(value.name): value.shape or () for value in model.graph.inputs}
    return {
        name: tuple(tuple(d if isinstance(d, int) else PROFILE[str(d)][at] for d in shape) for at in range(3))
        for name, shape in dims.items()
    }
