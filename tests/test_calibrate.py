"""Ranges of whole checkpoints: every example counts, padding does not, and what changed is calibrated again."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import tiny
from safetensors.numpy import load_file, save_file

from alula import data, families, graphs
from alula.calibrate import calibrate, load, observe_batch, save
from alula.calibration import METHODS, calibrator
from alula.codecs import TextCodec
from alula.core.engine import Plan, Session
from alula.core.errors import InputError
from alula.core.model import ModelSpec
from alula.core.profile import Profile, Range
from alula.core.tensor import Feeds, TensorSpec
from alula.engines import backend
from alula.engines.onnxruntime import OnnxRuntime
from alula.questions import Questions, questions_of

Ranges = Mapping[str, tuple[float, float]]
Text = tuple[str, ...]
PROFILE = Profile({"batch": Range(1, 8, 16), "length": Range(1, 8, 64)})


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


def asked(model: Tiny, texts: Sequence[Text], profile: Profile = PROFILE) -> Questions:
    examples = tuple(data.Example(texts=text, line=at + 1) for at, text in enumerate(texts))
    rows = data.Dataset(path=Path("texts.jsonl"), examples=examples, skipped=(), digest="")
    return questions_of(rows, model.spec, profile, model.folder)


def calls(model: Tiny, texts: Sequence[Text]) -> tuple[Feeds, ...]:
    return tuple(asked(model, texts))


@contextmanager
def observed_session(model: Tiny, at: Path) -> Iterator[tuple[Session, Mapping[str, TensorSpec]]]:
    graph, names = graphs.observe(families.write(model.checkpoint, model.spec, "encoder"))
    saved = graphs.save(graph, at / "observed.onnx", "fp32")
    onnxruntime = backend("onnxruntime")
    plan = Plan(profile=PROFILE)
    session = onnxruntime.open(onnxruntime.compile(saved, plan, at / "engine"))
    yield session, {output.name: output for output in saved.outputs if output.name in names}
    session.close()


@pytest.mark.parametrize("count", [1, 3, 9])
def test_all_examples_are_used_whatever_the_batch(count: int, model: Tiny, texts: list[Text]) -> None:
    """Adlik/Adlik#534: with fewer samples than a batch, or a rest that fills none, samples went missing."""
    some = calls(model, texts[:count])
    found = calibrate(model.checkpoint, model.spec, some)
    assert found.examples == count
    assert found.tokens == sum(len(model.codec.encode(text).ids) for (text,) in texts[:count])
    plain = calibrate(model.checkpoint, model.spec, some, smooth=False).ranges
    each = [
        calibrate(model.checkpoint, model.spec, calls(model, [text]), smooth=False).ranges
        for text in texts[:count]
    ]
    for name, (low, high) in plain.items():
        assert low == pytest.approx(min(one[name][0] for one in each), abs=1e-5)
        assert high == pytest.approx(max(one[name][1] for one in each), abs=1e-5)


@pytest.mark.parametrize("method", METHODS)
def test_the_same_rows_padded_more_give_the_same_ranges(
    method: str, model: Tiny, texts: list[Text], tmp_path: Path
) -> None:
    rows = [model.codec.encode(text) for (text,) in texts]

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
    feeds = model.codec.collate([model.codec.encode(text) for (text,) in texts], 60)

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


def test_weights_that_make_nan_are_refused_by_the_name_of_the_activation(
    model: Tiny, texts: list[Text], tmp_path: Path
) -> None:
    changed = changed_copy(model, tmp_path / "broken", np.nan)
    with pytest.raises(
        InputError, match=r"^encoder.layer.1.attention.self.query/MatMul/input is not finite in \d+ of"
    ):
        calibrate(changed.checkpoint, changed.spec, calls(changed, texts))


def changed_copy(model: Tiny, to: Path, add: float) -> Tiny:
    to.mkdir(parents=True)
    for file in model.folder.iterdir():
        (to / file.name).write_bytes(file.read_bytes())
    weights = load_file(model.folder / "model.safetensors")
    name = next(name for name in weights if name.endswith("layer.0.output.LayerNorm.bias"))
    weights[name] = weights[name] + np.float32(add)
    save_file(weights, to / "model.safetensors", metadata={"format": "pt"})
    return opened(to)


def test_the_same_again_comes_from_the_cache(model: Tiny, texts: list[Text], cache: Path) -> None:
    first = calibrate(model.checkpoint, model.spec, calls(model, texts))
    (kept,) = cache.iterdir()
    marked = json.loads(kept.read_text())
    marked["tokens"] = -1
    kept.write_text(json.dumps(marked))
    again = calibrate(model.checkpoint, model.spec, calls(model, texts))
    assert again.tokens == -1
    assert again.ranges == first.ranges
    assert calibrate(model.checkpoint, model.spec, calls(model, texts), use_cache=False) == first


def test_another_checkpoint_other_data_or_another_method_calibrates_again(
    model: Tiny, texts: list[Text], cache: Path, tmp_path: Path
) -> None:
    first = calibrate(model.checkpoint, model.spec, calls(model, texts))
    changed = changed_copy(model, tmp_path / "changed" / model.folder.name, 0.5)
    assert changed.spec.name == model.spec.name
    assert calibrate(changed.checkpoint, changed.spec, calls(changed, texts)).ranges != first.ranges
    assert calibrate(model.checkpoint, model.spec, calls(model, texts[:4])).ranges != first.ranges
    assert (
        calibrate(model.checkpoint, model.spec, calls(model, texts), method="percentile").method
        == "percentile 99.99, smoothed"
    )
    assert calibrate(model.checkpoint, model.spec, calls(model, texts), smooth=False).ranges != first.ranges
    assert len(list(cache.iterdir())) == 5


def test_a_damaged_cache_entry_is_calibrated_again(model: Tiny, texts: list[Text], cache: Path) -> None:
    first = calibrate(model.checkpoint, model.spec, calls(model, texts))
    (kept,) = cache.iterdir()
    for damage in ("", "{}", "[]", kept.read_text().replace("[", "{", 1), kept.read_text()[:-20]):
        kept.write_text(damage)
        assert calibrate(model.checkpoint, model.spec, calls(model, texts)) == first


def test_a_saved_calibration_comes_back_for_the_same_weights_only(
    model: Tiny, texts: list[Text], tmp_path: Path
) -> None:
    found = calibrate(model.checkpoint, model.spec, calls(model, texts))
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


def test_smoothing_is_found_for_norms_and_activations_and_the_ranges_are_of_the_smoothed_graph(
    model: Tiny, texts: list[Text]
) -> None:
    found = calibrate(model.checkpoint, model.spec, calls(model, texts))
    plain = calibrate(model.checkpoint, model.spec, calls(model, texts), smooth=False)
    assert plain.smoothing == {}
    assert set(found.smoothing) == {name for name in found.ranges if ".attention.output." not in name}
    for name, span in found.ranges.items():
        assert (span == pytest.approx(plain.ranges[name], abs=1e-4)) == (name not in found.smoothing)


@pytest.mark.parametrize("in_order", [True, False])
def test_a_value_is_measured_when_it_is_there_so_that_it_can_be_let_go(
    in_order: bool, model: Tiny, tmp_path: Path
) -> None:
    """Else all values of a graph are alive at once: gigabytes, where images or batches are large."""
    observed, names = graphs.observe_magnitudes(families.write(model.checkpoint, model.spec, "encoder"))
    saved = graphs.save(observed, tmp_path / "observed.onnx", "fp32")
    runtime = OnnxRuntime(in_order=in_order)
    engine = runtime.compile(saved, Plan(profile=PROFILE), tmp_path / "engine")
    feeds = {tensor.name: np.ones((2, 8), np.int64) for tensor in saved.inputs}
    order = [name for name, _ in runtime.layer_times(engine, feeds, runs=1).layers]
    measured = [at for at, name in enumerate(order) if name.endswith("/magnitude/ReduceMax")]
    assert len(measured) == len(names)
    own = ["/magnitude/" not in name for name in order]
    waiting = sum(own[: measured[len(measured) // 2]]) / sum(own)
    assert waiting == pytest.approx(0.5 if in_order else 1.0, abs=0.15)
