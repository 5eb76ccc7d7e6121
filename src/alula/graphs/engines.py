"""Which passes a graph needs before an engine takes it, and runs it best."""

from __future__ import annotations

from onnx_ir.passes.common import IdentityEliminationPass, RemoveUnusedNodesPass

from alula.core.words import refuse_unless_offered
from alula.graphs.passes.attention import DecomposeAttention
from alula.graphs.passes.opset import LowerOpset
from alula.graphs.passes.precision import BROAD, Policy, ToBfloat16
from alula.graphs.passes.shape import SliceShape
from alula.graphs.rewrite import Pass

# TensorRT 8.6 reads opset 17 at most, and that not quite.
_OLDEST_OPSET = 17


def passes_for(
    engine: str, precision: str, opset: int | None = None, policy: Policy = BROAD
) -> tuple[Pass, ...]:
    """The passes for one engine and precision, in order; with an opset, those that lower the graph to it."""
    refuse_unless_offered(engine, precision)
    passes: list[Pass] = []
    # PyTorch and the fake engine compute from the model, not from its graph.
    if engine == "openvino" or precision == "bf16":
        passes.append(DecomposeAttention())
    if precision == "bf16":
        passes.append(ToBfloat16(policy))
    if opset is not None:
        passes.append(LowerOpset(opset))
        if opset == _OLDEST_OPSET:
            passes.append(SliceShape())
    if passes:
        passes += [IdentityEliminationPass(), RemoveUnusedNodesPass()]
    return tuple(passes)
