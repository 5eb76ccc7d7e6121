"""Each choice of a build, on a small model: honoured in the bundle and held to PyTorch, or refused before any work."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import onnx
import pytest
import tiny

from alula.build import BuildRequest, Built, build
from alula.bundles import Bundle
from alula.core.errors import InputError
from alula.core.profile import Range
from alula.core.progress import Note, Silent, quiet
from alula.core.words import OPSETS, POOLINGS

AXES = {"batch": Range(1, 2, 4), "length": Range(2, 8, 32)}


class Heard:
    """Progress that only notes which phases were begun."""

    def __init__(self) -> None:
        self.phases: list[str] = []

    def phase(self, what: str) -> AbstractContextManager[Note]:
        self.phases.append(what)
        return nullcontext(quiet)


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.checkpoint(tmp_path_factory.mktemp("tiny") / "bert")


def built(model: Path, to: Path, **choices: Any) -> Built:
    request = BuildRequest(model=str(model), to=to, **{"axes": AXES, "use_cache": False, **choices})
    return build(request, Silent())


def held_to_pytorch(bundle: Bundle) -> bool:
    return bundle.verified and {check.reference for check in bundle.checks} >= {"pytorch"}


@pytest.mark.parametrize("target", ["openvino", "onnxruntime"])
@pytest.mark.parametrize("opset", OPSETS)
def test_the_opset_asked_for_is_that_of_every_graph_in_the_bundle(
    target: str, opset: int, bert: Path, tmp_path: Path
) -> None:
    """The report pytorch/pytorch#150592: the opset asked for was ignored."""
    bundle = built(bert, tmp_path / "out", target=target, opset=opset).bundle
    assert held_to_pytorch(bundle)
    graphs = list((bundle.root / "graphs").glob("*.onnx"))
    assert graphs
    for path in graphs:
        model = onnx.load(path, load_external_data=False)
        assert {(entry.domain, entry.version) for entry in model.opset_import} == {("", opset)}
        onnx.checker.check_model(str(path))
    assert {graph.opset for graph in bundle.manifest.graphs.values()} == {opset}


@pytest.mark.parametrize("opset", [-1, 0, 16, 25, 10**6])
def test_an_opset_out_of_range_is_refused_before_any_work(opset: int, bert: Path, tmp_path: Path) -> None:
    heard = Heard()
    request = BuildRequest(model=str(bert), to=tmp_path / "out", opset=opset, axes=AXES)
    with pytest.raises(InputError, match=rf"^opset {opset} is not one of 17\.\.24$"):
        build(request, heard)
    assert heard.phases == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("pooling", POOLINGS)
def test_every_pooling_is_built_and_held_to_pytorch(pooling: str, bert: Path, tmp_path: Path) -> None:
    bundle = built(bert, tmp_path / "out", precision="fp32", pooling=pooling).bundle
    assert held_to_pytorch(bundle)
    assert bundle.model.pooling == pooling


@pytest.mark.parametrize(
    ("task", "labels"),
    [
        ("embeddings", 3),
        ("sequence-classification", 3),
        ("sequence-classification", 1),
        ("reranking", 1),
        ("token-classification", 3),
    ],
)
def test_a_task_that_is_named_wins_over_the_architecture(task: str, labels: int, tmp_path: Path) -> None:
    head = "sequence-classification" if task in {"embeddings", "reranking"} else task
    model = tiny.checkpoint(tmp_path / "model", "bert", head, num_labels=labels)
    bundle = built(model, tmp_path / "out", precision="fp32", task=task).bundle
    assert bundle.model.task == task
    assert held_to_pytorch(bundle)


def test_another_choice_is_another_entry_of_the_cache(
    bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALULA_CACHE", str(tmp_path / "cache"))
    plain: dict[str, Any] = {"precision": "fp32", "use_cache": True}
    choices: tuple[dict[str, Any], ...] = (
        {},
        {"opset": 18},
        {"pooling": "cls"},
        {"target": "onnxruntime"},
        {"axes": {**AXES, "batch": Range(1, 1, 2)}},
        {"name": "other"},
    )
    for number, choice in enumerate(choices):
        assert not built(bert, tmp_path / str(number), **{**plain, **choice}).cached, choice
    for number, choice in enumerate(choices):
        again = built(bert, tmp_path / f"{number} again", **{**plain, **choice})
        assert again.cached, choice
        first = tmp_path / str(number) / "manifest.json"
        assert (again.bundle.root / "manifest.json").read_bytes() == first.read_bytes()
