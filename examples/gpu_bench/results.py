"""What was measured, as values that tables and files are made from."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Literal

from alula.bench.statistics import Ratio, ratio
from alula.core.errors import InputError

Way = Literal["host", "device", "layers", "flight"]
"""How a call is timed.

`host`: arrays in, arrays out, as a caller sees it. `device`: PyTorch with inputs on the GPU, an engine by replaying
its graph, whose copies from and to page-locked memory are part of it. `layers`: an engine's layers alone, inputs on the
GPU. `flight`: an engine with two requests in flight, time per request.
"""

NEAREST: Mapping[Way, Way] = {"layers": "device", "flight": "host"}
"""What PyTorch is timed by, of the ways that engines alone are."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Turns:
    """One contender, one shape, one way: the median ms of each round, and how many calls a round had."""

    rounds_ms: tuple[float, ...]
    runs: tuple[int, ...]

    @property
    def median_ms(self) -> float:
        """Over rounds."""
        return median(self.rounds_ms)

    @property
    def ends_ms(self) -> tuple[float, float]:
        """The fastest and the slowest round."""
        return min(self.rounds_ms), max(self.rounds_ms)


@dataclass(frozen=True, kw_only=True, slots=True)
class Accuracy:
    """How far answers are from PyTorch's in fp32 on the same inputs."""

    relative: float
    largest: float

    @property
    def finite(self) -> bool:
        """Whether nothing was NaN or infinite."""
        return math.isfinite(self.relative) and math.isfinite(self.largest)


@dataclass(frozen=True, kw_only=True, slots=True)
class Opened:
    """From after the imports to the first answer, medians over `openings` processes.

    `memory_bytes` is what the device has less than with a bare context, after the largest shape ran.
    """

    context_ms: float
    load_ms: float
    first_ms: float
    memory_bytes: float
    openings: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Built:
    """What making an engine took, and what it takes on disk; `seconds` by step."""

    seconds: Mapping[str, float]
    engine_bytes: int
    nodes: int
    kept: int
    calibrated_on: str


@dataclass(slots=True)
class Row:
    """One contender on one shape."""

    turns: dict[Way, Turns] = field(default_factory=dict)
    accuracy: Accuracy | None = None
    failed: str = ""


@dataclass(slots=True)
class Result:
    """All of one case, filled while it is measured: rows by shape and contender, and why who is missing."""

    name: str
    what: str
    shapes: tuple[str, ...]
    batches: Mapping[str, int]
    pixels: Mapping[str, int]
    opened: dict[str, Opened] = field(default_factory=dict)
    built: dict[str, Built] = field(default_factory=dict)
    rows: dict[str, dict[str, Row]] = field(default_factory=dict)
    operations: dict[str, int] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)

    def row(self, shape: str, contender: str) -> Row:
        """The row, a new one if there is none."""
        return self.rows.setdefault(shape, {}).setdefault(contender, Row())

    def turns(self, shape: str, contender: str, way: Way) -> Turns | None:
        """What was timed, None where it was not."""
        row = self.rows.get(shape, {}).get(contender)
        return row.turns.get(way) if row else None

    def times(self, shape: str, contender: str, baseline: str, way: Way) -> Ratio | None:
        """How many times as fast as another, round by round; None where one of them is missing.

        What only engines are timed by is compared with the baseline's nearest.
        """
        candidate, base = (
            self.turns(shape, contender, way),
            self.turns(shape, baseline, NEAREST.get(way, way)),
        )
        if candidate is None or base is None:
            return None
        try:
            return ratio(base.rounds_ms, candidate.rounds_ms)
        except InputError:
            return None

    def items_per_s(self, shape: str, contender: str, way: Way) -> float | None:
        """Rows a second."""
        turns = self.turns(shape, contender, way)
        return None if turns is None else self.batches[shape] * 1e3 / turns.median_ms
