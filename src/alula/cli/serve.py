"""`alula serve`: bundles behind HTTP."""

from __future__ import annotations

import contextlib
import inspect
import logging
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer

from alula.serve import ServeOptions
from alula.serve.logs import Lines
from alula.serve.settings import Setting, as_toml, resolve, settings_of

ANY = (Path("BUNDLE"),)
"""What stands for bundles where settings are held to one another, and none is named."""


def serve(context: typer.Context, *, config: Path | None, print_config: bool, **given: Any) -> int:
    """Serve bundles until SIGTERM or SIGINT, then finish what was admitted.

    Every option can also be set as ALULA_NAME in the environment (ALULA_MAX_BODY_BYTES), or as name in the TOML file
    that --config or ALULA_CONFIG names (max_body_bytes); bundles is a list there, in the environment between colons. A
    flag goes before the environment, that before the file.
    """
    resolved = resolve(ServeOptions, _flags(context, given), os.environ, config)
    if print_config:
        ServeOptions(**{**resolved.values, "bundles": resolved.values["bundles"] or ANY})
        print(as_toml(ServeOptions, resolved), end="")
        return 0
    from alula.serve import serve as run_server  # noqa: PLC0415 - the command has the same name

    options = ServeOptions(**resolved.values)

    def ready(url: str) -> None:
        said = f"serving on {url} (docs at {url}/docs)"
        if options.log_format != "none":
            record = logging.makeLogRecord({"name": "alula", "levelname": "INFO", "msg": said})
            said = Lines(options.log_format).format(record)
        # Whoever has no room for a log has a server all the same, as when the disk fills later.
        with contextlib.suppress(OSError):
            print(said, file=sys.stderr, flush=True)

    run_server(options, ready)
    return 0


def _flags(context: typer.Context, given: Mapping[str, Any]) -> dict[str, Any]:
    """What was written on the command line, by field."""
    named = {
        each.field: _typed(each, given[each.field])
        for each in settings_of(ServeOptions)
        if _source(context, each.field) == "COMMANDLINE"
    }
    return {field: value for field, value in named.items() if value != ()}


def _source(context: typer.Context, field: str) -> str:
    source = context.get_parameter_source(field)
    return source.name if source else ""


def _typed(each: Setting, value: Any) -> Any:
    if isinstance(value, list):
        return tuple(value)
    return each.from_text(value, each.flag) if isinstance(value, str) else value


TYPES = {"flag": bool, "whole number": int, "number": float, "folders": list[Path], "texts": list[str]}
NUMBERS = frozenset({"whole number", "number"})


def _parameter(each: Setting) -> inspect.Parameter:
    """A setting as a parameter that typer makes an option of."""
    kind = TYPES.get(each.kind, str)
    if each.kind == "folders":
        told: Any = typer.Argument(None, help=each.told.help, show_default=False)
    else:
        choices = f" One of: {', '.join(each.choices)}." if each.choices else ""
        told = typer.Option(
            each.default if each.default != () else None,
            each.flag if each.kind != "flag" else f"{each.flag}/--no-{each.flag[2:]}",
            help=each.told.help + choices,
            min=each.told.least if each.kind in NUMBERS else None,
            max=each.told.most if each.kind in NUMBERS else None,
            show_default=each.told.unset or each.default not in (None, ()),
            metavar=each.told.metavar,
        )
    return inspect.Parameter(each.field, inspect.Parameter.KEYWORD_ONLY, default=told, annotation=kind | None)


def _own() -> list[inspect.Parameter]:
    """Parameters that are no settings."""
    return [
        inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context),
        inspect.Parameter(
            "config",
            inspect.Parameter.KEYWORD_ONLY,
            default=typer.Option(None, help="TOML file of settings.", show_default=False),
            annotation=Path | None,
        ),
        inspect.Parameter(
            "print_config",
            inspect.Parameter.KEYWORD_ONLY,
            default=typer.Option(False, "--print-config", help="Print the settings that hold, and end."),
            annotation=bool,
        ),
    ]


# Typer reads what a command takes from its signature; this one says what the settings declare.
_PARAMETERS = [*_own(), *map(_parameter, settings_of(ServeOptions))]
serve.__signature__ = inspect.Signature(_PARAMETERS)  # type: ignore[attr-defined]
serve.__annotations__ = {each.name: each.annotation for each in _PARAMETERS}
