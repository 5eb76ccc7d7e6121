"""Checkpoint to bundle: write, compile, judge, choose, keep."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import alula
from alula import families
from alula.bundles import PROCESSOR, Bundle, Cache, Draft, Manifest, writing
from alula.bundles.digest import of_file, of_sources
from alula.choices import BuildRequest, Resolved, resolve_request
from alula.core.errors import InputError
from alula.core.machine import cpu_features, installed, machine
from alula.core.places import cache_root
from alula.core.progress import Progress
from alula.core.refused import in_one_line
from alula.data import Dataset
from alula.engines import GPU
from alula.engines import backend as backend_named

__all__ = ["BuildRequest", "Built", "build"]

logger = logging.getLogger(__name__)

PROCESSOR_FILES = ("preprocessor_config.json", "processor_config.json")

REFERENCE_PACKAGES = ("torch", "transformers", "onnxruntime")


@dataclass(frozen=True, kw_only=True, slots=True)
class Built:
    """A bundle, whether it came from the cache, and whether an interrupt cut the search short."""

    bundle: Bundle
    cached: bool
    interrupted: bool = False


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
        logger.warning("the bundle is not kept in the cache: %s", in_one_line(error))


def _fill(draft: Draft, request: BuildRequest, resolved: Resolved, progress: Progress) -> bool:
    """Write everything into the draft; whether an interrupt cut the search short."""
    # Not at the top: a bundle from the cache needs none of what writing and compiling import.
    from alula.grounds import grounds_of  # noqa: PLC0415
    from alula.ladder import Ladder, compiled_only  # noqa: PLC0415
    from alula.rungs import Workshop  # noqa: PLC0415

    tokenizer = draft.scratch / "tokenizer"
    families.write_text_files(resolved.checkpoint, tokenizer)
    _copy(resolved.checkpoint.folder, PROCESSOR_FILES, draft.scratch / PROCESSOR)
    grounds = grounds_of(request, resolved, tokenizer, progress)
    workshop = Workshop(
        checkpoint=resolved.checkpoint,
        spec=resolved.spec,
        backend=backend_named(resolved.engine),
        plan=resolved.plan,
        opset=resolved.opset,
        draft=draft,
        evidence=grounds.evidence,
        rehearsed=grounds.rehearsed,
        prompted=grounds.prompted,
        calibration=grounds.calibration,
        fitted=grounds.fitted,
        packed=resolved.packed,
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
        promise=grounds.promise,
        files=(),
        built_on=machine(),
    )
    rows = [row.as_json() for row in climbed.measured.rows if row.precision == taken.precision]
    draft.finish(manifest, taken.checks, rows, grounds.stored(taken.precision))
    return climbed.interrupted


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
        "tokenizer": _digests(resolved.checkpoint),
        "source": request.model,
        "spec": str(resolved.spec),
        "engine": [*_runtime(resolved.engine), resolved.traits.cannot_run],
        "features": cpu_features(),
        "precision": request.precision,
        "plan": asdict(resolved.plan),
        "opset": resolved.opset,
        "data": None if resolved.data is None else _known(resolved.data),
        "budget": request.budget,
        "packed": resolved.packed,
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


def _digests(checkpoint: families.Checkpoint) -> dict[str, str]:
    """Of the files that a bundle takes from the checkpoint's folder, templates that have a name among them."""
    processors = [path for name in PROCESSOR_FILES if (path := checkpoint.folder / name).is_file()]
    files = (*families.text_files(checkpoint), *processors)
    return {str(path.relative_to(checkpoint.folder)): of_file(path) for path in files}
