from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from alula.core.engine import Plan
from alula.core.errors import RunError
from alula.core.graph import Graph
from alula.core.profile import Profile, Range
from alula.core.tensor import Array, Feeds, TensorSpec
from alula.engines import fake

INPUTS = (TensorSpec(name="x", dtype="float32", shape=("batch", 2)),)
OUTPUTS = (TensorSpec(name="y", dtype="float32", shape=("batch",)),)
PROFILE = Profile({"batch": Range(1, 1, 4)})
X: dict[str, Array] = {"x": np.ones((3, 2), np.float32)}


def test_a_function_is_a_session() -> None:
    session = fake.session(
        INPUTS, OUTPUTS, PROFILE, lambda feeds: {"y": np.asarray(feeds["x"], np.float32).sum(1)}
    )
    assert session.run(X)["y"].tolist() == [2, 2, 2]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "fake gave no 'y'; it gave []"),
        ({"y": np.zeros(3)}, "fake gave 'y' as float64 (3,), expected float32 (3,)"),
        ({"y": np.zeros(2, np.float32)}, "fake gave 'y' as float32 (2,), expected float32 (3,)"),
    ],
)
def test_a_function_is_held_to_its_outputs(given: Feeds, words: str) -> None:
    session = fake.session(INPUTS, OUTPUTS, PROFILE, lambda _: given)
    with pytest.raises(RunError) as refused:
        session.run(X)
    assert str(refused.value) == words


def test_by_default_every_row_answers_with_its_sum(graph: Graph, plan: Plan, tmp_path: Path) -> None:
    backend = fake.Fake()
    session = backend.open(backend.compile(graph, plan, tmp_path / "engine"))
    found = session.run({"input_ids": np.array([[1, 2], [3, 4]], np.int64)})["hidden"]
    assert found.shape == (2, 2, 16)
    assert found[:, 1, 5].tolist() == [3, 7]


def test_a_backend_runs_the_function_it_was_made_from(graph: Graph, plan: Plan, tmp_path: Path) -> None:
    backend = fake.Fake(lambda feeds: {"hidden": np.full((*feeds["input_ids"].shape, 16), 5, np.float32)})
    session = backend.open(backend.compile(graph, plan, tmp_path / "engine"))
    assert session.run({"input_ids": np.array([[1]], np.int64)})["hidden"].max() == 5
