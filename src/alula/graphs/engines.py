"""Which passes a graph needs before an engine takes it, and runs it best."""

from __future__ import annotations

from alula.core.words import refuse_unless_offered
from alula.graphs.passes.attention import DecomposeAttention
from alula.graphs.rewrite import Pass


def passes_for(engine: str, precision: str, opset: int | None = None) -> tuple[Pass, ...]:
    """The passes for one engine and precision, in order; with an opset, those that lower the graph to it."""
    refuse_unless_offered(engine, precision)
    if engine == "openvino":
        return (DecomposeAttention(),)
    return ()
