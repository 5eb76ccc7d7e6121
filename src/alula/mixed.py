"""Which layers to keep out of int8: each one's effect measured, the cheapest that helps most kept first."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from alula import families, graphs
from alula.calibrate import Calibration
from alula.core.check import Check, Reference
from alula.core.engine import Session
from alula.core.model import ModelSpec
from alula.core.tensor import Feeds
from alula.questions import Promise
from alula.running import profile_over, running
from alula.verify import judge

ROWS = 64
"""Rows that one layer's effect is measured on; the prefix that is kept is judged on all rows."""

SWITCHES = "quantised"
"""The input of a switchable graph: which layers compute in int8."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Effect:
    """What one layer in int8 does by itself.

    `strain` is the largest measured loss as a share of its limit, `error` the relative distance of the outputs, which
    tells layers apart where too few decisions change, and `cost` the work that int8 would have made cheaper.
    """

    strain: float
    error: float
    cost: int


def order(effects: Mapping[str, Effect]) -> tuple[str, ...]:
    """Layers by what keeping them gains for what it costs, the best bargain first; ties go by name. Pure."""
    return tuple(
        sorted(
            effects,
            key=lambda name: (
                -effects[name].strain / effects[name].cost,
                -effects[name].error / effects[name].cost,
                name,
            ),
        )
    )


def fewest(count: int, passes: Callable[[int], bool]) -> int:
    """The least number from 0 to `count` that passes, if more never fails where less did not; else one that does.

    `count` itself is taken on trust, as it stands for keeping everything.
    """
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        if passes(middle):
            high = middle
        else:
            low = middle + 1
    return high


@dataclass(frozen=True, kw_only=True, slots=True)
class Search:
    """What the search asks: a graph whose layers can each be switched to int8, in ONNX Runtime, and the promise."""

    promise: Promise
    expected: Sequence[Feeds]
    reference: Reference
    session: Session
    layers: tuple[str, ...]

    def given(self, calls: Sequence[int], quantised: frozenset[str]) -> list[Feeds]:
        """Answers to some calls with these layers in int8."""
        flags: NDArray[np.bool_] = np.array([layer in quantised for layer in self.layers])
        answers: list[Feeds] = []
        for at in calls:
            call = self.promise.questions.calls[at]
            outputs = self.session.run({**self.promise.questions.feeds(call), SWITCHES: flags})
            answers.append({name: array[: len(call.rows)] for name, array in outputs.items()})
        return answers

    def effect(self, layer: str, calls: Sequence[int], cost: int) -> Effect:
        """What this layer alone does, on some calls."""
        asked, expected = self.promise.questions, [self.expected[at] for at in calls]
        given = self.given(calls, frozenset({layer}))
        verdicts = judge(
            self.promise.compared(calls, expected, given), asked.spec, self.promise.budget, self.reference
        )
        checks = [verdict.check for verdict in verdicts]
        return Effect(strain=strain(checks), error=_distance(expected, given), cost=max(cost, 1))

    def passes(self, quantised: frozenset[str]) -> bool:
        """Whether the promise holds over all calls with these layers in int8."""
        calls = range(len(self.promise.questions.calls))
        checks = self.promise.judge(self.expected, self.given(calls, quantised), self.reference)
        return bool(checks) and all(check.passed for check in checks)


def bargains(  # noqa: PLR0913, PLR0917 - six, which is as many as a function may have here
    checkpoint: families.Checkpoint,
    spec: ModelSpec,
    calibration: Calibration,
    promise: Promise,
    expected: Sequence[Feeds],
    reference: Reference,
) -> tuple[tuple[str, ...], int]:
    """All layers, the best bargain to keep first, and how many of them have to be kept for the promise to hold."""
    model = families.write(checkpoint, spec, "encoder")
    costs, layers = graphs.costs(model), graphs.layers(model)
    switchable = graphs.switchable(model, calibration.ranges, smoothing=calibration.smoothing)
    with running(switchable, profile_over(spec, promise.questions)) as session:
        search = Search(
            promise=promise, expected=expected, reference=reference, session=session, layers=layers
        )
        calls = promise.questions.some(ROWS)
        effects = {layer: search.effect(layer, calls, costs[layer]) for layer in layers}
        ordered = order(effects)
        count = fewest(len(ordered), lambda kept: search.passes(frozenset(ordered[kept:])))
    return ordered, count


def strain(checks: Sequence[Check]) -> float:
    """The largest loss as a share of its limit; infinite where there is nothing to judge, or NaN."""
    if not checks:
        return float("inf")
    return max(_share(check) for check in checks)


def _share(check: Check) -> float:
    if not np.isfinite(check.worst) or check.samples == 0:
        return float("inf")
    if check.limit > 0:
        return max(check.worst, 0.0) / check.limit
    return float("inf") if check.worst > 0 else 0.0


def _distance(expected: Sequence[Feeds], given: Sequence[Feeds]) -> float:
    """The distance of all outputs as a share of their length."""
    apart = total = 0.0
    for before, after in zip(expected, given, strict=True):
        for name, array in before.items():
            wanted = array.astype(np.float64)
            apart += float(np.square(wanted - after[name].astype(np.float64)).sum())
            total += float(np.square(wanted).sum())
    return float(np.sqrt(apart / total)) if total else 0.0
