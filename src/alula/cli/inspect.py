"""`alula inspect`: what a bundle holds and what it is worth, what its engine runs, and how two engines differ."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from alula import fusion
from alula.bundles import Bundle, check_to_json, settings_of
from alula.cli.bench import check_figure, parse_shapes
from alula.cli.build import print_rungs, promised, verdict
from alula.cli.console import Phases, print_checks, print_json, print_rows
from alula.core.engine import Plan
from alula.core.errors import InputError
from alula.core.model import ModelSpec
from alula.core.words import TENSORS
from alula.fusion import Report

CHANGES = 12
"""Kinds of changes that are printed; all are in the page and in JSON."""


def inspect(
    bundle: Path = typer.Argument(
        help="A bundle's folder, or a .json file with an engine's layers: TensorRT's inspector, trtexec "
        "--exportLayerInfo, or a bundle's layers.json.",
        show_default=False,
    ),
    other: Path | None = typer.Argument(
        None, help="Another one: print what differs between the two engines.", show_default=False
    ),
    layers: bool = typer.Option(
        False, "--layers", help="Print every layer, and every node that was removed."
    ),
    time: bool = typer.Option(False, "--time", help="Run the engine here and time each of its layers."),
    shape: str | None = typer.Option(
        None, help="The shape to time, ROWSxTOKENS; if not given, one row at the tuned sizes."
    ),
    times: Path | None = typer.Option(
        None, help="Take the times of layers from this file, which trtexec --exportProfile wrote."
    ),
    html: Path | None = typer.Option(None, help="Write the report, with pictures, as one HTML file."),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON document."),
) -> int:
    """Show a bundle's model, engine, precisions tried, checks, and what of its graph runs as which layer."""
    if html is not None:
        check_figure(html, "--html")
    if times is not None and (time or other is not None):
        raise InputError(
            "--times takes measured times for one engine; give it without --time and a second one"
        )
    if shape is not None and not time:
        raise InputError("--shape says what to time; give it with --time")
    asked = Asked(time=time, shape=None if shape is None else _parse_shape(shape), times=times)
    if other is not None:
        return _compare((bundle, other), asked, html, as_json=as_json)
    return _show(bundle, asked, html, layers=layers, as_json=as_json)


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """How the layers of an engine are to be had: as built, timed here on a shape, or with times from a file."""

    time: bool
    shape: tuple[int, ...] | None
    times: Path | None

    @property
    def wanted(self) -> bool:
        """Whether times were asked for, so that a report must be had."""
        return self.time or self.times is not None

    def report(self, path: Path, bundle: Bundle | None) -> Report:
        """The report on a bundle's engine, or on a file."""
        from alula.layers import layers_in, layers_of, timed_layers_of  # noqa: PLC0415 - `alula --help` stays quick

        if bundle is None:
            if self.time:
                raise InputError(f"{path}: is a file; --time needs a bundle, whose engine can be run")
            return layers_in(path, times=self.times)
        if not self.time:
            return layers_of(bundle, times=self.times)
        with Phases().phase(f"time the layers of {path}"):
            return timed_layers_of(bundle, self.shape)


def _show(path: Path, asked: Asked, html: Path | None, *, layers: bool, as_json: bool) -> int:
    opened = None if path.suffix == ".json" else Bundle.open(path)
    report, reason = _report(path, asked, opened, needed=layers or html is not None or asked.wanted)
    if html is not None and report is not None:
        html.write_text(fusion.page(report, f"What runs: {_name(path, opened)}"), encoding="utf-8")
    if as_json:
        rows = [] if opened is None else [check_to_json(check) for check in opened.checks]
        held: dict[str, Any] = (
            {} if opened is None else {"verified": opened.verified, "manifest": opened.manifest.to_json()}
        )
        found = {"missing": reason} if report is None else fusion.to_json(report)
        print_json("inspect", rows, **held, fusion=found)
        return 0
    if opened is not None:
        print_rows("bundle", ("", ""), facts(opened))
        print_rungs(opened)
        print_checks(opened.checks)
    if report is None:
        print(f"what runs: {reason}")
        return 0
    about = [] if opened is not None else list(report.about.items())
    print_rows("what runs", ("", ""), [*about, *fusion.summary(report)])
    if layers:
        print_rows("layers", *fusion.table(report))
        if report.removed:
            print_rows("nodes that no layer does", *fusion.removed_table(report))
    return 0


def _report(path: Path, asked: Asked, opened: Bundle | None, *, needed: bool) -> tuple[Report | None, str]:
    """The report, or why there is none; an error where it is what was asked for."""
    try:
        return asked.report(path, opened), ""
    except InputError as error:
        if needed or opened is None:
            raise
        return None, str(error)


def _compare(paths: tuple[Path, Path], asked: Asked, html: Path | None, *, as_json: bool) -> int:
    opened = [None if path.suffix == ".json" else Bundle.open(path) for path in paths]
    first, second = (asked.report(path, bundle) for path, bundle in zip(paths, opened, strict=True))
    comparison = fusion.compare(first, second)
    names = (str(paths[0]), str(paths[1]))
    if html is not None:
        page = fusion.comparison_page(comparison, f"What differs: {names[0]}, {names[1]}", names)
        html.write_text(page, encoding="utf-8")
    if as_json:
        print_json("inspect", [], engines=list(names), comparison=fusion.as_json(comparison))
        return 0
    print_rows("engines", ("", *names), fusion.facts(comparison))
    print_rows("kinds of layers", *fusion.kinds(comparison))
    if comparison.changes:
        rows = [
            (change.op, str(len(change.nodes)), change.before, change.after)
            for change in comparison.changes[:CHANGES]
        ]
        title = f"nodes that run otherwise, of {comparison.common} that both graphs have"
        print_rows(title, ("operator", "nodes", "in the first", "in the second"), rows)
        if (left := len(comparison.changes) - CHANGES) > 0:
            print(f"and {left} more kinds of changes: see --html or --json")
    elif comparison.common:
        print(f"each of the {comparison.common} nodes that both graphs have runs the same way in both")
    else:
        print("no node is in both graphs: are these engines of one model?")
    return 0


def _parse_shape(text: str) -> tuple[int, ...]:
    shapes = parse_shapes(text, "--shape")
    if len(shapes) != 1:
        raise InputError(f"--shape {text!r}: expected one shape, such as 1x128")
    return shapes[0]


def _name(path: Path, opened: Bundle | None) -> str:
    if opened is None:
        return path.name
    engine = opened.answering
    return f"{opened.model.name}, {engine.backend} {engine.graph.precision}"


def facts(bundle: Bundle) -> list[tuple[str, str]]:
    """The bundle in a dozen lines."""
    model, engine = bundle.model, bundle.answering
    size = sum(record.bytes for record in bundle.manifest.files)
    built_on = bundle.manifest.built_on
    rows = [
        ("model", f"{model.name} ({model.architecture}, family {model.family}, revision {model.revision})"),
        ("task", model.task + (f", {model.pooling} pooling" if model.pooling else "")),
        ("normalised", ("yes" if model.normalize else "no") if model.task == "embeddings" else "none"),
        ("labels", ", ".join(model.labels[:8]) + (" ..." if len(model.labels) > 8 else "") or "none"),
        ("takes", _taken(model)),
        ("gives", ", ".join(map(str, model.parts[0].outputs)) if model.task == TENSORS else "none"),
        ("engine", f"{engine.backend}, {engine.graph.precision}, built for {engine.target}"),
        ("graph", f"{engine.graph.nodes} nodes, opset {engine.graph.opset}"),
        *profile_rows(engine.plan),
        ("compiled with", " ".join(settings_of(engine.plan)) or "none"),
        ("size", f"{size / 1e6:.1f} MB in {len(bundle.manifest.files)} files"),
        ("built on", f"{built_on.get('cpu', '?')}, {built_on.get('system', '?')}"),
        ("promise", promised(bundle) if bundle.manifest.promise else "none"),
        ("verdict", verdict(bundle)),
    ]
    return [row for row in rows if row[1] != "none"]


def _taken(model: ModelSpec) -> str:
    if model.task == TENSORS:
        return ", ".join(map(str, model.parts[0].inputs))
    return f"{model.max_length} tokens at most" if model.reads_text else "images"


def profile_rows(plan: Plan) -> list[tuple[str, str]]:
    """What sizes an engine takes, a line for each profile that it is tuned for."""
    if not plan.tuned:
        return [("profile", str(plan.profile))]
    return [(f"profile {at}", str(profile)) for at, profile in enumerate(plan.tuned, start=1)]
