"""What outputs lose against a reference: the numbers that a budget limits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from alula.core.model import ModelSpec
from alula.core.tensor import TensorSpec
from alula.verify import characters, metrics
from alula.verify.gate import Answer, arrays, pair
from alula.verify.intervals import Interval, Rows, bootstrap, of_mean, wilson
from alula.verify.metrics import Floats

TEXT = 0.3
"""The probability from which on a detector's pixel is one of text, as everybody reads these maps."""

Pairs: TypeAlias = Sequence[tuple[int, int]]
"""Rows, counted over all answers, of the first and the second text of each pair."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Loss:
    """One number that a budget limits, the mean beside it, and how many samples it comes from."""

    output: str
    value: float
    mean: float
    samples: int
    interval: Interval | None = None
    scores: tuple[float, float] | None = None


Measure: TypeAlias = Callable[[Sequence[Answer], ModelSpec, Pairs], Loss]


def _distance_mean(answers: Sequence[Answer], spec: ModelSpec, pairs: Pairs) -> Loss:
    values = metrics.cosine_distances(*_rows("embedding", answers))
    mean = _mean(values)
    interval = of_mean(values) if np.isfinite(mean) else None
    return Loss(output="embedding", value=mean, mean=mean, samples=len(values), interval=interval)


def _distance_worst(answers: Sequence[Answer], spec: ModelSpec, pairs: Pairs) -> Loss:
    """Without an interval: what lies beyond the worst of a sample, the sample does not say."""
    values = metrics.cosine_distances(*_rows("embedding", answers))
    worst = float(values.max()) if len(values) else float("nan")
    return Loss(output="embedding", value=worst, mean=_mean(values), samples=len(values))


def _nearest(answers: Sequence[Answer], spec: ModelSpec, pairs: Pairs) -> Loss:
    expected, given = _rows("embedding", answers)
    firsts, seconds = np.array(pairs, dtype=np.int64).T
    return _share("embedding", metrics.nearest_disagreements(expected, given, firsts, seconds))


def _labels(answers: Sequence[Answer], spec: ModelSpec, pairs: Pairs) -> Loss:
    expected, given = _rows("logits", answers)
    differ = metrics.decisions_differ if spec.activation == "sigmoid" else metrics.labels_differ
    return _share("logits", differ(expected, given))


def _order(answers: Sequence[Answer], spec: ModelSpec, pairs: Pairs) -> Loss:
    """The share is of pairs; those that share a row hang together, so samples and interval count rows."""
    expected, given = (metrics.relevances(side) for side in _rows("logits", answers))
    share = metrics.order_disagreement(expected, given)
    rows = len(expected) if len(expected) > 1 else 0
    interval = wilson(share, rows) if np.isfinite(share) else None
    return Loss(output="logits", value=share, mean=share, samples=rows, interval=interval)


def _tokens(answers: Sequence[Answer], spec: ModelSpec, pairs: Pairs) -> Loss:
    """Tokens of one text hang together: the interval is as wide as tokens make it or texts, drawn whole."""
    texts = [values for answer in answers for values in _token_rows(answer)]
    loss = _share("logits", np.concatenate(texts) if texts else np.empty(0))
    if loss.interval is None:
        return loss
    changed = np.array([values.sum() for values in texts])
    sizes = np.array([len(values) for values in texts])
    by_text = bootstrap(lambda rows: float(changed[rows].sum() / sizes[rows].sum()), len(texts))
    interval = loss.interval.hull(by_text) if by_text else loss.interval
    return Loss(output=loss.output, value=loss.value, mean=loss.mean, samples=loss.samples, interval=interval)


def _spans(answers: Sequence[Answer], spec: ModelSpec, pairs: Pairs) -> Loss:
    return _share("span", np.array([value for answer in answers for value in _span_rows(answer)], np.float64))


def _characters(answers: Sequence[Answer], spec: ModelSpec, pairs: Pairs) -> Loss:
    """Characters of one line hang together, so samples and interval count lines."""
    lines = [line for answer in answers for line in _line_rows(answer, spec)]
    whole = [(a, b) for a, b in lines if a is not None and b is not None]
    counts = characters.edits([a for a, _ in whole], [b for _, b in whole])
    rate = characters.error_rate(counts) if len(whole) == len(lines) else float("nan")
    interval = None
    if np.isfinite(rate):
        drawn = bootstrap(lambda rows: characters.error_rate(counts[rows]), len(counts))
        told = drawn is not None and drawn.low < drawn.high
        interval = drawn if told else wilson(min(1.0, rate), len(counts))
    return Loss(output="probabilities", value=rate, mean=rate, samples=len(lines), interval=interval)


def _energy(answers: Sequence[Answer], spec: ModelSpec, pairs: Pairs) -> Loss:
    """Calls are drawn whole for the interval: values of one hang together."""
    losses = [_energy_of(output, answers) for output in spec.parts[0].outputs]
    return max(losses, key=lambda loss: np.inf if np.isnan(loss.value) else loss.value)


def _energy_of(output: TensorSpec, answers: Sequence[Answer]) -> Loss:
    sides = [arrays(output.name, answer) for answer in answers]
    if output.dtype.startswith("float"):
        sums = [(float(np.square(a - b).sum()), float(np.square(a).sum())) for a, b in sides]
    else:
        sums = [(float(np.where(np.isnan(a), np.nan, a != b).sum()), float(a.size)) for a, b in sides]
    wrong, whole = np.array(sums, np.float64).reshape(-1, 2).T

    def share(calls: Rows) -> float:
        of = float(whole[calls].sum())
        return float(wrong[calls].sum() / of) if of else float(np.where(wrong[calls].sum(), np.inf, 0.0))

    value = share(np.arange(len(sides))) if sides else float("nan")
    interval = bootstrap(share, len(sides)) if np.isfinite(value) else None
    return Loss(output=output.name, value=value, mean=value, samples=len(sides), interval=interval)


def _area(answers: Sequence[Answer], spec: ModelSpec, pairs: Pairs) -> Loss:
    """Pages are drawn whole for the interval: pixels of one hang together."""
    (output,) = spec.parts[0].outputs
    pages = [_areas(*sides) for answer in answers for sides in zip(*arrays(output.name, answer), strict=True)]
    apart, either = np.array(pages, np.float64).reshape(-1, 2).T

    def share(rows: Rows) -> float:
        of = float(either[rows].sum())
        return float(apart[rows].sum() / of) if of else float(np.where(np.isnan(of), np.nan, 0.0))

    value = share(np.arange(len(pages))) if pages else float("nan")
    interval = bootstrap(share, len(pages)) if np.isfinite(value) else None
    return Loss(output=output.name, value=value, mean=value, samples=len(pages), interval=interval)


def _areas(expected: Floats, given: Floats) -> tuple[float, float]:
    """Of one page, the pixels that one side alone calls text, and those that either does."""
    if np.isnan(expected).any() or np.isnan(given).any():
        return float("nan"), float("nan")
    a, b = expected > TEXT, given > TEXT
    return float((a ^ b).sum()), float((a | b).sum())


MEASURES: Mapping[str, Measure] = {
    "cosine_distance_mean": _distance_mean,
    "cosine_distance_worst": _distance_worst,
    "nearest_disagreement": _nearest,
    "label_disagreement": _labels,
    "order_disagreement": _order,
    "token_label_disagreement": _tokens,
    "span_disagreement": _spans,
    "character_error_rate": _characters,
    "energy_of_error": _energy,
    "area_disagreement": _area,
}
"""By metric: what `judge` can measure on outputs alone."""


def _rows(output: str, answers: Sequence[Answer]) -> tuple[Floats, Floats]:
    """Expected and given, row after row, each flat; NaN throughout where answers differ in width or have none."""
    sides = [pair(output, answer) for answer in answers]
    if not sides:
        return np.empty((0, 1)), np.empty((0, 1))
    expected, given = ([side.reshape(len(side), -1) for side in each] for each in zip(*sides, strict=True))
    widths = {side.shape[1] for side in expected}
    if len(widths) > 1 or 0 in widths:
        lost = np.full((sum(len(side) for side in expected), 1), np.nan)
        return lost, lost
    return np.concatenate(expected), np.concatenate(given)


def _token_rows(answer: Answer) -> list[Floats]:
    """By text, 1.0 for each token with another label; padding does not count."""
    expected, given = pair("logits", answer)
    if expected.ndim != 3 or expected.shape[:2] != answer.mask.shape:
        return [np.full(int(kept.sum()), np.nan) for kept in answer.mask]
    return [
        metrics.labels_differ(expected[row, kept], given[row, kept]) for row, kept in enumerate(answer.mask)
    ]


def _span_rows(answer: Answer) -> list[float]:
    """By row, 1.0 where the best span is another one."""
    sides = [pair(name, answer) for name in ("start_logits", "end_logits")]
    if any(expected.shape != answer.mask.shape for expected, _ in sides):
        return [float("nan")] * len(answer.mask)
    values = []
    for row, kept in enumerate(answer.mask):
        expected, given = (tuple(side[at][row, kept] for side in sides) for at in (0, 1))
        finite = all(np.isfinite(logits).all() for logits in (*expected, *given))
        differ = metrics.best_span(*expected) != metrics.best_span(*given) if finite else np.nan
        values.append(float(differ))
    return values


def _line_rows(answer: Answer, spec: ModelSpec) -> list[tuple[str | None, str | None]]:
    """By row, the lines that both sides spell; None for one that cannot be read."""
    sides = pair("probabilities", answer)
    rows = zip(*sides, strict=True)
    return [(characters.spelled(a, spec.labels), characters.spelled(b, spec.labels)) for a, b in rows]


def _share(output: str, values: Floats) -> Loss:
    """The mean of noughts and ones, with Wilson's interval."""
    share = _mean(values)
    interval = wilson(share, len(values)) if np.isfinite(share) else None
    return Loss(output=output, value=share, mean=share, samples=len(values), interval=interval)


def _mean(values: Floats) -> float:
    return float(values.mean()) if len(values) else float("nan")
