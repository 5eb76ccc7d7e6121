"""TensorRT-RTX as a compiler: it parses and builds without a GPU, so its reading of a graph is tested anywhere.

Its networks are strongly typed, as TensorRT's are from 11 on: what is not typed right is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tensorrt_rtx_bindings as trt

Shapes = Mapping[str, Sequence[Sequence[int]]]
"""By input: its smallest, usual and largest shape."""


class Heard(trt.ILogger):  # type: ignore[misc] # the bindings have no types
    """Keeps what is said about errors and warnings."""

    def __init__(self) -> None:
        super().__init__()
        self.errors: list[str] = []
        self.warnings: list[str] = []

    def log(self, severity: object, message: str) -> None:
        """Take one message."""
        if severity in {trt.ILogger.ERROR, trt.ILogger.INTERNAL_ERROR}:
            self.errors.append(message)
        elif severity == trt.ILogger.WARNING:
            self.warnings.append(message)


@dataclass(frozen=True, kw_only=True, slots=True)
class Compiled:
    """An engine, and how many attentions its network held: each has a kernel of its own, unless taken apart."""

    engine: bytes
    attentions: int


def compile_on_cpu(path: Path, shapes: Shapes) -> bytes:
    """The engine of an ONNX file; a RuntimeError that says why if there is none."""
    return compiled(path, shapes).engine


def compiled(path: Path, shapes: Shapes, *, decomposable: bool = False) -> Compiled:
    """The engine of an ONNX file and what went into it.

    With `decomposable` the compiler may take attention apart where it has no kernel; without, it refuses.
    """
    heard = Heard()
    builder = trt.Builder(heard)
    network = builder.create_network(0)
    parser = trt.OnnxParser(network, heard)
    if not parser.parse_from_file(str(path)):
        raise RuntimeError("; ".join(str(parser.get_error(each)) for each in range(parser.num_errors)))
    found = _attentions(network)
    for attention in found:
        attention.decomposable = decomposable
    config, profile = builder.create_builder_config(), builder.create_optimization_profile()
    for name, (least, usual, most) in shapes.items():
        profile.set_shape(name, tuple(least), tuple(usual), tuple(most))
    config.add_optimization_profile(profile)
    engine = builder.build_serialized_network(network, config)
    if engine is None:
        raise RuntimeError("; ".join(heard.errors) or "no engine, and no reason given")
    return Compiled(engine=bytes(engine), attentions=len(found))


def _attentions(network: Any) -> list[Any]:
    """The attentions of a network, each of which has a layer for what comes in and one for what goes out."""
    layers = [network.get_layer(index) for index in range(network.num_layers)]
    inputs = [layer for layer in layers if layer.type == trt.LayerType.ATTENTION_INPUT]
    for layer in inputs:
        # The bindings give every layer as their base class.
        layer.__class__ = trt.IAttentionInputLayer
    return [layer.attention for layer in inputs]
