"""The report on what OpenVINO and ONNX Runtime make of a real graph: products, attention written out, a norm."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from alula.core.engine import LAYERS, Engine, Plan
from alula.core.graph import Graph
from alula.core.nodes import read_nodes
from alula.core.profile import Profile, Range
from alula.core.tensor import TensorSpec
from alula.engines import backend as backend_named
from alula.fusion import Report, report_of
from alula.fusion.report import by_precision, counts
from alula.fusion.text import summary

WIDTH, HEADS = 32, 4


def weight(name: str, *shape: int) -> onnx.TensorProto:
    values = np.random.default_rng(crc32(name.encode())).normal(scale=0.1, size=shape)
    return numpy_helper.from_array(values.astype(np.float32), name)


def write(path: Path) -> Graph:
    """One block: q, k and v with biases, attention, a linear with Gelu, a Dropout, a norm."""
    shapes = numpy_helper.from_array(np.array([0, 0, HEADS, WIDTH // HEADS]), "heads")
    back = numpy_helper.from_array(np.array([0, 0, WIDTH]), "back")
    nodes, constants = [], [shapes, back, weight("scale", WIDTH), weight("shift", WIDTH)]

    def add(op: str, name: str, *inputs: str, **attributes: object) -> str:
        nodes.append(helper.make_node(op, list(inputs), [name], name=name, **attributes))
        return name

    def linear(name: str, x: str) -> str:
        constants.extend([weight(f"{name}.weight", WIDTH, WIDTH), weight(f"{name}.bias", WIDTH)])
        return add("Add", f"{name}/Add", add("MatMul", f"{name}/MatMul", x, f"{name}.weight"), f"{name}.bias")

    heads = {}
    for name, order in (("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3])):
        split = add("Reshape", f"{name}/Reshape", linear(name, "x"), "heads")
        heads[name] = add("Transpose", f"{name}/Transpose", split, perm=order)
    scores = add("Softmax", "softmax", add("MatMul", "scores", heads["q"], heads["k"]))
    mixed = add("Transpose", "together", add("MatMul", "mixed", scores, heads["v"]), perm=[0, 2, 1, 3])
    joined = add("Reshape", "joined", mixed, "back")
    wide = add("Dropout", "dropout", add("Gelu", "gelu", linear("dense", joined)))
    residual = add("Add", "residual", wide, "x")
    add("LayerNormalization", "hidden", residual, "scale", "shift")
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", "length", WIDTH])
        for name in ("x", "hidden")
    ]
    made = helper.make_graph(nodes, "block", [ends[0]], [ends[1]], constants)
    onnx.save(helper.make_model(made, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), path)
    specs = [
        TensorSpec(name=name, dtype="float32", shape=("batch", "length", WIDTH)) for name in ("x", "hidden")
    ]
    return Graph(
        path=path,
        digest="a" * 64,
        opset=20,
        nodes=len(nodes),
        precision="fp32",
        inputs=(specs[0],),
        outputs=(specs[1],),
    )


@pytest.fixture(scope="module", params=["openvino", "onnxruntime"])
def compiled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Engine:
    folder = tmp_path_factory.mktemp("block")
    graph = write(folder / "block.onnx")
    profile = Profile({"batch": Range(1, 2, 4), "length": Range(1, 16, 32)})
    return backend_named(request.param).compile(graph, Plan(profile=profile), folder / "engine")


@pytest.fixture(scope="module")
def document(compiled: Engine) -> dict[str, Any]:
    read: dict[str, Any] = json.loads((compiled.path / LAYERS).read_text("utf-8"))
    return read


@pytest.fixture(scope="module")
def report(compiled: Engine, document: dict[str, Any]) -> Report:
    return report_of(document, read_nodes(compiled.graph.path))


def together(report: Report, *nodes: str) -> bool:
    return any(set(nodes) <= set(layer.nodes) for layer in report.layers)


def test_every_node_is_in_a_layer_or_removed_for_a_reason(report: Report) -> None:
    assert report.nodes is not None
    placed = {node for layer in report.layers for node in layer.nodes}
    removed = {each.node: each.why for each in report.removed}
    assert placed | set(removed) == {node.name for node in report.nodes}
    assert not placed & set(removed)
    assert removed == {"dropout": "does nothing when a model answers"}
    assert counts(report)["graph"] == len(report.nodes) == 23


def test_what_the_runtime_fuses_is_found(report: Report) -> None:
    if report.listing.source == "openvino":
        assert all(together(report, f"{name}/MatMul", f"{name}/Add") for name in ("q", "k", "v", "dense"))
        assert together(report, "scores", "softmax", "mixed")
        assert report.attention.verdict == "fused"
        assert report.attention.evidence == "both products and the softmax are in one layer, Subgraph"
    else:
        assert together(report, "dense/Add", "gelu")
        assert not together(report, "scores", "softmax")
        assert report.attention.verdict == "not fused"


def test_precisions_and_kinds_are_the_runtimes(report: Report) -> None:
    assert set(by_precision(report)) == {"fp32"}
    assert all(layer.kind for layer in report.layers)
    # Weights that are laid out when a model is loaded are no layers.
    assert not any("transpose_b" in layer.name for layer in report.layers)
    shapes = [value.shape for layer in report.layers for value in layer.outputs if value.shape is not None]
    assert shapes


def test_without_the_graph_a_node_is_counted_once_and_nobodys_casts_are_the_graphs(
    document: dict[str, Any],
) -> None:
    alone = report_of(document)
    found = counts(alone)
    assert all(len(set(layer.nodes)) == len(layer.nodes) for layer in alone.layers)
    assert found["fused"] + found["alone"] == found["graph"]
    assert found["split"] == 0
    assert "the graph's" not in dict(summary(alone))["layers"]
