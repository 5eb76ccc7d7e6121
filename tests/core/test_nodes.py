"""Nodes read from the bytes of an ONNX file are those that onnx reads."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from alula.core.errors import InputError
from alula.core.nodes import ValueType, read_nodes


def write(path: Path, *, external: bool = False) -> onnx.ModelProto:
    inner = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["kept"], name="inside")],
        "then",
        [],
        [helper.make_tensor_value_info("kept", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.ones(2, np.float32), "inner_weight")],
    )
    nodes = [
        helper.make_node("Cast", ["x"], ["half"], name="cast", to=TensorProto.FLOAT16),
        helper.make_node("Cast", ["x"], ["again"], name="twin", to=TensorProto.FLOAT16),
        helper.make_node("Cast", ["x"], ["whole"], name="other", to=TensorProto.INT32),
        helper.make_node("Gelu", ["half"], ["y"], domain="com.microsoft"),
        helper.make_node("If", ["flag"], ["z"], name="branch", then_branch=inner, else_branch=inner),
    ]
    graph = helper.make_graph(
        nodes,
        "graph",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3, None]),
            helper.make_tensor_value_info("flag", TensorProto.BOOL, []),
            helper.make_tensor_value_info("weight", TensorProto.FLOAT, [4, 300]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT16, ["batch", 3, 1])],
        [numpy_helper.from_array(np.ones((4, 300), np.float32), "weight")],
        value_info=[helper.make_tensor_value_info("whole", TensorProto.INT32, None)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    onnx.save(model, path, save_as_external_data=external, location="weights", size_threshold=0)
    return model


@pytest.mark.parametrize("external", [False, True])
def test_nodes_values_and_weights_are_read_without_onnx(tmp_path: Path, external: bool) -> None:
    model = write(tmp_path / "graph.onnx", external=external)
    read = read_nodes(tmp_path / "graph.onnx")
    outer = [node for node in read.nodes if node.name not in {"inside"}]
    assert [(node.op, node.inputs, node.outputs, node.domain) for node in outer] == [
        (node.op_type, tuple(node.input), tuple(node.output), node.domain) for node in model.graph.node
    ]
    assert read.inputs == ("x", "flag")
    assert read.outputs == ("y",)
    assert read.constants == {"weight", "inner_weight"}
    assert read.types["x"] == ValueType(dtype="float32", shape=("batch", 3, "?"))
    assert read.types["flag"] == ValueType(dtype="bool", shape=())
    assert read.types["weight"] == ValueType(dtype="float32", shape=(4, 300))
    assert read.types["whole"] == ValueType(dtype="int32", shape=None)


def test_a_node_without_a_name_goes_by_its_first_output_and_inner_graphs_are_read(tmp_path: Path) -> None:
    write(tmp_path / "graph.onnx")
    names = [node.name for node in read_nodes(tmp_path / "graph.onnx").nodes]
    assert names == ["cast", "twin", "other", "y", "branch", "inside", "inside"]


def test_equal_attributes_have_equal_digests(tmp_path: Path) -> None:
    write(tmp_path / "graph.onnx")
    cast, twin, other, gelu, *_ = read_nodes(tmp_path / "graph.onnx").nodes
    assert cast.attributes == twin.attributes != other.attributes
    assert gelu.attributes == ""
    assert [node.casts_to for node in (cast, other, gelu)] == ["float16", "int32", ""]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "it holds no graph"),
        (b"not a model", "wire type"),
        (b"\x3a\x7fshort", "it is cut short: 7 bytes, but a field ends at byte 129"),
        (b"\x3a\xff", "it is cut short within a number"),
        (b"\x38\x01", "a number, 1, where a message is expected"),
    ],
)
def test_what_is_no_graph_is_refused_with_the_reason(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "graph.onnx"
    path.write_bytes(content)
    with pytest.raises(InputError, match=rf"^{path}: not a readable ONNX file: .*{reason}"):
        read_nodes(path)


def test_a_file_that_is_cut_short_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "graph.onnx")
    whole = (tmp_path / "graph.onnx").read_bytes()
    (tmp_path / "graph.onnx").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match="cut short"):
        read_nodes(tmp_path / "graph.onnx")


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"^no graph at .*nowhere\.onnx$"):
        read_nodes(tmp_path / "nowhere.onnx")
