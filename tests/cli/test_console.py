from __future__ import annotations

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
