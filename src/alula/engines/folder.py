"""The folder of one engine: what it was built for, and the file that holds it if there is one."""

from __future__ import annotations

import json
from collections.abc import Callable
from operator import eq
from pathlib import Path

from alula.core.engine import Engine
from alula.core.errors import CompileError, EngineError, ManifestError
from alula.core.parse import get

RECORD = "engine.json"


def refuse_existing(path: Path) -> None:
    """Keep an engine from being written over another one."""
    if path.exists():
        raise CompileError(f"{path} is there already; engines are written into a new folder")


def write(engine: Engine, files: tuple[str, ...] = ()) -> None:
    """Record an engine beside its files, whose sizes show later whether one was cut short."""
    sizes = {name: (engine.path / name).stat().st_size for name in files}
    record = {"schema": 1, "backend": engine.backend, "target": engine.target, "graph": engine.graph.digest}
    (engine.path / RECORD).write_text(json.dumps({**record, "files": sizes}, indent=1) + "\n")


def check(engine: Engine, running: str, runs_on: Callable[[str, str], bool] = eq) -> None:
    """Refuse an engine that was built for something else, or whose files are missing or cut short.

    Runtimes read compiled engines without looking, so what they are handed must be right. `runs_on` says whether what
    was built for the first target runs on the second.
    """
    if not runs_on(engine.target, running):
        raise EngineError(_foreign(engine.path, engine.target, running))
    path = engine.path / RECORD
    try:
        raw = json.loads(path.read_text())
        target, files = get(raw, str, "target"), get(raw, dict, "files")
    except FileNotFoundError as error:
        raise EngineError(f"{path} is missing; build the engine again") from error
    except (ValueError, TypeError, ManifestError) as error:
        raise EngineError(f"{path} is damaged ({error}); build the engine again") from error
    if not runs_on(target, running):
        raise EngineError(_foreign(engine.path, target, running))
    for name, size in files.items():
        _check_size(engine.path / name, size)


def _check_size(path: Path, expected: int) -> None:
    if not path.is_file():
        raise EngineError(f"{path} is missing; build the engine again")
    if (size := path.stat().st_size) != expected:
        raise EngineError(f"{path} has {size} bytes, was written with {expected}; build the engine again")


def _foreign(path: Path, built: str, running: str) -> str:
    return f"{path}: built for {built!r}, running on {running!r}; compile it again from its graph"
