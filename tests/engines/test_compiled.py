"""What the two compilers share: where engines are refused, and what is left on disk."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from alula.core.engine import Engine, Plan
from alula.core.errors import CompileError, EngineError, RunError
from alula.core.graph import Graph
from alula.core.tensor import Array
from alula.engines import backend

IDS: dict[str, Array] = {"input_ids": np.array([[1, 2, 3]], np.int64)}


@pytest.fixture(params=["openvino", "onnxruntime"])
def engine(request: pytest.FixtureRequest, graph: Graph, plan: Plan, tmp_path: Path) -> Engine:
    return backend(request.param).compile(graph, plan, tmp_path / "engine")


def test_an_engine_says_what_it_was_built_for(engine: Engine) -> None:
    assert engine.target == backend(engine.backend).target
    record = json.loads((engine.path / "engine.json").read_text())
    assert (record["backend"], record["target"]) == (engine.backend, engine.target)


def test_a_compiled_engine_runs_in_a_folder_that_was_moved(engine: Engine, tmp_path: Path) -> None:
    moved = engine.path.rename(tmp_path / "elsewhere")
    session = backend(engine.backend).open(dataclasses.replace(engine, path=moved), threads=1)
    assert session.run(IDS)["hidden"][0, :, 0].tolist() == [16, 32, 48]
    session.close()


# NVIDIA/TensorRT#2072 and NVIDIA/TensorRT#2177: an engine of another build or another device crashed at load.


def test_an_engine_for_another_target_is_refused_with_both_names(engine: Engine) -> None:
    foreign = dataclasses.replace(engine, target="openvino 2025.1 x86_64 avx2 amx")
    with pytest.raises(EngineError) as refused:
        backend(engine.backend).open(foreign)
    here = backend(engine.backend).target
    assert str(refused.value) == (
        f"{engine.path}: built for 'openvino 2025.1 x86_64 avx2 amx', running on {here!r}; "
        "compile it again from its graph"
    )


def test_an_edited_record_is_refused_too(engine: Engine) -> None:
    path = engine.path / "engine.json"
    path.write_text(path.read_text().replace(engine.target, "another one"))
    with pytest.raises(EngineError, match=r"built for 'another one', running on "):
        backend(engine.backend).open(engine)


def test_a_missing_record_is_refused(engine: Engine) -> None:
    (engine.path / "engine.json").unlink()
    with pytest.raises(EngineError, match=r"engine.json is missing; build the engine again$"):
        backend(engine.backend).open(engine)


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"target": 1}', "\x00"])
def test_a_damaged_record_is_refused(engine: Engine, text: str) -> None:
    (engine.path / "engine.json").write_text(text)
    with pytest.raises(EngineError, match=r"engine.json is damaged \(.*\); build the engine again$"):
        backend(engine.backend).open(engine)


def test_a_folder_that_was_there_before_is_left_alone(engine: Engine, plan: Plan) -> None:
    before = sorted(path.name for path in engine.path.iterdir())
    with pytest.raises(
        CompileError, match=r"engine is there already; engines are written into a new folder$"
    ):
        backend(engine.backend).compile(engine.graph, plan, engine.path)
    assert sorted(path.name for path in engine.path.iterdir()) == before


@pytest.mark.parametrize("name", ["openvino", "onnxruntime"])
def test_an_operator_nobody_knows_is_named(
    name: str, unknown_operator: Graph, plan: Plan, tmp_path: Path
) -> None:
    with pytest.raises(CompileError, match=r"(?s)unknown.onnx.*Frobnicate") as refused:
        backend(name).compile(unknown_operator, plan, tmp_path / "engine")
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "engine").exists()


@pytest.mark.parametrize("name", ["openvino", "onnxruntime"])
@pytest.mark.parametrize("keep", [0, 100])
def test_a_graph_cut_short_is_refused(name: str, keep: int, graph: Graph, plan: Plan, tmp_path: Path) -> None:
    graph.path.write_bytes(graph.path.read_bytes()[:keep])
    with pytest.raises(CompileError, match=f"^{name} cannot compile "):
        backend(name).compile(graph, plan, tmp_path / "engine")


@pytest.mark.parametrize("name", ["openvino", "onnxruntime"])
def test_weights_cut_short_are_refused(name: str, graph: Graph, plan: Plan, tmp_path: Path) -> None:
    data = graph.path.with_name("lookup.onnx.data")
    data.write_bytes(data.read_bytes()[:1000])
    with pytest.raises(CompileError, match=f"^{name} cannot compile "):
        backend(name).compile(graph, plan, tmp_path / "engine")
    data.unlink()
    with pytest.raises(CompileError, match=f"^{name} cannot compile "):
        backend(name).compile(graph, plan, tmp_path / "engine")


def test_an_id_outside_the_table_never_reads_foreign_memory(engine: Engine) -> None:
    session = backend(engine.backend).open(engine, threads=1)
    try:
        found = session.run({"input_ids": np.array([[64, 10**9]], np.int64)})["hidden"]
    except RunError as error:
        assert "look_up" in str(error)  # noqa: PT017 - an engine may refuse, or give zeros
    else:
        assert not np.asarray(found, np.float32).any()
    assert session.run(IDS)["hidden"][0, :, 0].tolist() == [16, 32, 48]
    session.close()
