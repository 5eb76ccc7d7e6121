"""ONNX to ONNX: passes, precision, and graphs on disk. The only room besides `families` that imports onnx."""

from alula.graphs.engines import passes_for
from alula.graphs.quantize import layers, observe, quantize, smoothing_for
from alula.graphs.rewrite import Pass, rewrite
from alula.graphs.save import load, save

__all__ = ["Pass", "layers", "load", "observe", "passes_for", "quantize", "rewrite", "save", "smoothing_for"]
