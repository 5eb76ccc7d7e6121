"""The command `alula`: its subcommands, and errors as one line and an exit code."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from importlib import import_module

import typer

from alula import __version__
from alula.core.errors import AlulaError, InputError, Overloaded

COMMANDS = ("build", "verify", "bench", "inspect", "run", "serve", "doctor")


def application(words: Sequence[str]) -> typer.Typer:
    """The commands for these arguments: the one that is named, which alone is imported, or all of them."""
    app = typer.Typer(
        name="alula",
        help="From a HuggingFace checkpoint to a proved, measured and served engine.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_options)
    named = [word for word in words if word in COMMANDS][:1]
    for name in named or COMMANDS:
        module = import_module(f"alula.cli.{name}")
        app.command(name)(getattr(module, name))
    return app


def _version(wanted: bool) -> None:
    if wanted:
        print(f"alula {__version__}")
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
    """Run one command; 0 fine, 1 our fault or the engine's, 2 what the caller gave, 3 the gate failed."""
    try:
        result = application(sys.argv[1:])(standalone_mode=False)
    except (typer.Abort, KeyboardInterrupt):
        return _fail("interrupted; nothing was changed", 130)
    except typer.TyperException as error:
        return _fail(f"{error.format_message()} (see alula --help, alula COMMAND --help)", error.exit_code)
    except (InputError, Overloaded) as error:
        return _fail(str(error), 2)
    except AlulaError as error:
        return _fail(str(error), 1)
    return int(result or 0)


def _fail(message: str, code: int) -> int:
    print(f"alula: {message}", file=sys.stderr)
    return code
