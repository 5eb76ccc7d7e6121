from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import parrot
import pytest
import served
from parrot import Parrot

from alula.bundles import Bundle, Stored
from alula.core.decoding import Room, Work
from alula.core.engine import Session
from alula.core.errors import EngineError, InputError
from alula.core.tensor import Feeds
from alula.engines import fake
from alula.generate import Generator, Limits
from alula.serve.opening import alike, open_bundle, prove, prove_writing
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


def parrot_that_said(rows: int = 2) -> tuple[Generator, Stored]:
    """A generator, and what it says of the tokens behind a prompt as a bundle would have stored it."""
    ids = tuple(parrot.tokenizer().encode("abcd|").ids)
    decoding = Parrot(Room(sequences=4, blocks=64, block_tokens=8))
    decoding.start(0)
    first = decoding.step([Work(sequence=0, tokens=ids, answers=True)])
    second = decoding.step([Work(sequence=0, tokens=ids[:1], answers=True)])
    decoding.release(0)
    feeds = {"prompt": np.array(ids), "follow": np.array(ids[:1]), "source": np.zeros(0, np.int64)}
    long = {**feeds, "prompt": np.array(ids * 9)}
    wrong = {"logits": np.full((1, parrot.VOCABULARY), np.nan)}
    said = {"logits": np.concatenate([first, second])[:rows]}
    stored = Stored(reference="pytorch", feeds=(long, feeds), outputs=(wrong, said))
    limits = Limits(sequences=4, step_tokens=64, block_tokens=8, blocks=64)
    return Generator(decoding, limits, parrot.tokenizer().decode), stored


def changed(stored: Stored, row: int, by: float) -> Stored:
    logits = stored.outputs[1]["logits"].copy()
    logits[row] = logits[row] * by
    return replace(stored, outputs=(stored.outputs[0], {"logits": logits}))


def test_a_model_that_writes_has_gone_on_with_a_prompt_as_its_reference_did(tmp_path: Path) -> None:
    for rows in (1, 2):
        generator, stored = parrot_that_said(rows)
        prove_writing(generator, stored, tmp_path)
        assert not generator.busy


@pytest.mark.parametrize("row", [0, 1])
@pytest.mark.parametrize("by", [-1.0, 0.0])
def test_a_model_that_writes_otherwise_than_its_reference_is_refused(
    tmp_path: Path, row: int, by: float
) -> None:
    generator, stored = parrot_that_said()
    with pytest.raises(EngineError, match=r"log-probabilities of the 20 best tokens are \S+ from the stored"):
        prove_writing(generator, changed(stored, row, by), tmp_path)


def test_a_prompt_that_cannot_be_gone_on_with_is_the_engine_s_fault(tmp_path: Path) -> None:
    generator, stored = parrot_that_said()
    nan = changed(stored, 0, np.nan)
    with pytest.raises(EngineError, match="the stored reference has NaN or infinity for 'logits'"):
        prove_writing(generator, nan, tmp_path)
    prompt = np.array(parrot.tokenizer().encode("BROKEN|").ids)
    feeds = (stored.feeds[0], {**stored.feeds[1], "prompt": prompt})
    with pytest.raises(EngineError, match="the engine cannot go on with the stored prompt: bad kernel"):
        prove_writing(generator, replace(stored, feeds=feeds), tmp_path)
