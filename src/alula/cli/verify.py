"""`alula verify`: hold a bundle to a reference again."""

from __future__ import annotations

from pathlib import Path

import typer

from alula.bundles import Bundle, check_to_json
from alula.cli.build import BUDGET, DATA, GATE_FAILED, METRIC, SKIP, verdict
from alula.cli.console import Phases, print_checks, print_json


def verify(
    bundle: Path = typer.Argument(help="A bundle's folder.", show_default=False),
    reference: str = typer.Option(
        "auto", help="auto, pytorch, onnx-file, golden or own-graph: what the bundle is held to."
    ),
    model: str | None = typer.Option(
        None, help="The checkpoint, where it is no longer where it was built from."
    ),
    data: Path | None = typer.Option(None, metavar="PATH", help=DATA, show_default=False),
    budget: str | None = typer.Option(
        None, metavar="SHARE", help=BUDGET, show_default="that of the build, else 0.4%"
    ),
    metric: str | None = typer.Option(None, metavar="MODULE:FUNCTION", help=METRIC, show_default=False),
    skip_bad_rows: bool = typer.Option(False, "--skip-bad-rows", help=SKIP),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON document instead of tables."),
) -> int:
    """Compare a bundle with a reference on ragged, masked samples and real texts, and keep the evidence in it.

    Ends with 3 unless the bundle is verified: every check passed, and one compared with more than the own graph.
    """
    from alula.prove import VerifyRequest, verify_bundle  # noqa: PLC0415 - `alula --help` stays quick
    from alula.verify import parse_budget  # noqa: PLC0415

    request = VerifyRequest(
        reference=reference,
        model=model,
        data=data,
        budget=None if budget is None else parse_budget(budget),
        metric=metric,
        skip_bad_rows=skip_bad_rows,
    )
    proved = verify_bundle(Bundle.open(bundle), request, Phases())
    if as_json:
        rows = [check_to_json(check) for check in proved.checks]
        print_json("verify", rows, bundle=str(proved.root), verified=proved.verified)
    else:
        print_checks(proved.checks)
        print(f"{proved.root}: {verdict(proved)}")
    return 0 if proved.verified else GATE_FAILED
