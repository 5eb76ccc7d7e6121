"""`alula top`: a running server, watched in the terminal."""

from __future__ import annotations

import json
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

import typer
from rich.console import Console
from rich.live import Live

from alula.bundles import finite
from alula.cli.console import print_json
from alula.cli.top_view import WIDEST, View
from alula.core.errors import AlulaError, InputError
from alula.exposition import Reading, Span
from alula.watching import ServerFigures, Unreachable, Watched, figures

WINDOW_S = 10.0
"""Rates and quantiles are of so long, or of what was read so far."""


def top(
    url: str = typer.Argument("http://localhost:8000", help="Where the server is."),
    interval: float = typer.Option(2.0, min=0.1, max=3_600, help="Seconds between two looks."),
    once: bool = typer.Option(False, "--once", help="Look twice, an interval apart, print, and end."),
    as_json: bool = typer.Option(False, "--json", help="Print a line of JSON for each look."),
    key_file: Path | None = typer.Option(None, help="File with the key of a server that asks for one."),
) -> int:
    """Watch a running server: models, queues, rates, latencies, tokens, memory; Control-C ends it."""
    server = Watched.at(url, _key(key_file))
    looks = _looks(server, interval)
    try:
        if once or not (as_json or sys.stdout.isatty()):
            _print(server, _first(looks), as_json)
        elif as_json:
            for look in looks:
                print(json.dumps(finite(_object(look))), flush=True)
        else:
            _draw(server, looks)
    except KeyboardInterrupt:
        pass
    return 0


def _key(file: Path | None) -> str:
    """A key by itself on the first line, or behind its name, as a server's own file has it."""
    if file is None:
        return ""
    words = file.read_text(encoding="utf-8").split("\n")[0].split()
    if not words:
        raise InputError(f"{file} holds no key on its first line")
    return words[-1]


def _looks(
    server: Watched, interval: float, sleep: Callable[[float], None] = time.sleep
) -> Iterator[ServerFigures | Unreachable]:
    """A look in every interval; one at which nobody answered is what was said. The first one must be answered."""
    readings = deque([server.read(time.monotonic())])
    while True:
        sleep(interval)
        yield _look(server, readings)


def _look(server: Watched, readings: deque[Reading]) -> ServerFigures | Unreachable:
    try:
        readings.append(server.read(time.monotonic()))
        status, reason = server.health()
    except Unreachable as error:
        return error
    while len(readings) > 2 and readings[-1].at - readings[1].at >= WINDOW_S:
        readings.popleft()
    return figures(Span(before=readings[0], after=readings[-1]), status, reason, time.time())


def _first(looks: Iterator[ServerFigures | Unreachable]) -> ServerFigures:
    look = next(looks)
    if isinstance(look, AlulaError):
        raise look
    return look


def _object(look: ServerFigures | Unreachable) -> dict[str, object]:
    return {"status": "unreachable", "reason": str(look)} if isinstance(look, Unreachable) else asdict(look)


def _print(server: Watched, look: ServerFigures, as_json: bool) -> None:
    if as_json:
        told = asdict(look)
        print_json("top", told.pop("models"), url=server.url, server=told)
        return
    width = None if sys.stdout.isatty() else WIDEST
    Console(width=width, highlight=False, markup=False).print(View(url=server.url).seen(look))


def _draw(server: Watched, looks: Iterator[ServerFigures | Unreachable]) -> None:
    """On a screen of its own, until Control-C."""
    view = View(url=server.url)
    with Live(view, screen=True, auto_refresh=False) as live:
        for look in looks:
            live.update(view.seen(look), refresh=True)
