"""An engine with several profiles takes no size that lies between them: whatever makes batches for it keeps to that."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tiny

from alula import families, graphs
from alula.batching import Ran
from alula.codecs import TextCodec, fit, within
from alula.core.engine import Plan, Session
from alula.core.errors import ShapeError
from alula.core.model import ModelSpec
from alula.core.profile import Profile, Range, hull
from alula.core.tensor import Feeds
from alula.data import Dataset, Example
from alula.engines import backend
from alula.evidence import gather, judge_all
from alula.questions import questions_of
from alula.serve import ServeOptions
from alula.serve.service import in_profile, policy
from alula.verify import alone, draw

ALONE = Profile({"batch": Range(1, 1, 1), "length": Range(1, 16, 64)})
MANY = Profile({"batch": Range(4, 4, 8), "length": Range(4, 8, 20)})
PLAN = Plan(profile=hull((ALONE, MANY)), tuned=(ALONE, MANY))
PROFILE = PLAN.profile
OPTIONS = ServeOptions(bundles=(Path("b"),))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.checkpoint(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture(scope="module")
def spec(model: Path) -> ModelSpec:
    return families.describe(families.open_checkpoint(str(model)))


@pytest.fixture(scope="module")
def session(model: Path, spec: ModelSpec, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    """ONNX Runtime would take any size; with this plan it refuses what TensorRT would."""
    with _opened(model, spec, tmp_path_factory.mktemp("engine")) as opened:
        yield opened


@contextmanager
def _opened(model: Path, spec: ModelSpec, folder: Path) -> Iterator[Session]:
    runtime = backend("onnxruntime")
    written = families.write(families.open_checkpoint(str(model)), spec, "encoder")
    graph = graphs.save(written, folder / "graph.onnx", "fp32")
    with closing(runtime.open(runtime.compile(graph, PLAN, folder / "engine"))) as opened:
        yield opened


def feeds(rows: int, length: int) -> Feeds:
    ones = np.ones((rows, length), np.int64)
    return {"input_ids": ones * 5, "attention_mask": ones, "token_type_ids": ones * 0}


@pytest.mark.parametrize(("rows", "length"), [(1, 64), (4, 4), (8, 20)])
def test_sizes_in_a_profile_are_run(session: Session, rows: int, length: int) -> None:
    assert session.run(feeds(rows, length))["embedding"].shape == (rows, 32)


@pytest.mark.parametrize(("rows", "length"), [(2, 20), (4, 21), (8, 64), (4, 3)])
def test_sizes_between_them_are_refused(session: Session, rows: int, length: int) -> None:
    with pytest.raises(ShapeError, match=f"^batch {rows}, length {length}: in none of the profiles"):
        session.run(feeds(rows, length))


@pytest.mark.parametrize("rows", range(1, 9))
@pytest.mark.parametrize("words", [0, 1, 17, 18])
def test_rows_are_repeated_and_padded_to_what_is_taken(
    model: Path, spec: ModelSpec, session: Session, rows: int, words: int
) -> None:
    served = within(spec, PROFILE)
    codec = TextCodec.open(model, served)
    batch = [codec.encode(" ".join(["cat"] * words)) for _ in range(rows)]
    assert len(session.run(fit(batch, served, PROFILE))["embedding"]) >= rows


def test_samples_are_drawn_in_every_profile_and_all_are_taken(spec: ModelSpec) -> None:
    samples = draw(spec, PROFILE)
    assert {sample.name.partition(",")[0] for sample in samples} == {"profile 1", "profile 2"}
    taken = [[part.takes(sample.sizes(spec)) for part in PROFILE.parts] for sample in samples]
    assert all(any(each) for each in taken)
    assert all(any(of_part) for of_part in zip(*taken, strict=True))
    singles = [alone(sample, 0, spec, PROFILE, padding=1) for sample in samples if len(sample.mask) > 1]
    assert all(PROFILE.takes(single.sizes(spec)) for single in singles)
    # The names of those of a single profile are what they were.
    assert next(sample.name for sample in draw(spec, MANY)) == "smallest"


def test_the_gate_asks_for_nothing_between_the_profiles(
    model: Path, spec: ModelSpec, session: Session
) -> None:
    evidence = gather("own-graph", families.open_checkpoint(str(model)), spec, PROFILE)
    assert any(sample.name.startswith("texts") for sample in evidence[0].samples)
    checks = judge_all(evidence, session, spec, PROFILE, "fp32")
    assert all(check.passed for check in checks)
    assert {check.metric for check in checks} >= {"cosine", "batch_equals_single", "padding_changes_nothing"}


def test_the_users_rows_are_asked_in_calls_that_are_taken(
    model: Path, spec: ModelSpec, session: Session
) -> None:
    texts = [" ".join(["cat"] * words) for words in (1, 2, 30, 3, 18, 17, 40, 5, 6)]
    examples = tuple(Example(texts=(text,), line=at) for at, text in enumerate(texts))
    data = Dataset(path=Path("rows"), examples=examples, skipped=(), digest="")
    asked = questions_of(data, spec, PROFILE, model)
    answers = asked.ask(session)
    assert sum(len(answer["embedding"]) for answer in answers) == len(texts)
    # Rows of more than 20 tokens go alone.
    assert [len(call.rows) for call in asked.calls] == [7, 1, 1]


def test_a_server_joins_as_many_rows_as_are_taken(spec: ModelSpec) -> None:
    made = policy(within(spec, PROFILE), PROFILE, OPTIONS)
    assert [made.rows(length) for length in (1, 20, 21, 64)] == [8, 8, 1, 1]
    assert policy(spec, MANY, OPTIONS).steps == ()


def test_a_batch_is_counted_to_the_profile_it_ran_in() -> None:
    ran = Ran(rows=4, tokens=70, longest=20, cells=80, seconds=1.0, waited=(0.0,), failed=False)
    assert in_profile(ran, PROFILE).profile == str(PROFILE.tuned[1])
    assert in_profile(replace(ran, rows=1, longest=64), PROFILE).profile == str(PROFILE.tuned[0])
    assert in_profile(replace(ran, rows=8, longest=24), PROFILE).profile == "", (
        "18 tokens, say, in steps of 4"
    )
    assert in_profile(ran, MANY) == ran
