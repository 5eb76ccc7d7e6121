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


TABLE = """
from alula.cli.console import print_rows
why = "no sure gain: 0.96 (0.94-0.99) times as fast as fp32"
print_rows("title", ("name", "worst", "bytes", "limit", "why"), [
    ("embedding", "1.000000", "123456789", ">= 0.999900", why),
    ("padding_changes_nothing_cosine", "2.4e-06", "3", "<= nan", "1.2 times"),
])
"""
FIGURES = ("1.000000", "123456789", ">= 0.999900", "2.4e-06", "<= nan")


def on_terminal(columns: int) -> list[str]:
    """The lines of the table as a terminal of that width gets them."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    env = {key: value for key, value in os.environ.items() if key not in {"COLUMNS", "LINES"}}
    done = subprocess.run([sys.executable, "-c", TABLE], stdout=theirs, stdin=theirs, check=True, env=env)
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


def test_texts_are_folded_where_that_makes_a_table_fit() -> None:
    lines = on_terminal(100)
    assert max(map(len, lines)) <= 100
    assert any(line.strip() == "times as fast as fp32" for line in lines)
    # Too narrow for the figures: the terminal breaks the lines, the table stays whole.
    assert on_terminal(80) == on_terminal(40) == on_terminal(200)


def test_a_pipe_gets_lines_as_long_as_they_need_to_be(capsys: pytest.CaptureFixture[str]) -> None:
    long = "word " * 60
    print_rows("a title", ("figure", "text"), [("1.5", long + "end")])
    assert f"   1.5  {long}end" in capsys.readouterr().out
