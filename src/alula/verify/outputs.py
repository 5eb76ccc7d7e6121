"""Outputs of which only the tensors are known, value by value: how far they are, and whether rows stand alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from alula.core.engine import Session
from alula.core.model import ModelSpec
from alula.core.profile import Profile
from alula.core.tensor import Feeds, TensorSpec
from alula.verify.arrays import BATCH, shares_rows
from alula.verify.limits import LEAST_LEVEL, LEAST_SCALE, Limits
from alula.verify.metrics import Floats
from alula.verify.samples import Sample, alone

Pair: TypeAlias = tuple[Floats, Floats]
"""What was expected of an output for one call, and what was given."""


def output_of(spec: ModelSpec, name: str) -> TensorSpec:
    """The output of that name."""
    return next(output for output in spec.parts[0].outputs if output.name == name)


def measured(output: TensorSpec, metric: str, pairs: Sequence[Pair]) -> Floats:
    """All values of one metric, row by row."""
    if metric == "value_agreement":
        return agreements(pairs)
    if metric == "rms_error":
        return rms_errors(pairs, level_of(output, pairs))
    return errors(pairs, scale_of(output, pairs))


def scale_of(output: TensorSpec, pairs: Sequence[Pair]) -> float:
    """What the worst difference is measured against: the largest finite magnitude expected, 1 if all are nought.

    More where the output has a range: its values are rounded at the ends, whatever they are.
    """
    largest = max((float(np.abs(a[np.isfinite(a)]).max(initial=0.0)) for a, _ in pairs), default=0.0)
    return max(largest, LEAST_SCALE * _reach(output)) or 1.0


def level_of(output: TensorSpec, pairs: Sequence[Pair]) -> float:
    """What differences on the whole are measured against: the root mean square of all that is expected, likewise."""
    return max(_level(pairs), LEAST_LEVEL * _reach(output)) or 1.0


def errors(pairs: Sequence[Pair], scale: float) -> Floats:
    """Per row, the largest difference in units of `scale`; equal infinities differ by nothing, NaN from everything."""
    return _each(pairs, lambda a, b: _apart(a, b) / scale, np.max)


def rms_errors(pairs: Sequence[Pair], level: float) -> Floats:
    """Per row, the root of the mean square of differences, in units of `level`."""
    return np.sqrt(_each(pairs, lambda a, b: np.square(_apart(a, b) / level), np.mean))


def agreements(pairs: Sequence[Pair]) -> Floats:
    """Per row, the share of values that are equal; NaN where there are none to compare with."""
    return _each(pairs, lambda a, b: np.where(np.isnan(a) | np.isnan(b), np.nan, a == b), np.mean)


def proves_nothing(output: TensorSpec, pairs: Sequence[Pair], limits: Limits) -> str:
    """Why what is expected proves nothing: all of it is so small that noughts would be within the limit."""
    level = _level(pairs)
    if not 0.0 < level <= limits.max_error * level_of(output, pairs):
        return ""
    return (
        f"of what was drawn it gives {level:.1e} on the whole, and noughts would be near enough to that: "
        "nothing is proved; give real calls with --data FOLDER"
    )


def rows_alone(
    candidate: Session, samples: Sequence[Sample], spec: ModelSpec, profile: Profile, most: int
) -> dict[str, list[Pair]]:
    """By output, rows of batches against the same rows alone, up to `most` of each sample.

    Of a model whose inputs have no rows in common, and of outputs that have none, there is nothing.
    """
    found: dict[str, list[Pair]] = {}
    if not shares_rows(spec):
        return found
    low = profile.axes[BATCH].min
    for sample in samples:
        rows = len(sample.mask)
        if rows <= low or not profile.takes({**sample.sizes(spec), BATCH: low}):
            continue
        together = candidate.run(sample.feeds)
        for row in np.unique(np.linspace(0, rows - 1, most).astype(int)):
            single = candidate.run(alone(sample, int(row), spec, profile).feeds)
            for output in _with_rows(spec, together, rows, single, low):
                sides = (array[output.name] for array in (single, together))
                first, all_rows = (side.astype(np.float64) for side in sides)
                found.setdefault(output.name, []).append((first[:1], all_rows[row : row + 1]))
    return found


def mixed_rows(spec: ModelSpec) -> str:
    """What may be the matter where a row in a batch is another one alone, and what to do about a model that is so."""
    inputs = (
        replace(tensor, shape=tuple("rows" if dim == BATCH else dim for dim in tensor.shape))
        for tensor in spec.parts[0].inputs
    )
    stated = " ".join(f"--inputs '{tensor}'" for tensor in inputs)
    return f"rows are not what they are alone; where a model mixes its rows, give them another name: {stated}"


def _with_rows(spec: ModelSpec, together: Feeds, rows: int, single: Feeds, low: int) -> Iterator[TensorSpec]:
    """Outputs that have a row for each row of the call; what the file does not say of an axis, its size does."""
    axes = spec.parts[0].axes
    for output in spec.parts[0].outputs:
        first = next(iter(output.shape), 0)
        if not isinstance(first, str) or (first in axes and first != BATCH):
            continue
        sizes = [np.shape(side.get(output.name, ()))[:1] for side in (together, single)]
        if sizes == [(rows,), (low,)] and output.dtype.startswith("float"):
            yield output


def _reach(output: TensorSpec) -> float:
    return 0.0 if output.range is None else output.range[1] - output.range[0]


def _level(pairs: Sequence[Pair]) -> float:
    finite = [a[np.isfinite(a)] for a, _ in pairs]
    count = sum(a.size for a in finite)
    return float(np.sqrt(sum(float(np.square(a).sum()) for a in finite) / count)) if count else 0.0


def _apart(a: Floats, b: Floats) -> Floats:
    return np.where(a == b, 0.0, np.abs(a - b))


def _each(
    pairs: Sequence[Pair], compare: Callable[[Floats, Floats], Floats], reduce: Callable[..., Floats]
) -> Floats:
    values = [np.empty(0)]
    for expected, given in pairs:
        a, b = np.atleast_1d(expected), np.atleast_1d(given)
        if a.size:
            with np.errstate(invalid="ignore", over="ignore"):
                values.append(reduce(compare(a, b).reshape(len(a), -1), axis=1))
    return np.concatenate(values)
