"""A finished bundle, held to its reference again and measured beside PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

from alula import families, footprint
from alula.bench import Contender, Measured, Turns, measure, measure_apart, table
from alula.bundles import Bundle
from alula.core.errors import InputError
from alula.core.progress import Progress
from alula.engines import backend as backend_named
from alula.evidence import choose, gather, judge_all, pytorch_installed
from alula.local import local_engine, self_check


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchRequest:
    """What to measure a bundle on."""

    shapes: tuple[tuple[int, int], ...]
    rounds: int = 30
    threads: int = 0
    model: str | None = None
    pytorch: bool = True


def verify_bundle(bundle: Bundle, wanted: str, model: str | None, progress: Progress) -> Bundle:
    """Compare with the strongest reference at hand, or the one named; the bundle keeps the new checks.

    Without the checkpoint only the reference outputs that the build stored can be compared with.
    """
    spec, engine = bundle.model, local_engine(bundle)
    profile, precision = engine.plan.profile, engine.graph.precision
    checkpoint = checkpoint_of(bundle, model)
    runtime = backend_named(engine.backend)
    if checkpoint is None:
        _refuse_other(wanted, bundle.stored.reference)
        phase = progress.phase(f"compare with the stored outputs ({bundle.stored.reference})")
        with phase, closing(runtime.open(engine)) as session:
            return bundle.with_checks(self_check(bundle, session))
    reference = choose(wanted, spec)
    with progress.phase(f"ask the reference ({reference})"):
        evidence = gather(reference, checkpoint, spec, profile)
    phase = progress.phase(f"compare {precision} with {', '.join(item.reference for item in evidence)}")
    with phase, closing(runtime.open(engine)) as session:
        return bundle.with_checks(judge_all(evidence, session, spec, profile, precision))


def bench_bundles(bundles: Sequence[Bundle], request: BenchRequest, progress: Progress) -> Measured:
    """Measure the engines of bundles of one model, and PyTorch, in turns; each bundle keeps its own rows."""
    first = bundles[0]
    for bundle in bundles:
        if bundle.model.digest != first.model.digest or bundle.model.task != first.model.task:
            raise InputError(
                f"{bundle.root}: is another model than {first.root}; bench compares engines of one"
            )
        for rows, tokens in request.shapes:
            bundle.engine("encoder").plan.profile.check({"batch": rows, "length": tokens})
    checkpoint = checkpoint_of(first, request.model) if request.pytorch and pytorch_installed() else None
    with ExitStack() as stack:
        contenders = []
        if checkpoint is not None:
            contenders.append(_pytorch(first, checkpoint, request, stack, progress))
        contenders += [_engine(bundle, request, stack, progress) for bundle in bundles]
        with progress.phase(
            "measure in turns: " + ", ".join(f"{c.engine} {c.precision}" for c in contenders)
        ):
            measured = measure(contenders, first.model, request.shapes, Turns(rounds=request.rounds))
    for bundle, contender in zip(reversed(bundles), reversed(contenders), strict=False):
        own = (contender.engine, contender.precision)
        bundle.with_timings([row.as_json() for row in measured.rows if (row.engine, row.precision) == own])
    return measured


def text_of(measured: Measured) -> str:
    """The table a person reads."""
    return table(measured.rows, measured.ratios)


def checkpoint_of(bundle: Bundle, model: str | None) -> families.Checkpoint | None:
    """The checkpoint the bundle was built from, if its folder is at hand and unchanged; one that is named must be."""
    if model is None:
        return _at_hand(bundle)
    built = bundle.model.revision
    checkpoint = families.open_checkpoint(
        model, "main" if Path(model).is_dir() or built == "local" else built
    )
    if checkpoint.digest != bundle.model.digest:
        raise InputError(
            f"{model}: is another checkpoint than {bundle.root} was built from "
            f"(digest {checkpoint.digest[:16]}, expected {bundle.model.digest[:16]})"
        )
    return checkpoint


def _at_hand(bundle: Bundle) -> families.Checkpoint | None:
    """The folder that `build` was given, which may be another one by now, or on another machine."""
    if not Path(bundle.manifest.source).is_dir():
        return None
    try:
        checkpoint = families.open_checkpoint(bundle.manifest.source)
    except InputError:
        return None
    return checkpoint if checkpoint.digest == bundle.model.digest else None


def _refuse_other(wanted: str, stored: str) -> None:
    if wanted not in {"auto", stored}:
        raise InputError(
            f"reference {wanted!r} needs the checkpoint, which is not at hand: name it with --model; "
            f"without it the bundle can be held to its stored outputs ({stored})"
        )


def _pytorch(
    bundle: Bundle,
    checkpoint: families.Checkpoint,
    request: BenchRequest,
    stack: ExitStack,
    progress: Progress,
) -> Contender:
    """PyTorch eager in fp32, as users run it; load time and memory come from a process of its own."""
    from alula.engines import torch as torch_engine  # noqa: PLC0415 - seconds to import, and often absent

    with progress.phase("load PyTorch alone"):
        command = footprint.command(bundle.root, request.shapes, request.threads, checkpoint.root)
        alone = measure_apart(command)
    session = torch_engine.reference(checkpoint.root, bundle.model, threads=request.threads)
    return Contender(
        engine="torch",
        precision="fp32",
        session=stack.enter_context(closing(session)),
        load_ms=alone.load_ms,
        peak_host_bytes=alone.peak_host_bytes,
    )


def _engine(bundle: Bundle, request: BenchRequest, stack: ExitStack, progress: Progress) -> Contender:
    """A bundle's engine, with the worst of its checks against the strongest reference."""
    engine = local_engine(bundle)
    with progress.phase(f"load {engine.backend} {engine.graph.precision} alone"):
        alone = measure_apart(footprint.command(bundle.root, request.shapes, request.threads))
    session = backend_named(engine.backend).open(engine, threads=request.threads)
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
