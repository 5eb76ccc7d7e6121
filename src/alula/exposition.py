"""What a server tells Prometheus, read back: samples, how counters grew between two readings, quantiles of histograms.

Pure; the format is Prometheus' text exposition 0.0.4.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, isfinite, nan

from alula.core.errors import InputError

Labels = frozenset[tuple[str, str]]

_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)",?')
_LABELS = r'(?:[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\]|\\.)*",?)*'
_LINE = re.compile(rf"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{{({_LABELS})\}})? +(\S+)(?: +-?[0-9]+)?")
_ESCAPES = {"\\n": "\n", '\\"': '"', "\\\\": "\\"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """Every sample at one moment, `at` in seconds of the reader's own clock."""

    at: float
    samples: Mapping[str, Mapping[Labels, float]] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str, at: float) -> Reading:
        """The samples of a page. Raises InputError for a line that is none."""
        samples: dict[str, dict[Labels, float]] = {}
        for line in text.splitlines():
            if line and not line.startswith("#"):
                name, labels, value = _sample(line)
                samples.setdefault(name, {})[labels] = value
        return cls(at=at, samples=samples)

    def series(self, name: str, **wanted: str) -> Iterator[tuple[Mapping[str, str], float]]:
        """The samples of a name with these labels."""
        for labels, value in self.samples.get(name, {}).items():
            if wanted.items() <= labels:
                yield dict(labels), value

    def value(self, name: str, **wanted: str) -> float | None:
        """The sum of the samples of a name with these labels; None where there are none."""
        found = [value for _, value in self.series(name, **wanted)]
        return sum(found) if found else None

    def labels(self, name: str, label: str) -> tuple[str, ...]:
        """The values of one label, in their order."""
        return tuple(sorted({labels[label] for labels, _ in self.series(name) if label in labels}))


def _sample(line: str) -> tuple[str, Labels, float]:
    found = _LINE.fullmatch(line.strip())
    try:
        if found:
            labels = _LABEL.findall(found[2] or "")
            return found[1], frozenset((name, _plain(text)) for name, text in labels), float(found[3])
    except ValueError:
        pass
    raise InputError(f"{line[:60]!r} is no sample of Prometheus' text format; is this a server's /metrics?")


def _plain(text: str) -> str:
    return re.sub(r"\\.", lambda escape: _ESCAPES.get(escape[0], escape[0]), text)


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """What happened between two readings of one server; one that was started anew in between began at nought."""

    before: Reading
    after: Reading

    @property
    def seconds(self) -> float:
        """How long that was."""
        return self.after.at - self.before.at

    def grown(self, name: str, **wanted: str) -> float:
        """By how much counters of a name with these labels grew together."""
        earlier = self.before.samples.get(name, {})
        return sum(
            value - (earlier.get(labels, 0.0) if value >= earlier.get(labels, 0.0) else 0.0)
            for labels, value in self.after.samples.get(name, {}).items()
            if wanted.items() <= labels
        )

    def rate(self, name: str, **wanted: str) -> float:
        """The same in a second."""
        return self.grown(name, **wanted) / self.seconds if self.seconds > 0 else 0.0

    def mean(self, name: str, **wanted: str) -> float | None:
        """Of what a histogram was told; None where that is nothing."""
        count = self.grown(f"{name}_count", **wanted)
        return self.grown(f"{name}_sum", **wanted) / count if count else None

    def quantile(self, share: float, name: str, **wanted: str) -> float | None:
        """Below which a share of what a histogram was told lies; None where that is nothing."""
        bounds = {
            float(labels["le"]): self.grown(f"{name}_bucket", **wanted, le=labels["le"])
            for labels, _ in self.after.series(f"{name}_bucket", **wanted)
        }
        found = quantile(share, sorted(bounds.items()))
        return found if isfinite(found) else None


def quantile(share: float, buckets: Sequence[tuple[float, float]]) -> float:
    """As Prometheus' histogram_quantile has it, of buckets (bound, how many up to it), the last one without a bound.

    Within a bucket values are taken to lie evenly; what lies beyond the last bound is that bound. NaN of nothing.
    """
    whole = buckets[-1][1] if buckets else 0.0
    if not whole:
        return nan
    rank, low, below = share * whole, 0.0, 0.0
    for bound, count in buckets:
        if count >= rank and count > below:
            return low if bound == inf else low + (bound - low) * (rank - below) / (count - below)
        low, below = bound, count
    return low
