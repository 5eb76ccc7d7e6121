"""What timings say, and what they are too few to say. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from alula.core.errors import InputError

CONFIDENCE = 0.95


@dataclass(frozen=True, kw_only=True, slots=True)
class Latency:
    """Percentiles of single calls; one that the runs are too few for is None, not their maximum."""

    runs: int
    p50_ms: float
    p90_ms: float | None
    p99_ms: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Ratio:
    """How many times as fast as a baseline: the median over rounds, and an interval around it.

    `low` and `high` hold the true median with 95 % confidence whatever the distribution; both are None under
    six rounds, where no such interval exists.
    """

    median: float
    low: float | None
    high: float | None
    rounds: int

    @property
    def verdict(self) -> str:
        """One of faster, slower, or unclear where the interval holds 1 or there is none."""
        if self.low is None or self.high is None:
            return "unclear"
        if self.low > 1:
            return "faster"
        return "slower" if self.high < 1 else "unclear"


def percentile(values: Sequence[float], share: float) -> float | None:
    """The smallest value that at least `share` of all do not exceed; None unless one value in that tail is expected.

    So a p99 needs 100 values, a p90 ten, a median two.
    """
    if not 0 < share < 1:
        raise InputError(f"a percentile needs a share between 0 and 1, got {share}")
    if any(math.isnan(value) for value in values):
        return math.nan
    # The count is rounded, since 1 / (1 - 0.99) is a little over 100 in floating point.
    if len(values) < round(1 / (1 - share)):
        return None
    return sorted(values)[math.ceil(round(share * len(values), 9)) - 1]


def latency(times_ms: Sequence[float]) -> Latency:
    """Percentiles of the times of single calls."""
    if not times_ms:
        raise InputError("no timings; at least one run is needed")
    return Latency(
        runs=len(times_ms),
        p50_ms=median(times_ms),
        p90_ms=percentile(times_ms, 0.90),
        p99_ms=percentile(times_ms, 0.99),
    )


def ratio(baseline_ms: Sequence[float], candidate_ms: Sequence[float]) -> Ratio:
    """Compare two engines that were measured in the same rounds, pair by pair.

    Within a round both met the same machine, so its drift and its neighbours cancel; over rounds they would not.
    """
    if len(baseline_ms) != len(candidate_ms) or not baseline_ms:
        raise InputError(
            f"a ratio needs as many rounds on both sides, got {len(baseline_ms)} and {len(candidate_ms)}"
        )
    ratios = [base / candidate for base, candidate in zip(baseline_ms, candidate_ms, strict=True)]
    low, high = median_interval(ratios) or (None, None)
    return Ratio(median=median(ratios), low=low, high=high, rounds=len(ratios))


def median_interval(values: Sequence[float], confidence: float = CONFIDENCE) -> tuple[float, float] | None:
    """The k-th smallest and k-th largest value, k as large as the confidence allows; None if not even k = 1 does.

    The median lies outside them as seldom as fewer than k of n coins fall heads, for any distribution.
    """
    count = len(values)
    ordered = sorted(values)
    best = None
    outside = 0.0
    for k in range(1, count // 2 + 1):
        outside += 2 * math.comb(count, k - 1) / 2**count
        if 1 - outside < confidence:
            break
        best = ordered[k - 1], ordered[count - k]
    return best
