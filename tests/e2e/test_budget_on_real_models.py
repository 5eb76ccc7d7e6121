"""A budget of 0.4 % on real models and on data in files: what keeps it, and planted faults that do not."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from alula import families, graphs
from alula.codecs import Row, TextCodec, entities, row_outputs
from alula.core.engine import Plan, Session
from alula.core.errors import RunError
from alula.core.model import ModelSpec
from alula.core.profile import Profile, Range
from alula.core.tensor import Feeds
from alula.data import Dataset, read
from alula.engines import backend
from alula.verify import Answer, Labelled, Prediction, Verdict, judge, judge_labels, parse_budget

BUDGET = parse_budget("0.4%")
PROFILE = Profile({"batch": Range(1, 8, 32), "length": Range(2, 32, 64)})

PERSONAL = (
    "My name is [Sarah](GIVEN_NAME) [Connor](SURNAME) and I live in [Boston](CITY).",
    "[Peter](GIVEN_NAME) [Miller](SURNAME) moved to [Chicago](CITY) last year.",
    "I am [Maria](GIVEN_NAME) [Lopez](SURNAME) from [Denver](CITY), [Colorado](STATE).",
    "[John](GIVEN_NAME) [Smith](SURNAME) lives at [12](BUILDING_NUMBER) [Oak Street](STREET_NAME) in [Seattle](CITY).",
    "My email is [tom.baker@mail.org](EMAIL) and my phone is [212-555-0187](PHONE).",
    "[David](GIVEN_NAME) and [Laura](GIVEN_NAME) went to [Miami](CITY) with [Robert](GIVEN_NAME).",
    "Send it to [Karen](GIVEN_NAME) [White](SURNAME), [77](BUILDING_NUMBER) [Pine Avenue](STREET_NAME), "
    "[Portland](CITY), [OR](STATE) [97201](ZIP_CODE).",
    "The committee meets again in three weeks.",
    "We raised the price by four percent.",
)
"""Sentences labelled by hand, `[words](label)`; the model gets some of them wrong, as models do."""

PARAPHRASES = (
    ("A man is playing a guitar.", "Someone plays the guitar.", 5),
    ("The price of oil rose sharply.", "Oil became much more expensive.", 5),
    ("How do I reset my password?", "I forgot my password and need a new one.", 4),
    ("The cat sleeps on the sofa.", "A cat is napping on the couch.", 5),
    ("She bought a new car last week.", "A week ago she sold her old bicycle.", 2),
    ("The meeting was moved to Monday.", "They will meet on Monday instead.", 4),
    ("Heavy rain flooded the streets.", "The roads were under water after the storm.", 4),
    ("Stocks fell on Thursday.", "He cooks soup with carrots.", 0),
    ("The train to Berlin is late.", "Photosynthesis happens in leaves.", 0),
    ("Children are playing in the park.", "A dog runs through the park.", 2),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """A model, its data from a file, and its fp32 engine."""

    spec: ModelSpec
    codec: TextCodec
    data: Dataset
    session: Session

    def rows(self) -> list[Row]:
        return [self.codec.encode(text) for example in self.data.examples for text in example.texts]

    def answers(self, session: Session) -> list[Answer]:
        """All rows in batches of six, so that padding is among them; pairs lie side by side."""
        rows = self.rows()
        answers = []
        for at in range(0, len(rows), 6):
            feeds = self.codec.collate(rows[at : at + 6])
            mask = feeds["attention_mask"].astype(np.bool_)
            answers.append(Answer(mask=mask, expected=self.session.run(feeds), given=session.run(feeds)))
        return answers

    def judged(self, session: Session) -> tuple[Verdict, ...]:
        answers = self.answers(session)
        labelled = Labelled(
            texts=[example.texts for example in self.data.examples],
            labels=[example.label for example in self.data.examples],
            expected=self.predictions([answer.expected for answer in answers]),
            given=self.predictions([answer.given for answer in answers]),
        )
        pairs = [(2 * at, 2 * at + 1) for at in range(len(self.data.examples))] if self.data.paired else []
        return (
            *judge(answers, self.spec, BUDGET, "own-graph", pairs=pairs),
            *judge_labels(labelled, self.spec, BUDGET, "own-graph"),
        )

    def predictions(self, outputs: Sequence[Feeds]) -> list[Prediction]:
        rows = self.rows()
        single = [
            one
            for at, batch in enumerate(outputs)
            for one in row_outputs(batch, rows[6 * at : 6 * at + 6], self.spec)
        ]
        if self.spec.task == "embeddings":
            vectors = [np.asarray(one["embedding"], dtype=np.float32) for one in single]
            return [np.stack(vectors[at : at + 2]) for at in range(0, len(vectors), 2)]
        return [
            self.spans(one, row, example.texts[0])
            for one, row, example in zip(single, rows, self.data.examples, strict=True)
        ]

    def spans(self, outputs: Feeds, row: Row, text: str) -> Prediction:
        try:
            found = entities(outputs, row, text, self.spec)
        except RunError:
            return None
        return tuple((entity.start, entity.end, entity.entity_group) for entity in found)


def marked(sentence: str) -> dict[str, object]:
    """`[words](label)` as text and spans."""
    text, labels = "", []
    for piece in sentence.split("["):
        words, closed, rest = piece.partition("](")
        if closed:
            label, _, after = rest.partition(")")
            labels.append([len(text), len(text) + len(words), label])
            text += words + after
        else:
            text += piece
    return {"text": text, "labels": labels}


def opened(folder: Path, data: Dataset, to: Path) -> Iterator[Case]:
    checkpoint = families.open_checkpoint(str(folder))
    spec = families.describe(checkpoint)
    onnxruntime = backend("onnxruntime")
    model = graphs.rewrite(
        families.write(checkpoint, spec, "encoder"), graphs.passes_for("onnxruntime", "fp32")
    )
    engine = onnxruntime.compile(
        graphs.save(model, to / "e.onnx", "fp32"), Plan(profile=PROFILE), to / "engine"
    )
    with closing(onnxruntime.open(engine, threads=2)) as session:
        yield Case(spec=spec, codec=TextCodec.open(folder, spec), data=data, session=session)


@pytest.fixture(scope="module")
def tagger(rampart_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Case]:
    to = tmp_path_factory.mktemp("tagger")
    file = to / "labelled.jsonl"
    file.write_text("\n".join(json.dumps(marked(sentence)) for sentence in PERSONAL))
    yield from opened(rampart_folder, read(file, "token-classification"), to)


@pytest.fixture(scope="module")
def encoder(minilm_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Case]:
    to = tmp_path_factory.mktemp("encoder")
    file = to / "pairs.csv"
    rows = [f'"{first}","{second}",{score}' for first, second, score in PARAPHRASES]
    file.write_text("\n".join(["sentence1,sentence2,score", *rows]))
    yield from opened(minilm_folder, read(file, "embeddings"), to)


class Spoiled:
    """A session whose feeds or outputs are changed."""

    def __init__(
        self, session: Session, feeds: Callable[[Feeds], Feeds], outputs: Callable[[Feeds], Feeds]
    ) -> None:
        self._session, self._feeds, self._outputs = session, feeds, outputs
        self.inputs, self.outputs = session.inputs, session.outputs

    def run(self, feeds: Feeds) -> Feeds:
        return self._outputs(self._session.run(self._feeds(feeds)))

    def close(self) -> None:
        self._session.close()


def as_it_is(feeds: Feeds) -> Feeds:
    return feeds


def mask_ignored(feeds: Feeds) -> Feeds:
    return {**feeds, "attention_mask": np.ones_like(feeds["attention_mask"])}


def rows_swapped(outputs: Feeds) -> Feeds:
    return {name: array[::-1].copy() for name, array in outputs.items()}


def one_nan(outputs: Feeds) -> Feeds:
    (name, array), *_ = outputs.items()
    spoiled = np.array(array, dtype=np.float32)
    spoiled[(0, *[1] * (spoiled.ndim - 1))] = np.nan
    return {name: spoiled}


def a_row_short(outputs: Feeds) -> Feeds:
    return {name: array[:-1] for name, array in outputs.items()}


def constant(outputs: Feeds) -> Feeds:
    return {name: np.ones_like(array) for name, array in outputs.items()}


def slightly_off(outputs: Feeds) -> Feeds:
    """Noise as a good 8-bit engine might have."""
    rng = np.random.default_rng(0)
    return {
        name: np.asarray(array, np.float32) * (1 + 1e-3 * rng.standard_normal(array.shape)).astype(np.float32)
        for name, array in outputs.items()
    }


FAULTS: dict[str, tuple[Callable[[Feeds], Feeds], Callable[[Feeds], Feeds]]] = {
    "ignored mask": (mask_ignored, as_it_is),
    "swapped outputs": (as_it_is, rows_swapped),
    "one NaN": (as_it_is, one_nan),
    "constant output": (as_it_is, constant),
}


def shown(verdicts: tuple[Verdict, ...]) -> dict[str, bool]:
    return {verdict.check.metric: verdict.check.passed for verdict in verdicts}


@pytest.mark.parametrize("noise", [as_it_is, slightly_off])
def test_a_sound_encoder_keeps_the_budget_and_says_that_ten_pairs_are_few(
    encoder: Case, noise: Callable[[Feeds], Feeds]
) -> None:
    verdicts = encoder.judged(Spoiled(encoder.session, as_it_is, noise))
    assert shown(verdicts) == {
        "cosine_distance_mean": True,
        "cosine_distance_worst": True,
        "nearest_disagreement": True,
        "spearman_drop": True,
    }
    scores = verdicts[-1].scores
    assert scores is not None
    assert 0.5 < scores[0] < 1.0
    assert "too few samples (10) to tell 0.4 % apart" in verdicts[-1].note
    assert verdicts[0].note == ""


@pytest.mark.parametrize("noise", [as_it_is, slightly_off])
def test_a_sound_tagger_keeps_the_budget_by_tokens_and_by_entities(
    tagger: Case, noise: Callable[[Feeds], Feeds]
) -> None:
    verdicts = tagger.judged(Spoiled(tagger.session, as_it_is, noise))
    assert shown(verdicts) == {"token_label_disagreement": True, "span_f1_drop": True}
    scores = verdicts[-1].scores
    assert scores is not None
    assert 0.7 < scores[0] < 1.0
    assert verdicts[0].check.samples > 100
    assert "too few samples" in verdicts[-1].note


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("model", ["encoder", "tagger"])
def test_a_planted_fault_breaks_the_budget(fault: str, model: str, request: pytest.FixtureRequest) -> None:
    case: Case = request.getfixturevalue(model)
    feeds, outputs = FAULTS[fault]
    verdicts = case.judged(Spoiled(case.session, feeds, outputs))
    # Ten pairs of sentences keep their order even where the mask is ignored; everything else must fail.
    forgiven = {"spearman_drop"} if (model, fault) == ("encoder", "ignored mask") else set()
    assert {metric for metric, passed in shown(verdicts).items() if passed} <= forgiven


@pytest.mark.parametrize("model", ["encoder", "tagger"])
def test_an_output_that_is_a_row_short_breaks_the_budget(model: str, request: pytest.FixtureRequest) -> None:
    case: Case = request.getfixturevalue(model)
    answers = case.answers(Spoiled(case.session, as_it_is, a_row_short))
    verdicts = judge(answers, case.spec, BUDGET, "own-graph")
    assert not any(verdict.check.passed for verdict in verdicts)
