"""`alula inspect`: what a bundle holds and what it is worth."""

from __future__ import annotations

from pathlib import Path

import typer

from alula.bundles import Bundle, check_to_json
from alula.cli.build import print_rungs, promised, verdict
from alula.cli.console import print_checks, print_json, print_rows


def inspect(
    bundle: Path = typer.Argument(help="A bundle's folder.", show_default=False),
    as_json: bool = typer.Option(False, "--json", help="Print the manifest and checks as one JSON document."),
) -> int:
    """Show a bundle's model, engine, profile, precisions tried, checks and files."""
    opened = Bundle.open(bundle)
    if as_json:
        rows = [check_to_json(check) for check in opened.checks]
        print_json("inspect", rows, verified=opened.verified, manifest=opened.manifest.to_json())
        return 0
    print_rows("bundle", ("", ""), facts(opened))
    print_rungs(opened)
    print_checks(opened.checks)
    return 0


def facts(bundle: Bundle) -> list[tuple[str, str]]:
    """The bundle in a dozen lines."""
    model, engine = bundle.model, bundle.engine("encoder")
    size = sum(record.bytes for record in bundle.manifest.files)
    built_on = bundle.manifest.built_on
    rows = [
        ("model", f"{model.name} ({model.architecture}, family {model.family}, revision {model.revision})"),
        ("task", model.task + (f", {model.pooling} pooling" if model.pooling else "")),
        ("normalised", "yes" if model.normalize else "no"),
        ("labels", ", ".join(model.labels[:8]) + (" ..." if len(model.labels) > 8 else "") or "none"),
        ("takes", f"{model.max_length} tokens at most" if model.reads_text else "images"),
        ("engine", f"{engine.backend}, {engine.graph.precision}, built for {engine.target}"),
        ("graph", f"{engine.graph.nodes} nodes, opset {engine.graph.opset}"),
        ("profile", ", ".join(f"{axis} {sizes}" for axis, sizes in engine.plan.profile.axes.items())),
        ("size", f"{size / 1e6:.1f} MB in {len(bundle.manifest.files)} files"),
        ("built on", f"{built_on.get('cpu', '?')}, {built_on.get('system', '?')}"),
        ("promise", promised(bundle) if bundle.manifest.promise else "none"),
        ("verdict", verdict(bundle)),
    ]
    return [row for row in rows if row[1] != "none"]
