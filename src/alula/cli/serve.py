"""`alula serve`: bundles behind HTTP."""

from __future__ import annotations

from pathlib import Path

import typer


def serve(
    bundles: list[Path] = typer.Argument(help="Folders of bundles.", show_default=False),
    host: str = typer.Option("127.0.0.1", help="Address to listen on."),
    port: int = typer.Option(8000, min=0, max=65535, help="Port to listen on."),
    threads: int = typer.Option(0, min=0, help="Threads per engine; 0 is one per usable core."),
    unverified: bool = typer.Option(False, "--unverified", help="Serve a bundle whose checks did not pass."),
) -> int:
    """Serve bundles until SIGTERM or SIGINT, then finish what was admitted."""
    from alula.serve import ServeOptions  # noqa: PLC0415 - `alula --help` stays quick
    from alula.serve import serve as run_server  # noqa: PLC0415

    run_server(
        ServeOptions(bundles=tuple(bundles), host=host, port=port, threads=threads, unverified=unverified)
    )
    return 0
