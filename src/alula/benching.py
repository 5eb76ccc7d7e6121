"""Finished bundles measured beside PyTorch, in turns."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace

from alula import families, footprint
from alula.bench import (
    BenchRow,
    Contender,
    Measured,
    RatioRow,
    Shape,
    Turns,
    measure,
    measure_apart,
    measure_calls,
    shape_name,
)
from alula.bundles import Bundle
from alula.core.errors import InputError
from alula.core.model import ModelSpec
from alula.core.profile import Profile
from alula.core.progress import Progress
from alula.core.refused import in_one_line
from alula.evidence import pytorch_installed
from alula.local import local_engines
from alula.pace import TURN, Pacing, items_of, pace_name, paces_of
from alula.prove import checkpoint_of

logger = logging.getLogger(__name__)

SHAPES = ((1, 32), (1, 128), (8, 128))

PROMPT = 2
"""Sizes of a shape that stand for a prompt alone."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchRequest:
    """What to measure bundles on; without shapes, on those of `SHAPES` that they take."""

    shapes: tuple[Shape, ...] = ()
    rounds: int = 30
    threads: int = 0
    model: str | None = None
    pytorch: bool = True


def bench_bundles(bundles: Sequence[Bundle], request: BenchRequest, progress: Progress) -> Measured:
    """Measure the engines of bundles of one model, and PyTorch, in turns; each bundle keeps its own rows."""
    first = bundles[0]
    for bundle in bundles:
        if bundle.model.digest != first.model.digest or bundle.model.task != first.model.task:
            raise InputError(
                f"{bundle.root}: is another model than {first.root}; bench compares engines of one"
            )
    for bundle in bundles:
        local_engines(bundle)  # refused before PyTorch is loaded
    profiles = [bundle.answering.plan.profile for bundle in bundles]
    shapes_of = paces_of if first.model.writes else _shapes
    request = replace(request, shapes=shapes_of(first.model, profiles, request.shapes))
    # What comes as an ONNX file is nothing that PyTorch could load.
    beside = request.pytorch and first.model.family != families.ONNX and pytorch_installed()
    checkpoint = checkpoint_of(first, request.model) if beside else None
    with ExitStack() as stack:
        contenders = []
        if checkpoint is not None:
            contenders.append(_pytorch(first, checkpoint, request, stack, progress))
        contenders += [_engine(bundle, request, stack, progress) for bundle in bundles]
        with progress.phase(
            "measure in turns: " + ", ".join(f"{c.engine} {c.precision}" for c in contenders)
        ):
            if first.model.writes:
                measured = _written(contenders, request)
            else:
                measured = measure(contenders, first.model, request.shapes, Turns(rounds=request.rounds))
    # Rows come shape by shape, and in each the contenders in their order; PyTorch, if it took part, is the first.
    skipped = len(contenders) - len(bundles)
    for index, bundle in enumerate(bundles, start=skipped):
        _keep(bundle, measured.rows[index :: len(contenders)])
    return measured


def _keep(bundle: Bundle, rows: Sequence[BenchRow]) -> None:
    """Minutes of measuring are not lost where the bundle cannot be written, or is another one by now."""
    try:
        bundle.with_timings([row.as_json() for row in rows])
    except OSError as error:
        logger.warning("%s does not keep these timings: %s", bundle.root, in_one_line(error))
    except InputError as error:
        logger.warning("the bundle does not keep these timings: %s", error)


def _written(contenders: Sequence[Contender], request: BenchRequest) -> Measured:
    """Every shape in turns; a prompt is read once in each, since it takes as long as many tokens."""
    rows: list[BenchRow] = []
    ratios: list[RatioRow] = []
    for shape in request.shapes:
        at = [replace(c, session=c.session.at(shape)) for c in contenders if isinstance(c.session, Pacing)]
        writes = len(shape) > PROMPT
        turns = Turns(rounds=request.rounds, calls=TURN - 1 if writes else 1, warm_up=TURN if writes else 1)
        measured = measure_calls(at, {}, (pace_name(shape), items_of(shape)), turns)
        rows += measured.rows
        ratios += measured.ratios
    return Measured(rows=tuple(rows), ratios=tuple(ratios))


def _shapes(model: ModelSpec, profiles: Sequence[Profile], asked: Sequence[Shape]) -> tuple[Shape, ...]:
    """The shapes asked for, which every bundle must take; or those of the usual ones that every bundle takes."""
    axes = model.parts[0].axes
    for shape in asked:
        if len(shape) != len(axes):
            raise InputError(f"shape {shape_name(shape)}; {model.name} has the axes {', '.join(axes)}")
        for profile in profiles:
            profile.check(dict(zip(axes, shape, strict=True)))
    if asked:
        return tuple(asked)
    tuned = tuple(profiles[0].axes[axis].opt for axis in axes)
    single = tuple(1 if axis == "batch" else size for axis, size in zip(axes, tuned, strict=True))
    usual = [
        shape
        for shape in (SHAPES if model.reads_text else (single, tuned))
        if all(profile.takes(dict(zip(axes, shape, strict=True))) for profile in profiles)
    ]
    return tuple(dict.fromkeys(usual)) or (tuned,)


def _pytorch(
    bundle: Bundle,
    checkpoint: families.Checkpoint,
    request: BenchRequest,
    stack: ExitStack,
    progress: Progress,
) -> Contender:
    """PyTorch eager in fp32, as users run it; load time and memory come from a process of its own."""
    with progress.phase("load PyTorch alone"):
        command = footprint.command(bundle.root, request.shapes, request.threads, checkpoint.root)
        alone = measure_apart(command)
    session = footprint.open_torch(checkpoint, bundle.model, request.threads)
    return Contender(
        engine="torch",
        precision="fp32",
        session=stack.enter_context(closing(session)),
        load_ms=alone.load_ms,
        peak_host_bytes=alone.peak_host_bytes,
    )


def _engine(bundle: Bundle, request: BenchRequest, stack: ExitStack, progress: Progress) -> Contender:
    """A bundle's engine, with the worst of its checks against the strongest reference."""
    engine = bundle.answering
    with progress.phase(f"load {engine.backend} {engine.graph.precision} alone"):
        alone = measure_apart(footprint.command(bundle.root, request.shapes, request.threads))
    session = footprint.open_engine(bundle, request.shapes, request.threads)
    checks = [check for check in bundle.checks if check.reference != "own-graph"] or list(bundle.checks)
    return Contender(
        engine=engine.backend,
        precision=engine.graph.precision,
        session=stack.enter_context(closing(session)),
        load_ms=alone.load_ms,
        peak_host_bytes=alone.peak_host_bytes,
        metric=checks[0].metric if checks else None,
        worst=checks[0].worst if checks else None,
    )
