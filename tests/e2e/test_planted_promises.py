"""Faults planted in int8 engines of trained models: the promise of 0.4 % that the sound engine keeps must break."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
import tiny

from alula import families, graphs
from alula.calibrate import Calibration, calibrate
from alula.core.model import ModelSpec
from alula.core.profile import Profile, Range
from alula.core.tensor import Feeds
from alula.data import Dataset, Example
from alula.graphs.passes.edit import replace_constant
from alula.questions import BUDGET, Promise, questions_of
from alula.running import running

PROFILE = Profile({"batch": Range(1, 8, 8), "length": Range(2, 32, 64)})

SUBJECTS = ("The doctor", "A student", "My neighbour", "Our engineer", "Anna Berg", "The committee")
DEEDS = ("wrote", "lost", "sold", "repaired", "described")
THINGS = ("a letter", "three guitars", "the invoice no. 2024-118", "an email to a@b.org", "42 boxes")
TIMES = ("yesterday", "before the war", "in 1878", "on Monday morning", "for 12.50 EUR")


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """A model, what is promised on some rows, and what fp32 and a sound int8 engine answer for them."""

    checkpoint: families.Checkpoint
    spec: ModelSpec
    promise: Promise
    expected: Sequence[Feeds]
    calibration: Calibration
    sound: Sequence[Feeds] = ()

    def written(self) -> graphs.Model:
        return families.write(self.checkpoint, self.spec, "encoder")

    def int8(self, model: graphs.Model | None = None, found: Calibration | None = None) -> graphs.Model:
        used = found or self.calibration
        return graphs.quantize(model or self.written(), used.ranges, smoothing=used.smoothing)

    def answers(self, model: graphs.Model, ask: Callable[[Feeds], Feeds] = dict) -> list[Feeds]:
        questions = self.promise.questions
        with running(model, PROFILE) as session:
            return [session.run(ask(feeds)) for feeds in questions]

    def judged(self, given: Sequence[Feeds]) -> dict[str, float]:
        """By metric, how much was lost for what may be: above 1 the promise is broken."""
        checks = self.promise.judge(self.expected, given, "own-graph")
        shares = {check.metric: check.worst / check.limit for check in checks}
        assert all(check.passed == (shares[check.metric] <= 1) for check in checks)
        return shares


def data_of(texts: Iterable[tuple[str, ...]]) -> Dataset:
    examples = tuple(Example(texts=each, line=at + 1) for at, each in enumerate(texts))
    return Dataset(path=Path("rows.jsonl"), examples=examples, skipped=(), digest="")


def opened(folder: Path, texts: Iterable[tuple[str, ...]]) -> Case:
    checkpoint = families.open_checkpoint(str(folder))
    spec = families.describe(checkpoint)
    questions = questions_of(data_of(texts), spec, PROFILE, folder)
    with running(families.write(checkpoint, spec, "encoder"), PROFILE) as session:
        expected = questions.ask(session)
    made = Case(
        checkpoint=checkpoint,
        spec=spec,
        promise=Promise(questions=questions, budget=BUDGET),
        expected=expected,
        calibration=calibrate(checkpoint, spec, questions, use_cache=False),
    )
    return replace(made, sound=made.answers(made.int8()))


def texts(count: int) -> list[tuple[str]]:
    """Three plain sentences each."""
    rng = np.random.default_rng(0)
    kinds = (SUBJECTS, DEEDS, THINGS, TIMES)
    return [
        (" ".join(" ".join(rng.choice(words) for words in kinds) + "." for _ in range(3)),)
        for _ in range(count)
    ]


@pytest.fixture(scope="module")
def encoder(minilm_folder: Path) -> Case:
    return opened(minilm_folder, texts(24))


@pytest.fixture(scope="module")
def tagger(rampart_folder: Path) -> Case:
    return opened(rampart_folder, texts(24))


def node(model: graphs.Model, name: str) -> ir.Node:
    return next(each for each in model.graph if each.name == name)


def times(case: Case, name: str, factor: float) -> graphs.Model:
    """The int8 graph in which one step, by which integers are restored, is another."""
    model = case.int8()
    replace_constant(node(model, name), 1, "off", lambda step: step * np.float32(factor))
    return model


def transposed(case: Case) -> graphs.Model:
    model = case.written()
    replace_constant(node(model, f"{LAYER}.attention.output.dense/MatMul"), 1, "turned", np.transpose)
    return case.int8(model)


def layer_left_out(case: Case) -> graphs.Model:
    model = case.int8()
    before, after = (
        node(model, f"encoder.layer.{at}.output.LayerNorm/LayerNormalization").outputs[0] for at in (2, 3)
    )
    for use in tuple(after.uses()):
        use.node.replace_input_with(use.idx, before)
    return model


def calibrated_on(case: Case, feeds: Iterable[Feeds]) -> graphs.Model:
    return case.int8(found=calibrate(case.checkpoint, case.spec, tuple(feeds), use_cache=False))


def on_unknown_words(case: Case) -> graphs.Model:
    """What a tokenizer that minds case makes of upper-case texts, where the vocabulary is of lower case."""
    tokenizer = json.loads((case.checkpoint.root / "tokenizer.json").read_text("utf-8"))
    ids = tokenizer["model"]["vocab"]

    def unknown(feeds: Feeds) -> Feeds:
        words = feeds["input_ids"] > ids["[SEP]"]
        return {**feeds, "input_ids": np.where(words, ids["[UNK]"], feeds["input_ids"])}

    return calibrated_on(case, map(unknown, case.promise.questions))


def on_other_bytes(case: Case) -> graphs.Model:
    """The same texts in a code page of mainframes, read as if it were Latin-1."""
    texts = [example.texts[0] for example in case.promise.questions.data.examples]
    misread = data_of((text.encode("cp500").decode("latin-1"),) for text in texts)
    return calibrated_on(case, questions_of(misread, case.spec, PROFILE, case.checkpoint.root))


def on_beginnings(case: Case) -> graphs.Model:
    """Texts that were cut after four tokens."""
    return calibrated_on(
        case, ({name: array[:, :4] for name, array in feeds.items()} for feeds in case.promise.questions)
    )


LAYER = "encoder.layer.3"

# How many times more was lost than may be, MiniLM's mean and worst cosine distance and the tagger's labels; without a
# fault 0.82 0.26 and 0.00:
#                                  MiniLM        tagger
#   a transposed weight            23.2   7.2     6.7
#   a layer left out               21.3   5.9     2.3
#   an activation's step doubled   22.6   8.0     5.7
#   a weight's steps doubled       13.7   4.7     2.8
#   a weight's steps halved         9.8   3.0     3.6
#   ranges of unknown words        14.5   4.0     4.1
#   ranges of beginnings            3.4   1.5     0.8
#   ranges of misread bytes         2.2   0.7     1.03
#   rows swapped                   97.2  34.1    45.0
#   nothing masked                 45.4  16.8     1.3
# What does not matter is let through: ranges of texts in upper case are the same, since both tokenizers lower it; those
# of rows without their special tokens lose MiniLM 3 % more than the right ones; one range that is twice too wide, which
# wastes a bit of eight, loses 2 % more (both on 28 other texts).
FAULTS: dict[str, Callable[[Case], graphs.Model]] = {
    "a transposed weight": transposed,
    "a layer left out": layer_left_out,
    "an activation's step doubled": lambda case: times(
        case, f"{LAYER}.attention.self.query/MatMul/input/restored", 2
    ),
    "a weight's steps doubled": lambda case: times(case, f"{LAYER}.output.dense/MatMul/weight", 2),
    "a weight's steps halved": lambda case: times(case, f"{LAYER}.intermediate.dense/MatMul/weight", 0.5),
    "ranges of unknown words": on_unknown_words,
    "ranges of beginnings": on_beginnings,
    "ranges of misread bytes": on_other_bytes,
}

SMALL = {"ranges of beginnings", "ranges of misread bytes"}
"""Faults that change too few labels of the tagger for 0.4 % of 973 to tell."""


def rows_swapped(outputs: Feeds) -> Feeds:
    return {name: array[::-1] for name, array in outputs.items()}


def one_nan(outputs: Feeds) -> Feeds:
    spoiled = {name: array.copy() for name, array in outputs.items()}
    array = next(iter(spoiled.values()))
    array[(0, *[1] * (array.ndim - 1))] = np.nan
    return spoiled


def nothing_masked(feeds: Feeds) -> Feeds:
    """Rows that are padded as far as the engine goes, and their padding taken for words."""
    most = PROFILE.axes["length"].max
    wide = {name: np.pad(array, ((0, 0), (0, most - array.shape[1]))) for name, array in feeds.items()}
    return {**wide, "attention_mask": np.ones_like(wide["attention_mask"])}


def cut(outputs: Feeds, like: Feeds) -> Feeds:
    return {name: array[:, : like[name].shape[1]] for name, array in outputs.items()}


def broken(shares: Mapping[str, float]) -> set[str]:
    """The metrics by which the promise does not hold."""
    return {metric for metric, share in shares.items() if not share <= 1}


BOTH = {"cosine_distance_mean", "cosine_distance_worst"}


def test_the_sound_engine_keeps_the_promise(encoder: Case, tagger: Case) -> None:
    found = encoder.judged(encoder.sound)
    assert set(found) == BOTH
    assert max(found.values()) < 0.9
    labels = tagger.judged(tagger.sound)
    assert set(labels) == {"token_label_disagreement"}
    assert max(labels.values()) < 0.9


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_an_int8_encoder_breaks_the_promise(fault: str, encoder: Case) -> None:
    found = encoder.judged(encoder.answers(FAULTS[fault](encoder)))
    assert broken(found) == (BOTH if fault != "ranges of misread bytes" else {"cosine_distance_mean"})


@pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault not in SMALL])
def test_a_fault_in_an_int8_tagger_breaks_the_promise(fault: str, tagger: Case) -> None:
    found = tagger.judged(tagger.answers(FAULTS[fault](tagger)))
    assert broken(found) == {"token_label_disagreement"}


@pytest.mark.parametrize("model", ["encoder", "tagger"])
def test_faults_around_an_int8_engine_break_the_promise(model: str, request: pytest.FixtureRequest) -> None:
    case: Case = request.getfixturevalue(model)
    sound, metrics = case.sound, set(case.judged(case.sound))
    assert broken(case.judged([rows_swapped(outputs) for outputs in sound])) == metrics
    # In one call of three, and one number of all.
    assert broken(case.judged([rows_swapped(sound[0]), *sound[1:]])) == metrics
    assert broken(case.judged([*sound[:-1], one_nan(sound[-1])])) == metrics
    unmasked = map(cut, case.answers(case.int8(), nothing_masked), sound)
    assert broken(case.judged([*unmasked])) == metrics


def test_starts_and_ends_of_answers_that_are_swapped_break_the_promise(tmp_path: Path) -> None:
    folder = tiny.checkpoint(tmp_path / "reader", task="question-answering")
    rng = np.random.default_rng(1)

    def some(least: int, most: int) -> str:
        return " ".join(rng.choice(tiny.WORDS, size=int(rng.integers(least, most))))

    reader = opened(folder, [(some(2, 5), some(6, 20)) for _ in range(24)])
    assert reader.judged(reader.sound) == {"span_disagreement": 0.0}
    swapped = [
        {"start_logits": outputs["end_logits"], "end_logits": outputs["start_logits"]}
        for outputs in reader.sound
    ]
    assert reader.judged(swapped)["span_disagreement"] > 100
