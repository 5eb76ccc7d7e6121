"""Where nodes go: by names, by values, by what is read; and why some go nowhere."""

from __future__ import annotations

from dataclasses import replace

import pytest
from made import graph, layer

from alula.core.nodes import Nodes
from alula.fusion import Layer
from alula.fusion.place import place
from alula.fusion.removed import CAST, CONSTANT, NOTHING, SCALE, SHAPE, SIZES, UNKNOWN, UNREAD

LINEAR = graph("product = MatMul(x, w)", "sum = Add(product, b)", "gelu = Gelu(sum)")


def homes(nodes: Nodes, *layers: Layer) -> dict[str, tuple[str, ...]]:
    placed, _ = place(layers, nodes)
    return {each.name: each.nodes for each in placed}


def reasons(nodes: Nodes, *layers: Layer) -> dict[str, str]:
    return {each.node: each.why for each in place(layers, nodes)[1]}


def test_names_of_the_runtime_are_names_of_nodes_or_of_their_outputs() -> None:
    nodes = graph("first: product = MatMul(x, w)", "sum = Add(product, b)", "gelu = Gelu(sum)")
    fused = layer("a", "x", "y", named=("first", "node_of_sum", "gelu", "nobody"))
    assert homes(nodes, fused) == {"a": ("first", "sum", "gelu")}
    # OpenVINO numbers what it does in several places.
    twice = (layer("a", "x", "p", named=("product",)), layer("b", "p", "q", named=("gelu",)))
    assert homes(nodes, *twice, layer("c", "elsewhere", "y", named=("sum_1",)))["c"] == ("sum",)


def test_a_name_with_a_number_of_its_own_is_not_taken_for_another() -> None:
    nodes = graph("conv = Conv(x, w)", "conv_1 = Conv(conv, w)")
    assert homes(nodes, layer("a", "x", "t", named=("conv",)), layer("b", "t", "y", named=("conv_1",))) == {
        "a": ("conv",),
        "b": ("conv_1",),
    }


def test_a_node_whose_value_no_layer_gives_is_in_the_layer_behind_that_reads_what_it_reads() -> None:
    """ONNX Runtime's BiasGelu has no node's name: it gives the Gelu's value, and reads what the Add reads."""
    layers = (layer("MatMul", "x", "product", named=("product",)), layer("BiasGelu", "product", "gelu"))
    assert homes(LINEAR, *layers) == {"MatMul": ("product",), "BiasGelu": ("sum", "gelu")}


def test_what_is_between_two_nodes_of_a_layer_is_in_it() -> None:
    assert homes(LINEAR, layer("fused", "x", "y", named=("product", "gelu"))) == {
        "fused": ("product", "sum", "gelu")
    }


def test_a_layer_whose_inputs_are_not_told_is_believed() -> None:
    assert homes(LINEAR, layer("fused", gives="gelu")) == {"fused": ("product", "sum", "gelu")}


def test_a_dropout_is_removed_whosever_name_it_lent() -> None:
    """OpenVINO calls the product before a Dropout by both names; ONNX Runtime may keep an Identity."""
    nodes = graph("product = MatMul(x, w)", "kept = Dropout(product)", "y = Relu(kept)")
    layers = (layer("FullyConnected", "x", "p", named=("kept",)), layer("Relu", "p", "y"))
    assert homes(nodes, *layers) == {"FullyConnected": ("product",), "Relu": ("y",)}
    assert reasons(nodes, *layers) == {"kept": NOTHING}
    identity = layer("Identity", "p", "kept", named=("kept",), role="view")
    assert homes(nodes, layers[0], identity, layer("Relu", "kept", "y"))["Identity"] == ("kept",)


def test_a_sum_that_a_convolution_takes_in_is_in_the_convolution_and_not_behind_it() -> None:
    """ONNX Runtime's and OpenVINO's convolutions read the other branch, and name only themselves."""
    nodes = graph(
        "stem = Conv(x, w)",
        "conv = Conv(stem, w)",
        "sum = Add(conv, stem)",
        "next = Conv(sum, w)",
        "y = Relu(next)",
    )
    layers = (
        layer("stem", "x", "s", named=("stem",)),
        layer("conv", "s s", "t", named=("conv",)),
        layer("next", "t", "u", named=("y",)),
    )
    assert homes(nodes, *layers) == {"stem": ("stem",), "conv": ("conv", "sum"), "next": ("next", "y")}


def test_once_a_sum_is_placed_what_is_behind_it_goes_where_all_that_it_reads_is_read() -> None:
    nodes = graph(
        "stem = Conv(x, w)",
        "conv = Conv(stem, w)",
        "sum = Add(conv, stem)",
        "gate = Mul(sum, z)",
        "one = Relu(gate)",
        "two = Tanh(gate)",
        inputs="x z",
    )
    layers = (
        layer("stem", "x", "s", named=("stem",)),
        layer("conv", "s s", "t", named=("conv",)),
        layer("one", "t z", "u", named=("one",)),
        layer("two", "t", "v", named=("two",)),
    )
    found = homes(nodes, *layers)
    assert found["conv"] == ("conv", "sum")
    assert (found["one"], found["two"]) == (("gate", "one"), ("two",))


def test_a_layer_that_reads_a_part_of_what_a_node_reads_does_it_where_nobody_reads_all() -> None:
    nodes = graph("sum = Add(x, z)", "y = Relu(sum)", inputs="x z")
    assert homes(nodes, layer("fused", "x hidden", "y")) == {"fused": ("sum", "y")}
    assert homes(nodes, layer("other", "hidden", "y")) == {"other": ("y",)}


def test_data_laid_out_anew_and_casts_are_looked_through_and_do_no_node() -> None:
    nodes = graph("conv = Conv(x, w)", "norm = Mul(conv, b)", "relu = Relu(norm)")
    layers = (
        layer("reformat in", "x", "x'", role="reformat"),
        layer("conv", "x'", "t", named=("conv",)),
        layer("cast", "t", "t'", role="cast"),
        layer("relu", "t'", "t''"),
        # Its output has the name of the graph's output, which the layer before it computed.
        layer("reformat out", "t''", "relu", role="reformat"),
    )
    assert homes(nodes, *layers) == {
        "reformat in": (),
        "conv": ("conv",),
        "cast": (),
        "relu": ("norm", "relu"),
        "reformat out": (),
    }


def test_a_cast_of_the_graph_is_a_node_like_any_other() -> None:
    nodes = graph("half = Cast(x)", "product = MatMul(half, w)")
    layers = (layer("Cast", "x", "half", role="cast"), layer("MatMul", "half", "product"))
    assert homes(nodes, *layers) == {"Cast": ("half",), "MatMul": ("product",)}


def test_a_node_that_equals_another_is_removed_and_its_readers_read_the_other() -> None:
    nodes = graph(
        "cast = Cast(mask)",
        "flip = Sub(b, cast)",
        "scale = Mul(flip, w)",
        "again = Cast(mask)",
        "sum = ReduceSum(again)",
        inputs="mask",
    )
    layers = (
        layer("Convert", "mask", "c", named=("again",), role="cast"),
        layer("Eltwise", "c", "e", named=("scale",)),
        layer("Reduce", "c", "r", named=("sum",)),
    )
    assert homes(nodes, *layers)["Eltwise"] == ("flip", "scale")
    assert reasons(nodes, *layers) == {"cast": "the same as again"}


def test_nodes_of_equal_inputs_and_other_attributes_are_not_the_same() -> None:
    same = graph("a = Cast(x)", "b = Cast(x)", "y = Add(a, b)", constants="")
    apart = replace(same, nodes=tuple(replace(node, attributes=node.name) for node in same.nodes))
    layers = (layer("one", "x", "a", named=("a",), role="cast"), layer("sum", "a x", "y", named=("y",)))
    assert homes(same, *layers)["sum"] == ("y",)
    assert reasons(same, *layers) == {"b": "the same as a"}
    assert homes(apart, *layers)["sum"] == ("b", "y")
    assert reasons(apart, *layers) == {}


def test_layers_without_a_name_do_a_part_of_the_node_behind_that_reads_what_they_read() -> None:
    """OpenVINO runs LayerNormalization as MVN, which has no name of the graph, and Multiply."""
    nodes = graph("sum = Add(x, b)", "norm = LayerNormalization(sum, w, b)")
    layers = (
        layer("Eltwise", "x", "s", named=("sum",)),
        layer("MVN", "s", "m"),
        layer("Multiply", "m", "n", named=("norm",)),
    )
    assert homes(nodes, *layers) == {"Eltwise": ("sum",), "MVN": ("norm",), "Multiply": ("norm",)}


def test_nodes_that_a_runtime_wrote_anew_are_in_its_layers_without_a_name() -> None:
    """OpenVINO works out a length with ShapeOf and Gather, where the graph has Shape and Slice."""
    nodes = graph("shape = Shape(x)", "length = Slice(shape, w)", "positions = Slice(b, length)")
    layers = (
        layer("Convert", "x", "i", role="cast"),
        layer("ShapeOf", "i", "s", role="upkeep"),
        layer("Gather", "s", "g"),
        layer("StridedSlice", "g", "p", named=("positions",)),
    )
    assert homes(nodes, *layers) == {
        "Convert": (),
        "ShapeOf": ("shape", "length"),
        "Gather": ("length",),
        "StridedSlice": ("positions",),
    }


def test_work_that_a_runtime_moved_behind_a_change_of_shape_is_found() -> None:
    nodes = graph("scaled = Mul(mask, w)", "wide = Unsqueeze(scaled)", "soft = Softmax(wide)", inputs="mask")
    layers = (
        layer("Reshape", "mask", "r", named=("wide",), role="view"),
        layer("Subgraph", "r", "s", named=("soft",)),
    )
    assert homes(nodes, *layers) == {"Reshape": ("wide",), "Subgraph": ("scaled", "soft")}


def test_a_region_is_everything_between_its_values_but_what_others_do() -> None:
    nodes = graph("conv = Conv(x, w)", "a = Relu(conv)", "b_ = Mul(a, b)", "c = Tanh(b_)", "y = Relu(c)")
    layers = (
        layer("conv", "x", "conv", named=("conv",)),
        layer("region", "conv", "c", opaque=True),
        layer("last", "c", "y", named=("y",)),
    )
    assert homes(nodes, *layers) == {"conv": ("conv",), "region": ("a", "b_", "c"), "last": ("y",)}
    # Where its values have no names of the graph, it reaches from its first node to its last.
    named = layer("region", "t1", "t2", named=("a", "c"), span=("a", "c"), opaque=True)
    assert homes(nodes, layers[0], named, layers[2])["region"] == ("a", "b_", "c")
    # Where only what it gives has one, it reaches back to what others do.
    ending = layer("region", "t1", "c", opaque=True)
    assert homes(nodes, layers[0], ending, layers[2])["region"] == ("a", "b_", "c")


@pytest.mark.parametrize(
    ("node", "why"),
    [
        ("gone = Dropout(x)", NOTHING),
        ("gone = Identity(x)", NOTHING),
        ("gone = Transpose(w)", CONSTANT),
        ("gone = DequantizeLinear(w, b)", SCALE),
        ("gone = Reshape(x, w)", SHAPE),
        ("gone = Cast(x)", CAST),
        ("gone = Erf(x)", UNKNOWN),
    ],
)
def test_a_removed_node_has_a_reason(node: str, why: str) -> None:
    nodes = graph(node, "product = MatMul(gone, w)")
    # The layer reads a value of its own: nothing says that it does what the node does.
    assert reasons(nodes, layer("MatMul", "elsewhere", "product")) == {"gone": why}


def test_what_only_says_a_size_is_said_so() -> None:
    nodes = graph("ends = Concat(x, b)", "wide = Reshape(y, ends)", "z = MatMul(wide, w)", inputs="x y")
    layers = (layer("Reshape", "y", "wide", named=("wide",), role="view"), layer("MatMul", "wide", "z"))
    assert reasons(nodes, *layers) == {"ends": SIZES}
    data = graph("ends = Concat(x, b)", "wide = Reshape(ends, b)", "z = MatMul(wide, w)")
    assert reasons(data, *layers) == {"ends": UNKNOWN}


def test_what_only_removed_nodes_read_is_said_so() -> None:
    nodes = graph("shape = Erf(x)", "wide = Identity(shape)", "product = MatMul(wide, w)")
    found = reasons(nodes, layer("MatMul", "elsewhere", "product"))
    assert found == {"shape": UNREAD, "wide": NOTHING}


def test_a_long_chain_is_placed_in_a_moment() -> None:
    lines = [f"v{at} = Add(v{at - 1}, v{max(0, at - 2)})" for at in range(1, 2001)]
    nodes = graph(*lines, inputs="v0", constants="")
    every = [layer(f"l{at}", f"v{at - 8}", f"v{at}") for at in range(8, 2001, 8)]
    placed, removed = place(every, nodes)
    assert removed == ()
    assert sum(len(each.nodes) for each in placed) == 2000
