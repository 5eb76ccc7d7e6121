"""What is asked of a build, and every choice made before any work: what cannot be built is refused here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from alula import families
from alula.calibration import METHODS
from alula.core.check import Reference
from alula.core.engine import Plan, Traits
from alula.core.errors import InputError
from alula.core.model import ModelSpec
from alula.core.profile import Range
from alula.core.progress import Progress
from alula.core.tensor import TensorSpec
from alula.core.words import IMAGE_TASKS, choice
from alula.data import Dataset, read
from alula.engines import GPU, resolve
from alula.engines import traits as traits_of
from alula.evidence import choose
from alula.planning import (
    Wanted,
    asked_of,
    grids,
    impossible,
    opset_here,
    plan_of,
    precisions_here,
    refuse_disobeyed,
    seen_in,
)
from alula.verify import CALIBRATED

PACKING = "openvino"
"""The engine whose sessions lay texts out in rows."""
PACKED_TOKENS = 512
"""Texts of at most so many tokens are packed unless asked otherwise: a mask has the square of a row's width."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BuildRequest:
    """Everything that decides a bundle; with `tokenizer`, a text model that has none is refused.

    `packed`, graphs take several texts in a row; None is where that gains.
    """

    model: str
    to: Path
    name: str | None = None
    revision: str = "main"
    task: str | None = None
    pooling: str | None = None
    token_embeddings: bool = False
    packed: bool | None = None
    inputs: tuple[TensorSpec, ...] = ()
    labels: Path | None = None
    target: str = "auto"
    precision: str = "auto"
    axes: Mapping[str, Range] = field(default_factory=dict)
    compiling: Wanted = field(default_factory=Wanted)
    opset: int | None = None
    compat: str | None = None
    reference: str = "auto"
    tokenizer: bool = True
    data: Path | None = None
    budget: float | None = None
    metric: str | None = None
    calibration: str = "min-max"
    skip_bad_rows: bool = False
    use_cache: bool = True


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
    packed: bool


def resolve_request(request: BuildRequest, progress: Progress) -> Resolved:
    """Make every choice, and refuse what cannot be built before any work is done."""
    engine = resolve(request.target)
    traits = traits_of(engine)
    refuse_disobeyed(engine, request.axes, request.compiling, traits)
    if request.packed and engine != PACKING:
        raise InputError(f"--packed is for {PACKING}, and this build is for {engine}")
    precisions = provable(precisions_here(engine, request.precision, traits), request)
    refuse_without_rows(precisions, request, writes=None)
    opset = opset_here(engine, request.opset, traits)
    choice("calibration", request.calibration, METHODS)
    seen: Mapping[str, Range] = {}
    with progress.phase("read the checkpoint"):
        checkpoint = families.open_checkpoint(request.model, request.revision)
        asked = asked_of(request.axes, request.compiling)
        spec = families.describe(
            checkpoint, request.task, request.pooling, request.inputs, asked, request.labels
        )
        spec = families.with_compat(spec, request.compat)
        if request.token_embeddings:
            spec = families.with_tokens(checkpoint, spec)
        if request.packed:
            families.refuse_unless_packs(spec)
        if request.tokenizer and spec.reads_text:
            families.refuse_without_tokenizer(checkpoint)
        if spec.task in IMAGE_TASKS:
            # What its file asks for and nothing here does is refused before any work, not when images come.
            from alula.codecs import images_codec  # noqa: PLC0415 - a build of texts needs no codec yet

            images_codec(checkpoint.folder, spec)
        if spec.sees:
            from alula.codecs import Patcher  # noqa: PLC0415 - likewise

            patcher = Patcher.open(checkpoint.folder)
            if engine in GPU:
                seen = grids(patcher.least_pixels, patcher.most_pixels, patcher.patch * patcher.merge)
        if spec.writes:
            precisions = precisions_here(engine, request.precision, traits, writes=True)
        refuse_without_rows(precisions, request, writes=spec.writes)
        left = impossible(precisions, request.precision, families.only_as_it_is(checkpoint, spec))
    spec = replace(spec, name=request.name or spec.name)
    data, skip = None, request.skip_bad_rows
    if request.data is not None:
        data = read(request.data, spec.task, skip_bad=skip, inputs=spec.parts[0].inputs)
    if traffic := request.compiling.traffic:
        seen = seen_in(traffic, spec, checkpoint.folder, progress, skip_bad=skip)
    plan = plan_of(spec, request.axes, request.compiling, seen, engine)
    gains = engine == PACKING and families.packs(spec) and plan.profile.axes["length"].max <= PACKED_TOKENS
    return Resolved(
        checkpoint=checkpoint,
        spec=spec,
        engine=engine,
        traits=traits,
        precisions=tuple(precision for precision in precisions if precision not in left),
        left=left,
        opset=opset,
        plan=plan,
        reference=choose(request.reference, spec),
        data=data,
        packed=gains if request.packed is None else request.packed,
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
