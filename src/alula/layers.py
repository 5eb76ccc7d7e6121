"""What an engine really runs: its runtime's layers joined with its graph's nodes, and timed where that is asked for."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from alula.bench import Shape, full_feeds, shape_name
from alula.bundles import Bundle
from alula.core.engine import LAYERS, Engine
from alula.core.errors import InputError, ManifestError
from alula.core.nodes import read_nodes
from alula.core.timing import TimesLayers
from alula.engines import GPU
from alula.engines import backend as backend_named
from alula.fusion import Report, report_of
from alula.local import local_engine

RUNS = 30
"""Calls that a timing takes the mean of."""


def layers_of(bundle: Bundle, *, times: Path | None = None) -> Report:
    """The report on a bundle's engine as it was built; `times` is a file that trtexec's --exportProfile wrote."""
    engine = bundle.answering
    document = _kept(bundle, engine)
    if times is not None:
        document = {**document, "times": _times(times)}
    return _report(bundle, engine, document, times=times)


def timed_layers_of(bundle: Bundle, shape: Shape | None = None, *, threads: int = 0) -> Report:
    """The report on a bundle's engine made fit for this machine, each layer timed here on one call of `shape`.

    Without a shape, one row at the sizes that the engine was tuned for.
    """
    if bundle.model.writes:
        raise InputError(
            f"{bundle.root}: writes text, and its layers are timed by no command yet; `alula bench` times it whole, "
            "and without --time `alula inspect` says what runs"
        )
    engine = local_engine(bundle)
    backend = backend_named(engine.backend)
    if not isinstance(backend, TimesLayers):
        raise InputError(f"{bundle.root}: engine {engine.backend!r} cannot time its layers")
    document = _kept(bundle, engine)
    first, *others = bundle.model.parts[0].axes
    axes = engine.plan.profile.axes
    chosen = shape or (axes[first].min, *(axes[axis].opt for axis in others))
    feeds = full_feeds(bundle.model, chosen)
    found = backend.layer_times(engine, feeds, runs=RUNS, threads=threads)
    measured = {
        "times": [
            {"name": name, "timeMs": ms, "kernel": found.kernels.get(name, "")} for name, ms in found.layers
        ],
        "call_ms": found.call_ms,
    }
    about = {"timed": f"{shape_name(chosen)}, the mean of {found.runs} calls"}
    return _report(bundle, engine, {**document, **measured}, about)


def layers_in(path: Path, *, times: Path | None = None) -> Report:
    """The report on a file: a bundle's layers.json, or what TensorRT's inspector or trtexec --exportLayerInfo wrote.

    The graph is not at hand, so nodes are what the runtime names.
    """
    document = _document(path)
    if times is not None:
        document = {**document, "times": _times(times)}
    about = {"file": str(path)}
    if version := document.get("version"):
        about["engine"] = f"{document.get('source')} {version}"
    return _located(path, document, None, about, times)


def _report(
    bundle: Bundle,
    engine: Engine,
    document: Mapping[str, Any],
    more: Mapping[str, str] | None = None,
    times: Path | None = None,
) -> Report:
    graph = engine.graph.path
    about = {
        "model": bundle.model.name,
        "engine": engine.target,
        "precision of the graph": engine.graph.precision,
        "profile": str(engine.plan.profile),
        "engine's files": _megabytes(path for path in engine.path.iterdir() if path.name != LAYERS),
        "graph's files": _megabytes(graph.parent.glob(f"{graph.name}*")),
        **(more or {}),
    }
    return _located(engine.path / LAYERS, document, engine, about, times)


def _megabytes(paths: Iterable[Path]) -> str:
    return f"{sum(path.stat().st_size for path in paths) / 1e6:.1f} MB"


def _located(
    path: Path,
    document: Mapping[str, Any],
    engine: Engine | None,
    about: Mapping[str, str],
    times: Path | None = None,
) -> Report:
    graph = None if engine is None else read_nodes(engine.graph.path)
    try:
        return report_of(document, graph, about)
    except ManifestError as error:
        of_times = times is not None and error.where.startswith("times")
        raise InputError(f"{times if of_times else path}: {error}") from error


def _kept(bundle: Bundle, engine: Engine) -> dict[str, Any]:
    path = engine.path / LAYERS
    if not path.is_file():
        raise InputError(
            f"{bundle.root}: holds no layers of its engine ({engine.backend}): {_why_none(engine)}"
        )
    return _document(path)


def _why_none(engine: Engine) -> str:
    if engine.backend in GPU:
        return (
            "they are read off an engine that is loaded, and it was compiled where it cannot run, or by an alula that "
            "did not keep them; build it again where it runs"
        )
    return "it was built by an alula that did not keep them; build it again to see what runs"


def _document(path: Path) -> dict[str, Any]:
    read = _json(path)
    if not isinstance(read, dict):
        raise InputError(
            f"{path}: is a {type(read).__name__}, expected the object that lists an engine's layers"
        )
    return read


def _times(path: Path) -> list[Any]:
    read = _json(path)
    if not isinstance(read, list):
        raise InputError(
            f"{path}: is a {type(read).__name__}, expected a list of layers with their times, as trtexec "
            "--exportProfile writes"
        )
    return read


def _json(path: Path) -> Any:
    """TensorRT writes names as they are, line breaks in them too."""
    try:
        return json.loads(path.read_text("utf-8"), strict=False)
    except FileNotFoundError as error:
        raise InputError(f"{path}: does not exist") from error
    except (ValueError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: is not readable JSON: {error}") from error
