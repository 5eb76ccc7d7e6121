"""`alula serve`: bundles behind HTTP."""

from __future__ import annotations

import sys
from pathlib import Path

import typer

from alula.core.units import parse_bytes
from alula.core.words import choice


def serve(
    bundles: list[Path] = typer.Argument(help="Folders of bundles.", show_default=False),
    host: str = typer.Option("127.0.0.1", help="Address to listen on."),
    port: int = typer.Option(8000, min=0, max=65535, help="Port to listen on; 0 takes a free one."),
    grpc_port: int | None = typer.Option(
        None, min=1, max=65535, help="Port to speak gRPC on.", show_default="no gRPC"
    ),
    threads: int = typer.Option(0, min=0, help="Threads per engine; 0 is one per usable core."),
    unverified: bool = typer.Option(False, "--unverified", help="Serve a bundle whose checks did not pass."),
    max_client_batch: int = typer.Option(512, min=1, help="Items one request may bring."),
    max_batch_tokens: int = typer.Option(16_384, min=1, help="Padded tokens of one engine call."),
    max_waiting_rows: int = typer.Option(1_024, min=1, help="Rows that may wait per model; beyond that 429."),
    cache: str | None = typer.Option(
        None, help="Writing: memory for keys and values per model, such as 2GiB.", show_default="what fits"
    ),
    max_sequences: int = typer.Option(32, min=1, help="Writing: answers at once per model."),
    max_waiting: int = typer.Option(256, min=1, help="Writing: answers that may wait; beyond that 429."),
    answer_timeout_s: float = typer.Option(
        600.0, min=0.001, help="Writing: seconds an answer may take, waiting included."
    ),
    max_body_bytes: int = typer.Option(2_000_000, min=1, help="Size of a request's body."),
    max_image_bytes: int = typer.Option(
        16_000_000, min=1, help="Size of a request's body with images in it."
    ),
    max_image_pixels: int = typer.Option(50_000_000, min=1, help="Pixels of an image."),
    max_connections: int = typer.Option(1_000, min=1, help="Connections at once; beyond that 503."),
    body_timeout_s: float = typer.Option(
        30.0, min=0.001, help="Seconds a request's body may take to arrive."
    ),
    timeout_s: float = typer.Option(
        30.0, min=0.001, help="Seconds a request may take that does not say so itself."
    ),
    grace_s: float = typer.Option(30.0, min=0, help="Seconds admitted requests may take after SIGTERM."),
    log_format: str = typer.Option("none", help="Access log on stderr: none, text or json."),
) -> int:
    """Serve bundles until SIGTERM or SIGINT, then finish what was admitted."""
    from alula.serve import ServeOptions  # noqa: PLC0415 - `alula --help` stays quick
    from alula.serve import serve as run_server  # noqa: PLC0415
    from alula.serve.options import LOG_FORMATS  # noqa: PLC0415

    choice("log format", log_format, LOG_FORMATS)
    options = ServeOptions(
        bundles=tuple(bundles),
        host=host,
        port=port,
        grpc_port=grpc_port,
        threads=threads,
        unverified=unverified,
        max_client_batch=max_client_batch,
        max_batch_tokens=max_batch_tokens,
        max_waiting_rows=max_waiting_rows,
        cache_bytes=None if cache is None else parse_bytes("--cache", cache),
        max_sequences=max_sequences,
        max_waiting=max_waiting,
        answer_timeout_s=answer_timeout_s,
        max_body_bytes=max_body_bytes,
        max_image_bytes=max_image_bytes,
        max_image_pixels=max_image_pixels,
        max_connections=max_connections,
        body_timeout_s=body_timeout_s,
        timeout_s=timeout_s,
        grace_s=grace_s,
        log_format=next(known for known in LOG_FORMATS if known == log_format),
    )
    run_server(
        options, lambda url: print(f"serving on {url} (docs at {url}/docs)", file=sys.stderr, flush=True)
    )
    return 0
