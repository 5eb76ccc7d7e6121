"""The engine of a bundle, made fit for the machine at hand."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from alula.bundles import Bundle, cpu_command, rebuild_command, shrink
from alula.bundles.digest import of_value
from alula.bundles.replace import alone, beside, put, temporary_folder
from alula.core.check import Check
from alula.core.engine import Backend, Engine, Session
from alula.core.errors import EngineError, MissingExtraError
from alula.core.places import cache_root
from alula.engines import GPU, runs_on, traits
from alula.engines import backend as backend_named
from alula.rehearsed import rehearsed
from alula.verify import Sample, compare, held_to


def local_engine(bundle: Bundle, part: str = "encoder") -> Engine:
    """The engine of one part, made fit for this machine as `local_engines` does it."""
    bundle.engine(part)
    return local_engines(bundle)[part]


def local_engines(bundle: Bundle) -> Mapping[str, Engine]:
    """The bundle's engines if they were compiled for this machine; else compiled again here, checked and kept.

    The new engines come from the bundle's portable graphs and must agree with the stored reference outputs,
    or an EngineError says what differed. They are kept in the cache, since a bundle may be read-only. What a GPU's
    engine takes is minutes of compiling and nobody's to begin unasked: a foreign one is refused with the command that
    does it.
    """
    engine = bundle.answering
    try:
        backend = backend_named(engine.backend)
    except MissingExtraError as error:
        raise MissingExtraError(f"{bundle.root}: built for {engine.target!r}, which", error.extra) from error
    if why := traits(engine.backend).cannot_run:
        raise EngineError(
            f"{bundle.root}: built for {engine.target!r}, and that cannot run here: {why}; alula doctor says what "
            f"can, and for this CPU it is: {cpu_command(bundle.manifest, bundle.root)}"
        )
    if runs_on(engine.backend, engine.target, backend.target):
        return bundle.manifest.engines
    if engine.backend in GPU:
        raise EngineError(
            f"{bundle.root}: built for {engine.target!r}, running on {backend.target!r}; build it again here: "
            f"{rebuild_command(bundle.manifest, bundle.root)}"
        )
    kept = {name: _kept(each, backend.target) for name, each in bundle.manifest.engines.items()}
    first = next(iter(kept.values())).path
    with alone(first, waits=True):
        if not all(each.path.is_dir() and _opens(backend, each) for each in kept.values()):
            for each in kept.values():
                shutil.rmtree(each.path, ignore_errors=True)
            _compile_again(bundle, engine.target, backend, kept)
            shrink(first.parent)
    return kept


def _kept(engine: Engine, target: str) -> Engine:
    """Where an engine for another target is kept."""
    key = of_value([engine.graph.digest, target, str(engine.plan.profile)])
    return replace(engine, target=target, path=engines_folder() / key)


def engines_folder() -> Path:
    """Where compiled engines are kept: the cache, or a temporary folder of the user's if that is read-only."""
    for root in (cache_root, temporary_folder):
        try:
            folder = root() / "engines"
            folder.mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(folder, os.W_OK):
            return folder
    raise EngineError("no folder to keep a compiled engine in; set ALULA_CACHE to one that can be written")


def _opens(backend: Backend, engine: Engine) -> bool:
    """Whether an engine from the cache can be loaded; nobody proves its files whole, as a bundle's are."""
    try:
        backend.open(engine).close()
    except EngineError:
        return False
    return True


def self_check(bundle: Bundle, engines: Mapping[str, Engine]) -> tuple[Check, ...]:
    """Compare engines with the reference outputs that the build stored."""
    precision = bundle.answering.graph.precision
    if bundle.model.writes:
        scripts = rehearsed(bundle.stored, bundle.model)
        return scripts.judge(engines, precision, promised=bool(bundle.manifest.promise))
    with closing(backend_named(bundle.answering.backend).open(engines["encoder"])) as session:
        return stored_check(bundle, session)


def stored_check(bundle: Bundle, session: Session) -> tuple[Check, ...]:
    """Compare a session with the reference outputs that the build stored."""
    precision = held_to(
        bundle.answering.graph.precision,
        promised=bool(bundle.manifest.promise),
        comes_in=bundle.model.comes_in,
    )
    stored = bundle.stored
    tokens = bundle.model.reads_text
    samples = tuple(
        Sample(name=f"stored {at}", feeds=feeds, tokens=tokens) for at, feeds in enumerate(stored.feeds)
    )
    return compare(stored.outputs, session, samples, bundle.model, precision, stored.reference)


def _compile_again(bundle: Bundle, built_for: str, backend: Backend, kept: Mapping[str, Engine]) -> None:
    aside = {name: beside(engine.path, "compiling") for name, engine in kept.items()}
    try:
        compiled = {
            name: backend.compile(engine.graph, engine.plan, aside[name]) for name, engine in kept.items()
        }
        checks = self_check(bundle, compiled)
        if failed := [check for check in checks if not check.passed]:
            worst = ", ".join(f"{check.output} {check.metric} {check.worst:.3g}" for check in failed)
            raise EngineError(
                f"{bundle.root}: built for {built_for}; compiled again for {backend.target}, it does not agree "
                f"with the stored reference outputs: {worst} (limit {failed[0].limit:g})"
            )
        for name, engine in kept.items():
            put(aside[name], engine.path)
    finally:
        for folder in aside.values():
            shutil.rmtree(folder, ignore_errors=True)
