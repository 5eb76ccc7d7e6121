"""Checkpoint to bundle: write, compile, judge, choose, keep."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import alula
from alula import families
from alula.bundles import Bundle, Cache, Draft, Manifest, Stored, writing
from alula.bundles.digest import of_file, of_sources
from alula.calibration import METHODS
from alula.core.check import Reference
from alula.core.engine import Plan, Traits
from alula.core.errors import InputError
from alula.core.machine import cpu_features, installed, machine
from alula.core.model import ModelSpec
from alula.core.places import cache_root
from alula.core.profile import Range
from alula.core.progress import Progress
from alula.core.tensor import Feeds, TensorSpec
from alula.core.words import IMAGE_TASKS, choice
from alula.data import Dataset, read
from alula.engines import GPU, resolve
from alula.engines import backend as backend_named
from alula.engines import traits as traits_of
from alula.evidence import Evidence, choose, gather
from alula.planning import (
    Wanted,
    asked_of,
    impossible,
    opset_here,
    plan_of,
    precisions_here,
    refuse_disobeyed,
    seen_in,
)
from alula.verify import CALIBRATED, load_metric

if TYPE_CHECKING:
    from alula.calibrate import Calibration
    from alula.questions import Promise

logger = logging.getLogger(__name__)

PROCESSOR_FILES = ("preprocessor_config.json",)

REFERENCE_PACKAGES = ("torch", "transformers", "onnxruntime")

STORED_BYTES = 4 << 20
"""Sample feeds and reference outputs that a bundle carries at most, so that it can check itself elsewhere."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BuildRequest:
    """Everything that decides a bundle; with `tokenizer`, a text model that has none is refused."""

    model: str
    to: Path
    name: str | None = None
    revision: str = "main"
    task: str | None = None
    pooling: str | None = None
    inputs: tuple[TensorSpec, ...] = ()
    labels: Path | None = None
    target: str = "auto"
    precision: str = "auto"
    axes: Mapping[str, Range] = field(default_factory=dict)
    compiling: Wanted = field(default_factory=Wanted)
    opset: int | None = None
    reference: str = "auto"
    tokenizer: bool = True
    data: Path | None = None
    budget: float | None = None
    metric: str | None = None
    calibration: str = "min-max"
    skip_bad_rows: bool = False
    use_cache: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class Built:
    """A bundle, whether it came from the cache, and whether an interrupt cut the search short."""

    bundle: Bundle
    cached: bool
    interrupted: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Resolved:
    """A request with every choice made; `left` are precisions that the model cannot be built in, and why."""

    checkpoint: families.Checkpoint
    spec: ModelSpec
    engine: str
    traits: Traits
    precisions: tuple[str, ...]
    left: Mapping[str, str]
    opset: int | None
    plan: Plan
    reference: Reference
    data: Dataset | None


def build(request: BuildRequest, progress: Progress) -> Built:
    """Write every precision asked for, compile it, judge it, and keep the fastest within the limits.

    What is less than a verified one does not replace it: it is put beside it, at `OUT.failed`, `OUT.unverified`, or
    `OUT.interrupted`.
    """
    resolved = resolve_request(request, progress)
    cache = Cache(root=cache_root())
    key = cache.key(_inputs(request, resolved))
    # What a user's metric computes may change without a trace that could be digested.
    use_cache = request.use_cache and request.metric is None
    if use_cache and (kept := cache.look(key)):
        to = _place(request.to, _lacking(kept, interrupted=False))
        if found := cache.fetch(key, to):
            return Built(bundle=found, cached=True)
    with writing(request.to) as draft:
        interrupted = _fill(draft, request, resolved, progress)
        made = Bundle.read(draft.scratch)
        written = made.manifest.identity
        to = _place(request.to, _lacking(made, interrupted=interrupted))
        if to != request.to:
            draft.to = to.resolve()
        if made.passed and use_cache and not interrupted:
            _keep(cache, key, draft.scratch)
    bundle = Bundle.read(to)
    if bundle.manifest.identity != written:
        raise InputError(f"{to}: another process replaced the bundle right after it was built")
    return Built(bundle=bundle, cached=False, interrupted=interrupted)


def _lacking(made: Bundle, *, interrupted: bool) -> str:
    """What a bundle lacks to replace a verified one; empty if nothing."""
    if interrupted:
        return "interrupted"
    if not made.passed:
        return "failed"
    return "" if made.verified else "unverified"


def _place(to: Path, lacking: str) -> Path:
    """Where a bundle that lacks something goes: beside a verified one that stands there."""
    try:
        aside = lacking and Bundle.open(to).verified
    except InputError:
        return to
    return to.with_name(f"{to.name}.{lacking}") if aside else to


def _keep(cache: Cache, key: str, root: Path) -> None:
    """A cache that cannot be written costs time later; the bundle is whole all the same."""
    try:
        cache.keep(key, root)
    except OSError as error:
        logger.warning("the bundle is not kept in the cache: %s", error)


def resolve_request(request: BuildRequest, progress: Progress) -> Resolved:
    """Make every choice, and refuse what cannot be built before any work is done."""
    engine = resolve(request.target)
    traits = traits_of(engine)
    refuse_disobeyed(engine, request.axes, request.compiling, traits)
    precisions = provable(precisions_here(engine, request.precision, traits), request)
    refuse_without_rows(precisions, request, writes=None)
    opset = opset_here(engine, request.opset, traits)
    choice("calibration", request.calibration, METHODS)
    with progress.phase("read the checkpoint"):
        checkpoint = families.open_checkpoint(request.model, request.revision)
        asked = asked_of(request.axes, request.compiling)
        spec = families.describe(
            checkpoint, request.task, request.pooling, request.inputs, asked, request.labels
        )
        if request.tokenizer and spec.reads_text:
            families.refuse_without_tokenizer(checkpoint)
        if spec.task in IMAGE_TASKS:
            # What its file asks for and nothing here does is refused before any work, not when images come.
            from alula.codecs import images_codec  # noqa: PLC0415 - a build of texts needs no codec yet

            images_codec(checkpoint.folder, spec)
        if spec.writes:
            precisions = precisions_here(engine, request.precision, traits, writes=True)
        refuse_without_rows(precisions, request, writes=spec.writes)
        left = impossible(precisions, request.precision, families.only_as_it_is(checkpoint, spec))
    if spec.writes and request.data is not None:
        raise InputError(f"--data is not for task {spec.task!r} yet; a build holds it to texts that ship")
    spec = replace(spec, name=request.name or spec.name)
    data, seen, skip = None, {}, request.skip_bad_rows
    if request.data is not None:
        data = read(request.data, spec.task, skip_bad=skip, inputs=spec.parts[0].inputs)
    if traffic := request.compiling.traffic:
        seen = seen_in(traffic, spec, checkpoint.folder, progress, skip_bad=skip)
    return Resolved(
        checkpoint=checkpoint,
        spec=spec,
        engine=engine,
        traits=traits,
        precisions=tuple(precision for precision in precisions if precision not in left),
        left=left,
        opset=opset,
        plan=plan_of(spec, request.axes, request.compiling, seen),
        reference=choose(request.reference, spec),
        data=data,
    )


def provable(precisions: tuple[str, ...], request: BuildRequest) -> tuple[str, ...]:
    """The precisions that can be proved with what is given: eight bits are calibrated and judged on the user's rows.

    Weights alone are judged without rows where a model writes text, so those may be all that is left out.
    """
    if request.data is not None:
        return precisions
    options = {
        "--budget": request.budget is not None,
        "--metric": request.metric is not None,
        "--skip-bad-rows": request.skip_bad_rows and request.compiling.traffic is None,
    }
    for option, given in options.items():
        if given:
            raise InputError(f"{option} says what may be lost on your rows; give them with --data FILE")
    return tuple(p for p in precisions if p not in CALIBRATED and not p.endswith("-mixed"))


def refuse_without_rows(precisions: tuple[str, ...], request: BuildRequest, *, writes: bool | None) -> None:
    """Refuse what nothing is left of; while nobody knows whether the model `writes` text, weights alone may be."""
    if precisions or (writes is None and "-weights" in request.precision):
        return
    raise InputError(
        f"precision {request.precision!r} is calibrated and judged on your rows; give them with --data FILE"
    )


def _fill(draft: Draft, request: BuildRequest, resolved: Resolved, progress: Progress) -> bool:
    """Write everything into the draft; whether an interrupt cut the search short."""
    # Not at the top: a bundle from the cache needs none of what writing and compiling import.
    from alula.ladder import Ladder, compiled_only  # noqa: PLC0415
    from alula.rungs import Workshop  # noqa: PLC0415
    from alula.scripts import rehearse  # noqa: PLC0415

    root = resolved.checkpoint.folder
    families.write_text_files(resolved.checkpoint, draft.scratch / "tokenizer")
    _copy(root, PROCESSOR_FILES, draft.scratch / "processor")
    promise = _promise(request, resolved)
    evidence: tuple[Evidence, ...] = ()
    rehearsed = None
    asked = resolved.reference, resolved.checkpoint, resolved.spec, resolved.plan.profile
    with progress.phase(f"ask the reference ({resolved.reference})"):
        if resolved.spec.writes:
            rehearsed = rehearse(*asked, draft.scratch / "tokenizer")
        else:
            evidence = gather(*asked, promise)
    calibration = _calibration(request, resolved, promise, progress)
    workshop = Workshop(
        checkpoint=resolved.checkpoint,
        spec=resolved.spec,
        backend=backend_named(resolved.engine),
        plan=resolved.plan,
        opset=resolved.opset,
        draft=draft,
        evidence=evidence,
        rehearsed=rehearsed,
        calibration=calibration,
        beyond=_beyond_fp16(resolved, evidence, promise, progress),
    )
    if why := resolved.traits.cannot_run:
        climbed = compiled_only(workshop, resolved.precisions[0], why, progress)
    else:
        climbed = Ladder(workshop=workshop, progress=progress).climb(resolved.precisions, resolved.left)
    taken, rungs = climbed.choose()
    graphs = workshop.discard_losers(climbed.candidates, taken)
    manifest = Manifest(
        model=resolved.spec,
        source=request.model,
        graphs={graph.path.stem: graph for graph in graphs},
        engines=taken.engines,
        rungs=rungs,
        promise=_promised(promise, calibration),
        files=(),
        built_on=machine(),
    )
    rows = [row.as_json() for row in climbed.measured.rows if row.precision == taken.precision]
    stored = rehearsed.stored(STORED_BYTES) if rehearsed else _stored(evidence[0], taken.precision)
    draft.finish(manifest, taken.checks, rows, stored)
    return climbed.interrupted


def _promise(request: BuildRequest, resolved: Resolved) -> Promise | None:
    """What may be lost on the user's rows; nothing is promised without any."""
    if resolved.data is None:
        return None
    from alula.questions import BUDGET, Promise, questions_of  # noqa: PLC0415 - not for a build that comes from the cache

    asked = questions_of(resolved.data, resolved.spec, resolved.plan.profile, resolved.checkpoint.folder)
    return Promise(
        questions=asked,
        budget=BUDGET if request.budget is None else request.budget,
        metric=None if request.metric is None else load_metric(request.metric, Path.cwd()),
    )


def _calibration(
    request: BuildRequest, resolved: Resolved, promise: Promise | None, progress: Progress
) -> Calibration | None:
    """Ranges over all of the user's rows, where a precision needs them."""
    if promise is None or not CALIBRATED.intersection(resolved.precisions):
        return None
    from alula.calibrate import calibrate  # noqa: PLC0415 - not for a build that comes from the cache

    with progress.phase(f"calibrate on {len(promise.questions.rows)} rows"):
        return calibrate(
            resolved.checkpoint,
            resolved.spec,
            promise.questions,
            method=request.calibration,
            use_cache=request.use_cache,
        )


def _beyond_fp16(
    resolved: Resolved, evidence: tuple[Evidence, ...], promise: Promise | None, progress: Progress
) -> frozenset[str]:
    """What does not fit into fp16, by all samples and all of the user's rows."""
    from alula.graphs import half_policy, halves  # noqa: PLC0415 - not for a build that comes from the cache

    if not any(halves(resolved.engine, precision) for precision in resolved.precisions):
        return frozenset()
    from alula.calibrate import beyond_fp16  # noqa: PLC0415 - likewise

    feeds = [sample.feeds for sample in evidence[0].samples]
    with progress.phase("measure what leaves the range of fp16"):
        calls = [*feeds, *(promise.questions if promise else ())]
        policy = half_policy(resolved.engine, resolved.opset)
        return beyond_fp16(resolved.checkpoint, resolved.spec, calls, policy)


def _promised(promise: Promise | None, calibration: Calibration | None) -> dict[str, Any]:
    """The promise as the manifest keeps it: what was asked, not the rows themselves."""
    if promise is None:
        return {}
    data = promise.questions.data
    made: dict[str, Any] = {
        "budget": promise.budget,
        "metric": None if promise.metric is None else promise.metric.name,
        "data": {
            "file": data.path.name,
            "rows": len(data.examples),
            "skipped": len(data.skipped),
            "labelled": data.labelled,
            "sha256": data.digest,
        },
    }
    if calibration is not None:
        made["calibration"] = {
            "method": calibration.method,
            "rows": calibration.examples,
            "tokens": calibration.tokens,
            "sha256": calibration.data,
        }
    return made


def _stored(evidence: Evidence, precision: str) -> Stored:
    """As many samples as fit into the bundle's allowance, smallest first; the user's only where there are no others."""
    size = 0
    feeds: list[Feeds] = []
    outputs: list[Feeds] = []
    pairs = evidence.pairs(precision)
    pairs = [pair for pair in pairs if not pair[0].given] or pairs
    for sample, output in sorted(pairs, key=lambda pair: sum(array.nbytes for array in pair[1].values())):
        size += sum(array.nbytes for array in (*sample.feeds.values(), *output.values()))
        if feeds and size > STORED_BYTES:
            break
        feeds.append(sample.feeds)
        outputs.append(output)
    return Stored(reference=evidence.reference, feeds=tuple(feeds), outputs=tuple(outputs))


def _copy(root: Path, names: Sequence[str], to: Path) -> None:
    """Those of these files that there are; no folder where there are none."""
    for name in names:
        if (root / name).is_file():
            to.mkdir(exist_ok=True)
            shutil.copyfile(root / name, to / name)


def _inputs(request: BuildRequest, resolved: Resolved) -> dict[str, Any]:
    """All that decides the result: checkpoint, choices, the compiling code and the machine's instruction sets."""
    return {
        "checkpoint": resolved.spec.digest,
        "tokenizer": [
            _digest(resolved.checkpoint.folder / name) for name in (*families.TEXT_FILES, *PROCESSOR_FILES)
        ],
        "source": request.model,
        "spec": str(resolved.spec),
        "engine": [*_runtime(resolved.engine), resolved.traits.cannot_run],
        "features": cpu_features(),
        "precision": request.precision,
        "plan": asdict(resolved.plan),
        "opset": resolved.opset,
        "data": None if resolved.data is None else _known(resolved.data),
        "budget": request.budget,
        "calibration": request.calibration,
        "reference": [resolved.reference, *(installed(name) for name in REFERENCE_PACKAGES)],
        "code": of_sources(Path(alula.__file__).parent),
    }


def _runtime(engine: str) -> list[str | None]:
    """What an engine is compiled by; for a GPU its target says more than a package's version, and costs no import."""
    return [engine, backend_named(engine).target if engine in GPU else installed(engine)]


def _known(data: Dataset) -> list[Any]:
    """What a bundle says of its rows."""
    return [data.digest, data.path.name, len(data.skipped)]


def _digest(path: Path) -> str | None:
    return of_file(path) if path.is_file() else None
