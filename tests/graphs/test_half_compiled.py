"""What TensorRT-RTX makes of fp16 graphs."""

from __future__ import annotations

from pathlib import Path

import onnx_ir as ir
import pytest
from rtx import compile_on_cpu

from alula.graphs import rewrite, save
from alula.graphs.half import fp16_passes
from alula.graphs.passes.choice import HALF, WHOLE_ATTENTION, Policy


def shapes(model: ir.Model) -> dict[str, tuple[tuple[int, ...], ...]]:
    sizes = {"batch": (1, 2, 4), "length": (1, 8, 16), "height": (8, 8, 16), "width": (8, 8, 16)}
    dims = [str(each) for each in model.graph.inputs[0].shape or ()]
    return {"x": tuple(tuple(sizes[d][at] if d in sizes else int(d) for d in dims) for at in range(3))}


@pytest.mark.parametrize("policy", [HALF, WHOLE_ATTENTION], ids=["written out", "whole"])
def test_an_encoder_compiles(policy: Policy, encoder: ir.Model, tmp_path: Path) -> None:
    saved = save(rewrite(encoder, fp16_passes(policy)), tmp_path / "half.onnx", "fp16")
    assert compile_on_cpu(saved.path, shapes(encoder))


def test_a_convolutional_network_compiles(images: ir.Model, tmp_path: Path) -> None:
    saved = save(rewrite(images, fp16_passes()), tmp_path / "half.onnx", "fp16")
    assert compile_on_cpu(saved.path, shapes(images))


def test_a_graph_whose_types_do_not_fit_is_refused(encoder: ir.Model, tmp_path: Path) -> None:
    half = rewrite(encoder, fp16_passes())
    product = next(node for node in half.graph if node.op_type == "MatMul")
    (cast,) = [node for node in half.graph if node.outputs[0] is product.inputs[0]]
    product.replace_input_with(0, cast.inputs[0])
    saved = save(half, tmp_path / "half.onnx", "fp16")
    with pytest.raises(RuntimeError, match=r"(?i)type"):
        compile_on_cpu(saved.path, shapes(encoder))


def test_attention_as_one_operator_needs_half_precision_there(encoder: ir.Model, tmp_path: Path) -> None:
    saved = save(encoder, tmp_path / "full.onnx", "fp32")
    with pytest.raises(RuntimeError, match="Attention operation was not supported by a dedicated kernel"):
        compile_on_cpu(saved.path, shapes(encoder))
