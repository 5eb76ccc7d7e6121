"""`alula build`: from a checkpoint to a bundle."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter

import typer

from alula.bundles import Bundle, check_to_json
from alula.cli.axes import parse_axes
from alula.cli.console import Phases, print_checks, print_json, print_rows
from alula.core.words import POOLINGS, TASKS, choice

GATE_FAILED = 3


def build(
    model: str = typer.Argument(help="A HuggingFace folder or hub id.", show_default=False),
    output: Path = typer.Option(..., "--output", "-o", help="The bundle's folder.", show_default=False),
    name: str | None = typer.Option(
        None, help="What requests call the model.  [default: the checkpoint's name]"
    ),
    target: str = typer.Option("auto", help="auto, cpu, openvino or onnxruntime."),
    precision: str = typer.Option("auto", help="fp32, bf16, or auto: the fastest within the limits."),
    task: str | None = typer.Option(
        None, help=f"One of {', '.join(TASKS)}; read from the checkpoint if not given."
    ),
    pooling: str | None = typer.Option(None, help=f"For embeddings: one of {', '.join(POOLINGS)}."),
    batch: str | None = typer.Option(None, metavar="MIN:OPT:MAX", help="Rows per call.  [default: 1:8:64]"),
    length: str | None = typer.Option(
        None, metavar="MIN:OPT:MAX", help="Tokens per row.  [default: 2:128:512]"
    ),
    axis: list[str] = typer.Option(
        [], metavar="NAME=MIN:OPT:MAX", help="Sizes of any axis; can be repeated."
    ),
    opset: int | None = typer.Option(None, help="The ONNX opset of the graph, 17 to 24.", show_default=False),
    reference: str = typer.Option(
        "auto", help="auto, pytorch, golden or own-graph: what the result is held to."
    ),
    revision: str = typer.Option("main", help="Branch, tag or commit of a hub model."),
    cache: bool = typer.Option(
        True, help="Take the bundle from the cache if these inputs were built before."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON document instead of tables."),
) -> int:
    """Write the graph, compile it, hold it to the reference, and keep the fastest precision within the limits."""
    if task is not None:
        choice("task", task, TASKS)
    if pooling is not None:
        choice("pooling", pooling, POOLINGS)
    axes = parse_axes(batch, length, axis)

    from alula.build import BuildRequest  # noqa: PLC0415 - `alula --help` stays quick
    from alula.build import build as run_build  # noqa: PLC0415

    request = BuildRequest(
        model=model,
        to=output,
        name=name,
        revision=revision,
        task=task,
        pooling=pooling,
        target=target,
        precision=precision,
        axes=axes,
        opset=opset,
        reference=reference,
        use_cache=cache,
    )
    start = perf_counter()
    built = run_build(request, Phases())
    seconds = perf_counter() - start
    report(built.bundle, as_json=as_json, cached=built.cached, seconds=seconds)
    return 0 if all(check.passed for check in built.bundle.checks) else GATE_FAILED


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
            precisions=[
                {
                    "precision": r.precision,
                    "passed": r.passed,
                    "p50_ms": r.p50_ms,
                    "taken": r.taken,
                    "reason": r.reason,
                }
                for r in bundle.manifest.rungs
            ],
        )
        return
    print_checks(bundle.checks)
    print_rungs(bundle)
    engine = bundle.engine("encoder")
    print(
        f"{bundle.root}: {bundle.model.name}, {bundle.model.task}, {engine.graph.precision} on {engine.target}, "
        f"{engine.graph.nodes} nodes; {verdict(bundle)}; "
        + ("from the cache" if cached else "built")
        + f" in {seconds:.2f} s"
    )


def print_rungs(bundle: Bundle) -> None:
    """The precisions tried, why one was taken and the others left."""
    rungs = bundle.manifest.rungs
    shape = rungs[0].shape if rungs else "?"
    print_rows(
        f"precisions, {shape} tokens",
        ("precision", "p50 ms", "checks", "taken", "why"),
        [
            (
                r.precision,
                f"{r.p50_ms:.2f}",
                "passed" if r.passed else "FAILED",
                "yes" if r.taken else "",
                r.reason,
            )
            for r in rungs
        ],
    )


def verdict(bundle: Bundle) -> str:
    """In words, what the checks are worth."""
    if not all(check.passed for check in bundle.checks):
        return "NOT verified: a check failed"
    if not bundle.verified:
        return (
            "NOT verified: compared with its own graph only (install 'alula[torch]' to compare with PyTorch)"
        )
    return "verified"
