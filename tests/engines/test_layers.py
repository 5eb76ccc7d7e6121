"""What engines keep of the layers they run, and how long each takes."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import numpy as np
import pytest

from alula.core.engine import LAYERS, Plan
from alula.core.graph import Graph
from alula.core.timing import TimesLayers
from alula.engines import backend as backend_named
from alula.engines.onnxruntime import kernels

FEEDS = {"input_ids": np.arange(8, dtype=np.int64).reshape(2, 4)}


@pytest.mark.parametrize("name", ["openvino", "onnxruntime"])
def test_a_compiled_engine_says_what_it_runs_and_where_that_came_from(
    name: str, graph: Graph, plan: Plan, tmp_path: Path
) -> None:
    engine = backend_named(name).compile(graph, plan, tmp_path / "engines" / "encoder")
    document = json.loads((engine.path / LAYERS).read_text("utf-8"))
    assert document["source"] == name
    assert engine.target.startswith(f"{name} {document['version']} ")
    layers = document["layers"]
    if name == "onnxruntime":
        assert [(node["name"], node["op_type"]) for node in layers["nodes"]] == [
            ("look_up", "Gather"),
            ("last_node", "Relu"),
        ]
        assert layers["values"]["hidden"] == ["float32", ["batch", "length", 16]]
        assert layers["constants"] == ["table"]
    else:
        kinds = {layer["layerType"]: layer for layer in layers}
        assert {"Input", "Gather", "Output"} <= set(kinds)
        assert "Const" not in kinds
        # It names operations by what they give, and looks up what the last one makes of the table.
        assert kinds["Gather"]["originalLayersNames"] == "hidden"
        assert kinds["Gather"]["runtimePrecision"] == "f32"
        assert kinds["Gather"]["shapes"] == ["[1..4,1..8,16]"]
    # Nothing that was written on the way is left beside the engine.
    assert [path.name for path in (tmp_path / "engines").iterdir()] == ["encoder"]


@pytest.mark.parametrize("name", ["openvino", "onnxruntime"])
def test_the_layers_of_an_engine_are_timed_and_fit_into_the_call(
    name: str, graph: Graph, plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    backend = backend_named(name)
    engine = backend.compile(graph, plan, tmp_path / "engine")
    assert isinstance(backend, TimesLayers)
    times = backend.layer_times(engine, FEEDS, runs=5, threads=1)
    assert times.runs == 5
    layers = json.loads((engine.path / LAYERS).read_text("utf-8"))["layers"]
    known = {layer["name"] for layer in (layers["nodes"] if name == "onnxruntime" else layers)}
    assert {layer for layer, _ in times.layers} <= known
    assert times.layers
    # Times are whole microseconds, each rounded.
    assert 0 <= sum(ms for _, ms in times.layers) <= times.call_ms + len(times.layers) * 1e-3
    assert [path.name for path in tmp_path.glob("*profile*")] == []


def test_where_onnxruntime_cannot_write_down_its_graph_the_engine_is_compiled_all_the_same(
    graph: Graph, plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(**_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("alula.engines.onnxruntime.TemporaryDirectory", full)
    engine = backend_named("onnxruntime").compile(graph, plan, tmp_path / "engine")
    assert not (engine.path / LAYERS).exists()


def test_nodes_of_one_name_are_told_apart_and_the_first_call_is_not_counted() -> None:
    def event(name: str, index: str, microseconds: int) -> dict[str, object]:
        return {"cat": "Node", "name": name, "dur": microseconds, "args": {"node_index": index}}

    one_call = [("Gelu_kernel_time", "3"), ("Gelu_kernel_time", "7"), ("Gelu_fence_before", "3")]
    slow = [event(name, index, 9000) for name, index in one_call]
    quick = [event(name, index, 10 * int(index)) for name, index in one_call]
    session = {"cat": "Session", "name": "model_run", "dur": 99, "args": {}}
    assert kernels([session, *slow, *quick, *quick], runs=2) == (("Gelu", 0.03), ("Gelu", 0.07))
