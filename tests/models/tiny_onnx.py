"""Small ONNX files of every kind that people bring, written in a few lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

Array: TypeAlias = NDArray[Any]
Shape: TypeAlias = Sequence[int | str | None] | None

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
_IR_VERSION = {7: 3, 9: 4, 11: 6, 13: 7, 17: 8, 18: 8, 21: 10, 23: 11, 24: 12}


def value(name: str, shape: Shape, kind: int = FLOAT) -> onnx.ValueInfoProto:
    """An input or output; None for an axis without a name, "?" is one that is called so."""
    return helper.make_tensor_value_info(name, kind, shape)


def node(kind: str, given: str, made: str, **attributes: Any) -> onnx.NodeProto:
    """An operator by the names of what it reads and makes, separated by spaces."""
    return helper.make_node(kind, given.split(), made.split(), **attributes)


def model_of(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    weights: Mapping[str, Array] | None = None,
    opset: int = 17,
) -> onnx.ModelProto:
    """A model of one graph."""
    initializers = [numpy_helper.from_array(array, name) for name, array in (weights or {}).items()]
    graph = helper.make_graph(list(nodes), "theirs", list(inputs), list(outputs), initializers)
    imports = [helper.make_opsetid("", opset)]
    return helper.make_model(graph, opset_imports=imports, ir_version=_IR_VERSION[opset])


def saved(model: onnx.ModelProto, to: Path) -> Path:
    """The file."""
    to.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(model, to)
    return to


def numbers(*shape: int, seed: int = 0) -> Array:
    """Normal float32 numbers."""
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def picture_net(opset: int = 17, height: int | str = "h", width: int | str = "w") -> onnx.ModelProto:
    """Convolution, norm, Relu, a map through a sigmoid and scores: two outputs, one half as large as the picture."""
    nodes = [
        node("Conv", "x kernel", "wide", kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[2, 2]),
        node("BatchNormalization", "wide scale shift mean variance", "even"),
        node("Relu", "even", "kept"),
        node("Conv", "kept last", "flat", kernel_shape=[1, 1]),
        node("Sigmoid", "flat", "map"),
        node("GlobalAveragePool", "kept", "mean_of"),
        node("Flatten", "mean_of", "row"),
        node("MatMul", "row matrix", "scores"),
    ]
    weights = {
        "kernel": numbers(16, 3, 3, 3) / 3,
        **{name: np.abs(numbers(16, seed=at)) + 0.5 for at, name in enumerate(("scale", "variance"))},
        **{name: numbers(16, seed=at) for at, name in enumerate(("shift", "mean"), start=3)},
        "last": numbers(1, 16, 1, 1, seed=7),
        "matrix": numbers(16, 5, seed=8),
    }
    outputs = [value("map", ["n", 1, "oh", "ow"]), value("scores", ["n", 5])]
    return model_of(nodes, [value("x", ["n", 3, height, width])], outputs, weights, opset)


def token_net() -> onnx.ModelProto:
    """An embedding table, a mask and a bool beside it: three inputs of three types, an int and a float output."""
    nodes = [
        node("Gather", "table ids", "states"),
        node("Unsqueeze", "mask axes", "wide"),
        node("Cast", "wide", "kept", to=FLOAT),
        node("Mul", "states kept", "seen"),
        node("ReduceSum", "seen one", "sums", keepdims=0),
        node("Neg", "sums", "less"),
        node("Where", "flip less sums", "vector"),
        node("ArgMax", "vector", "best", axis=1, keepdims=0),
    ]
    weights = {"table": numbers(11, 6), "axes": np.array([2]), "one": np.array([1])}
    inputs = [
        value("ids", ["batch", "seq"], INT64),
        value("mask", ["batch", "seq"], INT64),
        value("flip", [], BOOL),
    ]
    outputs = [value("vector", ["batch", 6]), value("best", ["batch"], INT64)]
    return model_of(nodes, inputs, outputs, weights)


def branching() -> onnx.ModelProto:
    """If, in the words of opset 11 inside the branches as well."""
    then = helper.make_graph(
        [helper.make_node("Squeeze", ["x"], ["t"], axes=[1])], "then", [], [value("t", ["n", 4])]
    )
    other = helper.make_graph(
        [helper.make_node("ReduceSum", ["x"], ["e"], axes=[1], keepdims=0)],
        "else",
        [],
        [value("e", ["n", 4])],
    )
    chosen = helper.make_node("If", ["yes"], ["y"], then_branch=then, else_branch=other)
    inputs = [value("x", ["n", 1, 4]), value("yes", [], BOOL)]
    return model_of([chosen], inputs, [value("y", ["n", 4])], opset=11)
