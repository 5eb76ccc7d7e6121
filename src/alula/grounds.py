"""What the precisions of a build are judged by: references asked, the user's rows promised, ranges measured on them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from alula.bundles import Stored
from alula.calibrate import Calibration, beyond_fp16, calibrate
from alula.choices import BuildRequest, Resolved
from alula.core.progress import Progress
from alula.data import Dataset
from alula.evidence import Evidence, gather
from alula.graphs import half_policy, halves
from alula.magnitudes import AS_IT_IS, Fitted, fitted_to_fp16
from alula.prompted import Asked, Prompted, asked_of, proofs
from alula.questions import BUDGET, Promise, questions_of
from alula.rehearsed import Rehearsed
from alula.verify import CALIBRATED, load_metric

MEASURE = "measure what leaves the range of fp16"

STORED_BYTES = 4 << 20
"""Sample feeds and reference outputs that a bundle carries at most, so that it can check itself elsewhere."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Grounds:
    """Evidence for models that answer in one call, scripts and prompts for those that write.

    `promise` is what the manifest says of the user's rows.
    """

    evidence: tuple[Evidence, ...] = ()
    rehearsed: Rehearsed | None = None
    prompted: Prompted | None = None
    calibration: Calibration | None = None
    fitted: Fitted = AS_IT_IS
    promise: dict[str, Any]

    def stored(self, precision: str) -> Stored:
        """What a bundle of this precision carries to check itself elsewhere."""
        if self.rehearsed is not None:
            return self.rehearsed.stored(STORED_BYTES)
        # The strongest one that has all outputs; golden ones have no states of tokens.
        most = max(self.evidence, key=lambda each: len(each.outputs[0]) if each.outputs else 0)
        return most.stored(precision, STORED_BYTES)


def grounds_of(request: BuildRequest, resolved: Resolved, tokenizer: Path, progress: Progress) -> Grounds:
    """Ask the reference about all there is to ask; `tokenizer` is the folder of its files."""
    asking = resolved.reference, resolved.checkpoint, resolved.spec, resolved.plan.profile
    if resolved.spec.writes:
        asked = _prompts(request, resolved, tokenizer)
        with progress.phase(_phase(resolved)):
            rehearsed, prompted = proofs(*asking, tokenizer, asked=asked)
        about = {} if asked is None else _promised(asked, asked.data, None)
        fitted = _fitted(resolved, rehearsed, progress)
        return Grounds(rehearsed=rehearsed, prompted=prompted, fitted=fitted, promise=about)
    promise = _promise(request, resolved)
    with progress.phase(_phase(resolved)):
        evidence = gather(*asking, promise)
    calibration = _calibration(request, resolved, promise, progress)
    return Grounds(
        evidence=evidence,
        calibration=calibration,
        fitted=Fitted(beyond=_beyond_fp16(resolved, evidence, promise, progress)),
        promise={} if promise is None else _promised(promise, promise.questions.data, calibration),
    )


def _phase(resolved: Resolved) -> str:
    rows = "" if resolved.data is None else f" about {len(resolved.data.examples)} rows"
    return f"ask the reference ({resolved.reference}){rows}"


def _promise(request: BuildRequest, resolved: Resolved) -> Promise | None:
    """What may be lost on the user's rows; nothing is promised without any."""
    if resolved.data is None:
        return None
    asked = questions_of(resolved.data, resolved.spec, resolved.plan.profile, resolved.checkpoint.folder)
    return Promise(
        questions=asked,
        budget=BUDGET if request.budget is None else request.budget,
        metric=None if request.metric is None else load_metric(request.metric, Path.cwd()),
    )


def _prompts(request: BuildRequest, resolved: Resolved, tokenizer: Path) -> Asked | None:
    """The same where the rows are prompts."""
    if resolved.data is None:
        return None
    return asked_of(
        resolved.data,
        resolved.spec,
        resolved.plan.profile,
        tokenizer,
        budget=BUDGET if request.budget is None else request.budget,
        metric=None if request.metric is None else load_metric(request.metric, Path.cwd()),
        skip_bad=request.skip_bad_rows,
    )


def _calibration(
    request: BuildRequest, resolved: Resolved, promise: Promise | None, progress: Progress
) -> Calibration | None:
    """Ranges over all of the user's rows, where a precision needs them."""
    if promise is None or not CALIBRATED.intersection(resolved.precisions):
        return None
    with progress.phase(f"calibrate on {len(promise.questions.rows)} rows"):
        return calibrate(
            resolved.checkpoint,
            resolved.spec,
            promise.questions,
            method=request.calibration,
            use_cache=request.use_cache,
        )


def _fitted(resolved: Resolved, rehearsed: Rehearsed, progress: Progress) -> Fitted:
    """The same of a model that writes text, by the scripts that it is held to."""
    if not _halves(resolved):
        return AS_IT_IS
    policy = half_policy(resolved.engine, resolved.opset)
    with progress.phase(MEASURE):
        return fitted_to_fp16(
            resolved.checkpoint, resolved.spec, resolved.plan.profile, rehearsed.scripts, policy
        )


def _halves(resolved: Resolved) -> bool:
    return any(halves(resolved.engine, precision) for precision in resolved.precisions)


def _beyond_fp16(
    resolved: Resolved, evidence: tuple[Evidence, ...], promise: Promise | None, progress: Progress
) -> frozenset[str]:
    """What does not fit into fp16, by all samples and all of the user's rows."""
    if not _halves(resolved):
        return frozenset()
    feeds = [sample.feeds for sample in evidence[0].samples]
    with progress.phase(MEASURE):
        calls = [*feeds, *(promise.questions if promise else ())]
        policy = half_policy(resolved.engine, resolved.opset)
        return beyond_fp16(resolved.checkpoint, resolved.spec, calls, policy)


def _promised(promise: Promise | Asked, data: Dataset, calibration: Calibration | None) -> dict[str, Any]:
    """The promise as the manifest keeps it: what was asked, not the rows themselves."""
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
