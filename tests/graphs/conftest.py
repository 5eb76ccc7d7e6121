"""Graphs small enough to read, and ONNX Runtime to run them."""

from __future__ import annotations

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
