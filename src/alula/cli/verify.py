"""`alula verify`: hold a bundle to a reference again."""

from __future__ import annotations

from pathlib import Path

import typer

from alula.bundles import Bundle, check_to_json
from alula.cli.build import GATE_FAILED, verdict
from alula.cli.console import Phases, print_checks, print_json


def verify(
    bundle: Path = typer.Argument(help="A bundle's folder.", show_default=False),
    reference: str = typer.Option(
        "auto", help="auto, pytorch, golden or own-graph: what the bundle is held to."
    ),
    model: str | None = typer.Option(
        None, help="The checkpoint, where it is no longer where it was built from."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON document instead of tables."),
) -> int:
    """Compare a bundle with a reference on ragged, masked samples and real texts, and keep the evidence in it.

    Ends with 3 unless the bundle is verified: every check passed, and one compared with more than the own graph.
    """
    from alula.prove import verify_bundle  # noqa: PLC0415 - `alula --help` stays quick

    proved = verify_bundle(Bundle.open(bundle), reference, model, Phases())
    if as_json:
        rows = [check_to_json(check) for check in proved.checks]
        print_json("verify", rows, bundle=str(proved.root), verified=proved.verified)
    else:
        print_checks(proved.checks)
        print(f"{proved.root}: {verdict(proved)}")
    return 0 if proved.verified else GATE_FAILED
