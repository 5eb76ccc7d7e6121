"""TensorRT-RTX as a compiler: it parses and builds without a GPU, so its reading of a graph is tested anywhere.

Its networks are strongly typed, as TensorRT's are from 11 on: what is not typed right is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

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


def compile_on_cpu(path: Path, shapes: Shapes) -> bytes:
    """The engine of an ONNX file; a RuntimeError that says why if there is none."""
    heard = Heard()
    builder = trt.Builder(heard)
    network = builder.create_network(0)
    parser = trt.OnnxParser(network, heard)
    if not parser.parse_from_file(str(path)):
        raise RuntimeError("; ".join(str(parser.get_error(each)) for each in range(parser.num_errors)))
    config, profile = builder.create_builder_config(), builder.create_optimization_profile()
    for name, (least, usual, most) in shapes.items():
        profile.set_shape(name, tuple(least), tuple(usual), tuple(most))
    config.add_optimization_profile(profile)
    engine = builder.build_serialized_network(network, config)
    if engine is None:
        raise RuntimeError("; ".join(heard.errors) or "no engine, and no reason given")
    return bytes(engine)
