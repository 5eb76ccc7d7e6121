"""ONNX to ONNX: passes, precision, and graphs on disk. The only room besides `families` that imports onnx."""

from onnx_ir import Model

from alula.graphs.engines import passes_for
from alula.graphs.quantize import costs, layers, observe, quantize, smoothing_for, switchable
from alula.graphs.rewrite import Pass, rewrite
from alula.graphs.save import load, save

__all__ = [
    "Model",
    "Pass",
    "costs",
    "layers",
    "load",
    "observe",
    "passes_for",
    "quantize",
    "rewrite",
    "save",
    "smoothing_for",
    "switchable",
]
