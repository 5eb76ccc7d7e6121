from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios

import pytest

from alula.cli import console
from alula.cli.console import Phases, print_rows

ODD = ("pip install 'alula[build]'", "[red]x", "[/red]", ":cat: \\[b]", "[link=x]y[/]")


def test_cells_are_shown_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    """What looks like markup or the name of an emoji is a text like any other."""
    print_rows("a [bold]title", ("[dim]text", "tokens"), [(text, "3") for text in ODD])
    shown = capsys.readouterr().out
    assert [text for text in (*ODD, "a [bold]title", "[dim]text") if text not in shown] == []


@pytest.mark.parametrize("what", ODD)
def test_phases_are_shown_as_they_are(what: str, capsys: pytest.CaptureFixture[str]) -> None:
    with Phases().phase(what):
        pass
    with pytest.raises(ZeroDivisionError), Phases().phase(what):
        raise ZeroDivisionError
    done, failed = capsys.readouterr().err.splitlines()
    assert done.startswith(f"+ {what} ")
    assert failed == f"x {what}"


def test_a_log_gets_a_note_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with Phases().phase("compile") as note:
        note("1 of 9")
        monkeypatch.setattr(console, "QUIET_S", 0.0)
        note("2 of 9")
        monkeypatch.setattr(console, "QUIET_S", 30.0)
        note("3 of 9")
    assert capsys.readouterr().err.splitlines()[:-1] == ["  compile: 2 of 9"]


TABLE = """
from alula.cli.console import print_rows
why = "no sure gain: 0.96 (0.94-0.99) times as fast as fp32"
print_rows("title", ("name", "worst", "bytes", "limit", "why"), [
    ("embedding", "1.000000", "123456789", ">= 0.999900", why),
    ("padding_changes_nothing_cosine", "2.4e-06", "3", "<= nan", "1.2 times"),
])
"""
FIGURES = ("1.000000", "123456789", ">= 0.999900", "2.4e-06", "<= nan")


STEERING = r"""
from alula.cli.console import print_rows
print_rows("a\x1b[2J title", ("", ""), [("model", "\x1b[31mred\x1b]0;x\x07"), ("lines", "one\ntwo")])
"""


def on_terminal(columns: int, program: str = TABLE) -> list[str]:
    """The lines of the table as a terminal of that width gets them."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    env = {key: value for key, value in os.environ.items() if key not in {"COLUMNS", "LINES"}}
    done = subprocess.run([sys.executable, "-c", program], stdout=theirs, stdin=theirs, check=True, env=env)
    assert done.returncode == 0
    os.close(theirs)
    shown = os.read(ours, 1 << 16).decode()
    os.close(ours)
    plain = re.sub(r"\x1b\[\d*m", "", shown)
    return [line.rstrip() for line in plain.splitlines()]


@pytest.mark.parametrize("columns", [120, 80, 40])
def test_figures_are_whole_on_a_terminal_of_any_width(columns: int) -> None:
    lines = on_terminal(columns)
    assert [figure for figure in FIGURES if not any(figure in line for line in lines)] == []
    assert "…" not in "".join(lines)


def test_names_in_a_bundle_do_not_steer_the_terminal() -> None:
    lines = on_terminal(80, STEERING)
    assert lines[0] == r"a\x1b[2J title"
    assert lines[1] == r"model  \x1b[31mred\x1b]0;x\x07"
    assert [line.split() for line in lines[2:]] == [["lines", "one"], ["two"]]


def test_texts_are_folded_where_that_makes_a_table_fit() -> None:
    lines = on_terminal(100)
    assert max(map(len, lines)) <= 100
    assert any(line.strip() == "times as fast as fp32" for line in lines)
    assert len(on_terminal(200)) == 4


@pytest.mark.parametrize("columns", [80, 60, 40])
def test_columns_that_do_not_fit_go_below_their_row_by_their_names(columns: int) -> None:
    lines = on_terminal(columns)
    assert max(map(len, lines)) <= columns
    joined = " ".join(line.strip() for line in lines)
    assert "why: no sure gain: 0.96 (0.94-0.99) times as fast as fp32" in joined
    assert "" not in lines[1:]


def test_a_name_breaks_between_its_parts() -> None:
    lines = on_terminal(60)
    at = next(at for at, line in enumerate(lines) if line.startswith("padding_changes_nothing_ "))
    assert lines[at + 1] == "cosine"


def test_a_pipe_gets_lines_as_long_as_they_need_to_be(capsys: pytest.CaptureFixture[str]) -> None:
    long = "word " * 60
    print_rows("a title", ("figure", "text"), [("1.5", long + "end")])
    assert f"   1.5  {long}end" in capsys.readouterr().out


def test_what_was_not_measured_and_intervals_are_figures_too(capsys: pytest.CaptureFixture[str]) -> None:
    print_rows("a title", ("engine", "times"), [("a", "-"), ("b", "3.17 (3.00-3.33)")])
    assert capsys.readouterr().out.splitlines()[2:] == [
        "a                      -",
        "b       3.17 (3.00-3.33)",
    ]


def test_a_table_of_names_and_values_has_no_headings(capsys: pytest.CaptureFixture[str]) -> None:
    print_rows("a title", ("", ""), [("cpu", "a fast one")])
    assert [line.rstrip() for line in capsys.readouterr().out.splitlines()] == ["a title", "cpu  a fast one"]
