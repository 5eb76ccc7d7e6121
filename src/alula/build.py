"""Checkpoint to bundle: write, compile, judge, choose, keep."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import alula
from alula import families
from alula.bundles import Bundle, Cache, Draft, Manifest, Stored, cache_root, writing
from alula.bundles.digest import of_file, of_sources
from alula.core.check import Reference
from alula.core.errors import InputError
from alula.core.machine import cpu_features, installed, machine
from alula.core.model import ModelSpec
from alula.core.profile import Profile, Range
from alula.core.progress import Progress
from alula.core.tensor import Feeds
from alula.core.words import check_opset, precisions_of
from alula.engines import backend as backend_named
from alula.engines import resolve
from alula.evidence import Evidence, choose, gather

logger = logging.getLogger(__name__)

DEFAULT_AXES = {"batch": Range(1, 8, 64), "length": Range(2, 128, 512), "width": Range(32, 320, 2048)}

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")

REFERENCE_PACKAGES = ("torch", "transformers", "onnxruntime")

STORED_BYTES = 4 << 20
"""Sample feeds and reference outputs that a bundle carries at most, so that it can check itself elsewhere."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BuildRequest:
    """Everything that decides a bundle."""

    model: str
    to: Path
    name: str | None = None
    revision: str = "main"
    task: str | None = None
    pooling: str | None = None
    target: str = "auto"
    precision: str = "auto"
    axes: Mapping[str, Range] = field(default_factory=dict)
    opset: int | None = None
    reference: str = "auto"
    use_cache: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class Built:
    """A bundle, and whether it came from the cache."""

    bundle: Bundle
    cached: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Resolved:
    """A request with every choice made."""

    checkpoint: families.Checkpoint
    spec: ModelSpec
    engine: str
    precisions: tuple[str, ...]
    profile: Profile
    reference: Reference


def build(request: BuildRequest, progress: Progress) -> Built:
    """Write every precision asked for, compile it, judge it, and keep the fastest within the limits.

    A bundle whose checks failed does not replace a verified one: it is put beside it, at `OUT.failed`.
    """
    with progress.phase("read the checkpoint"):
        resolved = resolve_request(request)
    cache = Cache(root=cache_root())
    key = cache.key(_inputs(request, resolved))
    if request.use_cache and (found := cache.fetch(key, request.to)):
        return Built(bundle=found, cached=True)
    with writing(request.to) as draft:
        passed = _fill(draft, request, resolved, progress)
        written = Bundle.read(draft.scratch).manifest.identity
        to = request.to
        if not passed and _is_verified(request.to):
            draft.to = draft.to.with_name(f"{draft.to.name}.failed")
            to = request.to.with_name(f"{request.to.name}.failed")
        if passed and request.use_cache:
            _keep(cache, key, draft.scratch)
    bundle = Bundle.read(to)
    if bundle.manifest.identity != written:
        raise InputError(f"{to}: another process replaced the bundle right after it was built")
    return Built(bundle=bundle, cached=False)


def _is_verified(root: Path) -> bool:
    try:
        return Bundle.open(root).verified
    except InputError:
        return False


def _keep(cache: Cache, key: str, root: Path) -> None:
    """A cache that cannot be written costs time later; the bundle is whole all the same."""
    try:
        cache.keep(key, root)
    except OSError as error:
        logger.warning("the bundle is not kept in the cache: %s", error)


def resolve_request(request: BuildRequest) -> Resolved:
    """Make every choice, and refuse what cannot be built before any work is done."""
    engine = resolve(request.target)
    precisions = precisions_of(engine, request.precision)
    if request.opset is not None:
        check_opset(request.opset)
    checkpoint = families.open_checkpoint(request.model, request.revision)
    spec = families.describe(checkpoint, request.task, request.pooling)
    spec = replace(spec, name=request.name or spec.name)
    return Resolved(
        checkpoint=checkpoint,
        spec=spec,
        engine=engine,
        precisions=precisions,
        profile=profile_of(spec, request.axes),
        reference=choose(request.reference, spec),
    )


def profile_of(spec: ModelSpec, given: Mapping[str, Range]) -> Profile:
    """The ranges given, and defaults cut to what the model takes for the rest."""
    known = sorted(spec.part("encoder").axes)
    if unknown := sorted(set(given) - set(known)):
        raise InputError(f"no axis {unknown[0]!r}; {spec.name} has {', '.join(known)}")
    axes = {axis: given.get(axis, DEFAULT_AXES[axis]) for axis in known}
    if not spec.reads_text:
        return Profile(axes)
    length, longest = axes["length"], spec.max_length
    if "length" not in given:
        axes["length"] = Range(*(min(size, longest) for size in (length.min, length.opt, length.max)))
    elif length.max > longest:
        raise InputError(f"axis 'length' up to {length.max}; {spec.name} takes {longest} tokens at most")
    return Profile(axes)


def _fill(draft: Draft, request: BuildRequest, resolved: Resolved, progress: Progress) -> bool:
    """Write everything into the draft; whether the precision that was taken passed."""
    # Not at the top: a bundle from the cache needs none of what writing and compiling import.
    from alula.rungs import Workshop, choose_rung  # noqa: PLC0415

    _copy_tokenizer(resolved.checkpoint.root, draft.scratch / "tokenizer")
    with progress.phase(f"ask the reference ({resolved.reference})"):
        evidence = gather(resolved.reference, resolved.checkpoint, resolved.spec, resolved.profile)
    workshop = Workshop(
        checkpoint=resolved.checkpoint,
        spec=resolved.spec,
        backend=backend_named(resolved.engine),
        profile=resolved.profile,
        opset=request.opset,
        draft=draft,
        evidence=evidence,
    )
    candidates = [workshop.candidate(precision, progress) for precision in resolved.precisions]
    with progress.phase("measure " + ", ".join(resolved.precisions)):
        measured = workshop.measure(candidates)
    taken, rungs = choose_rung(candidates, measured)
    graphs = workshop.discard_losers(candidates, taken)
    manifest = Manifest(
        model=resolved.spec,
        source=request.model,
        graphs={graph.path.stem: graph for graph in graphs},
        engines={"encoder": taken.engine},
        rungs=rungs,
        files=(),
        built_on=machine(),
    )
    rows = [row.as_json() for row in measured.rows if row.precision == taken.precision]
    draft.finish(manifest, taken.checks, rows, _stored(evidence[0]))
    return taken.passed


def _stored(evidence: Evidence) -> Stored:
    """As many samples as fit into the bundle's allowance, smallest first."""
    size = 0
    feeds: list[Feeds] = []
    outputs: list[Feeds] = []
    pairs = zip(evidence.samples, evidence.outputs, strict=True)
    for sample, output in sorted(pairs, key=lambda pair: sum(array.nbytes for array in pair[1].values())):
        size += sum(array.nbytes for array in (*sample.feeds.values(), *output.values()))
        if feeds and size > STORED_BYTES:
            break
        feeds.append(sample.feeds)
        outputs.append(output)
    return Stored(reference=evidence.reference, feeds=tuple(feeds), outputs=tuple(outputs))


def _copy_tokenizer(root: Path, to: Path) -> None:
    to.mkdir(parents=True)
    for name in TOKENIZER_FILES:
        if (root / name).is_file():
            shutil.copyfile(root / name, to / name)


def _inputs(request: BuildRequest, resolved: Resolved) -> dict[str, Any]:
    """All that decides the result: checkpoint, choices, the compiling code and the machine's instruction sets."""
    return {
        "checkpoint": resolved.spec.digest,
        "tokenizer": [_digest(resolved.checkpoint.root / name) for name in TOKENIZER_FILES],
        "source": request.model,
        "spec": str(resolved.spec),
        "engine": [resolved.engine, installed(resolved.engine)],
        "features": cpu_features(),
        "precision": request.precision,
        "profile": {axis: str(sizes) for axis, sizes in resolved.profile.axes.items()},
        "opset": request.opset,
        "reference": [resolved.reference, *(installed(name) for name in REFERENCE_PACKAGES)],
        "code": of_sources(Path(alula.__file__).parent),
    }


def _digest(path: Path) -> str | None:
    return of_file(path) if path.is_file() else None
