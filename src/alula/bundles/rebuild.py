"""The commands that build a bundle again, or one like it, from what its manifest says."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

from alula.bundles.manifest import Manifest
from alula.core.engine import Plan
from alula.core.model import ModelSpec
from alula.core.packing import is_packed
from alula.core.profile import DERIVED, Profile, Range
from alula.core.units import bytes_as_text, seconds_as_text
from alula.core.words import TENSORS, TOKENS

SHORT = ("batch", "length", "height", "width")
"""Axes that have an option of their own."""
USUAL_CALIBRATION = "min-max"


def rebuild_command(manifest: Manifest, root: Path) -> str:
    """What makes the same bundle at `root` where it is to run, ready for a shell. Pure.

    Rows are not in a bundle: where it was proved on some, their file is named as it was.
    """
    engine = manifest.answering
    words = ["--target", engine.backend, "--precision", engine.graph.precision]
    words += [*_model(manifest.model, manifest.source), *_sizes(engine.plan), *settings_of(engine.plan)]
    if engine.backend == "openvino" and manifest.model.reads_text and not manifest.model.writes:
        words.append("--packed" if is_packed(engine.inputs) else "--no-packed")
    return shlex.join(["alula", "build", manifest.source, "-o", str(root), *words, *_rows(manifest)])


def cpu_command(manifest: Manifest, root: Path) -> str:
    """What makes a bundle of the same model for a CPU, beside `root`. Pure."""
    to = root.with_name(f"{root.name}-cpu")
    words = ["--target", "cpu", *_model(manifest.model, manifest.source)]
    words += _axes(manifest.answering.plan.profile)
    return shlex.join(["alula", "build", manifest.source, "-o", str(to), *words, *_rows(manifest)])


def _rows(manifest: Manifest) -> Iterator[str]:
    """The rows that it was proved on, and how."""
    if not (promise := manifest.promise):
        return
    yield from ("--data", promise["data"]["file"], "--budget", f"{100 * promise['budget']:g}%")
    if metric := promise.get("metric"):
        yield from ("--metric", metric)
    # Such as "entropy, smoothed".
    method = promise.get("calibration", {}).get("method", USUAL_CALIBRATION).partition(",")[0]
    if method != USUAL_CALIBRATION:
        yield from ("--calibration", method)


def _model(model: ModelSpec, source: str) -> Iterator[str]:
    if model.revision != "local":
        yield from ("--revision", model.revision)
    if model.name not in {source, Path(source).name, Path(source).stem}:
        yield from ("--name", model.name)
    yield from ("--task", model.task)
    if model.compat:
        yield from ("--compat", model.compat)
    if model.pooling:
        yield from ("--pooling", model.pooling)
    if any(output.name == TOKENS for output in model.parts[0].outputs):
        yield "--token-embeddings"
    if model.task == TENSORS:
        for tensor in model.part("encoder").inputs:
            yield from ("--inputs", str(tensor))


def _sizes(plan: Plan) -> Iterator[str]:
    if plan.tuned:
        for profile in plan.tuned:
            yield from ("--profile", ",".join(f"{axis}={sizes}" for axis, sizes in _given(profile)))
    else:
        yield from _axes(plan.profile)


def _axes(profile: Profile) -> Iterator[str]:
    for axis, sizes in _given(profile):
        yield from (f"--{axis}", str(sizes)) if axis in SHORT else ("--axis", f"{axis}={sizes}")


def _given(profile: Profile) -> Iterator[tuple[str, Range]]:
    """The sizes that do not follow from others."""
    yield from ((axis, sizes) for axis, sizes in profile.axes.items() if axis not in DERIVED)


def settings_of(plan: Plan) -> Iterator[str]:
    """The options that say how an engine was compiled, without its sizes."""
    if plan.workspace_bytes is not None:
        yield from ("--workspace", bytes_as_text(plan.workspace_bytes))
    if plan.level is not None:
        yield from ("--level", str(plan.level))
    if plan.time_limit_s is not None:
        yield from ("--time-limit", seconds_as_text(plan.time_limit_s))
    if plan.portable:
        yield "--portable"
    if plan.strip_weights:
        yield "--strip-weights"
