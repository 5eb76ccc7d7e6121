"""Activations whose channels differ much in size, evened out before they are rounded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from onnx_ir.passes import InPlacePass, PassResult, PreconditionError

from alula.graphs.passes.edit import Editor, replace_constant, weight
from alula.graphs.passes.layers import (
    activations,
    is_convolution,
    layers_of,
    output_axis,
    read_by,
    weight_of,
)

Factors = Mapping[str, Sequence[float]]
"""By activation, what each of its channels is divided by."""

# SmoothQuant (Xiao et al., 2022) has 0.5. MiniLM, all linears in int8, min-max ranges of 96 texts, 64 others,
# worst and mean cosine to fp32: 0.983 0.9914 without; 0.967 0.9863 at 0.5, 0.990 0.9960 at 0.65, 0.990 0.9963 at 0.7,
# 0.986 0.9963 at 0.75, 0.984 0.9959 at 0.8, 0.992 0.9950 at 0.85. What attention gives gains nothing by it.
SHARE = 0.7
"""How much of the difference between channels goes to the weights."""

_SOURCES = frozenset({"LayerNormalization", "RMSNormalization", "Gelu", "Relu", "Swish", "Tanh"})
_LEAST = 1e-5


class Smooth(InPlacePass):
    """Divides activations by factors per channel, and multiplies the weights that read them; results stay equal."""

    def __init__(self, factors: Factors, keep: frozenset[str] = frozenset()) -> None:
        super().__init__()
        self.factors, self.keep = factors, keep

    def requires(self, model: ir.Model) -> None:
        """Every factor is for an activation that linears read, and has its channels."""
        readers = readers_of(model)
        for name, factors in self.factors.items():
            if name not in readers:
                raise PreconditionError(f"no activation {name}; there are {len(readers)}")
            first = readers[name][0]
            channels = weight_of(first).shape[1 - output_axis(first)]
            if len(factors) != channels or not all(np.isfinite(factors)) or min(factors) <= 0:
                raise PreconditionError(
                    f"{name}: expected {channels} positive factors, one per channel; got {len(factors)}"
                )

    def call(self, model: ir.Model) -> PassResult:
        """Smooth what at least one linear that is not kept reads."""
        readers = readers_of(model)
        changed = False
        for name, factors in self.factors.items():
            if any(node.name not in self.keep for node in readers[name]):
                _divide(readers[name], np.array(factors, np.float32))
                changed = True
        return PassResult(model, changed)


def factors_for(
    model: ir.Model, amplitudes: Mapping[str, NDArray[Any]], share: float = SHARE
) -> dict[str, tuple[float, ...]]:
    """Factors for what comes from a norm or an activation function, by its size and that of the weights."""
    found = {}
    for name, nodes in readers_of(model).items():
        producer = read_by(nodes[0]).producer()
        if producer is None or producer.op_type not in _SOURCES:
            continue
        rows = np.max([_row_sizes(node) for node in nodes], axis=0)
        size = np.maximum(amplitudes[name].astype(np.float64), _LEAST)
        factors = size**share / np.maximum(rows, _LEAST) ** (1 - share)
        found[name] = tuple(float(factor) for factor in factors.astype(np.float32))
    return found


def readers_of(model: ir.Model) -> dict[str, list[ir.Node]]:
    """The linears that read each activation that no convolution reads."""
    names = {value: name for name, value in activations(model).items()}
    readers: dict[str, list[ir.Node]] = {}
    for node in layers_of(model):
        readers.setdefault(names[read_by(node)], []).append(node)
    return {name: nodes for name, nodes in readers.items() if not any(map(is_convolution, nodes))}


def _row_sizes(node: ir.Node) -> NDArray[np.float32]:
    """The largest magnitude of the weights that each channel is multiplied with."""
    sizes: NDArray[np.float32] = np.abs(weight_of(node).numpy()).max(axis=output_axis(node))
    return sizes


def _divide(nodes: Sequence[ir.Node], factors: NDArray[np.float32]) -> None:
    edit, value = Editor(nodes[0]), read_by(nodes[0])
    name = f"{nodes[0].name}/inverse"
    inverse = weight(edit.graph, name, ir.tensor(np.reciprocal(factors), name=name))
    smoothed = edit.op("Mul", value, inverse, dtype=ir.DataType.FLOAT)
    smoothed.shape = value.shape
    for node in nodes:
        node.replace_input_with(0, smoothed)
        replace_constant(node, 1, "smoothed", _times(np.expand_dims(factors, output_axis(node))))


def _times(factors: NDArray[np.float32]) -> Callable[[NDArray[Any]], NDArray[Any]]:
    return lambda array: array * factors
