"""An engine and how it was made, as a JSON file that another process opens it by."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from alula.core.engine import Engine, Plan
from alula.core.graph import Graph
from alula.core.profile import Profile, Range
from alula.core.tensor import TensorSpec
from gpu_bench.results import Built

NAME = "record.json"
GRAPH = "graph.json"


def write(path: Path, engine: Engine, built: Built, asked: Mapping[str, Any]) -> None:
    """Keep an engine's facts beside it, written last: where there is no record, nothing was finished."""
    graph, plan = engine.graph, engine.plan
    value = {
        "asked": dict(asked),
        "built": asdict(built),
        "backend": engine.backend,
        "target": engine.target,
        "path": str(engine.path),
        "graph": _facts(graph),
        "profile": _axes(plan.profile),
        "tuned": [_axes(profile) for profile in plan.tuned],
    }
    aside = path.with_name(f".{path.name}")
    aside.write_text(json.dumps(value, indent=1), "utf-8")
    aside.replace(path)


def read(path: Path) -> Engine:
    """The engine, with what a session needs of its plan."""
    raw = json.loads(path.read_text("utf-8"))
    return Engine(
        backend=raw["backend"],
        target=raw["target"],
        path=Path(raw["path"]),
        graph=_graph(raw["graph"]),
        plan=Plan(profile=_profile(raw["profile"]), tuned=tuple(_profile(each) for each in raw["tuned"])),
    )


def write_graph(folder: Path, graph: Graph) -> None:
    """Keep a graph's facts beside it, written last; its folder may be renamed."""
    facts = {**_facts(graph), "path": graph.path.name}
    (folder / GRAPH).write_text(json.dumps(facts, indent=1), "utf-8")


def read_graph(folder: Path) -> Graph:
    """The graph in a folder."""
    raw = json.loads((folder / GRAPH).read_text("utf-8"))
    return _graph({**raw, "path": str(folder / raw["path"])})


def built(path: Path) -> Built:
    """What making it took."""
    return Built(**json.loads(path.read_text("utf-8"))["built"])


def made_as(path: Path, asked: Mapping[str, Any]) -> bool:
    """Whether there is an engine that was made as is asked for now."""
    try:
        return bool(json.loads(path.read_text("utf-8"))["asked"] == json.loads(json.dumps(dict(asked))))
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _facts(graph: Graph) -> dict[str, Any]:
    return {
        "path": str(graph.path),
        "digest": graph.digest,
        "opset": graph.opset,
        "nodes": graph.nodes,
        "precision": graph.precision,
        "inputs": [_tensor(spec) for spec in graph.inputs],
        "outputs": [_tensor(spec) for spec in graph.outputs],
    }


def _graph(raw: Mapping[str, Any]) -> Graph:
    return Graph(
        path=Path(raw["path"]),
        digest=raw["digest"],
        opset=raw["opset"],
        nodes=raw["nodes"],
        precision=raw["precision"],
        inputs=tuple(_spec(each) for each in raw["inputs"]),
        outputs=tuple(_spec(each) for each in raw["outputs"]),
    )


def _tensor(spec: TensorSpec) -> dict[str, Any]:
    return {"name": spec.name, "dtype": spec.dtype, "shape": list(spec.shape)}


def _spec(raw: Mapping[str, Any]) -> TensorSpec:
    return TensorSpec(name=raw["name"], dtype=raw["dtype"], shape=tuple(raw["shape"]))


def _axes(profile: Profile) -> dict[str, list[int]]:
    return {axis: [sizes.min, sizes.opt, sizes.max] for axis, sizes in profile.axes.items()}


def _profile(raw: Mapping[str, list[int]]) -> Profile:
    return Profile({axis: Range(low, opt, high, min(1, low)) for axis, (low, opt, high) in raw.items()})
