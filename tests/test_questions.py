"""Rows of data as calls: every row once, made as serving makes them, answers back in the order of the data."""

from __future__ import annotations

import io
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import tiny
import tiny_images
from PIL import Image

from alula import families
from alula.codecs import Row, TextCodec
from alula.core.model import ModelSpec
from alula.core.profile import Profile, Range
from alula.core.words import TEXT_TASKS
from alula.data import Dataset, Example
from alula.engines.torch import reference
from alula.questions import CELLS, Promise, Questions, predictions, questions_of

PROFILE = Profile({"batch": Range(1, 8, 16), "length": Range(1, 8, 64)})
COUNTS = {"reranking": 1, "question-answering": 2}


def spec_of(folder: Path, task: str) -> ModelSpec:
    return families.describe(families.open_checkpoint(str(folder)), task)


def texts(count: int, each: int = 1, seed: int = 0) -> list[tuple[str, ...]]:
    rng = np.random.default_rng(seed)
    return [
        tuple(" ".join(rng.choice(tiny.WORDS, size=int(rng.integers(1, 20)))) for _ in range(each))
        for _ in range(count)
    ]


def data(rows: list[tuple[str, ...]]) -> Dataset:
    examples = tuple(Example(texts=row, line=at + 1) for at, row in enumerate(rows))
    return Dataset(path=Path("rows.jsonl"), examples=examples, skipped=(), digest="")


def asked(folder: Path, rows: Dataset, task: str = "embeddings", profile: Profile = PROFILE) -> Questions:
    return questions_of(rows, spec_of(folder, task), profile, folder)


def tokens_of(questions: Questions) -> int:
    return sum(len(row.ids) for row in questions.rows if isinstance(row, Row))


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.checkpoint(tmp_path_factory.mktemp("tiny") / "model")


@pytest.mark.parametrize("count", [1, 3, 9, 40])
def test_every_row_is_in_one_call(encoder: Path, count: int) -> None:
    """Adlik/Adlik#534: with fewer samples than a batch, or a rest that fills none, samples went missing."""
    questions = asked(encoder, data(texts(count)))
    assert sorted(row for call in questions.calls for row in call.rows) == list(range(count))
    assert sum(int(feeds["attention_mask"].sum()) for feeds in questions) == tokens_of(questions)


@pytest.mark.parametrize("count", [3, 9])
def test_every_image_is_in_one_call(count: int, tmp_path: Path) -> None:
    """Adlik/Adlik#534: of three images no batch of eight was made, and of nine the last was left out."""
    folder = tiny_images.image_checkpoint(tmp_path, "resnet")
    rows = []
    for at in range(count):
        file = io.BytesIO()
        Image.new("RGB", (32, 32), (20 * at, 0, 0)).save(file, "PNG")
        rows.append(Example(image=file.getvalue(), line=at + 1))
    images = Dataset(path=Path("images"), examples=tuple(rows), skipped=(), digest="")
    profile = Profile({"batch": Range(1, 8, 8)})
    pixels = np.concatenate(
        [feeds["pixel_values"] for feeds in asked(folder, images, "image-classification", profile)]
    )
    reds = (np.asarray(pixels)[:, 0, 0, 0] * 0.5 + 0.5) * 255
    np.testing.assert_allclose(np.sort(reds), np.arange(count) * 20, atol=0.01)


@pytest.mark.parametrize("count", [1, 8, 20, 1000])
def test_some_calls_are_at_least_one_and_at_most_all(encoder: Path, count: int) -> None:
    questions = asked(encoder, data(texts(24)))
    chosen = questions.some(count)
    assert 1 <= len(chosen) == len(set(chosen)) <= len(questions.calls)
    assert set(chosen) <= set(range(len(questions.calls)))


def test_long_rows_go_together_in_smaller_calls(encoder: Path) -> None:
    questions = asked(
        encoder,
        data([("cat " * 60,)] * 40),
        profile=Profile({"batch": Range(1, 8, 64), "length": Range(1, 8, 512)}),
    )
    assert sum(len(call.rows) for call in questions.calls) == 40
    assert (
        max(len(call.rows) * questions.feeds(call)["input_ids"].shape[1] for call in questions.calls) <= CELLS
    )


def test_a_smallest_batch_is_filled_and_the_filling_is_not_judged(encoder: Path) -> None:
    profile = Profile({"batch": Range(4, 4, 4), "length": Range(16, 16, 64)})
    questions = asked(encoder, data(texts(5)), profile=profile)
    assert {len(questions.feeds(call)["input_ids"]) for call in questions.calls} == {4}
    assert sum(len(feeds["input_ids"]) for feeds in questions) == 5
    with closing(reference(encoder, questions.spec)) as session:
        outputs = questions.ask(session)
    assert sum(len(output["embedding"]) for output in outputs) == 5
    (first, *_) = Promise(questions=questions, budget=0.0).judge(outputs, outputs, "pytorch")
    assert (first.samples, first.worst, first.passed) == (5, 0.0, True)


def test_a_row_is_cut_to_what_the_engine_takes_as_serving_cuts_it(encoder: Path) -> None:
    short = Profile({"batch": Range(1, 8, 16), "length": Range(1, 8, 16)})
    questions = asked(encoder, data([("cat " * 60,)]), profile=short)
    assert tokens_of(questions) == 16


def test_a_question_keeps_its_words_as_in_serving(tmp_path: Path) -> None:
    folder = tiny.checkpoint(tmp_path / "qa", task="question-answering")
    question, context = "who sat on the mat", "the cat " * 60
    (row,) = asked(folder, data([(question, context)]), "question-answering").rows
    codec = TextCodec.open(folder, spec_of(folder, "question-answering"))
    assert row == codec.encode_pair(question, context, only_second=True)
    assert isinstance(row, Row)
    assert row.sources.count(0) == 5


@pytest.mark.parametrize("task", TEXT_TASKS)
def test_answers_come_back_in_the_order_of_the_data(task: str, tmp_path: Path) -> None:
    folder = tiny.checkpoint(tmp_path / "model", task=task, num_labels=COUNTS.get(task, 3))
    rows = texts(11, each=2 if task in {"reranking", "question-answering"} else 1)
    together = asked(folder, data(rows), task)
    with closing(reference(folder, together.spec)) as session:
        found = predictions(together, together.ask(session))
        for row, said in zip(rows, found, strict=True):
            single = asked(folder, data([row]), task)
            (alone,) = predictions(single, single.ask(session))
            if isinstance(alone, np.ndarray | float):
                assert np.allclose(alone, np.asarray(said), atol=1e-5)
            else:
                assert said == alone


@pytest.mark.parametrize("task", TEXT_TASKS)
def test_nothing_is_lost_against_itself_and_nan_is_a_loss(task: str, tmp_path: Path) -> None:
    folder = tiny.checkpoint(tmp_path / "model", task=task, num_labels=COUNTS.get(task, 3))
    pairs = task in {"reranking", "question-answering", "embeddings"}
    rows = data(texts(9, each=2 if pairs else 1))
    questions = asked(folder, rows, task)
    promise = Promise(questions=questions, budget=0.004)
    with closing(reference(folder, questions.spec)) as session:
        outputs = questions.ask(session)
    assert all(check.passed for check in promise.judge(outputs, outputs, "pytorch"))
    broken = [{name: array.copy() for name, array in output.items()} for output in outputs]
    next(iter(broken[0].values())).reshape(-1)[0] = np.nan
    checks = promise.judge(outputs, broken, "pytorch")
    assert checks
    assert not all(check.passed for check in checks)
