"""`alula build`: from a checkpoint to a bundle."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

import typer

from alula.bundles import Bundle, Rung, check_to_json, rung_to_json
from alula.cli.axes import parse_axes, parse_profile
from alula.cli.console import Phases, number, print_checks, print_json, print_rows
from alula.core.check import Check
from alula.core.errors import InputError
from alula.core.units import parse_bytes, parse_seconds
from alula.core.words import IMAGE_POOLINGS, ONNX_TASKS, POOLINGS, TASKS, choice

if TYPE_CHECKING:
    from alula.build import BuildRequest
    from alula.packaged import Package

GATE_FAILED = 3

DATA = (
    "Your rows (prompts, where it writes), with labels or without, that the model is judged on: JSONL, text, CSV, "
    "Parquet or a folder."
)
BUDGET = "The share of the task that may be lost on them, such as 0.4% or 0.004."
METRIC = "A function of your own that judges in place of the task's metric."
SKIP = "Leave out rows that cannot be used; otherwise one of them refuses the data."


def build(
    model: str = typer.Argument(
        help="A HuggingFace folder or hub id, or an ONNX or GGUF file; or rapidocr, whose package's models read pages.",
        show_default=False,
    ),
    output: str = typer.Option(
        ..., "--output", "-o", metavar="FOLDER", help="The bundle's folder.", show_default=False
    ),
    name: str | None = typer.Option(
        None, help="What requests call the model.", show_default="the checkpoint's name"
    ),
    target: str = typer.Option(
        "auto",
        help="auto, cpu, openvino, onnxruntime, tensorrt, tensorrt-rtx; auto: a GPU where TensorRT runs, else the CPU.",
    ),
    precision: str = typer.Option(
        "auto",
        help="fp32, bf16, fp16, fp16-mixed, int8, int8-mixed, int8-weights, int4-weights, several of them with commas, "
        "or mixed; auto: all that pay here. The fastest within the limits is taken. Eight bits and less need --data, "
        "but for models that write text.",
    ),
    data: Path | None = typer.Option(
        None, metavar="PATH", help=f"{DATA} int8 is calibrated on them.", show_default=False
    ),
    budget: str | None = typer.Option(None, metavar="SHARE", help=BUDGET, show_default="0.4% with --data"),
    metric: str | None = typer.Option(None, metavar="MODULE:FUNCTION", help=METRIC, show_default=False),
    calibration: str = typer.Option(
        "min-max",
        metavar="METHOD",
        help="How int8 finds the ranges of activations: min-max, percentile or entropy.",
    ),
    skip_bad_rows: bool = typer.Option(False, "--skip-bad-rows", help=SKIP),
    task: str | None = typer.Option(
        None,
        help=f"One of {', '.join(TASKS)}; of an ONNX file also {', '.join(ONNX_TASKS)}; read from the checkpoint "
        "if not given.",
    ),
    pooling: str | None = typer.Option(
        None, help=f"For embeddings: one of {', '.join(POOLINGS)}; of images: {', '.join(IMAGE_POOLINGS)}."
    ),
    token_embeddings: bool = typer.Option(
        False,
        "--token-embeddings",
        help="For embeddings of texts: also give the vectors of the tokens, not pooled, as /embed_all answers them.",
    ),
    packed: bool | None = typer.Option(
        None,
        "--packed/--no-packed",
        help="OpenVINO, BERT and its kin: short texts share a row of a batch, so that almost nothing is padded.",
        show_default="packed where --length ends at 512 or below",
    ),
    inputs: list[str] = typer.Option(
        [],
        metavar="NAME=DTYPE[DIM,...]",
        help="Of an ONNX file: sizes and names of an input's axes, such as x=float32[batch,3,height,width], and the "
        "range of its values behind it (:0:1); can be repeated.",
        show_default="as in the file",
    ),
    labels: Path | None = typer.Option(
        None,
        metavar="FILE",
        help="Of an ONNX file: a label or a recogniser's character a line.",
        show_default="those in the file's metadata",
    ),
    batch: str | None = typer.Option(
        None,
        metavar="MIN:OPT:MAX",
        help="Rows per call; of models that write text, answers that go on in one step.",
        show_default="1:8:64; 1:1:64",
    ),
    length: str | None = typer.Option(
        None,
        metavar="MIN:OPT:MAX",
        help="Tokens per row; of models that write text, new ones in a step. What stands before them is in "
        "--axis total=1:512:MAX, and what an encoder reads --axis source=1:128:MAX.",
        show_default="2:128:512, cut to what the model takes; 1:1:512",
    ),
    height: str | None = typer.Option(
        None,
        metavar="MIN:OPT:MAX",
        help="Pixels. A classifier of images has one size unless these are given.",
    ),
    width: str | None = typer.Option(
        None,
        metavar="MIN:OPT:MAX",
        help="Pixels. A classifier of images has one size unless these are given.",
        show_default="32:320:2048 for lines of text",
    ),
    axis: list[str] = typer.Option(
        [], metavar="NAME=MIN:OPT:MAX", help="Sizes of any axis; can be repeated."
    ),
    profile: list[str] = typer.Option(
        [],
        metavar="AXIS=MIN:OPT:MAX,...",
        help="Sizes that TensorRT tunes for by themselves, such as batch=1:1:1,length=1:64:128; can be repeated.",
    ),
    profile_from: Path | None = typer.Option(
        None,
        metavar="PATH",
        help="Rows of real traffic, whose sizes say what to compile for.",
        show_default=False,
    ),
    workspace: str | None = typer.Option(
        None,
        metavar="SIZE",
        help="TensorRT: memory that a layer may use at most, such as 4GiB.",
        show_default=False,
    ),
    level: int | None = typer.Option(
        None, min=0, max=5, help="TensorRT: how hard to look for fast kernels.", show_default="TensorRT's own"
    ),
    time_limit: str | None = typer.Option(
        None, metavar="TIME", help="TensorRT: end a compilation after 90s, 20m or 1h.", show_default=False
    ),
    portable: bool = typer.Option(
        False, "--portable", help="TensorRT: an engine for newer GPUs and versions too, not as fast."
    ),
    strip_weights: bool = typer.Option(
        False, "--strip-weights", help="TensorRT: leave the weights to the graph beside the engine."
    ),
    opset: int | None = typer.Option(None, help="The ONNX opset of the graph, 17 to 24.", show_default=False),
    compat: str | None = typer.Option(
        None,
        metavar="CODE",
        help="Of HunyuanOCR: whose code the graphs follow where two differ, tencent or transformers.",
        show_default="tencent",
    ),
    reference: str = typer.Option(
        "auto", help="auto, pytorch, onnx-file, golden or own-graph: what the result is held to."
    ),
    revision: str = typer.Option("main", help="Branch, tag or commit of a hub model."),
    no_tokenizer: bool = typer.Option(
        False,
        "--no-tokenizer",
        help="Build without tokenizer.json: for token ids alone, not for run and serve.",
    ),
    cache: bool = typer.Option(
        True, help="Take the bundle from the cache if these inputs were built before."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON document instead of tables."),
) -> int:
    """Write the graph, compile it, hold it to the reference, and keep the fastest precision within the limits."""
    if task is not None:
        choice("task", task, (*TASKS, *ONNX_TASKS))
    if pooling is not None:
        choice("pooling", pooling, tuple(dict.fromkeys((*POOLINGS, *IMAGE_POOLINGS))))
    axes = parse_axes({"batch": batch, "length": length, "height": height, "width": width}, axis)
    to = bundle_folder(output)
    if name is not None:
        check_name(name)

    from alula.build import BuildRequest  # noqa: PLC0415 - `alula --help` stays quick
    from alula.build import build as run_build  # noqa: PLC0415
    from alula.families import parse_inputs  # noqa: PLC0415
    from alula.packaged import PACKAGES  # noqa: PLC0415
    from alula.planning import Wanted  # noqa: PLC0415
    from alula.verify import parse_budget  # noqa: PLC0415

    compiling = Wanted(
        profiles=tuple(parse_profile(text) for text in profile),
        traffic=profile_from,
        workspace_bytes=None if workspace is None else parse_bytes("--workspace", workspace),
        level=level,
        time_limit_s=None if time_limit is None else parse_seconds("--time-limit", time_limit),
        portable=portable,
        strip_weights=strip_weights,
    )
    request = BuildRequest(
        model=model,
        to=to,
        name=name,
        revision=revision,
        task=task,
        pooling=pooling,
        token_embeddings=token_embeddings,
        packed=packed,
        inputs=parse_inputs(inputs),
        labels=labels,
        target=target,
        precision=precision,
        axes=axes,
        compiling=compiling,
        opset=opset,
        compat=compat,
        reference=reference,
        tokenizer=not no_tokenizer,
        data=data,
        budget=None if budget is None else parse_budget(budget),
        metric=metric,
        calibration=calibration,
        skip_bad_rows=skip_bad_rows,
        use_cache=cache,
    )
    if not Path(model).exists() and (package := PACKAGES.get(model)):
        return pages(request, package, as_json=as_json)
    start = perf_counter()
    built = run_build(request, Phases())
    seconds = perf_counter() - start
    if not as_json and built.bundle.root != to:
        print(
            f"{to} is verified and stays: what is less goes beside it, to {built.bundle.root}",
            file=sys.stderr,
        )
    report(built.bundle, as_json=as_json, cached=built.cached, seconds=seconds)
    if built.interrupted:
        raise KeyboardInterrupt
    return 0 if built.bundle.passed else GATE_FAILED


def pages(request: BuildRequest, package: Package, *, as_json: bool) -> int:
    """A reader of pages from a package's models: three bundles, of which only the choices here are asked."""
    from alula.packaged import build_pipeline  # noqa: PLC0415

    if replace(request, target="auto", precision="auto", use_cache=True) != type(request)(
        model=request.model, to=request.to
    ):
        raise InputError(
            f"{request.model} is a package of models for pages; it is built with -o, --target, --precision, --no-cache "
            "and --json alone"
        )
    start = perf_counter()
    made = build_pipeline(
        package,
        request.to,
        Phases(),
        target=request.target,
        precision=request.precision,
        use_cache=request.use_cache,
    )
    seconds = perf_counter() - start
    if as_json:
        rows = [check_to_json(check) for bundle in made.values() for check in bundle.checks]
        print_json("build", rows, pipeline=str(request.to), seconds=round(seconds, 3))
        return 0
    for bundle in made.values():
        print_checks(bundle.checks)
        engine = bundle.answering
        print(
            f"{bundle.root}: {bundle.model.name}, {engine.graph.precision} on {engine.target}; {verdict(bundle)}"
        )
    print(f"{request.to}: a reader of pages, built in {seconds:.2f} s; alula ocr FILE --model {request.to}")
    return 0


def bundle_folder(text: str) -> Path:
    """The folder that `--output` names: not the working folder by an empty word, and one that runtimes can open."""
    if not text.strip():
        raise InputError("--output is empty; expected the bundle's folder")
    try:
        os.path.abspath(text).encode()
    except UnicodeEncodeError as error:
        raise InputError(f"--output {text!r}: the path is not UTF-8, and runtimes open no other") from error
    return Path(text)


def check_name(name: str) -> None:
    """Refuse a name that no request could give, or that would spoil a line of a log."""
    if not (name.strip() and name.isprintable()):
        raise InputError(f"--name {name!r}: expected one line of characters that can be printed")


def report(bundle: Bundle, *, as_json: bool, cached: bool, seconds: float) -> None:
    """What was built, the evidence, the precisions tried."""
    if as_json:
        print_json(
            "build",
            [check_to_json(check) for check in bundle.checks],
            bundle=str(bundle.root),
            cached=cached,
            seconds=round(seconds, 3),
            verified=bundle.verified,
            precisions=[rung_to_json(rung) for rung in bundle.manifest.rungs],
            promise=dict(bundle.manifest.promise),
        )
        return
    print_checks(bundle.checks)
    print_rungs(bundle)
    if bundle.manifest.promise:
        print(f"promise: {promised(bundle)}")
    engine = bundle.answering
    print(
        f"{bundle.root}: {bundle.model.name}, {bundle.model.task}, {engine.graph.precision} on {engine.target}, "
        f"{engine.graph.nodes} nodes; {verdict(bundle)}; "
        + ("from the cache" if cached else "built")
        + f" in {seconds:.2f} s"
    )


def print_rungs(bundle: Bundle) -> None:
    """The precisions tried, what they lose, how fast they are, why one was taken and the others left."""
    rungs = bundle.manifest.rungs
    shapes = [f", {rung.shape}" for rung in rungs if rung.shape][:1]
    tokens = " tokens" if shapes and bundle.model.reads_text else ""
    print_rows(
        f"precisions{''.join(shapes)}{tokens}{judged_by(rungs)}",
        ("precision", "worst", "p50 ms", "times", "MB", "checks", "taken", "why"),
        [
            (
                rung.precision,
                number(leading(rung).worst) if rung.checks else "",
                "" if rung.p50_ms is None else f"{rung.p50_ms:.2f}",
                "" if rung.times is None else f"{rung.times:.2f}",
                "" if rung.bytes is None else f"{rung.bytes / 1e6:.1f}",
                state(rung),
                "yes" if rung.taken else "",
                (f"{len(rung.kept)} layers kept; " if rung.kept else "") + rung.reason,
            )
            for rung in rungs
        ],
    )


def state(rung: Rung) -> str:
    """How a precision did."""
    if not rung.checks:
        return "NOT RUN" if rung.taken else "not tried"
    return "passed" if rung.passed else "FAILED"


def leading(rung: Rung) -> Check:
    """The first check on the user's rows; where there are none, the first of all."""
    return next((check for check in rung.checks if check.rows), rung.checks[0])


def judged_by(rungs: Sequence[Rung]) -> str:
    """The metric of each rung's leading check, and its limit if all have the same."""
    firsts = [leading(rung) for rung in rungs if rung.checks]
    metrics, limits = {check.metric for check in firsts}, {check.limit for check in firsts}
    if len(metrics) != 1:
        return ""
    at_most = "at least" if firsts[0].higher_is_better else "at most"
    return f"; {firsts[0].metric}" + (f" {at_most} {number(firsts[0].limit)}" if len(limits) == 1 else "")


def promised(bundle: Bundle) -> str:
    """What may be lost, by which metric, on which rows, and what int8 was calibrated with."""
    promise = bundle.manifest.promise
    data, calibration = promise["data"], promise.get("calibration")
    left = f", {data['skipped']} left out" if data["skipped"] else ""
    labels = "labelled" if data["labelled"] else "without labels"
    metric = f" by {promise['metric']}" if promise.get("metric") else ""
    share, rows = f"{100 * promise['budget']:g} %", f"{data['rows']} rows of {data['file']}"
    words = f"at most {share} lost{metric} on {rows} ({labels}{left})"
    if calibration is None:
        return words
    return (
        f"{words}; calibrated on the same rows ({calibration['method']}): try others with alula verify --data"
    )


def verdict(bundle: Bundle) -> str:
    """In words, what the checks are worth."""
    if not bundle.checks:
        why = next((f"{rung.reason}; " for rung in bundle.manifest.rungs if rung.taken), "")
        rows = f" --data {bundle.manifest.promise['data']['file']}" if bundle.manifest.promise else ""
        return f"NOT verified: {why}run `alula verify {bundle.root}{rows}` where it can run"
    if not bundle.passed:
        return "NOT verified: a check failed"
    if not bundle.verified:
        return (
            "NOT verified: compared with its own graph only (install 'alula[torch]' to compare with PyTorch)"
        )
    return "verified"
