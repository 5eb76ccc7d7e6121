"""Which layers to keep in a higher precision: each one's effect measured, the cheapest that helps most kept first."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TypeAlias

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

# What is kept out of int8 computes in fp32. With bf16 there, and in attention, OpenVINO was no faster: MiniLM on two
# cores of a Xeon with AMX (family 6, model 207), ms at 1x32, 1x128, 8x128: 1.52 4.72 27.4 with fp32 beside int8, 1.73
# 4.82 28.1 with bf16, and 1.63 4.55 24.1 in bf16 alone.
ROWS = 64
"""Rows that one layer's effect is measured on; what is kept in the end is judged on all rows."""

Run: TypeAlias = Callable[[Feeds], Feeds]
Lowered: TypeAlias = Callable[[frozenset[str]], AbstractContextManager[Run]]
"""How the model runs when these layers, and no others, compute in the lower precision."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Effect:
    """What one layer in the lower precision does by itself.

    `strain` is the largest measured loss as a share of its limit, `error` the relative distance of the outputs, which
    tells layers apart where too few decisions change, and `cost` the work that would have become cheaper.
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
    """What the search asks: the promise, the reference's answers, and the model with some layers lowered."""

    promise: Promise
    expected: Sequence[Feeds]
    reference: Reference
    lowered: Lowered

    def bargains(self, costs: Mapping[str, int]) -> tuple[tuple[str, ...], int]:
        """All layers, the best bargain to keep first, and how many of them to keep for the promise to hold."""
        calls = self.promise.questions.some(ROWS)
        ordered = order({layer: self.effect(layer, calls, cost) for layer, cost in costs.items()})
        return ordered, fewest(len(ordered), lambda kept: self.passes(frozenset(ordered[kept:])))

    def effect(self, layer: str, calls: Sequence[int], cost: int) -> Effect:
        """What this layer alone does, on some calls."""
        asked, expected = self.promise.questions, [self.expected[at] for at in calls]
        given = self.given(calls, frozenset({layer}))
        verdicts = judge(
            self.promise.compared(calls, expected, given), asked.spec, self.promise.budget, self.reference
        )
        checks = [verdict.check for verdict in verdicts]
        return Effect(strain=strain(checks), error=_distance(expected, given), cost=max(cost, 1))

    def passes(self, layers: frozenset[str]) -> bool:
        """Whether the promise holds over all calls with these layers lowered."""
        given = self.given(range(len(self.promise.questions.calls)), layers)
        checks = self.promise.judge(self.expected, given, self.reference)
        return bool(checks) and all(check.passed for check in checks)

    def given(self, calls: Sequence[int], layers: frozenset[str]) -> list[Feeds]:
        """Answers to some calls with these layers lowered."""
        asked, answers = self.promise.questions, []
        with self.lowered(layers) as run:
            for at in calls:
                call = asked.calls[at]
                outputs = run(asked.feeds(call))
                answers.append({name: array[: len(call.rows)] for name, array in outputs.items()})
        return list(answers)


@contextmanager
def switched(
    checkpoint: families.Checkpoint, spec: ModelSpec, calibration: Calibration, promise: Promise, engine: str
) -> Iterator[tuple[Lowered, Mapping[str, int]]]:
    """The model with layers in int8 as `engine` has them, all in one graph behind switches; and each layer's cost."""
    model = families.write(checkpoint, spec, "encoder")
    switchable = graphs.switchable(
        model, calibration.ranges, smoothing=calibration.smoothing, scheme=graphs.scheme_for(engine)
    )
    with running(switchable, profile_over(spec, promise.questions)) as session:
        yield _switches(session, graphs.layers(model)), graphs.costs(model)


def _switches(session: Session, layers: Sequence[str]) -> Lowered:
    @contextmanager
    def lowered(chosen: frozenset[str]) -> Iterator[Run]:
        flags: NDArray[np.bool_] = np.array([layer in chosen for layer in layers])
        yield lambda feeds: session.run({**feeds, graphs.SWITCHES: flags})

    return lowered


@contextmanager
def rebuilt(
    checkpoint: families.Checkpoint, spec: ModelSpec, beyond: frozenset[str], promise: Promise
) -> Iterator[tuple[Lowered, Mapping[str, int]]]:
    """The model with layers in fp16, a graph for every choice of them; and what each layer costs."""
    costs = graphs.half_layers(families.write(checkpoint, spec, "encoder"))
    profile = profile_over(spec, promise.questions)

    @contextmanager
    def lowered(chosen: frozenset[str]) -> Iterator[Run]:
        keep = beyond | (frozenset(costs) - chosen)
        model = families.write(checkpoint, spec, "encoder")
        with running(
            graphs.rewrite(model, graphs.passes_for("onnxruntime", "fp16", keep=keep)), profile
        ) as session:
            yield session.run

    yield lowered, costs


def strain(checks: Sequence[Check]) -> float:
    """The largest loss as a share of its limit; infinite where there is nothing to judge, or NaN."""
    return max((_share(check) for check in checks), default=float("inf"))


def _share(check: Check) -> float:
    if not np.isfinite(check.worst) or check.samples == 0:
        return float("inf")
    if check.limit > 0:
        return max(check.worst, 0.0) / check.limit
    return float("inf") if check.worst > 0 else 0.0


def _distance(expected: Sequence[Feeds], given: Sequence[Feeds]) -> float:
    """The distance of all outputs as a share of their length; infinite where there is NaN, which has no order."""
    apart = total = 0.0
    for before, after in zip(expected, given, strict=True):
        for name, array in before.items():
            wanted = array.astype(np.float64)
            apart += float(np.square(wanted - after[name].astype(np.float64)).sum())
            total += float(np.square(wanted).sum())
    share = float(np.sqrt(apart / total)) if total else 0.0
    return share if np.isfinite(share) else float("inf")
