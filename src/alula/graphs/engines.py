"""Which passes a graph needs before an engine takes it, and runs it best."""

from __future__ import annotations

from onnx_ir.passes import InPlacePass
from onnx_ir.passes.common import RemoveUnusedNodesPass

from alula.core.machine import cpu_features
from alula.core.words import refuse_unless_offered
from alula.graphs.half import fp16_passes
from alula.graphs.passes.attention import DecomposeAttention
from alula.graphs.passes.choice import FUSED, HALF, Policy
from alula.graphs.passes.flash import FlashAttention
from alula.graphs.passes.fold import FoldAffine
from alula.graphs.passes.gelu import FoldGelu
from alula.graphs.passes.identities import DropIdentities
from alula.graphs.passes.merge import MergeLinears
from alula.graphs.passes.opset import LowerOpset
from alula.graphs.passes.paged import IfPaged, StoreBfloat16, UnlessPaged
from alula.graphs.passes.precision import ToBfloat16
from alula.graphs.passes.rounding import RoundResults
from alula.graphs.passes.shape import SliceShape
from alula.graphs.rewrite import Pass
from alula.graphs.tensorrt import half_policy as tensorrt_half
from alula.graphs.tensorrt import in_few_bits, tensorrt_passes

# Measured with MiniLM in fp32 on a Zen 3 (AVX2) of two cores, CPU milliseconds of one thread, interleaved medians:
#                            1x128   8x128   4x512
#   openvino     Attention    57.8     438    1049
#                written out  57.6     439     954    one snippet holds both products and the softmax
#                and folded   53.3     400    1057    a linear with Gelu behind it is not given to the fast kernel
#   onnxruntime  Attention    51.2     418    1104    fuses bias and Gelu by itself
#                written out  55.7     461    1214    is not fused back to attention
#   PyTorch eager             78.7     549    1275
# On two threads, 41 runs: openvino 30.5 written out, 28.8 folded; PyTorch 50.5 at 1x128. One product for q, k and
# v, a scale behind the product, or the key transposed in two steps made no difference to OpenVINO (27.0 to 27.9).
# With AVX-512 the folding gains nothing and costs at larger shapes, so it is for CPUs without. On two cores of a Xeon
# (family 6, model 207), times as fast as PyTorch at 1x128, 8x128, 4x256: 1.23 1.11 1.13 written out, 1.22 1.03 1.08
# folded.
# PyTorch and the fake engine compute from the model, not from its graph.

# TensorRT 8.6 reads opset 17 at most, and that not quite.
_OLDEST_OPSET = 17

_TENSORRT = frozenset({"tensorrt", "tensorrt-rtx"})
# Mixed is fp16 with more to keep.
_FP16 = frozenset({"fp16", "fp16-mixed"})


def halves(engine: str, precision: str) -> bool:
    """Whether a precision makes parts of a graph fp16: on a GPU what eight bits leave is fp16 too."""
    return precision in _FP16 or (engine in _TENSORRT and in_few_bits(precision))


def half_policy(engine: str, opset: int | None = None) -> Policy:
    """What fp16 takes of a graph for this engine; what is measured has to be what is built."""
    return tensorrt_half(opset) if engine in _TENSORRT else HALF


def passes_for(  # noqa: PLR0913 - six, which is as many as a function may have here
    engine: str,
    precision: str,
    opset: int | None = None,
    policy: Policy | None = None,
    keep: frozenset[str] = frozenset(),
    *,
    longest: int = 0,
) -> tuple[Pass, ...]:
    """The passes for one engine and precision, in order; with an opset, those that lower the graph to it.

    `policy` says what is bf16 or fp16 (`FUSED` and `HALF` unless given), `keep` names the nodes that stay fp32 there.
    Without an opset the graph is for the newest TensorRT, which takes attention whole; an older one has no tensor with
    more than 2^31 - 1 elements, so that it matters how long what attends to itself may be: `longest`, 0 for not very.
    """
    refuse_unless_offered(engine, precision)
    if engine in _TENSORRT:
        passes = [*tensorrt_passes(precision, opset, policy, keep, longest)]
        return (*passes, DropIdentities(), RemoveUnusedNodesPass())
    # What a ready-made file brings: a norm behind a convolution costs ONNX Runtime 7 % (PP-OCRv4 recogniser, 6x320).
    passes = [FoldAffine()] if engine in {"openvino", "onnxruntime"} else []
    if engine == "openvino" or precision == "bf16":
        passes.append(_unless_paged(engine, DecomposeAttention()))
    if engine == "onnxruntime" and precision not in _FP16:
        passes.append(FlashAttention())
    if engine == "openvino" and precision == "fp32" and "avx512f" not in cpu_features():
        passes.append(FoldGelu())
    if precision == "bf16":
        passes.append(_unless_paged(engine, ToBfloat16(policy or FUSED, keep)))
        if engine == "openvino":
            passes += [IfPaged(MergeLinears(least=3)), StoreBfloat16()]
    if precision in _FP16:
        passes += fp16_passes(policy or HALF, keep)
        if engine == "onnxruntime":
            passes.append(RoundResults())
    if opset is not None:
        passes.append(LowerOpset(opset))
        if opset == _OLDEST_OPSET:
            passes.append(SliceShape())
    if passes:
        passes += [DropIdentities(), RemoveUnusedNodesPass()]
    return tuple(passes)


def _unless_paged(engine: str, one: InPlacePass) -> Pass:
    return UnlessPaged(one) if engine == "openvino" else one
