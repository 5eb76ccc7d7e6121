"""Attention of ONNX Runtime's own, that works in blocks: where it is put in, and that it says the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest

from alula.core.tensor import Dim, TensorSpec
from alula.families.builder import Builder, graph_input
from alula.graphs import passes_for, rewrite, save


def model(*shape: Dim, heads: int = 3, mask: bool = False) -> ir.Model:
    """Attention of a value with itself, scaled three ways."""
    spec = TensorSpec(name="x", dtype="float32", shape=(*shape, 24))
    b, x = Builder({}, ""), graph_input(spec)
    flat = b.op("Reshape", x, b.ints(1, -1, 24), path="flat")
    three = [b.op("Mul", flat, b.floats(scale), path="scaled") for scale in (1.0, 2.0, 3.0)]
    more = [b.floats(0.0)] if mask else []
    y = b.op("Attention", *three, *more, path="attention", q_num_heads=heads, kv_num_heads=heads)
    out = b.rename(y, TensorSpec(name="y", dtype="float32", shape=(1, "tokens", 24)))
    return b.model([x], [out], "attention", 23)


def kinds(graph: ir.Model) -> set[str]:
    return {node.op_type for node in graph.graph}


def test_many_tokens_are_attended_to_in_blocks(tmp_path: Path) -> None:
    plain = model("down", "across")
    made = rewrite(plain, passes_for("onnxruntime", "fp32"))
    assert "MultiHeadAttention" in kinds(made)
    assert "Attention" not in kinds(made)
    x = np.random.default_rng(0).standard_normal((20, 30, 24)).astype(np.float32)
    given = []
    for name, graph in (("plain", plain), ("made", made)):
        saved = save(graph, tmp_path / f"{name}.onnx", "fp32")
        given.append(onnxruntime.InferenceSession(str(saved.path)).run(None, {"x": x})[0])
    np.testing.assert_allclose(given[1], given[0], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    "graph",
    [model("batch", 16), model("down", "across", mask=True)],
    ids=["of one size", "with a mask"],
)
def test_other_attention_is_left_alone(graph: ir.Model) -> None:
    assert "Attention" in kinds(rewrite(graph, passes_for("onnxruntime", "fp32")))


def test_fp16_and_other_engines_keep_the_operator() -> None:
    """It has no kernel for fp16 on a CPU."""
    assert "MultiHeadAttention" not in kinds(rewrite(model("down", "across"), passes_for("openvino", "fp32")))
    assert "MultiHeadAttention" not in kinds(
        rewrite(model("down", "across"), passes_for("onnxruntime", "fp16"))
    )
