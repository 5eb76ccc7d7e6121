"""What runs, and what of the graph each layer does: the values that the report is made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from alula.core.nodes import Node
from alula.core.tensor import Dim

Role = Literal["compute", "reformat", "cast", "quantize", "view", "upkeep"]
"""What a layer is for: work of the model; data laid out anew; another type; to or from integers; another shape without
work; and what runtimes do beside the model, such as working out shapes on the host or setting a cache's policy."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Value:
    """One input or output of a layer; what the runtime does not say is empty and None."""

    name: str
    dtype: str = ""
    shape: tuple[Dim, ...] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Layer:
    """One thing that an engine runs.

    `named` are the words the runtime has for what it does, among them names of nodes; `span` is the first and last
    name of a region, and an `opaque` layer is one whose inside is not told. `nodes` are the graph's nodes whose work
    it does, or a part of, once they are found.
    """

    name: str
    kind: str = ""
    role: Role = "compute"
    named: tuple[str, ...] = ()
    span: tuple[str, str] | None = None
    nodes: tuple[str, ...] = ()
    precision: str = ""
    inputs: tuple[Value, ...] = ()
    outputs: tuple[Value, ...] = ()
    kernel: str = ""
    opaque: bool = False
    time_ms: float | None = None

    @property
    def fused(self) -> bool:
        """Whether it does the work of several nodes."""
        return len(self.nodes) > 1

    @property
    def inserted(self) -> bool:
        """Whether it is the runtime's own: it does no node's work."""
        return not self.nodes


@dataclass(frozen=True, kw_only=True, slots=True)
class Listing:
    """What a runtime says it runs, before anything is known of the graph.

    `schema` names the form it was read from; `notes` are what a reader must know of it. `call_ms` is a whole call in
    the same run that timed the layers.
    """

    source: str
    version: str
    schema: str
    layers: tuple[Layer, ...]
    inputs: tuple[str, ...] = ()
    profiles: int = 1
    call_ms: float | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Removed:
    """A node that no layer does, and why not."""

    node: str
    op: str
    why: str


Verdict = Literal["fused", "in part", "not fused", "unknown", "none"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Attention:
    """Whether attention runs as one layer, for how many of the places where the graph has it, and how that is known."""

    verdict: Verdict
    places: int = 0
    fused: int = 0
    evidence: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """Where each node of a graph went, and what each layer is and takes. Without the graph, `nodes` is None."""

    listing: Listing
    nodes: tuple[Node, ...] | None
    layers: tuple[Layer, ...]
    removed: tuple[Removed, ...]
    attention: Attention
    about: Mapping[str, str] = field(default_factory=dict)

    @property
    def total_ms(self) -> float | None:
        """All layers together; None where none was timed."""
        times = [layer.time_ms for layer in self.layers if layer.time_ms is not None]
        return sum(times) if times else None

    @property
    def working(self) -> tuple[Layer, ...]:
        """The layers that do something with data: all but views and upkeep."""
        return tuple(layer for layer in self.layers if layer.role not in {"view", "upkeep"})
