"""ONNX to ONNX: passes, precision, and graphs on disk. The only room besides `families` that imports onnx."""

from onnx_ir import Model

from alula.graphs.engines import half_policy, halves, passes_for
from alula.graphs.half import beyond_fp16, half_layers, observe_magnitudes, shrink, shrinkage
from alula.graphs.passes.choice import Policy
from alula.graphs.passes.switch import SWITCHES
from alula.graphs.quantize import (
    channel_axes,
    costs,
    layers,
    observe,
    pack,
    quantize,
    scheme_for,
    smoothing_for,
    switchable,
)
from alula.graphs.rewrite import Pass, rewrite
from alula.graphs.save import load, save

__all__ = [
    "SWITCHES",
    "Model",
    "Pass",
    "Policy",
    "beyond_fp16",
    "channel_axes",
    "costs",
    "half_layers",
    "half_policy",
    "halves",
    "layers",
    "load",
    "observe",
    "observe_magnitudes",
    "pack",
    "passes_for",
    "quantize",
    "rewrite",
    "save",
    "scheme_for",
    "shrink",
    "shrinkage",
    "smoothing_for",
    "switchable",
]
