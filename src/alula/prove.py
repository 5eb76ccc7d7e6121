"""A finished bundle, held to its reference again."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from alula import families
from alula.bundles import Bundle
from alula.core.check import REFERENCES, Check
from alula.core.errors import InputError
from alula.core.progress import Progress
from alula.core.refused import in_one_line
from alula.data import Dataset, read
from alula.engines import backend as backend_named
from alula.evidence import Evidence, choose, gather, judge_all
from alula.local import local_engine, local_engines, self_check, stored_check
from alula.prompted import asked_of, proofs
from alula.questions import BUDGET, Promise, questions_of
from alula.verify import UserMetric, load_metric

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class VerifyRequest:
    """What to hold a bundle to: a reference by its name, and the user's rows, with what may be lost on them.

    Without a budget the one that the bundle was built with holds.
    """

    reference: str = "auto"
    model: str | None = None
    data: Path | None = None
    budget: float | None = None
    metric: str | None = None
    skip_bad_rows: bool = False


def verify_bundle(bundle: Bundle, request: VerifyRequest, progress: Progress) -> Bundle:
    """Compare with the strongest reference at hand, or the one named; the bundle keeps the new checks.

    Where the outputs that the build stored came from a stronger reference, they are compared with as well, and what
    was found on the user's rows is kept until they are given again, so that evidence never gets weaker. Without the
    checkpoint the stored outputs are all there is, and for an engine that never ran before, that rows in a batch are
    what they are alone.
    """
    if bundle.model.writes:
        return _verify_writer(bundle, request, progress)
    _refuse_unjudged(bundle, request)
    spec, engine, stored = bundle.model, local_engine(bundle), bundle.stored.reference
    profile, precision = engine.plan.profile, engine.graph.precision
    promise = _promise(bundle, request)
    checkpoint = checkpoint_of(bundle, request.model)
    evidence: tuple[Evidence, ...] = ()
    if checkpoint is None:
        _refuse_other(request, stored)
    else:
        reference = choose(request.reference, spec)
        with progress.phase(f"ask the reference ({reference})"):
            evidence = gather(reference, checkpoint, spec, profile, promise)
    with closing(backend_named(engine.backend).open(engine)) as session:
        checks: tuple[Check, ...] = ()
        if not evidence or REFERENCES.index(stored) < REFERENCES.index(evidence[0].reference):
            with progress.phase(f"compare {precision} with the stored outputs of the build ({stored})"):
                checks += stored_check(bundle, session)
        if evidence or not bundle.checks:
            against = ", ".join(item.reference for item in evidence) or "itself"
            with progress.phase(f"compare {precision} with {against}"):
                checks += judge_all(
                    evidence, session, spec, profile, precision, promised=bool(bundle.manifest.promise)
                )
    return _keep(bundle, (*_kept(bundle.checks, checks), *checks))


def _verify_writer(bundle: Bundle, request: VerifyRequest, progress: Progress) -> Bundle:
    """The same for a model that writes text: its scripts are performed again."""
    _refuse_unjudged(bundle, request)
    spec, engines, stored = bundle.model, local_engines(bundle), bundle.stored.reference
    precision, profile = bundle.answering.graph.precision, bundle.manifest.profile
    terms = _terms(bundle, request)
    asked = None
    if terms is not None:
        asked = asked_of(
            terms.data,
            spec,
            profile,
            bundle.tokenizer,
            budget=terms.budget,
            metric=terms.metric,
            skip_bad=request.skip_bad_rows,
        )
    checkpoint = checkpoint_of(bundle, request.model)
    checks: tuple[Check, ...] = ()
    reference = None
    if checkpoint is None:
        _refuse_other(request, stored)
    else:
        reference = choose(request.reference, spec)
        with progress.phase(f"ask the reference ({reference})"):
            rehearsed, prompted = proofs(reference, checkpoint, spec, profile, bundle.tokenizer, asked=asked)
        with progress.phase(f"compare {precision} with {reference}"):
            checks += () if prompted is None else prompted.judge(engines)
            checks += rehearsed.judge(engines, precision, promised=bool(asked or bundle.manifest.promise))
    if reference is None or REFERENCES.index(stored) < REFERENCES.index(reference):
        with progress.phase(f"compare {precision} with the stored outputs of the build ({stored})"):
            checks += self_check(bundle, engines)
    return _keep(bundle, (*_kept(bundle.checks, checks), *checks))


def _keep(bundle: Bundle, checks: tuple[Check, ...]) -> Bundle:
    """The bundle with these checks; where its folder cannot be written they are known all the same."""
    try:
        return bundle.with_checks(checks)
    except OSError as error:
        logger.warning("%s does not keep these checks: %s", bundle.root, in_one_line(error))
        return replace(bundle, checks=checks)


def _refuse_unjudged(bundle: Bundle, request: VerifyRequest) -> None:
    """Refuse to call a promise kept that nobody has looked at: the engine did not run where it was compiled."""
    if bundle.manifest.promise and request.data is None and not any(check.rows for check in bundle.checks):
        rows = bundle.manifest.promise["data"]["file"]
        raise InputError(
            f"{bundle.root}: was compiled and not run, so what it loses on your rows is still to be judged; "
            f"give them with --data {rows}, and the checkpoint with --model where it is not at hand"
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Terms:
    """The rows given, to be judged by the budget given, by that of the build, or by the usual one."""

    data: Dataset
    budget: float
    metric: UserMetric | None


def _terms(bundle: Bundle, request: VerifyRequest) -> Terms | None:
    """What may be lost on which rows; nothing where there are none."""
    if request.data is None:
        if request.budget is not None or request.metric is not None:
            raise InputError(
                "--budget and --metric say what may be lost on your rows; give them with --data PATH"
            )
        return None
    inputs = bundle.model.parts[0].inputs
    built_with: float = bundle.manifest.promise.get("budget", BUDGET)
    metric = request.metric or bundle.manifest.promise.get("metric")
    return Terms(
        data=read(request.data, bundle.model.task, skip_bad=request.skip_bad_rows, inputs=inputs),
        budget=built_with if request.budget is None else request.budget,
        metric=None if metric is None else load_metric(metric, Path.cwd()),
    )


def _promise(bundle: Bundle, request: VerifyRequest) -> Promise | None:
    """The same for a model that answers in one call."""
    if (terms := _terms(bundle, request)) is None:
        return None
    profile = bundle.engine("encoder").plan.profile
    asked = questions_of(terms.data, bundle.model, profile, bundle.processor)
    return Promise(questions=asked, budget=terms.budget, metric=terms.metric)


def _kept(before: Sequence[Check], now: Sequence[Check]) -> list[Check]:
    """What was found on the user's rows before, and not now on the same rows as strictly by as strong a reference."""
    return [old for old in before if old.rows and not any(_replaces(new, old) for new in now)]


def _replaces(new: Check, old: Check) -> bool:
    same = (new.rows, new.output, new.metric) == (old.rows, old.output, old.metric)
    stricter = new.limit >= old.limit if old.higher_is_better else new.limit <= old.limit
    return same and stricter and REFERENCES.index(new.reference) <= REFERENCES.index(old.reference)


def checkpoint_of(bundle: Bundle, model: str | None) -> families.Checkpoint | None:
    """The checkpoint the bundle was built from, if its folder is at hand and unchanged; one that is named must be."""
    if model is None:
        return _at_hand(bundle)
    built = bundle.model.revision
    checkpoint = families.open_checkpoint(
        model, "main" if Path(model).exists() or built == "local" else built
    )
    if checkpoint.digest != bundle.model.digest:
        raise InputError(
            f"{model}: is another checkpoint than {bundle.root} was built from "
            f"(digest {checkpoint.digest[:16]}, expected {bundle.model.digest[:16]})"
        )
    return checkpoint


def _at_hand(bundle: Bundle) -> families.Checkpoint | None:
    """The folder or file that `build` was given, which may be another one by now, or on another machine."""
    source = bundle.manifest.source
    if not (source in families.SHIPPED or Path(source).exists()):
        return None
    try:
        checkpoint = families.open_checkpoint(source)
    except InputError:
        return None
    return checkpoint if checkpoint.digest == bundle.model.digest else None


def _refuse_other(request: VerifyRequest, stored: str) -> None:
    wanted = request.reference
    if request.data is not None:
        raise InputError(
            "what is lost on your rows is seen beside the checkpoint, which is not at hand: name it with --model"
        )
    if wanted not in {"auto", stored}:
        raise InputError(
            f"reference {wanted!r} needs the checkpoint, which is not at hand: name it with --model; "
            f"without it the bundle can be held to its stored outputs ({stored})"
        )
