from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from alula.codecs import Row, answers, classes, entities, relevance, token_labels, vectors
from alula.core.errors import InputError, RunError
from alula.core.model import ModelSpec

BASE = ModelSpec(
    name="tiny",
    digest="0",
    revision="main",
    architecture="BertForX",
    family="bert",
    task="token-classification",
    parts=(),
    max_length=16,
    vocab_size=8,
    pad_id=0,
    activation="softmax",
)
TAGS = ("O", "B-PER", "I-PER", "B-LOC")


def spec(labels: tuple[str, ...], activation: str = "softmax") -> ModelSpec:
    return dataclasses.replace(BASE, labels=labels, activation=activation)


def row_of(text: str, source: int = 0, pieces: int = 1) -> Row:
    """A row of white-space words, each cut into `pieces` tokens, between two special ones."""
    offsets, words, at = [(0, 0)], [-1], 0
    for number, word in enumerate(text.split()):
        at = text.index(word, at)
        edges = np.linspace(at, at + len(word), pieces + 1).astype(int).tolist()
        offsets += list(itertools.pairwise(edges))
        words += [number] * pieces
        at += len(word)
    count = len(offsets) - 1
    return Row(
        ids=(1,) * (count + 2),
        type_ids=(0,) * (count + 2),
        offsets=(*offsets, (0, 0)),
        sources=(-1, *(source,) * count, -1),
        words=(*words, -1),
    )


def logits_for(choices: list[int], labels: int) -> np.ndarray:
    return np.eye(labels, dtype=np.float32)[choices] * 8


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_a_number_never_becomes_an_answer(bad: float) -> None:
    row = row_of("a")
    outputs = {
        name: np.full((3, 2) if name == "logits" else 3, bad)
        for name in ("logits", "embedding", "start_logits", "end_logits")
    }
    for answer in (
        lambda: vectors(outputs),
        lambda: classes({"logits": outputs["logits"][0]}, spec(("a", "b"))),
        lambda: relevance({"logits": outputs["logits"][0]}, spec(("a", "b"))),
        lambda: entities(outputs, row, "a", spec(("a", "b"))),
        lambda: answers(outputs, row_of("a", source=1), "a"),
    ):
        with pytest.raises(RunError, match=r"the model gave (NaN|infinity) for '"):
            answer()


def test_cut_vectors_are_brought_back_to_length_one() -> None:  # huggingface/text-embeddings-inference#676
    batch = {"embedding": np.array([[3.0, 4.0, 12.0], [0.0, 0.0, 1.0]], dtype=np.float32)}
    cut = vectors(batch, normalize=True, dimensions=2)
    np.testing.assert_allclose(cut, [[0.6, 0.8], [0.0, 0.0]], rtol=1e-6)
    assert cut.dtype == np.float32
    assert vectors(batch).tolist() == batch["embedding"].tolist()


@pytest.mark.parametrize("dimensions", [0, -1, 4])
def test_dimensions_the_model_does_not_have_are_refused(dimensions: int) -> None:
    with pytest.raises(InputError, match=rf"dimensions is {dimensions}; the model has 1\.\.3"):
        vectors({"embedding": np.ones((1, 3))}, dimensions=dimensions)


def test_classes_come_best_first_and_sum_to_one() -> None:
    found = classes({"logits": np.array([0.0, 2.0, 1.0])}, spec(("a", "b", "c")))
    assert [scored.label for scored in found] == ["b", "c", "a"]
    assert sum(scored.score for scored in found) == pytest.approx(1.0)


def test_sigmoid_scores_stand_each_for_itself() -> None:
    found = classes({"logits": np.array([0.0, 800.0, -800.0])}, spec(("a", "b", "c"), "sigmoid"))
    assert [(scored.label, scored.score) for scored in found] == [("b", 1.0), ("a", 0.5), ("c", 0.0)]


def test_one_label_is_never_certain_by_accident() -> None:  # vllm-project/vllm#18313
    (found,) = classes({"logits": np.array([-2.0])}, spec(("only",)))
    assert found.score == pytest.approx(0.1192, abs=1e-4)


def test_raw_scores_are_the_logits() -> None:
    found = classes({"logits": np.array([-2.0, 3.5])}, spec(("a", "b")), raw=True)
    assert [scored.score for scored in found] == [3.5, -2.0]
    assert relevance({"logits": np.array([-2.0])}, spec(("a",), "sigmoid"), raw=True) == -2.0


def test_relevance_is_the_sigmoid_of_one_logit_or_the_last_of_several() -> None:
    assert relevance({"logits": np.array([0.0])}, spec(("a",), "none")) == 0.5
    assert relevance({"logits": np.array([0.0, np.log(3.0)])}, spec(("no", "yes"))) == pytest.approx(0.75)


def test_labels_that_do_not_fit_the_logits_are_refused() -> None:
    with pytest.raises(InputError, match="tiny names 2 labels and gives 3 scores"):
        classes({"logits": np.zeros(3)}, spec(("a", "b")))
    assert classes({"logits": np.zeros(1)}, spec(()))[0].label == "LABEL_0"


def test_entities_are_spans_of_the_users_text_in_code_points() -> None:
    """watson-developer-cloud/node-sdk#1033: an emoji shifted all places behind it by one."""
    text = "🦜🦜 Ada Lovelace in 👩‍👩‍👧 Paris"
    logits = logits_for([0, 0, 1, 2, 0, 0, 3, 0], 4)
    found = entities({"logits": logits}, row_of(text), text, spec(TAGS))
    assert [(one.entity_group, one.word) for one in found] == [("PER", "Ada Lovelace"), ("LOC", "Paris")]
    assert all(text[one.start : one.end] == one.word for one in found)
    assert found[0].score == pytest.approx(np.exp(8) / (np.exp(8) + 3))


def test_a_begin_label_starts_a_new_entity_and_an_inside_label_may_start_one() -> None:
    text = "Ada Bob Cy"
    logits = logits_for([0, 2, 1, 2, 0], 4)
    found = entities({"logits": logits}, row_of(text), text, spec(TAGS))
    assert [one.word for one in found] == ["Ada", "Bob Cy"]


def test_token_labels_are_given_for_every_token_of_the_text() -> None:
    text = "Ada in"
    found = token_labels({"logits": logits_for([0, 1, 0, 0], 4)}, row_of(text), text, spec(TAGS))
    assert [(one.index, one.entity, one.word) for one in found] == [(1, "B-PER", "Ada"), (2, "O", "in")]


def test_white_space_is_no_part_of_an_entity() -> None:
    row = Row(ids=(1, 1), type_ids=(0, 0), offsets=((0, 1), (1, 5)), sources=(0, 0), words=(0, 1))
    (found,) = entities({"logits": logits_for([0, 3], 4)}, row, "a Rom", spec(TAGS))
    assert (found.word, found.start, found.end) == ("Rom", 2, 5)


def spans(row: Row, first: int, last: int) -> dict[str, np.ndarray]:
    count = len(row.ids)
    return {"start_logits": logits_for([first], count)[0], "end_logits": logits_for([last], count)[0]}


def test_an_answer_is_a_span_of_the_context() -> None:
    context = "the 🦜 lives in Rome"
    row = row_of(context, source=1)
    (found,) = answers(spans(row, 4, 5), row, context)
    assert found.answer == "in Rome" == context[found.start : found.end]
    assert 0.9 < found.score < 1


def test_no_answer_comes_from_the_question() -> None:
    row = row_of("who is it", source=0)
    assert answers(spans(row, 1, 2), row, "who is it") == []


def test_an_answer_is_widened_to_whole_words() -> None:
    context = "Rome burns"
    row = row_of(context, source=1, pieces=2)
    (found,) = answers(spans(row, 2, 2), row, context)
    assert found.answer == "Rome"


def test_answers_do_not_repeat_and_come_best_first() -> None:
    context = "Rome burns"
    row = row_of(context, source=1, pieces=2)
    found = answers(spans(row, 1, 2), row, context, count=5)
    assert [one.answer for one in found] == ["Rome", "Rome burns", "burns"]
    assert [one.score for one in found] == sorted((one.score for one in found), reverse=True)


def test_an_answer_is_no_longer_than_asked() -> None:
    context = "a b c d e f"
    row = row_of(context, source=1)
    for found in answers(spans(row, 1, 6), row, context, count=9, max_tokens=2):
        assert len(found.answer.split()) <= 2


@given(seed=st.integers(0, 10_000), words=st.integers(1, 8))
def test_every_answer_is_where_it_says(seed: int, words: int) -> None:
    rng = np.random.default_rng(seed)
    context = " ".join(rng.choice(["a", "🦜", "bc", "é"], words))
    row = row_of(context, source=1)
    outputs = {name: rng.normal(size=words + 2) * 5 for name in ("start_logits", "end_logits")}
    for found in answers(outputs, row, context, count=4):
        assert context[found.start : found.end] == found.answer != ""
        assert 0 < found.score <= 1
