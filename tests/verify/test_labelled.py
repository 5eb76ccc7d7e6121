from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alula.core.errors import InputError
from alula.core.model import ModelSpec, Part
from alula.verify import Labelled, Prediction, UserMetric, Verdict, judge_labels
from alula.verify.labelled import Label, spearman

BUDGET = 0.004
NAMES = ("no", "yes", "maybe")
TAGS = ("O", "B-PER", "I-PER", "B-LOC")


def spec_of(task: str, labels: tuple[str, ...] = NAMES) -> ModelSpec:
    return ModelSpec(
        name="m",
        digest="0" * 64,
        revision="main",
        architecture="A",
        family="bert",
        task=task,
        parts=(Part(name="encoder", inputs=(), outputs=()),),
        max_length=16,
        vocab_size=9,
        pad_id=0,
        labels=labels,
    )


CLASSES = spec_of("sequence-classification")
TOKENS = spec_of("token-classification", TAGS)
ANSWERS = spec_of("question-answering", ())
SCORES = spec_of("reranking", ("LABEL_0",))
PAIRS = spec_of("embeddings", ())
LINES = spec_of("text-recognition", ("", *"0123456789"))
IMAGES = spec_of("image-classification", tuple("abcdefgh"))


def judged(
    spec: ModelSpec,
    labels: Sequence[Label],
    expected: Sequence[Prediction],
    given: Sequence[Prediction],
    metric: UserMetric | None = None,
) -> Verdict:
    texts = [("t",)] * len(labels)
    rows = Labelled(texts=texts, labels=labels, expected=expected, given=given)
    (verdict,) = judge_labels(rows, spec, BUDGET, "pytorch", metric)
    return verdict


def test_accuracy_is_lost_by_rows_that_were_right_and_won_by_rows_that_were_wrong() -> None:
    labels = ["yes"] * 100
    expected = ["yes"] * 90 + ["no"] * 10
    worse = judged(CLASSES, labels, expected, ["no", *expected[1:]])
    assert worse.scores == (0.9, 0.89)
    assert worse.check.worst == pytest.approx(0.01)
    assert (worse.check.output, worse.check.metric) == ("labels", "accuracy_drop")
    assert not worse.check.passed
    better = judged(CLASSES, labels, expected, ["yes"] * 100)
    assert better.check.worst == pytest.approx(-0.1)
    assert better.check.passed
    even = judged(CLASSES, labels, expected, ["no", *expected[1:-1], "yes"])
    assert even.check.worst == pytest.approx(0)
    assert even.check.passed


def test_few_rows_pass_by_their_value_and_say_that_they_are_few() -> None:
    few = judged(CLASSES, ["yes"] * 20, ["yes"] * 20, ["yes"] * 20)
    assert few.check.passed
    assert few.note.startswith("too few samples (20) to tell 0.4 % apart: 95 % of -8.")
    many = judged(CLASSES, ["yes"] * 2000, ["yes"] * 2000, ["yes"] * 2000)
    assert many.check.passed
    assert many.note == ""


def test_a_class_may_be_named_or_numbered() -> None:
    assert judged(CLASSES, ["1", "no"], ["yes", "no"], ["yes", "no"]).scores == (1.0, 1.0)


def test_of_several_classes_all_must_be_right() -> None:
    labels: list[Label] = [("no", "yes"), (), ("maybe",)]
    expected: list[Prediction] = [("yes", "no"), (), ("maybe",)]
    given: list[Prediction] = [("yes",), (), ("maybe", "no")]
    several = replace(CLASSES, activation="sigmoid")
    assert judged(several, labels, expected, given).scores == pytest.approx((1.0, 1 / 3))
    with pytest.raises(InputError, match="example 1 has several labels; m gives one of 3"):
        judged(CLASSES, labels, expected, given)


def test_labels_that_the_reference_never_meets_are_refused_since_nothing_can_be_lost() -> None:
    said: list[Prediction] = ["no", "no"]
    with pytest.raises(InputError, match="the reference itself gets nothing right on 2 labelled rows"):
        judged(CLASSES, ["yes", "maybe"], said, said)


def test_a_drop_exactly_as_large_as_allowed_passes() -> None:
    labels: list[Label] = ["yes"] * 1000
    expected: list[Prediction] = ["yes" if at < 900 else "no" for at in range(1000)]
    given: list[Prediction] = ["yes" if at < 896 else "no" for at in range(1000)]
    (verdict,) = judge_labels(
        Labelled(texts=[("",)] * 1000, labels=labels, expected=expected, given=given),
        CLASSES,
        0.004,
        "golden",
    )
    assert verdict.check.passed


@pytest.mark.parametrize("label", ["perhaps", "3", 1.0, ("no", "perhaps")])
def test_a_class_that_the_model_does_not_know_is_refused(label: Label) -> None:
    with pytest.raises(InputError, match=r"of example 2 is none of the model's: no, yes, maybe"):
        judged(replace(CLASSES, activation="sigmoid"), ["no", label], ["no", "no"], ["no", "no"])


def test_entities_count_whole() -> None:
    labels: list[Label] = [((0, 4, "PER"), (8, 14, "LOC")), ((0, 2, "PER"),), ()]
    given: list[Prediction] = [((0, 4, "PER"), (8, 13, "LOC")), ((0, 2, "LOC"),), ()]
    verdict = judged(TOKENS, labels, list(labels), given)
    assert verdict.scores == pytest.approx((1.0, 1 / 3))
    assert verdict.check.metric == "span_f1_drop"
    assert not verdict.check.passed


def test_an_entity_too_many_is_a_loss() -> None:
    labels: list[Label] = [((0, 4, "PER"),), ()]
    given: list[Prediction] = [((0, 4, "PER"),), ((0, 1, "PER"),)]
    assert judged(TOKENS, labels, list(labels), given).scores == pytest.approx((1.0, 2 / 3))


def test_entities_that_no_model_label_covers_are_refused_and_so_is_none_at_all() -> None:
    with pytest.raises(InputError, match="label 'ORG' of example 1 is none of the model's: LOC, PER"):
        judged(TOKENS, [((0, 1, "ORG"),)], [()], [()])
    with pytest.raises(InputError, match="no row is labelled with an entity, so that F1 has no meaning"):
        judged(TOKENS, [(), ()], [(), ()], [(), ()])


def test_entities_that_all_stay_leave_few_rows_unsure() -> None:
    labels: list[Label] = [((0, 4, "PER"),)] * 8
    verdict = judged(TOKENS, labels, list(labels), list(labels))
    assert verdict.check.passed
    assert verdict.note.startswith("too few samples (8)")


def test_an_answer_is_one_of_the_accepted_ones_letter_by_letter() -> None:
    labels: list[Label] = [("in Oslo", "Oslo"), ("1912",), ("Anna",)]
    verdict = judged(ANSWERS, labels, ["Oslo ", "1912", "Anna"], ["in Oslo", "in 1912", "anna"])
    assert verdict.scores == pytest.approx((1.0, 1 / 3))
    assert verdict.check.metric == "exact_match_drop"


def test_an_image_is_judged_by_its_best_label_and_by_its_best_five() -> None:
    labels = ["a", "b", "2", "d"]
    expected: list[Prediction] = [tuple("abcde"), tuple("bacde"), tuple("abcde"), tuple("dabce")]
    given: list[Prediction] = [tuple("abcde"), tuple("acdeb"), tuple("abdef"), tuple("dabce")]
    rows = Labelled(texts=[()] * 4, labels=labels, expected=expected, given=given)
    first, five = judge_labels(rows, IMAGES, BUDGET, "pytorch")
    assert (first.check.metric, first.scores) == ("top1_drop", (0.75, 0.5))
    assert (five.check.metric, five.scores) == ("top5_drop", (1.0, 0.75))
    few = spec_of("image-classification", tuple("abcde"))
    assert judged(few, labels, expected, given).check.metric == "top1_drop"
    with pytest.raises(InputError, match=r"label \('a', 'b'\) of example 1 is none of the model's: a, b, c"):
        judged(few, [("a", "b")], [("a",)], [("a",)])


def test_a_line_is_judged_by_its_characters() -> None:
    verdict = judged(LINES, ["2026", "10", ""], ["2026", "10", ""], ["202", "10", "1"])
    assert verdict.check.metric == "character_accuracy_drop"
    assert verdict.scores == pytest.approx((1.0, 1 - 2 / 6))
    assert not verdict.check.passed
    kept = judged(LINES, ["2026"] * 8, ["2026"] * 8, ["2026"] * 8)
    assert kept.check.passed
    assert kept.note.startswith("too few samples (8)")
    won = judged(LINES, ["2026"] * 8, ["2025"] * 8, ["2026"] * 8)
    assert won.check.worst == pytest.approx(-0.25)
    assert won.check.passed
    with pytest.raises(InputError, match="every line is labelled as empty"):
        judged(LINES, ["", ""], ["", ""], ["", ""])
    with pytest.raises(InputError, match=r"label 1\.0 of example 1 is no text; expected what the line says"):
        judged(LINES, [1.0], [""], [""])


def test_scores_are_compared_with_labels_by_rank() -> None:
    labels = [0.0, 1.0, 2.0, 3.0]
    kept = judged(SCORES, labels, [0.1, 0.2, 0.3, 0.4], [-9.0, 0.0, 5.0, 100.0])
    assert kept.scores == pytest.approx((1.0, 1.0))
    assert kept.check.passed
    assert kept.note.startswith("too few samples (4)")
    turned = judged(SCORES, labels, [0.1, 0.2, 0.3, 0.4], [0.4, 0.3, 0.2, 0.1])
    assert turned.check.worst == pytest.approx(2.0)


def test_pairs_of_embeddings_are_compared_by_their_cosine() -> None:
    near, far, turned = (np.array([[1.0, 0.0], [x, 1.0]], dtype=np.float32) for x in (5.0, 1.0, -5.0))
    verdict = judged(PAIRS, [5.0, 3.0, 0.0], [near, far, turned], [3 * near, far, 2 * turned])
    assert verdict.scores == pytest.approx((1.0, 1.0))
    swapped = judged(PAIRS, [5.0, 3.0, 0.0], [near, far, turned], [far, near, turned])
    assert swapped.scores == pytest.approx((1.0, 0.5))


def test_scores_that_are_all_the_same_are_refused_as_labels_and_fail_as_predictions() -> None:
    with pytest.raises(InputError, match="all scores in the data are the same"):
        judged(SCORES, [1.0, 1.0], [0.1, 0.2], [0.1, 0.2])
    constant = judged(SCORES, [1.0, 2.0, 3.0], [0.1, 0.2, 0.3], [0.5, 0.5, 0.5])
    assert not constant.check.passed
    with pytest.raises(InputError, match="label 'good' of example 1 is no number"):
        judged(SCORES, ["good", 1.0], [0.1, 0.2], [0.1, 0.2])


@pytest.mark.parametrize(
    ("spec", "labels", "said"),
    [
        (CLASSES, ["yes"] * 1000, "yes"),
        (TOKENS, [((0, 1, "PER"),)] * 1000, ((0, 1, "PER"),)),
        (ANSWERS, [("a",)] * 1000, "a"),
        (LINES, ["1"] * 1000, "1"),
        (spec_of("image-classification"), ["yes"] * 1000, ("yes", "no")),
        (SCORES, [float(at) for at in range(1000)], None),
    ],
)
def test_one_row_of_a_thousand_that_cannot_be_decoded_or_is_missing_fails(
    spec: ModelSpec, labels: list[Label], said: Prediction
) -> None:
    expected: list[Prediction] = [said if said is not None else float(at) for at in range(1000)]
    assert judged(spec, labels, expected, expected).check.passed
    for said_of_rows in ([*expected[:-1], None], expected[:-1]):
        verdict = judged(spec, labels, expected, said_of_rows)
        assert not verdict.check.passed
        assert np.isnan(verdict.check.worst)
        assert verdict.note == ""


def test_a_row_without_a_label_is_refused() -> None:
    with pytest.raises(InputError, match="example 2 has no label; expected one for each of 2"):
        judged(CLASSES, ["yes", None], ["yes", "no"], ["yes", "no"])


def test_a_metric_of_the_user_judges_in_place_of_the_task_s_and_needs_no_labels() -> None:
    metric = UserMetric(
        name="mine:length", function=lambda said, labels, texts: sum(len(x) for x in said) / 100
    )
    verdict = judged(CLASSES, [None, None], ["yes", "yes"], ["no", "no"], metric)
    assert verdict.scores == pytest.approx((0.06, 0.04))
    assert verdict.check.metric == "mine:length_drop"
    assert not verdict.check.passed
    assert verdict.interval is None
    undecoded = judged(CLASSES, [None, None], ["yes", "yes"], ["no", None], metric)
    assert not undecoded.check.passed


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=2, max_size=30))
def test_spearman_is_symmetric_and_blind_to_what_keeps_the_order(rows: list[tuple[int, int]]) -> None:
    a, b = (np.array(side, dtype=np.float64) for side in zip(*rows, strict=True))
    value = spearman(a, b)
    assert spearman(b, a) == pytest.approx(value, nan_ok=True)
    assert spearman(np.exp(a), 3 * b - 1) == pytest.approx(value, nan_ok=True)
    assert np.isnan(value) or -1 - 1e-12 <= value <= 1 + 1e-12


def test_spearman_gives_tied_values_their_mean_rank() -> None:
    assert spearman(np.array([1.0, 2.0, 2.0, 4.0]), np.array([1.0, 2.0, 3.0, 4.0])) == pytest.approx(
        0.9487, abs=1e-4
    )
