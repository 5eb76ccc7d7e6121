"""Graphs of images of any size as TensorRT reads them: compiled by TensorRT-RTX, in the words of 8.6 too."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
import tiny_images
from numpy.typing import NDArray
from oldest import refusals
from rtx import compiled

from alula.core.profile import Range
from alula.families import describe, open_checkpoint, write
from alula.graphs import observe, passes_for, quantize, rewrite, save, scheme_for

ASKED = {"height": Range(32, 48, 64), "width": Range(32, 40, 72)}
SHAPES = {"pixel_values": ((1, 3, 32, 32), (2, 3, 48, 40), (4, 3, 64, 72))}
# Of the norm of what fp32 gives.
LIMITS = {"fp32": 1e-5, "fp16": 3e-3, "int8": 8e-2}


def run(model: ir.Model, pixels: NDArray[np.float32]) -> list[NDArray[np.float32]]:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    session = onnxruntime.InferenceSession(ir.to_proto(model).SerializeToString(), options)
    outputs: list[NDArray[np.float32]] = session.run(None, {"pixel_values": pixels})
    return outputs


@pytest.mark.parametrize("opset", [None, 17])
@pytest.mark.parametrize("precision", ["fp32", "fp16", "int8"])
@pytest.mark.parametrize("model_type", tiny_images.SIZES)
def test_one_engine_is_compiled_for_a_range_of_sizes(
    model_type: str, precision: str, opset: int | None, tmp_path: Path
) -> None:
    checkpoint = open_checkpoint(str(tiny_images.image_checkpoint(tmp_path / "model", model_type)))
    model = write(checkpoint, describe(checkpoint, asked=ASKED), "encoder")
    pixels = np.random.default_rng(0).normal(size=(2, 3, 40, 56)).astype(np.float32)
    observed, names = observe(model)
    expected, *seen = run(observed, pixels)
    graph = model
    if precision == "int8":
        ranges = {name: (float(a.min()), float(a.max())) for name, a in zip(names, seen, strict=True)}
        graph = quantize(model, ranges, scheme=scheme_for("tensorrt"))
    graph = rewrite(graph, passes_for("tensorrt", precision, opset))
    error = np.linalg.norm(run(graph, pixels)[0] - expected) / np.linalg.norm(expected)
    assert error < LIMITS[precision]
    if opset is not None:
        assert refusals(graph) == []
    saved = save(graph, tmp_path / "graph.onnx", precision)
    assert compiled(saved.path, SHAPES, decomposable=precision == "fp32").engine
