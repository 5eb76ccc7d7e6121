"""What a person sees: progress on stderr, results on stdout, JSON when asked for."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Literal

from rich.cells import cell_len
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from alula.bundles import document, finite
from alula.core.check import Check
from alula.core.progress import Note

_FIGURE = re.compile(r"([<>]= )?-?(\d[\d.]*(e[-+]?\d+)?|nan|inf)( \(\d[\d.]*-\d[\d.]*\))?|-")
# What a model writes, or a bundle names, must not steer the terminal it is shown in.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_GAP = 2
_INDENT = 4
QUIET_S = 30.0
"""Where there is no terminal, a note is a line, and this long passes before the next one."""
# No text is folded into less, whatever the terminal: words stay whole.
_TEXT = 24


def _console(*, stderr: bool = False, width: int | None = None) -> Console:
    """Shows texts, paths and "alula[build]" as they are: not as markup, not with ":cat:" made a picture."""
    return Console(stderr=stderr, width=width, markup=False, emoji=False, highlight=False)


class Phases:
    """Draws the phases of one job on stderr: a spinner where there is a terminal, elsewhere a line per phase."""

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
                yield self._now_and_then(what)
        except BaseException:
            self._console.print(Text.assemble(("x", "red"), f" {what}"), soft_wrap=True)
            raise
        took = f"{perf_counter() - start:.2f} s"
        self._console.print(Text.assemble(("+", "green"), f" {what} ", (took, "dim")), soft_wrap=True)

    def _now_and_then(self, what: str) -> Note:
        """Notes for a log: none of a short phase, and of a long one enough to see that it goes on."""
        last = perf_counter()

        def note(text: str) -> None:
            nonlocal last
            if perf_counter() - last >= QUIET_S:
                last = perf_counter()
                self._console.print(Text(f"  {what}: {text}"), soft_wrap=True)

        return note


def print_json(command: str, rows: Sequence[Mapping[str, Any]], **more: Any) -> None:
    """The shared envelope on stdout, with further fields beside the rows."""
    print(json.dumps(finite({**document(command, rows), **more}), indent=1))


def without_control(text: str) -> str:
    """A text that does nothing to a terminal: control characters but tabs and ends of lines by their numbers."""
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


def print_rows(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table on stdout: columns of figures are aligned right and never narrowed, texts are folded to fit.

    Where folding does not make it fit a terminal, the last columns go into lines of their own, below the others.
    """
    if sys.stdout.isatty():
        title = without_control(title)
        rows = [[without_control(cell) for cell in row] for row in rows]
    shapes = [_Column.of(name, [row[at] for row in rows]) for at, name in enumerate(columns)]
    needed, least = _width(shape.needed for shape in shapes), _width(shape.least for shape in shapes)
    shown = _console().width
    # A pipe has no width to fit into.
    if not sys.stdout.isatty() or needed <= shown:
        _print_table(title, shapes, rows, needed)
    elif least <= shown:
        _print_table(title, shapes, rows, shown)
    else:
        _print_in_two(title, shapes, rows, shown)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Column:
    """A column of a table: what is in it, and the widths that it would have and can do with."""

    name: str
    figures: bool
    needed: int
    least: int

    @property
    def justify(self) -> Literal["left", "right"]:
        """Figures stand below one another by their last digits."""
        return "right" if self.figures else "left"

    @classmethod
    def of(cls, name: str, cells: Sequence[str]) -> _Column:
        figures = any(cells) and all(_is_figure(cell) for cell in cells if cell)
        needed = max(cell_len(line) for cell in (name, *cells) for line in cell.splitlines() or [""])
        return cls(name=name, figures=figures, needed=needed, least=needed if figures else min(needed, _TEXT))


def _width(widths: Iterable[int]) -> int:
    """Of a line with columns of these widths."""
    return sum(width + _GAP for width in widths) - _GAP


def _print_table(title: str, columns: Sequence[_Column], rows: Sequence[Sequence[str]], width: int) -> None:
    table = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=None,
        pad_edge=False,
        show_header=any(column.name for column in columns),
    )
    for column in columns:
        table.add_column(column.name, justify=column.justify, no_wrap=column.figures, overflow="fold")
    for row in rows:
        table.add_row(*row)
    _console(width=max(width, 1)).print(table)


def _print_in_two(title: str, columns: Sequence[_Column], rows: Sequence[Sequence[str]], shown: int) -> None:
    """As many columns as fit, and below each row what is in the others, by their names."""
    fitting = (
        at for at in range(len(columns), 1, -1) if _width(column.least for column in columns[:at]) <= shown
    )
    at = next(fitting, 1)
    above, below = columns[:at], columns[at:]
    spare = shown - _width(column.least for column in above)
    widths = []
    for column in above:
        widths.append(column.least + max(0, min(spare, column.needed - column.least)))
        spare -= widths[-1] - column.least
    console = _console(width=shown)
    console.print(Text(title, style="bold"))
    console.print(_line(above, widths, [column.name for column in above], style="bold"))
    for row in rows:
        console.print(_line(above, widths, row[:at]))
        rest = [f"{column.name}: {cell}" for column, cell in zip(below, row[at:], strict=True) if cell]
        for line in _packed(rest, shown - _INDENT):
            console.print(Padding(Text(line), (0, 0, 0, _INDENT)))


def _packed(items: Sequence[str], width: int) -> list[str]:
    """As many as fit on each line; one that is longer than a line has one to itself."""
    lines: list[str] = []
    for item in items:
        if lines and cell_len(f"{lines[-1]}; {item}") <= width:
            lines[-1] += f"; {item}"
        else:
            lines.append(item)
    return lines


def _line(columns: Sequence[_Column], widths: Sequence[int], cells: Sequence[str], style: str = "") -> Table:
    """One row of a table whose widths are known."""
    table = Table.grid(padding=(0, _GAP, 0, 0))
    for column, width in zip(columns, widths, strict=True):
        table.add_column(
            width=width, justify=column.justify, no_wrap=column.figures, overflow="fold", style=style
        )
    table.add_row(*(_parted(cell, width) for cell, width in zip(cells, widths, strict=True)))
    return table


def _parted(cell: str, width: int) -> str:
    """A name that does not fit, broken where a part of it ends."""
    if " " in cell or cell_len(cell) <= width:
        return cell
    return "\n".join(re.findall(rf".{{1,{width}}}$|.{{1,{width - 1}}}[_./-]|.{{1,{width}}}", cell))


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
