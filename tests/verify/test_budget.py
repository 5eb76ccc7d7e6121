from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from alula.core.errors import InputError
from alula.core.model import ModelSpec, Part
from alula.core.tensor import Feeds
from alula.core.words import TASKS, TENSORS, WRITING_TASKS
from alula.verify import Answer, Verdict, budget_limits, clauses_for, judge, parse_budget
from alula.verify.budget import CLAUSES
from alula.verify.labelled import SCORES
from alula.verify.losses import MEASURES
from alula.verify.written import WRITTEN

BUDGET = 0.004

Floats = NDArray[np.float64]


def spec_of(task: str, labels: int = 3, activation: str = "softmax") -> ModelSpec:
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
        labels=tuple(f"L{at}" for at in range(labels)),
        activation=activation,
    )


def answer(expected: Feeds, given: Feeds, mask: list[list[int]] | None = None) -> Answer:
    rows = len(next(iter(expected.values())))
    flags = np.ones((rows, 1), dtype=np.bool_) if mask is None else np.array(mask, dtype=np.bool_)
    return Answer(mask=flags, expected=expected, given=given)


def by_metric(verdicts: tuple[Verdict, ...]) -> dict[str, Verdict]:
    return {verdict.check.metric: verdict for verdict in verdicts}


def turned(rows: Floats, distance: float) -> Floats:
    """Unit rows whose 1 - cosine to `rows` is the given one."""
    aside = np.roll(rows, 1, axis=1)
    aside -= (aside * rows).sum(axis=1, keepdims=True) * rows
    aside /= np.linalg.norm(aside, axis=1, keepdims=True)
    cosine = 1 - distance
    return cosine * rows + float(np.sqrt(1 - cosine * cosine)) * aside


@pytest.fixture
def vectors() -> Floats:
    rows = np.random.default_rng(0).normal(size=(40, 16))
    unit: Floats = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return unit


@pytest.mark.parametrize(
    ("text", "share"),
    [
        ("0.4%", 0.004),
        ("0.4 %", 0.004),
        (" 1% ", 0.01),
        ("0.004", 0.004),
        (".5", 0.5),
        ("5.%", 0.05),
        ("0", 0.0),
        ("100%", 1.0),
        ("1", 1.0),
    ],
)
def test_a_budget_is_a_share_or_a_percentage(text: str, share: float) -> None:
    assert parse_budget(text) == share


@pytest.mark.parametrize(
    "text",
    ["-1%", "-0.1", "101%", "1.5", "%", "", "abc", "0.4%%", "nan", "inf", "1e-3", "0,4%", "1_0%", "٤%", "."],
)
def test_a_budget_that_is_no_share_is_refused(text: str) -> None:
    with pytest.raises(InputError) as refused:
        parse_budget(text)
    assert str(refused.value) == (
        f"budget {text!r} is no share from 0 to 1; expected one such as 0.4% or 0.004"
    )


@pytest.mark.parametrize("task", TASKS)
def test_every_task_has_a_meaning_for_a_budget_with_and_without_labels(task: str) -> None:
    clauses = clauses_for(task)
    assert any(clause.when in {"always", "no labels"} for clause in clauses)
    # Calls of arrays have no labels, and none are read for these two tasks on images.
    without = {TENSORS, "image-embeddings", "text-detection"}
    assert any(clause.when == "labels" for clause in clauses) == (task not in without)
    for clause in clauses:
        measures = WRITTEN if task in WRITING_TASKS else MEASURES
        assert clause.metric in (SCORES if clause.when == "labels" else measures)
        assert len(clause.meaning) > 10
    assert set(CLAUSES) == set(TASKS)


def test_limits_are_the_budget_and_five_times_that_for_the_worst_embedding() -> None:
    assert budget_limits("embeddings", 0.01) == {
        "cosine_distance_mean": 0.01,
        "cosine_distance_worst": 0.05,
        "nearest_disagreement": 0.01,
        "spearman_drop": 0.01,
    }
    assert budget_limits("sequence-classification", 0.01) == {
        "label_disagreement": 0.01,
        "accuracy_drop": 0.01,
    }
    assert set(budget_limits("sequence-classification", 0.01, labels=1)) == {
        "order_disagreement",
        "spearman_drop",
    }
    assert set(budget_limits("image-classification", 0.01, labels=6)) == {
        "label_disagreement",
        "top1_drop",
        "top5_drop",
    }
    assert set(budget_limits("image-classification", 0.01, labels=5)) == {"label_disagreement", "top1_drop"}
    with pytest.raises(InputError, match="no budget for task 'poetry'; there are embeddings"):
        budget_limits("poetry", 0.01)


def test_equal_embeddings_keep_a_budget_of_nothing(vectors: Floats) -> None:
    verdicts = judge(
        [answer({"embedding": vectors}, {"embedding": vectors})], spec_of("embeddings"), 0.0, "pytorch"
    )
    assert [verdict.check.passed for verdict in verdicts] == [True, True]
    assert verdicts[0].check.samples == 40


def test_mean_and_worst_are_judged_each_by_itself(vectors: Floats) -> None:
    def judged(given: Floats) -> list[bool]:
        verdicts = judge(
            [answer({"embedding": vectors}, {"embedding": given})], spec_of("embeddings"), BUDGET, "pytorch"
        )
        return [verdict.check.passed for verdict in verdicts]

    assert judged(turned(vectors, 0.0039)) == [True, True]
    assert judged(turned(vectors, 0.0041)) == [False, True]
    one_off = vectors.copy()
    one_off[7] = turned(vectors, 0.021)[7]
    assert judged(one_off) == [True, False]
    one_off[7] = turned(vectors, 0.019)[7]
    assert judged(one_off) == [True, True]


def test_the_mean_of_distances_has_an_interval_and_the_worst_has_none(vectors: Floats) -> None:
    given = vectors.copy()
    given[:20] = turned(vectors, 0.008)[:20]
    mean, worst = judge(
        [answer({"embedding": vectors}, {"embedding": given})], spec_of("embeddings"), BUDGET, "pytorch"
    )
    assert mean.check.worst == pytest.approx(0.004)
    assert mean.interval is not None
    assert mean.interval.low < 0.004 < mean.interval.high
    assert mean.note.startswith("too few samples (40) to tell 0.4 % apart: 95 % of 0.2")
    assert worst.interval is None
    assert worst.note == ""


def test_the_order_of_neighbours_is_judged_where_pairs_are_given(vectors: Floats) -> None:
    pairs = [(at, at + 20) for at in range(20)]
    expected = vectors.copy()
    expected[20:] = turned(vectors, 0.1)[:20]
    given = expected.copy()
    given[[20, 21]] = given[[21, 20]]

    def nearest(answers: list[Answer]) -> Verdict:
        return by_metric(judge(answers, spec_of("embeddings"), BUDGET, "pytorch", pairs=pairs))[
            "nearest_disagreement"
        ]

    whole = nearest([answer({"embedding": expected}, {"embedding": given})])
    assert whole.check.worst == pytest.approx(2 / 20)
    assert not whole.check.passed
    halves = [
        answer({"embedding": expected[part]}, {"embedding": given[part]})
        for part in (slice(15), slice(15, 40))
    ]
    assert nearest(halves).check == whole.check
    assert nearest([answer({"embedding": expected}, {"embedding": expected})]).check.passed


def test_second_texts_that_are_the_same_may_stand_for_one_another(vectors: Floats) -> None:
    expected = np.concatenate([vectors[:3], vectors[:1], vectors[:1], vectors[1:2]])
    expected[4] = turned(expected, 1e-7)[4]
    given = expected.copy()
    given[3] = turned(expected, 1e-4)[3]
    given[4] = turned(expected, 5e-5)[4]
    verdicts = judge(
        [answer({"embedding": expected}, {"embedding": given})],
        spec_of("embeddings"),
        BUDGET,
        "pytorch",
        pairs=[(0, 3), (0, 4), (1, 5)],
    )
    assert by_metric(verdicts)["nearest_disagreement"].check.worst == 0.0


def logits(rows: int, labels: int = 3) -> Floats:
    return np.random.default_rng(1).normal(size=(rows, labels))


def test_classes_are_judged_by_the_share_of_texts_with_another_label() -> None:
    expected = logits(500)
    given = expected.copy()
    given[:2] = -given[:2]
    (two,) = judge(
        [answer({"logits": expected}, {"logits": given})],
        spec_of("sequence-classification"),
        BUDGET,
        "golden",
    )
    assert (two.check.worst, two.check.passed, two.check.samples) == (0.004, True, 500)
    assert two.check.reference == "golden"
    given[2] = -given[2]
    (three,) = judge(
        [answer({"logits": expected}, {"logits": given})],
        spec_of("sequence-classification"),
        BUDGET,
        "golden",
    )
    assert not three.check.passed
    assert three.note.startswith("too few samples (500) to tell 0.4 % apart")


def test_several_labels_disagree_where_any_of_them_does() -> None:
    expected = np.full((10, 4), -1.0)
    expected[:, 0] = 2.0
    given = expected.copy()
    given[3, 2] = 1.0
    spec = spec_of("sequence-classification", labels=4, activation="sigmoid")
    (verdict,) = judge([answer({"logits": expected}, {"logits": given})], spec, BUDGET, "pytorch")
    assert verdict.check.worst == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("task", "labels"), [("reranking", 1), ("sequence-classification", 1), ("reranking", 2)]
)
def test_scores_are_judged_by_their_order(task: str, labels: int) -> None:
    expected = np.zeros((20, labels))
    expected[:, -1] = np.arange(20)
    given = 3 * expected
    spec = spec_of(task, labels=labels)
    (kept,) = judge([answer({"logits": expected}, {"logits": given})], spec, BUDGET, "pytorch")
    assert (kept.check.worst, kept.check.samples) == (0.0, 20)
    given[[4, 5]] = given[[5, 4]]
    (swapped,) = judge([answer({"logits": expected}, {"logits": given})], spec, BUDGET, "pytorch")
    assert swapped.check.worst == pytest.approx(1 / 190)
    (constant,) = judge([answer({"logits": expected}, {"logits": 0 * given})], spec, BUDGET, "pytorch")
    assert constant.check.worst == 1.0


def test_of_two_labels_the_odds_of_the_last_one_are_the_score() -> None:
    expected, given = np.zeros((5, 2)), np.zeros((5, 2))
    expected[:, 0] = -100.0 * np.arange(5)
    given[:, 1] = np.arange(5)
    (same,) = judge(
        [answer({"logits": expected}, {"logits": given})], spec_of("reranking", 2), BUDGET, "pytorch"
    )
    assert same.check.worst == 0.0
    (other,) = judge(
        [answer({"logits": expected}, {"logits": -given})], spec_of("reranking", 2), BUDGET, "pytorch"
    )
    assert other.check.worst == 1.0


def test_tokens_are_judged_and_padding_is_not() -> None:
    expected = np.random.default_rng(2).normal(size=(2, 4, 3))
    given = expected.copy()
    given[1, 3] = -given[1, 3]
    spec = spec_of("token-classification")
    (padded,) = judge(
        [answer({"logits": expected}, {"logits": given}, [[1, 1, 1, 1], [1, 1, 1, 0]])],
        spec,
        BUDGET,
        "pytorch",
    )
    assert (padded.check.worst, padded.check.samples) == (0.0, 7)
    (read,) = judge(
        [answer({"logits": expected}, {"logits": given}, [[1, 1, 1, 1], [1, 1, 1, 1]])],
        spec,
        BUDGET,
        "pytorch",
    )
    assert read.check.worst == pytest.approx(1 / 8)


def test_the_interval_over_tokens_is_as_wide_as_texts_make_it() -> None:
    expected = np.zeros((10, 50, 2))
    expected[..., 0] = 1
    scattered, gathered = expected.copy(), expected.copy()
    scattered[:, ::10] = expected[:, ::10, ::-1]
    gathered[0] = expected[0, :, ::-1]
    mask = [[1] * 50] * 10

    def width(given: Floats) -> float:
        (verdict,) = judge(
            [answer({"logits": expected}, {"logits": given}, mask)],
            spec_of("token-classification", labels=2),
            BUDGET,
            "pytorch",
        )
        assert verdict.check.worst == pytest.approx(0.1)
        assert verdict.interval is not None
        return verdict.interval.high - verdict.interval.low

    assert width(gathered) > 3 * width(scattered)


def spans(expected: tuple[int, int], given: tuple[int, int], mask: list[int]) -> Verdict:
    def sides(span: tuple[int, int]) -> Feeds:
        start, end = np.zeros((1, len(mask))), np.zeros((1, len(mask)))
        start[0, span[0]] = end[0, span[1]] = 5.0
        return {"start_logits": start, "end_logits": end}

    (verdict,) = judge(
        [answer(sides(expected), sides(given), [mask])], spec_of("question-answering"), BUDGET, "pytorch"
    )
    return verdict


def test_answers_are_judged_by_their_whole_span() -> None:
    assert spans((1, 2), (1, 2), [1, 1, 1, 1]).check.passed
    assert not spans((1, 2), (1, 3), [1, 1, 1, 1]).check.passed


def test_start_and_end_in_each_other_s_place_are_another_span() -> None:
    start, end = np.zeros((1, 6)), np.zeros((1, 6))
    start[0, 1], end[0, 4] = 5.0, 6.0
    expected = {"start_logits": start, "end_logits": end}
    swapped = {"start_logits": end, "end_logits": start}
    (verdict,) = judge(
        [answer(expected, swapped, [[1] * 6])], spec_of("question-answering"), BUDGET, "pytorch"
    )
    assert not verdict.check.passed


LETTERS = ("", *"0123456789", " ")


def steps(*lines: str, width: int = 24) -> Floats:
    """Probabilities that spell the lines, each character held for two steps and set off by a blank."""
    made = np.full((len(lines), width, len(LETTERS)), 0.01)
    for row, line in enumerate(lines):
        best = [cell for letter in line for cell in (LETTERS.index(letter), LETTERS.index(letter), 0)]
        best += [0] * (width - len(best))
        made[row, np.arange(width), best] = 0.9
    return made


def read(expected: Floats, given: Floats) -> Verdict:
    spec = replace(spec_of("text-recognition"), labels=LETTERS)
    (verdict,) = judge([answer({"probabilities": expected}, {"probabilities": given})], spec, 0.1, "golden")
    return verdict


def test_lines_are_judged_by_the_characters_that_change() -> None:
    same = read(steps("1200", "7 7", "", "33"), steps("1200", "7 7", "", "33"))
    assert (same.check.worst, same.check.samples, same.check.output) == (0.0, 4, "probabilities")
    assert same.note.startswith("too few samples (4) to tell 10 % apart")
    # One replaced, one left out, one too many: three edits of nine characters.
    other = read(steps("1200", "7 7", "", "33"), steps("1300", "77", "4", "33"))
    assert other.check.worst == pytest.approx(3 / 9)
    assert not other.check.passed


def test_a_line_read_where_there_is_none_is_more_than_all_wrong() -> None:
    worse = read(steps("1", ""), steps("2", "3456"))
    assert worse.check.worst == 5.0
    assert not worse.check.passed


def test_a_reference_that_reads_nothing_is_no_pass() -> None:
    for given in (steps("", ""), steps("1", "")):
        verdict = read(steps("", ""), given)
        assert np.isnan(verdict.check.worst)
        assert not verdict.check.passed


def test_lines_of_several_widths_are_counted_together() -> None:
    spec = replace(spec_of("text-recognition"), labels=LETTERS)
    answers = [
        answer({"probabilities": steps(a, width=w)}, {"probabilities": steps(b, width=w)})
        for a, b, w in (("12345678", "12345678", 24), ("12", "13", 8))
    ]
    (verdict,) = judge(answers, spec, 0.1, "golden")
    assert (verdict.check.worst, verdict.check.samples, verdict.check.passed) == (0.1, 2, True)


def test_images_are_judged_by_their_best_label() -> None:
    expected = logits(500, 9)
    given = expected.copy()
    given[:2] = -given[:2]
    (two,) = judge(
        [answer({"logits": expected}, {"logits": given})],
        spec_of("image-classification", 9),
        BUDGET,
        "golden",
    )
    assert (two.check.worst, two.check.passed) == (0.004, True)


def test_labels_judge_in_place_of_agreement_and_beside_distances(vectors: Floats) -> None:
    some = [answer({"logits": logits(4)}, {"logits": logits(4)})]
    (beside,) = judge(some, spec_of("sequence-classification"), BUDGET, "pytorch", labelled=True)
    assert (beside.check.metric, beside.check.limit) == ("label_disagreement", 5 * BUDGET)
    both = [answer({"embedding": vectors}, {"embedding": vectors})]
    assert len(judge(both, spec_of("embeddings"), BUDGET, "pytorch", labelled=True)) == 2


@pytest.mark.parametrize(
    ("task", "output", "shape"),
    [
        ("embeddings", "embedding", (6, 8)),
        ("sequence-classification", "logits", (6, 3)),
        ("reranking", "logits", (6, 1)),
        ("token-classification", "logits", (6, 5, 3)),
        ("question-answering", "start_logits", (6, 5)),
        ("image-classification", "logits", (6, 9)),
        ("text-recognition", "probabilities", (6, 5, 3)),
    ],
)
def test_nothing_missing_short_or_not_a_number_passes_any_budget(
    task: str, output: str, shape: tuple[int, ...]
) -> None:
    spec = spec_of(task, labels=shape[-1])
    array = np.random.default_rng(4).normal(size=shape)
    expected = {output: array}
    if task == "question-answering":
        expected["end_logits"] = array[::-1].copy()
    mask = [[1] * 5] * 6
    one_nan = array.copy()
    one_nan.flat[-1] = np.nan
    wrong = [
        {},
        {**expected, output: array[:-1]},
        {**expected, output: array[:, :-1]},
        {**expected, output: one_nan},
        {**expected, output: np.full_like(array, np.inf)},
    ]
    for given in wrong:
        for sides in ((expected, given), (given or {"x": array}, expected)):
            verdicts = judge([answer(*sides, mask)], spec, 1.0, "pytorch")
            assert verdicts
            assert not any(verdict.check.passed for verdict in verdicts)
            assert all(verdict.note == "" for verdict in verdicts)
    for verdict in judge([], spec, 1.0, "pytorch"):
        assert not verdict.check.passed
    assert all(v.check.passed for v in judge([answer(expected, expected, mask)], spec, 0.0, "pytorch"))


def test_a_note_is_made_only_where_the_interval_holds_the_limit() -> None:
    expected = logits(2000)
    (clear,) = judge(
        [answer({"logits": expected}, {"logits": expected})],
        spec_of("sequence-classification"),
        BUDGET,
        "pytorch",
    )
    assert clear.interval is not None
    assert clear.note == ""
    assert replace(clear, check=replace(clear.check, limit=0.0)).note.endswith("95 % of 0 % to 0.192 %")


def test_the_table_in_the_documentation_is_the_one_that_judges() -> None:
    text = (Path(__file__).parents[2] / "docs" / "accuracy.md").read_text("utf-8")
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    limits = {1: "x", 5: "5x"}
    expected = [
        f"| `{task}` | `{clause.metric}` | {clause.meaning} | {limits[int(clause.times)]} | {clause.when} |"
        for task in TASKS
        for clause in clauses_for(task)
    ]
    assert [row for row in rows if row.split("`")[1] in TASKS] == expected
