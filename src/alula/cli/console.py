"""What a person sees: progress on stderr, results on stdout, JSON when asked for."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import Any

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from alula.bundles import document, finite
from alula.core.check import Check
from alula.core.progress import Note, quiet

_FIGURE = re.compile(r"([<>]= )?-?(\d[\d.]*(e[-+]?\d+)?|nan|inf)")
_GAP = 2
# No text is folded into less, whatever the terminal: words stay whole.
_TEXT = 24


def _console(*, stderr: bool = False, width: int | None = None) -> Console:
    """Shows texts, paths and "alula[build]" as they are: not as markup, not with ":cat:" made a picture."""
    return Console(stderr=stderr, width=width, markup=False, emoji=False, highlight=False)


class Phases:
    """Draws the phases of one job on stderr: a spinner where there is a terminal, a line per phase elsewhere."""

    def __init__(self) -> None:
        self._console = _console(stderr=True)

    @contextmanager
    def phase(self, what: str) -> Iterator[Note]:
        """Show `what` and the notes made while the block runs, then how long it took."""
        start = perf_counter()
        try:
            if self._console.is_terminal:
                with self._console.status(what) as status:
                    yield lambda note: status.update(f"{what}: {note}")
            else:
                yield quiet
        except BaseException:
            self._console.print(Text.assemble(("x", "red"), f" {what}"), soft_wrap=True)
            raise
        took = f"{perf_counter() - start:.2f} s"
        self._console.print(Text.assemble(("+", "green"), f" {what} ", (took, "dim")), soft_wrap=True)


def print_json(command: str, rows: Sequence[Mapping[str, Any]], **more: Any) -> None:
    """The shared envelope on stdout, with further fields beside the rows."""
    print(json.dumps(finite({**document(command, rows), **more}), indent=1))


def print_rows(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table on stdout: columns of figures are aligned right and never narrowed, texts are folded to fit."""
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    needed, least = 0, 0
    for index, column in enumerate(columns):
        cells = [row[index] for row in rows]
        figures = any(cells) and all(_is_figure(cell) for cell in cells if cell)
        table.add_column(column, justify="right" if figures else "left", no_wrap=figures, overflow="fold")
        width = max(cell_len(line) for cell in (column, *cells) for line in cell.splitlines() or [""])
        needed += width + (_GAP if index else 0)
        least += (width if figures else min(width, _TEXT)) + (_GAP if index else 0)
    for row in rows:
        table.add_row(*row)
    # A pipe has no width to fit into; where folding would not make it fit, the terminal breaks the lines.
    shown = _console().width
    fits = sys.stdout.isatty() and least <= shown
    width = min(needed, shown) if fits else needed
    _console(width=max(width, 1)).print(table)


def print_checks(checks: Sequence[Check]) -> None:
    """The evidence, a line per check; nothing where there is none."""
    if not checks:
        return
    print_rows(
        "checks",
        ("output", "metric", "samples", "worst", "mean", "limit", "against", "verdict"),
        [
            (
                check.output,
                check.metric,
                str(check.samples),
                number(check.worst),
                number(check.mean),
                (">= " if check.higher_is_better else "<= ") + number(check.limit),
                check.reference,
                "passed" if check.passed else "FAILED",
            )
            for check in checks
        ],
    )
    print_notes(checks)


def print_notes(checks: Sequence[Check]) -> None:
    """What the numbers of checks cannot say, a line each."""
    for check in checks:
        if check.note:
            print(f"{check.metric}: {check.note}")


def _is_figure(cell: str) -> bool:
    return _FIGURE.fullmatch(cell) is not None


def number(value: float) -> str:
    """A number with the digits that matter: 0.999873, 2.4e-06, 12.3."""
    if value != 0 and abs(value) < 1e-3:
        return f"{value:.1e}"
    return f"{value:.6f}" if abs(value) < 10 else f"{value:.1f}"
