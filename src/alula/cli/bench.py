"""`alula bench`: latency, throughput, load time and memory, beside PyTorch where it is installed."""

from __future__ import annotations

import os
from pathlib import Path

import typer

from alula.bench import figure as drawing
from alula.bench import table
from alula.bundles import Bundle
from alula.cli.axes import parse_size
from alula.cli.console import Phases, print_json, print_rows
from alula.core.errors import InputError
from alula.core.machine import MOST_THREADS, cpu_name, usable_cores

WRITING = (
    "SEQUENCESxPROMPT: until all have their first token, items are tokens read; "
    "SEQUENCESxPROMPT+NEW: one token more of each, items are tokens written"
)


def bench(
    bundles: list[Path] = typer.Argument(
        help="A bundle's folder; several of one model are compared.", show_default=False
    ),
    shapes: str | None = typer.Option(
        None,
        help="Shapes to measure, ROWSxTOKENS, separated by commas; if not given, those of 1x32, 1x128 and 8x128 "
        "that the bundles take. Of models that write text SEQUENCESxPROMPT is the time to their first tokens, and "
        "SEQUENCESxPROMPT+NEW that of each of so many tokens behind them: 1x128,1x512,1x128+32,8x128+32.",
    ),
    rounds: int = typer.Option(
        30,
        min=3,
        max=100_000,
        help="Rounds per shape; in each, every engine has one turn of 4 timed calls. After 20 s no other is begun.",
    ),
    threads: int = typer.Option(
        0, min=0, max=MOST_THREADS, help="Threads per engine; 0 is one per usable core."
    ),
    model: str | None = typer.Option(
        None, help="The checkpoint, where it is no longer where it was built from."
    ),
    figure: Path | None = typer.Option(None, help="Draw the latencies into this SVG file."),
    pytorch: bool = typer.Option(True, help="Measure PyTorch eager in the same run where it is installed."),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON document instead of a table."),
) -> int:
    """Measure bundles and PyTorch in turns, print the ratios, and keep the timings in the bundles."""
    sizes = () if shapes is None else parse_shapes(shapes)
    if figure is not None:
        check_figure(figure)

    from alula.benching import BenchRequest, bench_bundles  # noqa: PLC0415 - `alula --help` stays quick

    request = BenchRequest(shapes=sizes, rounds=rounds, threads=threads, model=model, pytorch=pytorch)
    opened = [Bundle.open(bundle) for bundle in bundles]
    measured = bench_bundles(opened, request, Phases())
    where = f"{cpu_name()}, {threads or usable_cores()} threads"
    if as_json:
        rows = [row.as_json() for row in measured.rows]
        ratios = [row.as_json() for row in measured.ratios]
        print_json("bench", rows, bundles=[str(bundle) for bundle in bundles], ratios=ratios)
    else:
        print_rows(f"{opened[0].model.name}, in turns", *table(measured.rows, measured.ratios))
        if opened[0].model.writes:
            print(WRITING)
        print(f"on {where}; accuracy: the worst of the bundle's checks against its reference")
    if figure is not None:
        title = f"{opened[0].model.name}: latency"
        figure.write_text(drawing(measured.rows, title, where), encoding="utf-8")
    return 0


def check_figure(path: Path, option: str = "--figure") -> None:
    """Refuse, before minutes of measuring, a file that cannot be written."""
    if path.is_dir():
        raise InputError(f"{option} {path}: is a folder, expected a file to write")
    if not path.parent.is_dir():
        raise InputError(f"{option} {path}: there is no folder {path.parent}; make it first")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise InputError(f"{option} {path}: may not be written")


def parse_shapes(text: str, option: str = "--shapes") -> tuple[tuple[int, ...], ...]:
    """`1x128,8x128` as sizes of the model's axes, rows first; which axes there are is the model's to say.

    `8x128+32` has a third size: of models that write text, the new tokens.
    """
    shapes = []
    for item in text.split(","):
        prompt, plus, new = item.strip().partition("+")
        sizes = [*prompt.split("x"), new] if plus else prompt.split("x")
        if not (item.isascii() and all(size.isdigit() for size in sizes)) or (plus and len(sizes) != 3):
            writing = ", or of models that write text SEQUENCESxPROMPT+NEW, such as 8x128+32"
            more = writing if option == "--shapes" else ""
            raise InputError(f"{option} {item!r}: expected ROWSxTOKENS, such as 1x128{more}")
        shapes.append(tuple(parse_size(f"{option} {item!r}", size) for size in sizes))
    return tuple(shapes)
