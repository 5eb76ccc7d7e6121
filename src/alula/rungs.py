"""The precisions of one build: each compiled and judged, the fastest within the limits taken."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass

from alula import families, graphs
from alula.bench import Contender, Measured, Ratio, Turns, measure
from alula.bundles import Draft, Rung
from alula.core.check import Check
from alula.core.engine import Backend, Engine, Plan
from alula.core.graph import Graph
from alula.core.model import ModelSpec
from alula.core.profile import Profile
from alula.core.progress import Progress
from alula.core.words import WRITTEN_OPSET
from alula.evidence import Evidence, judge_all

ROUNDS = 15

GAIN = 1.03
"""A lower precision must surely be this many times as fast, or it is left: it costs accuracy, and less is noise."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """One precision, compiled and judged."""

    precision: str
    graph: Graph
    engine: Engine
    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        """Whether every comparison held."""
        return bool(self.checks) and all(check.passed for check in self.checks)


@dataclass(frozen=True, kw_only=True, slots=True)
class Workshop:
    """What every candidate of one build has in common."""

    checkpoint: families.Checkpoint
    spec: ModelSpec
    backend: Backend
    profile: Profile
    opset: int | None
    draft: Draft
    evidence: tuple[Evidence, ...]

    def candidate(self, precision: str, progress: Progress) -> Candidate:
        """Write the graph at this precision, compile it, judge it."""
        with progress.phase(f"write the {precision} graph"):
            passes = graphs.passes_for(self.backend.name, precision, self.opset)
            opset = max(self.opset or WRITTEN_OPSET, WRITTEN_OPSET)
            model = graphs.rewrite(families.write(self.checkpoint, self.spec, "encoder", opset), passes)
            graph = graphs.save(model, self.draft.graph_path("encoder", precision), precision)
        with progress.phase(f"compile {precision} for {self.backend.target}"):
            folder = self.draft.engine_path("encoder", f"{self.backend.name}.{precision}")
            engine = self.backend.compile(graph, Plan(profile=self.profile), folder)
        against = ", ".join(item.reference for item in self.evidence)
        with (
            progress.phase(f"compare {precision} with {against}"),
            closing(self.backend.open(engine)) as session,
        ):
            checks = judge_all(self.evidence, session, self.spec, self.profile, precision)
        return Candidate(precision=precision, graph=graph, engine=engine, checks=checks)

    def measure(self, candidates: Sequence[Candidate]) -> Measured:
        """All candidates in turns at the tuned length, so that drift of the machine meets all of them."""
        first, *others = self.spec.parts[0].axes
        shape = (self.profile.axes[first].min, *(self.profile.axes[axis].opt for axis in others))
        with ExitStack() as stack:
            contenders = [
                Contender(
                    engine=self.backend.name,
                    precision=c.precision,
                    session=stack.enter_context(closing(self.backend.open(c.engine))),
                )
                for c in candidates
            ]
            return measure(contenders, self.spec, [shape], Turns(rounds=ROUNDS))

    def discard_losers(self, candidates: Sequence[Candidate], taken: Candidate) -> tuple[Graph, ...]:
        """Remove what lost and give the graphs that stay: the fp32 one does, since any CPU can compile it."""
        kept = tuple(c.graph for c in candidates if c is taken or c.precision == "fp32")
        names = {graph.path.name for graph in kept}
        for path in (self.draft.scratch / "graphs").iterdir():
            if path.name.removesuffix(".data") not in names:
                path.unlink()
        for candidate in candidates:
            if candidate is not taken:
                shutil.rmtree(candidate.engine.path)
        return kept


def choose_rung(candidates: Sequence[Candidate], measured: Measured) -> tuple[Candidate, tuple[Rung, ...]]:
    """The fastest candidate that passed; a lower precision that is not surely faster is left. Pure.

    Candidates come highest precision first, and the first is what the others' speed was compared with in the same
    rounds. Where none passed, it is kept, so that its failed checks are.
    """
    first = candidates[0]
    speeds = {c.precision: row.ratio for c, row in zip(candidates[1:], measured.ratios, strict=True)}
    sure = [
        c for c in candidates if c.passed and (c is first or not first.passed or _gains(speeds[c.precision]))
    ]
    taken = max(sure, key=lambda c: 1.0 if c is first else speeds[c.precision].median, default=first)
    rungs = tuple(
        Rung(
            precision=c.precision,
            passed=c.passed,
            p50_ms=row.p50_ms,
            shape=row.shape,
            taken=c is taken,
            reason=_reason(c, taken, first, speeds),
        )
        for c, row in zip(candidates, measured.rows, strict=True)
    )
    return taken, rungs


def _gains(speed: Ratio) -> bool:
    """Whether even the low end of the interval is a gain; without an interval nothing is sure."""
    return speed.low is not None and speed.low >= GAIN


def _reason(candidate: Candidate, taken: Candidate, first: Candidate, speeds: Mapping[str, Ratio]) -> str:
    if not candidate.passed:
        failed = next((check for check in candidate.checks if not check.passed), None)
        if failed is None:
            return "no checks"
        return f"{failed.output} {failed.metric} {failed.worst:.3g}, limit {failed.limit:g}"
    if candidate is not first:
        compared = f"{_times(speeds[candidate.precision])} times as fast as {first.precision}"
        return compared if candidate is taken else f"no sure gain: {compared}"
    if candidate is taken:
        return "fastest within the limits" if speeds else "asked for"
    return f"{taken.precision} is faster"


def _times(speed: Ratio) -> str:
    interval = "" if speed.low is None or speed.high is None else f" ({speed.low:.2f}-{speed.high:.2f})"
    return f"{speed.median:.2f}{interval}"
