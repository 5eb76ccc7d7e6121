"""A graph of two nodes, its weight beside it, and a profile."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from alula.core.engine import Plan
from alula.core.graph import Graph
from alula.core.profile import Profile, Range
from alula.core.tensor import TensorSpec

INPUT = TensorSpec(name="input_ids", dtype="int64", shape=("batch", "length"))
OUTPUT = TensorSpec(name="hidden", dtype="float32", shape=("batch", "length", 16))
TABLE = np.arange(64 * 16, dtype=np.float32).reshape(64, 16)


def write_lookup(path: Path, operator: str = "Relu", domain: str = "") -> Graph:
    """Looks ids up in a table that lies in a file of its own, and applies one more operator."""
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["found"], name="look_up"),
        helper.make_node(operator, ["found"], ["hidden"], name="last_node", domain=domain),
    ]
    graph = helper.make_graph(
        nodes,
        "lookup",
        [helper.make_tensor_value_info("input_ids", TensorProto.INT64, INPUT.shape)],
        [helper.make_tensor_value_info("hidden", TensorProto.FLOAT, OUTPUT.shape)],
        [numpy_helper.from_array(TABLE, "table")],
    )
    opsets = [helper.make_opsetid("", 20)] + [helper.make_opsetid(domain, 1)] * bool(domain)
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    onnx.save(model, path, save_as_external_data=True, location=f"{path.name}.data", size_threshold=0)
    return Graph(
        path=path, digest="a" * 64, opset=20, nodes=2, precision="fp32", inputs=(INPUT,), outputs=(OUTPUT,)
    )


@pytest.fixture
def graph(tmp_path: Path) -> Graph:
    return write_lookup(tmp_path / "lookup.onnx")


@pytest.fixture
def unknown_operator(tmp_path: Path) -> Graph:
    return write_lookup(tmp_path / "unknown.onnx", "Frobnicate", "example.org")


@pytest.fixture
def plan() -> Plan:
    return Plan(profile=Profile({"batch": Range(1, 2, 4), "length": Range(1, 4, 8)}))
