"""Real trained models from checkpoint to answers: the written graph in each engine, against transformers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from alula import families, graphs
from alula.codecs import Row, TextCodec, entities, row_outputs, token_labels
from alula.core.check import Check, verified
from alula.core.engine import Plan, Session
from alula.core.model import ModelSpec
from alula.core.profile import Profile, Range
from alula.core.tensor import Feeds
from alula.engines import backend
from alula.verify import Sample, compare, draw, golden, invariance, texts_for

pytest.importorskip("torch")

PROFILE = Profile({"batch": Range(1, 2, 4), "length": Range(2, 16, 64)})
ENGINES = ("openvino", "onnxruntime")
MODELS = ("minilm", "rampart", "quire")
PERSONAL = (
    "My name is Sarah Connor, email sarah.connor@example.com, phone 415-555-0132, "
    "I live at 42 Elm Street, Boston, MA 02118."
)
MISTAKES = "I has went to the store yesterday and buyed there book ."


@dataclass(frozen=True, kw_only=True, slots=True)
class Real:
    """A checkpoint with its spec, codec, samples, and what transformers gives for them."""

    checkpoint: families.Checkpoint
    spec: ModelSpec
    codec: TextCodec
    samples: tuple[Sample, ...]
    outputs: tuple[Feeds, ...]


@pytest.fixture(scope="module", params=MODELS)
def real(request: pytest.FixtureRequest) -> Real:
    from alula.engines.torch import reference  # noqa: PLC0415 - torch may be missing

    folder: Path = request.getfixturevalue(f"{request.param}_folder")
    checkpoint = families.open_checkpoint(str(folder))
    spec = families.describe(checkpoint)
    codec = TextCodec.open(folder, spec)
    rows = [codec.encode(*texts) for texts in texts_for(spec.task)[:8]]
    texts = [Sample(name="texts", feeds=codec.collate(rows[at : at + 4])) for at in (0, 4)]
    samples = (*draw(spec, PROFILE), *texts)
    with closing(reference(folder, spec, threads=2)) as session:
        outputs = tuple(session.run(sample.feeds) for sample in samples)
    return Real(checkpoint=checkpoint, spec=spec, codec=codec, samples=samples, outputs=outputs)


@contextmanager
def opened(real: Real, name: str, precision: str, folder: Path) -> Iterator[Session]:
    engine = backend(name)
    passes = graphs.passes_for(name, precision)
    model = graphs.rewrite(families.write(real.checkpoint, real.spec, "encoder"), passes)
    graph = graphs.save(model, folder / f"encoder.{precision}.onnx", precision)
    compiled = engine.compile(graph, Plan(profile=PROFILE), folder / "engine")
    with closing(engine.open(compiled, threads=2)) as session:
        yield session


@pytest.fixture(scope="module", params=ENGINES)
def session(
    real: Real, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Session]:
    with opened(real, request.param, "fp32", tmp_path_factory.mktemp("engine")) as session:
        yield session


def shown(checks: tuple[Check, ...]) -> list[str]:
    return [f"{c.output} {c.metric} {c.worst:.3g}, limit {c.limit:g}" for c in checks if not c.passed]


def test_the_engine_equals_transformers_on_ragged_samples_and_texts(real: Real, session: Session) -> None:
    checks = compare(real.outputs, session, real.samples, real.spec, "fp32", "pytorch")
    assert shown(checks) == []
    assert verified(checks)
    assert checks[0].samples >= 16


def test_a_row_alone_equals_the_row_in_a_batch_and_padding_changes_nothing(
    real: Real, session: Session
) -> None:
    checks = invariance(session, draw(real.spec, PROFILE, seed=1), real.spec, PROFILE, "fp32")
    assert len(checks) >= 2
    assert shown(checks) == []


def test_bf16_stays_within_its_limits_and_is_not_fp32(real: Real, tmp_path: Path) -> None:
    with opened(real, "openvino", "bf16", tmp_path) as session:
        checks = compare(real.outputs, session, real.samples, real.spec, "bf16", "pytorch")
        assert shown(checks) == []
        as_fp32 = compare(real.outputs, session, real.samples, real.spec, "fp32", "pytorch")
    assert shown(as_fp32) != []


def test_what_the_model_is_for_comes_out_of_it(real: Real, session: Session) -> None:
    if real.spec.name == "rampart":
        row, outputs = answered(real, session, PERSONAL)
        found = entities(outputs, row, PERSONAL, real.spec)
        assert {("Sarah", "GIVEN_NAME"), ("Connor", "SURNAME"), ("Boston", "CITY"), ("MA", "STATE")} <= {
            (entity.word, entity.entity_group) for entity in found
        }
        covered = {at for e in found if e.entity_group == "PHONE" for at in range(e.start, e.end)}
        begins = PERSONAL.index("415-555-0132")
        assert set(range(begins, begins + 12)) <= covered
        assert all(PERSONAL[entity.start : entity.end] == entity.word for entity in found)
    elif real.spec.name == "quire":
        row, outputs = answered(real, session, MISTAKES)
        edits = [(t.word, t.entity, t.start) for t in token_labels(outputs, row, MISTAKES, real.spec)]
        assert [edit for edit in edits if edit[1] != "$KEEP"] == [
            ("has", "$REPLACE_have", 2),
            ("went", "$REPLACE_gone", 6),
            ("buy", "$REPLACE_bought", MISTAKES.index("buyed")),
            ("there", "$REPLACE_their", MISTAKES.index("there")),
        ]
    else:
        pairs = ("A man plays the guitar.", "Someone is playing a guitar.", "Stocks fell on Monday.")
        rows = [real.codec.encode(text) for text in pairs]
        a, near, far = np.asarray(session.run(real.codec.collate(rows))["embedding"], np.float64)
        assert a @ near > 0.7
        assert abs(a @ far) < 0.2


def test_golden_outputs_ship_for_the_demo_model_and_the_engine_equals_them(
    real: Real, session: Session
) -> None:
    stored = golden.find(real.spec.digest)
    if real.spec.task != "embeddings":
        assert stored is None
        return
    assert stored is not None, "run tools/make_golden.py: the digest of a checkpoint is made another way now"
    fitting = [
        (sample, outputs)
        for sample, outputs in zip(stored.samples, stored.outputs, strict=True)
        if sample.mask.shape[0] <= PROFILE.axes["batch"].max
        and sample.mask.shape[1] <= PROFILE.axes["length"].max
    ]
    samples, outputs = zip(*fitting, strict=True)
    checks = compare(outputs, session, samples, real.spec, "fp32", "golden")
    assert shown(checks) == []
    assert verified(checks)
    assert checks[0].worst > 0.99999


def answered(real: Real, session: Session, text: str) -> tuple[Row, Feeds]:
    """A text as the model reads it, and what the session gives for it alone."""
    row = real.codec.encode(text)
    return row, row_outputs(session.run(real.codec.collate([row])), [row], real.spec)[0]
