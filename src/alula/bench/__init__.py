"""How fast? Statistics and load, in turns."""

from alula.bench.apart import Footprint, line_of, measure_apart, watch
from alula.bench.measure import (
    Contender,
    Measured,
    Shape,
    Turns,
    full_feeds,
    measure,
    measure_calls,
    shape_name,
)
from alula.bench.report import figure, table
from alula.bench.rows import BenchRow, RatioRow, parse_row
from alula.bench.statistics import Latency, Ratio

__all__ = [
    "BenchRow",
    "Contender",
    "Footprint",
    "Latency",
    "Measured",
    "Ratio",
    "RatioRow",
    "Shape",
    "Turns",
    "figure",
    "full_feeds",
    "line_of",
    "measure",
    "measure_apart",
    "measure_calls",
    "parse_row",
    "shape_name",
    "table",
    "watch",
]
