"""An ONNX file on disk, described without importing onnx."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from alula.core.tensor import TensorSpec


@dataclass(frozen=True, kw_only=True, slots=True)
class Graph:
    """Immutable: a pass leads to a new Graph with a new digest.

    `digest` is the SHA-256 over the file and its external data; `precision` is what the graph carries.
    """

    path: Path
    digest: str
    opset: int
    nodes: int
    precision: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
