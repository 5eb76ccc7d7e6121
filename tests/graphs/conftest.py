"""Graphs small enough to read, and ONNX Runtime to run them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float32]
Runner: TypeAlias = Callable[[ir.Model, Mapping[str, NDArray[Any]]], list[Floats]]


@pytest.fixture(scope="session")
def run_graph() -> Runner:
    """Run a model in ONNX Runtime, with its own rewrites off: what is tested is ours."""

    def run(model: ir.Model, feeds: Mapping[str, NDArray[Any]]) -> list[Floats]:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        serialized = ir.to_proto(model).SerializeToString()
        session = onnxruntime.InferenceSession(serialized, options, providers=["CPUExecutionProvider"])
        outputs: list[Floats] = session.run(None, dict(feeds))
        return outputs

    return run


Grower: TypeAlias = Callable[..., ir.Model]


@pytest.fixture(scope="session")
def grow() -> Grower:
    """Make a model of one fp32 input `x` and one output `y` from a function that adds nodes."""
    return grown


class Nodes:
    """Nodes of a graph under construction."""

    def __init__(self) -> None:
        self.nodes: list[ir.Node] = []
        self.initializers: dict[str, ir.Value] = {}

    def op(self, kind: str, *inputs: ir.Value | None, outputs: int = 1, **attributes: Any) -> Any:
        """Add a node; its output, or all of several."""
        node = ir.node(kind, inputs, attributes, num_outputs=outputs, name=f"n{len(self.nodes)}")
        self.nodes.append(node)
        return node.outputs[0] if outputs == 1 else node.outputs

    def weight(self, name: str, array: NDArray[Any]) -> ir.Value:
        """Add an initializer; a name given again is the same one."""
        if name not in self.initializers:
            self.initializers[name] = ir.val(name, const_value=ir.tensor(array, name=name))
        return self.initializers[name]

    def ints(self, *numbers: int) -> ir.Value:
        """Add a vector of integers."""
        return self.weight("ints" + "_".join(map(str, numbers)), np.array(numbers, np.int64))


def grown(
    build: Callable[[Nodes, ir.Value], ir.Value],
    shape: Sequence[int | str],
    out: Sequence[int | str],
    opset: int = 23,
    dtype: ir.DataType = ir.DataType.FLOAT,
) -> ir.Model:
    """A model around what `build` adds."""
    nodes, x = Nodes(), ir.val("x", dtype=ir.DataType.FLOAT, shape=shape)
    y = build(nodes, x)
    y.name, y.type, y.shape = "y", ir.TensorType(dtype), ir.Shape(out)
    graph = ir.Graph(
        [x],
        [y],
        nodes=nodes.nodes,
        initializers=list(nodes.initializers.values()),
        opset_imports={"": opset},
        name="small",
    )
    return ir.Model(graph, ir_version=11)


SIZE = 64
TOKENS = ("batch", "length", SIZE)
IMAGES = ("batch", 3, "height", "width")


def random(*shape: int, seed: int = 0) -> Floats:
    scale = math.prod(shape[1:]) ** -0.5 if len(shape) > 2 else shape[0] ** -0.5
    numbers: Floats = (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)
    return numbers


def _layer(b: Any, x: ir.Value) -> Any:
    """A layer of an encoder, and a classifier."""
    ones = b.weight("ones", np.ones(SIZE, np.float32))

    def linear(x: ir.Value, name: str, outer: int = SIZE, inner: int = SIZE) -> Any:
        w = b.weight(f"{name}.w", random(inner, outer, seed=len(name)))
        return b.op("Add", b.op("MatMul", x, w), b.weight(f"{name}.b", np.full(outer, 0.1, np.float32)))

    q, k, v = (linear(x, name) for name in ("q", "ke", "val"))
    y = linear(b.op("Attention", q, k, v, q_num_heads=2, kv_num_heads=2), "o")
    x = b.op("LayerNormalization", b.op("Add", x, y), ones, axis=-1)
    y = linear(b.op("Gelu", linear(x, "wide", 32)), "back", inner=32)
    x = b.op("LayerNormalization", b.op("Add", x, y), ones, axis=-1)
    return linear(b.op("ReduceMean", x, b.ints(1), keepdims=0), "last", 4)


@pytest.fixture
def encoder() -> ir.Model:
    return grown(_layer, TOKENS, ("batch", 4))


def _image_model(b: Any, x: ir.Value) -> Any:
    """A stem, a block that is gated and added, a pool of maxima, a mean, a classifier."""

    def conv(x: ir.Value, name: str, out: int, given: int, size: int = 1) -> Any:
        w = b.weight(f"{name}.w", random(out, given, size, size, seed=len(name)))
        pad = size // 2
        return b.op("Conv", x, w, b.weight(f"{name}.b", np.full(out, 0.1, np.float32)), pads=[pad] * 4)

    def batch_norm(x: ir.Value) -> Any:
        values = {"scale": 1.1, "shift": 0.1, "mean": 0.2, "variance": 0.9}
        channels = [b.weight(name, np.full(8, value, np.float32)) for name, value in values.items()]
        return b.op("BatchNormalization", x, *channels)

    # One norm can be folded into the convolution before it, the other cannot.
    x = batch_norm(conv(x, "stem", 8, 3, 3))
    x = b.op("Clip", x, b.weight("low", np.float32(0)), b.weight("high", np.float32(3.4e38)))
    x = batch_norm(x)
    y = b.op("HardSwish", conv(x, "wide", 8, 8, 3))
    gate = b.op("Relu", conv(b.op("GlobalAveragePool", y), "less", 4, 8))
    y = b.op("Mul", y, b.op("HardSigmoid", conv(gate, "more", 8, 4)))
    x = b.op("MaxPool", b.op("Relu", b.op("Add", x, y)), kernel_shape=[2, 2], strides=[2, 2])
    x = b.op("Flatten", b.op("GlobalAveragePool", conv(x, "end", 16, 8)))
    return b.op("Softmax", b.op("Gemm", x, b.weight("last", random(16, 4))), axis=-1)


@pytest.fixture
def images() -> ir.Model:
    return grown(_image_model, IMAGES, ("batch", 4))
