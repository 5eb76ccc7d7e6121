"""The command `alula`: its subcommands, and errors as one line and an exit code."""

from __future__ import annotations

import io
import logging
import os
import re
import shutil
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import FrameType

import typer

import alula
from alula.cli import INTERRUPTED, loaded
from alula.core.errors import AlulaError, InputError, Overloaded
from alula.core.refused import in_one_line, is_full

COMMANDS = {
    "build": "From a checkpoint to a compiled, proved and measured bundle.",
    "verify": "Hold a bundle to a reference again.",
    "bench": "Latency, throughput, load time and memory, beside PyTorch.",
    "inspect": "What a bundle holds and what it is worth.",
    "run": "One answer, without a server.",
    "serve": "Bundles behind HTTP.",
    "top": "A running server, watched.",
    "ocr": "Pages of images and PDFs, read.",
    "doctor": "What this machine can do, and what is missing.",
}
_PACKAGE = Path(alula.__file__).parent


def application(words: Sequence[str]) -> typer.Typer:
    """The commands for these arguments: the one that is named, which alone is imported, or all of them."""
    app = typer.Typer(
        name="alula",
        help="From a HuggingFace checkpoint to a proved, measured and served engine.",
        add_completion=False,
        pretty_exceptions_enable=False,
        # Plain help: rich takes "[...]" for markup, and cuts words that do not fit.
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_options)
    named = [word for word in words if word in COMMANDS][:1]
    for name in named or COMMANDS:
        module = import_module(f"alula.cli.{name}")
        app.command(name, short_help=COMMANDS[name])(getattr(module, name))
    return app


def _version(wanted: bool) -> None:
    if wanted:
        print(f"alula {alula.__version__}")
        raise typer.Exit


def _options(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Print the version."
    ),
    verbose: bool = typer.Option(False, "--verbose", "-v", help="Log what the package does, to stderr."),
) -> None:
    if verbose:
        logging.basicConfig(
            level=logging.INFO, stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s"
        )


def main() -> int:
    """Run one command; the codes are those of docs/cli.md, 0 to 3 and 130."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A path need not be text; what stdout cannot show is escaped, as it is on stderr.
        sys.stdout.reconfigure(errors="backslashreplace")
    with _ended_like_interrupted():
        code = _run()
    try:
        sys.stdout.flush()
    except OSError as error:
        # Python would try again when it ends, and complain in its own words.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        # A reader such as `head` that has enough is no error to speak of.
        return 1 if isinstance(error, BrokenPipeError) else _fail(f"standard output: {error.strerror}", 1)
    return code


@contextmanager
def _ended_like_interrupted() -> Iterator[None]:
    """SIGTERM leaves the last good state, as Control-C does; `serve` hears both itself."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _run() -> int:
    try:
        words = sys.argv[1:] or ["--help"]
        command = application(words)
        loaded()
        result = command(words, prog_name="alula", standalone_mode=False)
    except (typer.Abort, KeyboardInterrupt):
        result = INTERRUPTED
    except typer.TyperException as error:
        said = with_what_was_given(error.format_message(), words)
        return _fail(f"{said} (see alula --help, alula COMMAND --help)", error.exit_code)
    except (InputError, Overloaded) as error:
        return _fail(str(error), 2)
    except AlulaError as error:
        return _fail(str(error), 1)
    except OSError as error:
        return _fail(*system_refused(error))
    # The command-line library makes Control-C this code, and prints nothing.
    return _fail("interrupted", INTERRUPTED) if result == INTERRUPTED else int(result or 0)


def _names(word: str, option: str) -> bool:
    return word == option or word.startswith(f"{option}=")


def with_what_was_given(message: str, words: Sequence[str]) -> str:
    """What the command-line library refuses, with the value of the option that it names."""
    found = re.search(r"Invalid value for '(--[\w-]+)", message)
    option = found[1] if found else ""
    pairs = zip(words, [*words[1:], ""], strict=True)
    # Of an option that is given twice the last one counts.
    values = [
        after if word == option else word.partition("=")[2] for word, after in pairs if _names(word, option)
    ]
    given = values[-1] if values else None
    return message if not option or given is None else f"{message.rstrip('.')}, given {given!r}"


def system_refused(error: OSError) -> tuple[str, int]:
    """What the operating system refused, on which path, and whether that path is the caller's."""
    several = isinstance(error, shutil.Error)
    named = several or isinstance(error.filename, str | bytes)
    ours = not several and named and Path(os.fsdecode(error.filename)).is_relative_to(_PACKAGE)
    return in_one_line(error), 1 if ours or not named or is_full(error) else 2


def _fail(message: str, code: int) -> int:
    print(f"alula: {message}", file=sys.stderr)
    return code
