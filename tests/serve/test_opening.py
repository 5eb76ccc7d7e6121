from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import served

from alula.bundles import Bundle
from alula.core.engine import Session
from alula.core.errors import EngineError, InputError
from alula.core.tensor import Feeds
from alula.engines import fake
from alula.generate import Generator
from alula.serve.opening import alike, open_bundle, prove
from alula.serve.process import Opening


def open_session(root: Path, *, again: bool = False) -> Session:
    opened = open_bundle(root, Opening(threads=1, again=again))
    assert not isinstance(opened, Generator)
    return opened


def test_an_opened_bundle_has_answered_as_its_reference_did(tmp_path: Path) -> None:
    session = open_session(served.make_bundle(tmp_path / "one"))
    ids = np.array([[2, 4, 3]], dtype=np.int64)
    outputs = session.run({"input_ids": ids, "attention_mask": np.ones_like(ids)})
    assert outputs["embedding"].tolist() == [[9.0] * 4]


@pytest.mark.parametrize("reference", [-1.0, 0.0])
def test_a_bundle_that_answers_otherwise_than_its_reference_is_refused(
    tmp_path: Path, reference: float
) -> None:
    root = served.make_bundle(tmp_path / "one", reference=reference)
    with pytest.raises(
        EngineError, match=r"on this machine 'embedding' has cosine .* to the stored reference"
    ):
        open_session(root)


def test_a_stored_reference_with_nan_is_named_as_what_it_is(tmp_path: Path) -> None:
    root = served.make_bundle(tmp_path / "one", reference=np.nan)
    with pytest.raises(EngineError, match="the stored reference has NaN or infinity for 'embedding'"):
        open_session(root)


@pytest.mark.parametrize("reference", [None, np.nan])
def test_an_engine_that_gives_nan_is_told_from_one_that_this_machine_makes_wrong(
    tmp_path: Path, reference: float | None
) -> None:
    bundle = Bundle.open(served.make_bundle(tmp_path / "one", reference=reference))
    engine = bundle.engine("encoder")

    def function(feeds: Feeds) -> Feeds:
        return {"embedding": np.full((len(feeds["input_ids"]), 4), np.nan, np.float32)}

    session = fake.session(engine.inputs, engine.outputs, engine.plan.profile, function)
    with pytest.raises(EngineError, match="the engine gives NaN or infinity for 'embedding'") as caught:
        prove(session, bundle.stored, bundle.model.part("encoder"), bundle.root)
    assert "again here" not in str(caught.value)


def test_a_later_start_proves_the_files_first(tmp_path: Path) -> None:
    root = served.make_bundle(tmp_path / "one")
    (root / "graphs" / "encoder.fp32.onnx").write_bytes(b"no GRAPH")
    open_session(root).close()
    with pytest.raises(InputError, match="was changed since the bundle was built"):
        open_session(root, again=True)


def test_an_engine_of_another_machine_is_compiled_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALULA_CACHE", str(tmp_path / "cache"))
    root = served.make_bundle(tmp_path / "one", target="fake 0 on a cpu of long ago")
    assert open_session(root).outputs[0].name == "embedding"


def test_what_an_engine_says_about_padding_is_not_compared(tmp_path: Path) -> None:
    bundle = Bundle.open(served.make_bundle(tmp_path / "one", "token-classification"))
    engine = bundle.engine("encoder")
    (stored,) = bundle.stored.outputs

    def function(feeds: Feeds) -> Feeds:
        logits = np.array(stored["logits"])
        logits[np.asarray(feeds["attention_mask"]) == 0] = np.nan
        return {"logits": logits}

    session = fake.session(engine.inputs, engine.outputs, engine.plan.profile, function)
    prove(session, bundle.stored, bundle.model.part("encoder"), bundle.root)


@pytest.mark.parametrize(
    ("given", "expected", "likeness"),
    [([1, 0], [2, 0], 1.0), ([1, 0], [0, 1], 0.0), ([0, 0], [0, 0], 1.0), ([0, 0], [0, 1], 0.0)],
)
def test_likeness_is_the_cosine(given: list[float], expected: list[float], likeness: float) -> None:
    assert alike(np.array(given), np.array(expected)) == likeness
    assert not alike(np.array([np.nan, 1.0]), np.array([1.0, 1.0])) >= 0
