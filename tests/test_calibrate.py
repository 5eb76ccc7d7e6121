"""Ranges of whole checkpoints: every example counts, padding does not, and what changed is calibrated again."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import tiny
from safetensors.numpy import load_file, save_file

from alula import calibrate as room
from alula import data, families, graphs
from alula.calibrate import Text, calibrate, encoded, grouped, load, observe_batch, save
from alula.calibration import METHODS, calibrator
from alula.codecs import TextCodec
from alula.core.engine import Plan, Session
from alula.core.errors import InputError
from alula.core.model import ModelSpec
from alula.core.profile import Profile, Range
from alula.core.tensor import Feeds, TensorSpec
from alula.engines import backend

Ranges = Mapping[str, tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Tiny:
    """A small encoder with random weights."""

    folder: Path
    checkpoint: families.Checkpoint
    spec: ModelSpec
    codec: TextCodec


def opened(folder: Path, task: str = "embeddings") -> Tiny:
    checkpoint = families.open_checkpoint(str(folder))
    spec = families.describe(checkpoint, task)
    return Tiny(folder, checkpoint, spec, TextCodec.open(folder, spec))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ALULA_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "calibration"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    return opened(tiny.checkpoint(tmp_path_factory.mktemp("tiny") / "model"))


@pytest.fixture(scope="module")
def texts() -> list[Text]:
    rng = np.random.default_rng(0)
    return [(" ".join(rng.choice(tiny.WORDS, size=int(rng.integers(1, 20)))),) for _ in range(9)]


@contextmanager
def observed_session(model: Tiny, at: Path) -> Iterator[tuple[Session, Mapping[str, TensorSpec]]]:
    graph, names = graphs.observe(families.write(model.checkpoint, model.spec, "encoder"))
    saved = graphs.save(graph, at / "observed.onnx", "fp32")
    onnxruntime = backend("onnxruntime")
    plan = Plan(profile=Profile({"batch": Range(1, 8, 16), "length": Range(1, 8, 64)}))
    session = onnxruntime.open(onnxruntime.compile(saved, plan, at / "engine"))
    yield session, {output.name: output for output in saved.outputs if output.name in names}
    session.close()


@pytest.mark.parametrize("count", [1, 3, 9])
def test_all_examples_are_used_whatever_the_batch(count: int, model: Tiny, texts: list[Text]) -> None:
    """Adlik/Adlik#534: with fewer samples than a batch, or a rest that fills none, samples went missing."""
    some = texts[:count]
    found = calibrate(model.checkpoint, model.spec, some, batch=8)
    assert found.examples == count
    assert found.tokens == sum(len(model.codec.encode(text).ids) for (text,) in some)
    plain = calibrate(model.checkpoint, model.spec, some, batch=8, smooth=False).ranges
    each = [calibrate(model.checkpoint, model.spec, [text], batch=1, smooth=False).ranges for text in some]
    for name, (low, high) in plain.items():
        assert low == pytest.approx(min(one[name][0] for one in each), abs=1e-5)
        assert high == pytest.approx(max(one[name][1] for one in each), abs=1e-5)


def test_batches_hold_every_row_once(model: Tiny, texts: list[Text]) -> None:
    rows = sorted((encoded(model.codec, text) for text in texts), key=lambda row: len(row.ids))
    for batch in (1, 2, 4, 8, 9, 100):
        groups = list(grouped(rows, batch))
        assert [row for group in groups for row in group] == rows
        assert max(map(len, groups)) <= batch
    assert list(grouped([], 8)) == []


def test_long_rows_go_together_in_smaller_batches(model: Tiny) -> None:
    rows = [model.codec.encode_ids([5] * 60)] * 40
    sizes = [len(group) for group in grouped(rows, 64)]
    assert sum(sizes) == 40
    assert max(sizes) * 60 <= room.CELLS


@pytest.mark.parametrize("method", METHODS)
def test_the_same_rows_padded_more_give_the_same_ranges(
    method: str, model: Tiny, texts: list[Text], tmp_path: Path
) -> None:
    rows = [encoded(model.codec, text) for text in texts]

    def ranges(length: int | None, session: Session, outputs: Mapping[str, TensorSpec]) -> Ranges:
        used = calibrator(method)
        observe_batch(session, model.codec.collate(rows, length), outputs, used)
        return used.ranges()

    with observed_session(model, tmp_path) as (session, outputs):
        short, long = ranges(None, session, outputs), ranges(60, session, outputs)
    for name, span in short.items():
        assert span == pytest.approx(long[name], abs=2e-3), name


def test_padding_that_is_counted_is_seen_in_the_ranges(
    model: Tiny, texts: list[Text], tmp_path: Path
) -> None:
    feeds = model.codec.collate([encoded(model.codec, text) for text in texts], 60)

    def ranges(given: Feeds, session: Session, outputs: Mapping[str, TensorSpec]) -> Ranges:
        used = calibrator("min-max")
        answers = session.run(feeds)
        mask = given["attention_mask"].astype(np.bool_)
        for name in outputs:
            used.add(name, answers[name].astype(np.float32), mask)
        return used.ranges()

    with observed_session(model, tmp_path) as (session, outputs):
        counted = ranges({"attention_mask": np.ones_like(feeds["attention_mask"])}, session, outputs)
        assert counted != ranges(feeds, session, outputs)


def test_no_examples_are_refused(model: Tiny) -> None:
    with pytest.raises(InputError, match="no examples to calibrate from; expected one at least"):
        calibrate(model.checkpoint, model.spec, [])


def test_an_example_of_three_texts_is_refused(model: Tiny) -> None:
    with pytest.raises(InputError, match="an example has 3 texts; expected one, or a pair"):
        calibrate(model.checkpoint, model.spec, [("a", "b", "c")])


def test_weights_that_make_nan_are_refused_by_the_name_of_the_activation(
    model: Tiny, texts: list[Text], tmp_path: Path
) -> None:
    changed = changed_copy(model, tmp_path / "broken", np.nan)
    with pytest.raises(
        InputError, match=r"^encoder.layer.1.attention.self.query/MatMul/input is not finite in \d+ of"
    ):
        calibrate(changed.checkpoint, changed.spec, texts)


def changed_copy(model: Tiny, to: Path, add: float) -> Tiny:
    to.mkdir()
    for file in model.folder.iterdir():
        (to / file.name).write_bytes(file.read_bytes())
    weights = load_file(model.folder / "model.safetensors")
    name = next(name for name in weights if name.endswith("layer.0.output.LayerNorm.bias"))
    weights[name] = weights[name] + np.float32(add)
    save_file(weights, to / "model.safetensors", metadata={"format": "pt"})
    return opened(to)


def test_the_same_again_comes_from_the_cache(model: Tiny, texts: list[Text], cache: Path) -> None:
    first = calibrate(model.checkpoint, model.spec, texts)
    (kept,) = cache.iterdir()
    marked = json.loads(kept.read_text())
    marked["tokens"] = -1
    kept.write_text(json.dumps(marked))
    again = calibrate(model.checkpoint, model.spec, texts)
    assert again.tokens == -1
    assert again.ranges == first.ranges
    assert calibrate(model.checkpoint, model.spec, texts, use_cache=False) == first


def test_another_checkpoint_other_data_or_another_method_calibrates_again(
    model: Tiny, texts: list[Text], cache: Path, tmp_path: Path
) -> None:
    first = calibrate(model.checkpoint, model.spec, texts)
    changed = changed_copy(model, tmp_path / "changed", 0.5)
    assert calibrate(changed.checkpoint, changed.spec, texts).ranges != first.ranges
    assert calibrate(model.checkpoint, model.spec, texts[:4]).ranges != first.ranges
    assert (
        calibrate(model.checkpoint, model.spec, texts, method="percentile").method
        == "percentile 99.99, smoothed"
    )
    assert calibrate(model.checkpoint, model.spec, texts, smooth=False).ranges != first.ranges
    assert len(list(cache.iterdir())) == 5


def test_a_damaged_cache_entry_is_calibrated_again(model: Tiny, texts: list[Text], cache: Path) -> None:
    first = calibrate(model.checkpoint, model.spec, texts)
    (kept,) = cache.iterdir()
    for damage in ("", "{}", "[]", kept.read_text().replace("[", "{", 1), kept.read_text()[:-20]):
        kept.write_text(damage)
        assert calibrate(model.checkpoint, model.spec, texts) == first


def test_a_saved_calibration_comes_back_for_the_same_weights_only(
    model: Tiny, texts: list[Text], tmp_path: Path
) -> None:
    found = calibrate(model.checkpoint, model.spec, texts)
    save(found, tmp_path / "ranges.json")
    assert load(tmp_path / "ranges.json", model.spec) == found
    changed = changed_copy(model, tmp_path / "changed", 0.5)
    with pytest.raises(
        InputError, match=r"ranges.json is of weights \w{16}, but changed has \w{16}; calibrate again"
    ):
        load(tmp_path / "ranges.json", changed.spec)


def test_files_that_are_not_there_are_errors(model: Tiny, tmp_path: Path) -> None:
    """NVIDIA/TensorRT#3137: a calibration file that was not there was passed over in silence."""
    with pytest.raises(InputError, match=r"no calibration at .*ranges.json"):
        load(tmp_path / "ranges.json", model.spec)
    with pytest.raises(InputError, match=r"samples.jsonl"):
        data.read(tmp_path / "samples.jsonl", "embeddings")


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"ranges": {"x": [1]}}', '{"ranges": {"x": [1, "2"]}}', '{"ranges": {"x": 1}}']
)
def test_a_file_that_is_no_calibration_is_refused(text: str, model: Tiny, tmp_path: Path) -> None:
    (tmp_path / "ranges.json").write_text(text)
    with pytest.raises(InputError, match=r"ranges.json is not a calibration"):
        load(tmp_path / "ranges.json", model.spec)


def test_a_question_keeps_its_words_as_in_serving(tmp_path: Path) -> None:
    asked = opened(tiny.checkpoint(tmp_path / "qa", task="question-answering"), "question-answering")
    question, context = "who sat on the mat", "the cat " * 60
    row = encoded(asked.codec, (question, context))
    assert row == asked.codec.encode_pair(question, context, only_second=True)
    assert row.sources.count(0) == 5
    found = calibrate(asked.checkpoint, asked.spec, [(question, context)])
    assert found.tokens == asked.spec.max_length


def test_smoothing_is_found_for_norms_and_activations_and_the_ranges_are_of_the_smoothed_graph(
    model: Tiny, texts: list[Text]
) -> None:
    found = calibrate(model.checkpoint, model.spec, texts)
    plain = calibrate(model.checkpoint, model.spec, texts, smooth=False)
    assert plain.smoothing == {}
    assert set(found.smoothing) == {name for name in found.ranges if ".attention.output." not in name}
    for name, span in found.ranges.items():
        assert (span == pytest.approx(plain.ranges[name], abs=1e-4)) == (name not in found.smoothing)
