"""The precisions of one build: each compiled and judged, the fastest within the limits taken."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace

from alula import families, graphs
from alula.bench import Contender, Measured, Ratio, Shape, Turns, measure, measure_calls
from alula.bundles import Draft, Rung
from alula.calibrate import Calibration
from alula.core.check import Check
from alula.core.engine import Backend, Engine, Plan, Session
from alula.core.errors import CompileError
from alula.core.graph import Graph
from alula.core.machine import cpu_features
from alula.core.model import ModelSpec
from alula.core.profile import GRID
from alula.core.progress import Progress
from alula.core.words import WRITTEN_OPSET
from alula.engines import VISION
from alula.evidence import Evidence, judge_all
from alula.magnitudes import AS_IT_IS, Fitted
from alula.prompted import Prompted
from alula.rehearsed import Rehearsed, Stepping, past_of
from alula.verify import DIVERGENCE, NEXT_TOKEN_LOSSES

ROUNDS = 15

GAIN = 1.03
"""A lower precision must surely be this many times as fast, or it is left: it costs accuracy, and less is noise."""

NO_LAYERS: frozenset[str] = frozenset()

BF16 = frozenset({"amx_bf16", "avx512_bf16"})
"""Features of a CPU that computes in bf16."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """One precision, compiled and judged, by part; `kept` are the layers that it leaves in a higher one.

    Without checks nobody has judged it.
    """

    precision: str
    graphs: Mapping[str, Graph]
    engines: Mapping[str, Engine]
    checks: tuple[Check, ...]
    kept: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether every comparison held."""
        return bool(self.checks) and all(check.passed for check in self.checks)

    @property
    def bytes(self) -> int:
        """What the graphs and their weights take on disk."""
        paths = (graph.path for graph in self.graphs.values())
        return sum(file.stat().st_size for path in paths for file in path.parent.glob(f"{path.name}*"))


@dataclass(frozen=True, kw_only=True, slots=True)
class Workshop:
    """What every candidate of one build has in common.

    `calibration` is what int8 needs, `fitted` what fp16 does, some of whose values would not fit. A model that writes
    text is judged by what was `rehearsed` and by the user's prompts, every other one by the evidence. `packed`, graphs
    take several texts in a row.
    """

    checkpoint: families.Checkpoint
    spec: ModelSpec
    backend: Backend
    plan: Plan
    opset: int | None
    draft: Draft
    evidence: tuple[Evidence, ...] = ()
    rehearsed: Rehearsed | None = None
    prompted: Prompted | None = None
    calibration: Calibration | None = None
    fitted: Fitted = AS_IT_IS
    packed: bool = False

    def candidate(self, precision: str, progress: Progress, keep: frozenset[str] = NO_LAYERS) -> Candidate:
        """Write the graph at this precision, compile it, judge it."""
        compiled = self.compiled(precision, progress, keep)
        references = [each.reference for each in (*self.evidence, self.rehearsed) if each is not None]
        with progress.phase(f"compare {precision} with {', '.join(references)}"):
            return replace(compiled, checks=self._judged(compiled))

    def _judged(self, compiled: Candidate) -> tuple[Check, ...]:
        precision = compiled.precision
        if self.rehearsed is not None:
            promise = () if self.prompted is None else self.prompted.judge(compiled.engines)
            return (*promise, *self.rehearsed.judge(compiled.engines, precision, promised=bool(promise)))
        with closing(self.backend.open(compiled.engines["encoder"])) as session:
            promised = any(item.promise is not None for item in self.evidence)
            profile = self.plan.profile
            return judge_all(self.evidence, session, self.spec, profile, precision, promised=promised)

    def compiled(self, precision: str, progress: Progress, keep: frozenset[str] = NO_LAYERS) -> Candidate:
        """Write the graph of each part at this precision and compile it."""
        made: dict[str, Engine] = {}
        for part in self.spec.parts:
            of = "" if len(self.spec.parts) == 1 else f" of the {part.name}"
            with progress.phase(f"write the {precision} graph{of}"):
                path = self.draft.graph_path(part.name, precision)
                own = self.precision_of(part.name, precision)
                graph = graphs.save(self.written(part.name, own, keep), path, own)
            with progress.phase(f"compile {precision}{of} for {self.backend.target}") as note:
                folder = self.draft.engine_path(part.name, f"{self.backend.name}.{precision}")
                try:
                    made[part.name] = self.backend.compile(graph, self.plan.of(part), folder, note=note)
                except CompileError as error:
                    # Nobody finds the file where it lies: the draft is gone when this is read.
                    raise CompileError(str(error).replace(str(path), f"the {precision} graph")) from error
        return Candidate(
            precision=precision,
            graphs={name: engine.graph for name, engine in made.items()},
            engines=made,
            checks=(),
            kept=tuple(sorted(keep | self._beyond(precision))),
        )

    def precision_of(self, part: str, precision: str) -> str:
        """What one part of a model is written in.

        Weights of few bits are read faster, and what turns images into tokens is bound by its products: bf16 makes
        those faster where the CPU has them. One layer of HunyuanOCR's vision part over 1,600 patches, OpenVINO on two
        threads of a Zen 5, medians of 5 interleaved: 246 ms in fp32, 249 in int8-weights, 143 in bf16.
        """
        seeing = part == VISION and precision.endswith("-weights") and self.backend.name == "openvino"
        return "bf16" if seeing and BF16.intersection(cpu_features()) else precision

    def written(self, part: str, precision: str, keep: frozenset[str]) -> graphs.Model:
        """The graph of one part of the checkpoint with this precision in it, as the engine runs it best."""
        opset = max(self.opset or WRITTEN_OPSET, WRITTEN_OPSET)
        model = families.write(self.checkpoint, self.spec, part, opset, packed=self.packed)
        if graphs.halves(self.backend.name, precision):
            model = graphs.shrink(model, self.fitted.shrink.get(part, 1.0))
        if precision in {"int8", "int8-mixed"}:
            assert self.calibration is not None
            ranges, smoothing = self.calibration.ranges, self.calibration.smoothing
            scheme = graphs.scheme_for(self.backend.name)
            model = graphs.quantize(model, ranges, smoothing=smoothing, keep=keep, scheme=scheme)
            keep = NO_LAYERS
        if precision.endswith("-weights"):
            smoothing = self.calibration.smoothing if self.calibration else {}
            model = graphs.pack(model, self.backend.name, precision, smoothing=smoothing)
        passes = graphs.passes_for(
            self.backend.name,
            precision,
            self.opset,
            keep=keep | self._beyond(precision),
            longest=self.plan.profile.largest(GRID),
        )
        return graphs.rewrite(model, passes)

    def _beyond(self, precision: str) -> frozenset[str]:
        """The nodes to leave in fp32, where the precision would make them fp16."""
        return self.fitted.beyond if graphs.halves(self.backend.name, precision) else NO_LAYERS

    def measure(self, candidates: Sequence[Candidate]) -> Measured:
        """All candidates in turns at the tuned length, so that drift of the machine meets all of them."""
        with ExitStack() as stack:
            contenders = [
                Contender(
                    engine=self.backend.name,
                    precision=c.precision,
                    session=stack.enter_context(closing(self._opened(c))),
                )
                for c in candidates
            ]
            if self.spec.writes:
                # One token of one answer is what bounds writing, and what weights of fewer bits are for.
                past = past_of(self.plan.profile.holds)
                return measure_calls(contenders, {}, (f"1 behind {past}", 1), Turns(rounds=ROUNDS))
            return measure(contenders, self.spec, [self._shape], Turns(rounds=ROUNDS))

    def _opened(self, candidate: Candidate) -> Session:
        if self.spec.writes:
            return Stepping(candidate.engines, self.spec)
        return self.backend.open(candidate.engines["encoder"])

    @property
    def _shape(self) -> Shape:
        """One row, or as few as there must be, of the tuned sizes."""
        tuned = self.plan.profiles[0].axes
        return tuple(
            tuned[axis].min if axis == "batch" else tuned[axis].opt for axis in self.spec.parts[0].axes
        )

    def discard(self, candidate: Candidate) -> None:
        """Remove what a candidate put into the draft."""
        for graph in candidate.graphs.values():
            for path in self.draft.scratch.glob(f"graphs/{graph.path.name}*"):
                path.unlink()
        for engine in candidate.engines.values():
            shutil.rmtree(engine.path)

    def discard_losers(self, candidates: Sequence[Candidate], taken: Candidate) -> tuple[Graph, ...]:
        """Remove all but the one taken, unfinished ones too; the fp32 graphs stay, since any CPU can compile them."""
        kept = tuple(
            graph for c in candidates if c is taken or c.precision == "fp32" for graph in c.graphs.values()
        )
        names = {graph.path.name for graph in kept}
        for path in (self.draft.scratch / "graphs").iterdir():
            if path.name.removesuffix(".data") not in names:
                path.unlink()
        for path in (self.draft.scratch / "engines").iterdir():
            if path not in {engine.path for engine in taken.engines.values()}:
                shutil.rmtree(path)
        return kept


def choose_rung(candidates: Sequence[Candidate], measured: Measured) -> tuple[Candidate, tuple[Rung, ...]]:
    """The fastest candidate that passed; a lower precision that is not surely faster is left. Pure.

    Candidates come highest precision first, and the first is what the others' speed was compared with in the same
    rounds. Where none passed, it is kept, so that its failed checks are.
    """
    first, speeds = candidates[0], speeds_of(candidates, measured)
    taken = fastest(candidates, speeds) or first
    rungs = tuple(
        replace(
            rung_of(c),
            p50_ms=row.p50_ms,
            shape=row.shape,
            times=None if c is first else speeds[c.precision].median,
            taken=c is taken,
            reason=_reason(c, taken, candidates, speeds),
        )
        for c, row in zip(candidates, measured.rows, strict=True)
    )
    return taken, rungs


def speeds_of(candidates: Sequence[Candidate], measured: Measured) -> dict[str, Ratio]:
    """How many times as fast as the first each candidate is, the first included."""
    itself = Ratio(median=1.0, low=1.0, high=1.0, rounds=1)
    ratios = [itself, *(row.ratio for row in measured.ratios)]
    return {c.precision: ratio for c, ratio in zip(candidates, ratios, strict=True)}


def fastest(candidates: Sequence[Candidate], speeds: Mapping[str, Ratio]) -> Candidate | None:
    """Down the precisions, whoever passed and surely gains on the best so far; None where nobody passed."""
    best: Candidate | None = None
    for at, candidate in enumerate(candidates):
        holds = candidate.passed and outdone(candidate, candidates[:at]) is None
        if holds and (best is None or gains(candidate, best, speeds)):
            best = candidate
    return best


def outdone(candidate: Candidate, higher: Sequence[Candidate]) -> Candidate | None:
    """A higher precision that failed by what it says of the next token, and diverges no more than this one; or None.

    Four bits are held to looser limits than eight, as a model that bears them may lose more. One that eight bits are
    too few for is none. fp32 is held to be the model itself, and says nothing of the others.
    """
    own = _divergence(candidate)
    for other in higher:
        refused = any(not check.passed and check.metric in NEXT_TOKEN_LOSSES for check in other.checks)
        if refused and other.precision != "fp32" and own >= _divergence(other):
            return other
    return None


def _divergence(candidate: Candidate) -> float:
    """From the reference, on the scripts that ship; NaN, which is no more and no less than anything, without one."""
    return next((check.worst for check in candidate.checks if check.metric == DIVERGENCE), float("nan"))


def gains(candidate: Candidate, on: Candidate, speeds: Mapping[str, Ratio]) -> bool:
    """Whether even the low end of the interval is a gain; without an interval nothing is sure."""
    low = speeds[candidate.precision].low
    return low is not None and low >= GAIN * speeds[on.precision].median


def rung_of(candidate: Candidate) -> Rung:
    """What is known of a candidate before anybody measured its speed."""
    return Rung(
        precision=candidate.precision,
        passed=candidate.passed,
        p50_ms=None,
        shape="",
        taken=False,
        reason="",
        times=None,
        bytes=candidate.bytes,
        kept=candidate.kept,
        checks=candidate.checks,
    )


def _reason(
    candidate: Candidate, taken: Candidate, candidates: Sequence[Candidate], speeds: Mapping[str, Ratio]
) -> str:
    if not candidate.passed:
        return _failure(candidate)
    if other := outdone(candidate, candidates[: candidates.index(candidate)]):
        less, more = _divergence(other), _divergence(candidate)
        return f"{other.precision} failed, and loses less: {DIVERGENCE} {less:.3g} beside {more:.3g}"
    return _gain(candidate, taken, candidates[0], speeds)


def _failure(candidate: Candidate) -> str:
    failed = next((check for check in candidate.checks if not check.passed), None)
    if failed is None:
        return "no checks"
    return f"{failed.output} {failed.metric} {failed.worst:.3g}, limit {failed.limit:g}"


def _gain(candidate: Candidate, taken: Candidate, first: Candidate, speeds: Mapping[str, Ratio]) -> str:
    if candidate is first and candidate is taken:
        return "fastest within the limits" if len(speeds) > 1 else "the only one tried"
    if candidate is first:
        return f"{taken.precision} is faster"
    compared = f"{_times(speeds[candidate.precision])} times as fast as {first.precision}"
    if candidate is taken:
        return compared
    better = speeds[taken.precision].median >= speeds[candidate.precision].median > 1
    if better:
        return f"{taken.precision} is faster: {compared}"
    if taken is not first and speeds[candidate.precision].median > 1:
        return f"not surely faster than {taken.precision}: {compared}"
    return f"no sure gain: {compared}"


def _times(speed: Ratio) -> str:
    interval = "" if speed.low is None or speed.high is None else f" ({speed.low:.2f}-{speed.high:.2f})"
    return f"{speed.median:.2f}{interval}"
