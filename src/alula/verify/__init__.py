"""Is an engine equal to the model? Metrics, limits with reasons, the gate."""

from alula.verify.gate import compare, invariance
from alula.verify.limits import LIMITS, Limits, limits_for, metrics_for
from alula.verify.samples import Sample, draw
from alula.verify.texts import texts_for

__all__ = [
    "LIMITS",
    "Limits",
    "Sample",
    "compare",
    "draw",
    "invariance",
    "limits_for",
    "metrics_for",
    "texts_for",
]
