"""What one engine needed for one shape, under the names that JSON documents and timings use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from alula.bench.statistics import Ratio
from alula.core.errors import ManifestError
from alula.core.parse import get


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchRow:
    """One engine at one precision on one shape, such as "8x128": rows by tokens.

    What was not measured is None: a p99 of few runs, memory of an engine that shared its process, an error.
    """

    engine: str
    precision: str
    shape: str
    runs: int
    p50_ms: float
    p90_ms: float | None
    p99_ms: float | None
    items_per_s: float
    load_ms: float | None = None
    peak_host_bytes: int | None = None
    peak_device_bytes: int | None = None
    metric: str | None = None
    worst: float | None = None

    @property
    def label(self) -> str:
        """Engine and precision, as tables and figures name it."""
        return f"{self.engine} {self.precision}"

    def as_json(self) -> dict[str, Any]:
        """The row as JSON documents carry it."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class RatioRow:
    """How many times as fast one engine is as another on one shape, in the same rounds."""

    shape: str
    engine: str
    baseline: str
    ratio: Ratio

    def as_json(self) -> dict[str, Any]:
        """The comparison as JSON documents carry it."""
        about = {"shape": self.shape, "engine": self.engine, "baseline": self.baseline}
        return {**about, **asdict(self.ratio), "verdict": self.ratio.verdict}


def parse_row(raw: Mapping[str, Any]) -> BenchRow:
    """A row of a JSON document or of a bundle's timings."""
    known = {field.name for field in fields(BenchRow)}
    if unknown := sorted(set(raw) - known):
        raise ManifestError("is not a field of a bench row", unknown[0])

    def number(key: str) -> float | None:
        return None if raw.get(key) is None else get(raw, float, key)

    def count(key: str) -> int | None:
        return None if raw.get(key) is None else get(raw, int, key)

    return BenchRow(
        engine=get(raw, str, "engine"),
        precision=get(raw, str, "precision"),
        shape=get(raw, str, "shape"),
        runs=get(raw, int, "runs"),
        p50_ms=get(raw, float, "p50_ms"),
        p90_ms=number("p90_ms"),
        p99_ms=number("p99_ms"),
        items_per_s=get(raw, float, "items_per_s"),
        load_ms=number("load_ms"),
        peak_host_bytes=count("peak_host_bytes"),
        peak_device_bytes=count("peak_device_bytes"),
        metric=None if raw.get("metric") is None else get(raw, str, "metric"),
        worst=number("worst"),
    )
