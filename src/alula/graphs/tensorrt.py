"""Which passes a graph needs for TensorRT, by precision and by what its parser reads."""

from __future__ import annotations

from dataclasses import replace

import onnx_ir as ir
from onnx_ir.passes.common import ClearMetadataAndDocStringPass, LiftConstantsToInitializersPass

from alula.graphs.passes.attention import DecomposeAttention
from alula.graphs.passes.choice import FUSED, REGION, WHOLE_ATTENTION, Policy
from alula.graphs.passes.count import CountByProduct
from alula.graphs.passes.fold import FoldAffine
from alula.graphs.passes.give_new import GiveNew
from alula.graphs.passes.heads import head_size
from alula.graphs.passes.keep_width import KeepWidth
from alula.graphs.passes.norms import DecomposeNorms
from alula.graphs.passes.opset import LowerOpset
from alula.graphs.passes.precision import ToBfloat16, ToFloat16
from alula.graphs.passes.rms import DecomposeRms
from alula.graphs.passes.shape import NameAxes, SliceShape
from alula.graphs.passes.signs import CompareForSigns
from alula.graphs.passes.table import MultiplyByTable
from alula.graphs.passes.weights import FloatWeights
from alula.graphs.rewrite import Pass

HEAD_SIZES = frozenset(range(16, 257, 8))
"""Heads that TensorRT has a kernel for in half precision. RTX 1.7.1 compiled all from 9 to 256, and neither 8 nor 264;
from 10.14 on TensorRT pads what is not a multiple of eight, which is not counted on here."""

_ATTENTION_OPSET = 23
_HALF_SCALES_OPSET = 19
_OLDEST_OPSET = 17


# Casts cost 8.6 nothing: it runs a transformer as one region. BERT-base on an H200, milliseconds of the replayed graph
# at 1x128, 8x128, 32x128, 8x512, relative error at 8x128 and MiB on the GPU for sizes up to 32x512:
#   norms, residual sums and softmax in fp32   0.790 1.168 3.789 4.746   7.7e-4   772
#   all of it in fp16, norms counted in fp32   0.796 1.172 3.770 4.792   8.2e-4   964


def tensorrt_passes(
    precision: str, opset: int | None, policy: Policy | None, keep: frozenset[str], longest: int = 0
) -> tuple[Pass, ...]:
    """In order: attention as the version takes it, the precision, then the words of the opset.

    What int8 leaves is fp16, since TensorRT computes what a graph calls fp32 in fp32: attention and layers that are
    kept. From opset 19 on so is what layers of eight bits give; before, Q and DQ take fp32 alone, and a cast between
    them and a layer would keep TensorRT from computing that in eight bits, so it stays fp32 there. What attends to
    itself may be as long as `longest`; where attention has no kernel, scores are then counted piece by piece.
    """
    newest = opset if opset is not None else _ATTENTION_OPSET
    whole, halved = newest >= _ATTENTION_OPSET, precision != "fp32"
    passes: list[Pass] = [
        ClearMetadataAndDocStringPass(),
        LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0),
        GiveNew(),
        KeepWidth(),
        FoldAffine(),
    ]
    if not whole:
        passes.append(DecomposeAttention(late=halved, apart=True, longest=longest))
    elif halved:
        passes.append(DecomposeAttention(lambda node: not _has_kernel(node) or _is_kept(node, keep)))
    if precision == "bf16":
        passes.append(ToBfloat16(policy or replace(FUSED, attention=whole), keep))
    elif halved:
        eight = in_few_bits(precision)
        chosen = policy or replace(half_policy(opset), quantised=eight and newest >= _HALF_SCALES_OPSET)
        passes.append(ToFloat16(chosen, keep, renamed=eight))
    if opset is not None:
        passes += _older(opset, halved=halved)
    return (*passes, NameAxes())


def in_few_bits(precision: str) -> bool:
    """Whether a precision stores weights in few bits, whatever is computed with them."""
    return precision.startswith("int8") or precision.endswith("-weights")


def half_policy(opset: int | None) -> Policy:
    """What fp16 takes in the graph for an opset, or for the newest TensorRT."""
    whole = opset is None or opset >= _ATTENTION_OPSET
    return replace(WHOLE_ATTENTION if whole else REGION, writing=True)


def _older(opset: int, *, halved: bool) -> list[Pass]:
    """An opset asked for stands for a version that may not know more than this opset had when it was new.

    8.6 counts all of a region in half precision, whatever casts are around a norm. Rows of SmolLM2-135M have numbers of
    which the squares are infinite there: on an H200 its KL divergence was 5.0, and is 1.6e-4 with bounded norms.
    """
    passes: list[Pass] = [CountByProduct()] if opset < _ATTENTION_OPSET else []
    if opset < _ATTENTION_OPSET and halved:
        passes.append(DecomposeRms(bounded=True))
    passes.append(LowerOpset(opset))
    if opset == _OLDEST_OPSET:
        passes += [DecomposeNorms(), FloatWeights(), CompareForSigns(), MultiplyByTable(), SliceShape()]
    return passes


def _has_kernel(node: ir.Node) -> bool:
    return head_size(node) in HEAD_SIZES


def _is_kept(node: ir.Node, keep: frozenset[str]) -> bool:
    """Whether a part of this attention, written out, is to stay fp32."""
    return any(name.startswith(f"{node.name}/") for name in keep)
