"""The command `alula`: its subcommands, and errors as one line and an exit code."""

from __future__ import annotations

import logging
import sys

import typer

from alula import __version__
from alula.cli import bench, build, doctor, inspect, run, serve, verify
from alula.core.errors import AlulaError, InputError, Overloaded

app = typer.Typer(
    name="alula",
    help="From a HuggingFace checkpoint to a proved, measured and served engine.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("build")(build.build)
app.command("verify")(verify.verify)
app.command("bench")(bench.bench)
app.command("inspect")(inspect.inspect)
app.command("run")(run.run)
app.command("serve")(serve.serve)
app.command("doctor")(doctor.doctor)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"alula {__version__}")
        raise typer.Exit


@app.callback()
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
        result = app(standalone_mode=False)
    except typer.Abort:
        return _fail("interrupted", 130)
    except KeyboardInterrupt:
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
